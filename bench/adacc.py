"""Speed at each memory budget: the planner against the plans that others would use.

    .venv/bin/python bench/adacc.py --batch 4 --seq 512 --micro-batch 4 --out runs/adacc.jsonl

At every budget, three steps a cell: the planner (`auto`), selective recomputation (`exact`: keep
and recompute only), everything that can be in 8 or in 4 bits (`int8`, `int4`: uniform, unchecked),
full recomputation, and, with --pytorch, PyTorch with gradient checkpointing, which takes what it
takes. Cells go to --out, one JSON line each, and are not run again; budgets are the outer loop, so
that a machine that slows down slows all methods of a row.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from vs_pytorch import MIB, ROOT, Contender, RunError, measure, pytorch

METHODS = ("auto", "exact", "int8", "int4", "recompute")


def uniform(codec: str, micro_batch: int) -> dict[str, Any]:
    """Every value of every block in one codec; q and k in bf16, as less breaks attention."""
    outliers = f"{codec}/32+o6" if codec == "int4" else f"{codec}+o6"
    plain = f"{codec}/32+o16" if codec == "int4" else codec
    values = {
        "blocks.*.x_mid": outliers,
        "blocks.*.qkv": "bf16,bf16,int8",
        "blocks.*.attn_out": outliers if codec == "int4" else codec,
        "blocks.*.gate_up": plain,
    }
    return {"micro_batch": micro_batch, "values": values}


def flags(args: argparse.Namespace, method: str, scratch: Path) -> list[str]:
    if method in ("int8", "int4"):
        path = scratch / "plan.json"
        path.write_text(json.dumps(uniform(method, args.micro_batch or args.batch)))
        return ["--plan", str(path)]
    if method == "exact":
        return ["--exact"]
    return ["--plan", method]


def contender(args: argparse.Namespace, method: str, budget: int) -> Contender:
    if method == "pytorch":
        return pytorch(args, "checkpoint")

    def command(scratch: Path, metrics: Path) -> list[str]:
        micro = ["--micro-batch", str(args.micro_batch)] if args.micro_batch else []
        return [
            *(str(args.haversack), "train", "--model", str(args.model), "--data", str(args.data)),
            *("--batch", str(args.batch), "--seq", str(args.seq), "--steps", str(args.steps)),
            *("--lr", "1e-5", "--memory", f"{budget}MiB", *micro, *flags(args, method, scratch)),
            *("--out", str(scratch / "out"), "--metrics", str(metrics)),
        ]

    return Contender(f"{method} {budget} MiB", command)


def smallest(args: argparse.Namespace, *more: str) -> int:
    """MiB that `haversack plan` says are needed at the least."""
    micro = ["--micro-batch", str(args.micro_batch)] if args.micro_batch else []
    command = [str(args.haversack), "plan", "--model", str(args.model), "--json", *micro, *more]
    command += ["--batch", str(args.batch), "--seq", str(args.seq), "--memory", "1MiB"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return int(json.loads(answer)["predicted_peak_bytes"]) // MIB + 8


def done(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    return {(c["method"], c["budget_mib"]): c for c in map(json.loads, lines)}


def run_cell(args: argparse.Namespace, method: str, budget: int) -> dict[str, Any]:
    cell: dict[str, Any] = {"method": method, "budget_mib": budget}
    cell |= {"batch": args.batch, "seq": args.seq, "micro_batch": args.micro_batch}
    with tempfile.TemporaryDirectory(prefix="adacc-", dir=args.scratch) as scratch:
        try:
            result = measure(contender(args, method, budget), 1, Path(scratch))
        except RunError as error:
            return cell | {"failed": str(error).splitlines()[-1][:160]}
    peak = round(result.peak_bytes / MIB)
    return cell | {"tokens_per_s": round(result.tokens_per_s, 1), "peak_mib": peak}


def print_table(cells: dict[tuple[str, int], dict[str, Any]], methods: list[str]) -> None:
    print("| budget MiB | " + " | ".join(methods) + " |")
    print("|---" * (len(methods) + 1) + "|")
    for budget in sorted({budget for _, budget in cells}):
        row = [cells.get((method, budget), {}) for method in methods]
        texts = [
            f"{c['tokens_per_s']} ({c['peak_mib']})" if "tokens_per_s" in c else "-" for c in row
        ]
        print(f"| {budget} | " + " | ".join(texts) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--haversack", type=Path, default=ROOT / "build" / "haversack")
    parser.add_argument("--model", type=Path, default=ROOT / "data" / "smollm2-135m")
    parser.add_argument("--data", type=Path, default=ROOT / "data" / "kjv" / "train.txt")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--micro-batch", type=int, help="fixed for every method; else free")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--budgets", help="MiB, comma separated; else from the smallest to keep")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--pytorch", action="store_true")
    parser.add_argument("--scratch", type=Path, help="where runs write; default: the system's")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "adacc.jsonl")
    args = parser.parse_args()
    methods = args.methods.split(",") + (["pytorch"] if args.pytorch else [])
    if args.budgets:
        budgets = [int(b) for b in args.budgets.split(",")]
    else:
        exact, keep = smallest(args, "--exact"), smallest(args, "--plan", "keep")
        budgets = [exact + (keep - exact) * i // 5 for i in range(6)]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    cells = done(args.out)
    for budget in budgets:
        for method in methods:
            if (method, budget) in cells:
                continue
            cells[method, budget] = cell = run_cell(args, method, budget)
            with args.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(cell) + "\n")
            print(json.dumps(cell), file=sys.stderr, flush=True)
    print_table(cells, methods)


if __name__ == "__main__":
    main()
