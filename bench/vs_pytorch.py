"""Haversack against PyTorch: the same model, batch and text, each run in a process of its own.

    .venv/bin/python bench/vs_pytorch.py --rounds 3 --modes eager,checkpoint \
        --plans keep:4000MiB,recompute:2800MiB

A round runs every contender once, so that a machine that slows down slows all of them; ratios are
taken within a round and their median is printed. tokens/s is the median over the steps after
warm-up. Peak memory is the process's resident peak as the kernel reports it when the process ends
(the same number as VmHWM). "First forward" is from the process's start to the first step's start.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from pytorch_worker import MODES

ROOT = Path(__file__).resolve().parent.parent
WORKER = Path(__file__).resolve().parent / "pytorch_worker.py"
MIB = 1 << 20


@dataclass(frozen=True)
class Measurement:
    tokens_per_s: float
    peak_bytes: int
    first_forward_s: float
    first_step_end_s: float
    losses: list[float]


@dataclass(frozen=True)
class Contender:
    name: str
    # The command, given a scratch directory and the metrics file.
    command: Callable[[Path, Path], list[str]]


class RunError(Exception):
    """A contender ended with an error or wrote no metrics."""


def pytorch(args: argparse.Namespace, mode: str) -> Contender:
    def command(_: Path, metrics: Path) -> list[str]:
        return [
            *(sys.executable, str(WORKER), "--mode", mode),
            *("--model", str(args.model), "--data", str(args.data)),
            *("--batch", str(args.batch), "--seq", str(args.seq), "--steps", str(args.steps)),
            *("--metrics", str(metrics)),
        ]

    return Contender(f"PyTorch {mode}", command)


def haversack(args: argparse.Namespace, plan: str, memory: str) -> Contender:
    def command(scratch: Path, metrics: Path) -> list[str]:
        return [
            *(str(args.haversack), "train"),
            *("--model", str(args.model), "--data", str(args.data)),
            *("--batch", str(args.batch), "--micro-batch", str(args.micro_batch or args.batch)),
            *("--seq", str(args.seq), "--steps", str(args.steps), "--lr", "1e-5"),
            *("--plan", plan, "--memory", memory),
            *("--out", str(scratch / "out"), "--metrics", str(metrics)),
        ]

    return Contender(f"Haversack {plan} {memory}", command)


def read_metrics(path: Path) -> list[dict[str, float]]:
    if not path.exists():
        return []
    # A line that is still being written has no end yet.
    complete = path.read_text(encoding="utf-8").rpartition("\n")[0]
    return [json.loads(line) for line in complete.splitlines()]


def measure(contender: Contender, warm_up: int, scratch: Path) -> Measurement:
    metrics, log = scratch / "metrics.jsonl", scratch / "log"
    start = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            contender.command(scratch, metrics),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        first_step_end = 0.0
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if not first_step_end and read_metrics(metrics):
                first_step_end = time.monotonic() - start
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                break
            time.sleep(0.1)
    steps = read_metrics(metrics)
    if process.returncode != 0 or len(steps) <= warm_up:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
        raise RunError(f"{contender.name}: exit {process.returncode}, {len(steps)} steps\n{tail}")
    return Measurement(
        tokens_per_s=statistics.median(step["tokens_per_s"] for step in steps[warm_up:]),
        peak_bytes=usage.ru_maxrss * 1024,
        first_forward_s=first_step_end - steps[0]["step_s"],
        first_step_end_s=first_step_end,
        losses=[step["loss"] for step in steps],
    )


def run_rounds(
    args: argparse.Namespace, contenders: list[Contender]
) -> dict[str, list[Measurement]]:
    results: dict[str, list[Measurement]] = {c.name: [] for c in contenders}
    for number in range(1, args.rounds + 1):
        for contender in contenders:
            scratch = Path(tempfile.mkdtemp(prefix="vs-pytorch-", dir=args.scratch))
            try:
                result = measure(contender, args.warm_up, scratch)
            finally:
                shutil.rmtree(scratch)
            results[contender.name].append(result)
            print(
                f"round {number}: {contender.name}: {result.tokens_per_s:.1f} tokens/s,"
                f" {result.peak_bytes / MIB:.0f} MiB, first forward {result.first_forward_s:.1f} s",
                file=sys.stderr,
                flush=True,
            )
    return results


def median_ratio(
    ours: list[Measurement], theirs: list[Measurement], value: Callable[[Measurement], float]
) -> float:
    """The median over rounds of ours / theirs."""
    return statistics.median(value(a) / value(b) for a, b in zip(ours, theirs, strict=True))


def summarise(results: dict[str, list[Measurement]]) -> dict[str, dict[str, float]]:
    """One row a contender; ratios to each PyTorch mode beside the medians."""
    table = {}
    for name, runs in results.items():
        row = {
            "tokens_per_s": statistics.median(r.tokens_per_s for r in runs),
            "peak_mib": statistics.median(r.peak_bytes for r in runs) / MIB,
            "first_forward_s": statistics.median(r.first_forward_s for r in runs),
            "first_step_end_s": statistics.median(r.first_step_end_s for r in runs),
        }
        for mode in MODES:
            other = results.get(f"PyTorch {mode}")
            if other:
                row[f"speed_vs_{mode}"] = median_ratio(runs, other, lambda r: r.tokens_per_s)
                row[f"memory_vs_{mode}"] = median_ratio(runs, other, lambda r: r.peak_bytes)
        table[name] = row
    return table


def print_table(table: dict[str, dict[str, float]]) -> None:
    columns = list(next(iter(table.values())))
    width = max(len(name) for name in table)
    print(" " * width, *(f"{c:>{max(len(c), 8)}}" for c in columns), sep="  ")
    for name, row in table.items():
        cells = []
        for column in columns:
            digits = 2 if "_vs_" in column else 0 if column == "peak_mib" else 1
            cells.append(f"{row[column]:>{max(len(column), 8)}.{digits}f}")
        print(f"{name:<{width}}", *cells, sep="  ")


def split(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="The same training in Haversack and in PyTorch: ratios of speed and memory.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--model", type=Path, default=ROOT / "data/smollm2-135m")
    parser.add_argument("--data", type=Path, default=ROOT / "data/kjv/train.txt")
    parser.add_argument("--haversack", type=Path, default=ROOT / "build/haversack")
    parser.add_argument("--batch", type=int, default=4, help="sequences a step")
    parser.add_argument("--seq", type=int, default=512, help="tokens a sequence")
    parser.add_argument("--micro-batch", type=int, help="Haversack's; the whole batch by default")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warm-up", type=int, default=2, help="steps that do not count")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--modes", default="eager,checkpoint", help=f"of {','.join(MODES)}")
    parser.add_argument(
        "--plans",
        default="keep:4000MiB,recompute:2800MiB",
        help="Haversack's plans and their budgets, PLAN:MEMORY,...; a plan may be a file",
    )
    parser.add_argument("--json", type=Path, default=ROOT / "runs/vs_pytorch.json")
    parser.add_argument(
        "--scratch", type=Path, default=ROOT / "runs", help="where runs are written"
    )
    args = parser.parse_args()
    unknown = set(split(args.modes)) - set(MODES)
    if unknown:
        parser.error(f"unknown mode {', '.join(sorted(unknown))}; there are {', '.join(MODES)}")
    if args.steps <= args.warm_up:
        parser.error("--steps must exceed --warm-up")
    return args


def main() -> int:
    args = parse_arguments()
    plans = [plan.rpartition(":") for plan in split(args.plans)]
    contenders = [pytorch(args, mode) for mode in split(args.modes)]
    contenders += [haversack(args, plan, memory) for plan, _, memory in plans]
    args.scratch.mkdir(parents=True, exist_ok=True)
    try:
        results = run_rounds(args, contenders)
    except RunError as error:
        print(error, file=sys.stderr)
        return 1

    table = summarise(results)
    print_table(table)
    report = {
        "settings": {key: str(value) for key, value in vars(args).items()},
        "cpus": os.cpu_count(),
        "summary": table,
        "runs": {name: [asdict(run) for run in runs] for name, runs in results.items()},
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"written to {args.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
