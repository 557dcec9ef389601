"""Low-rank training against full AdamW: memory, speed, and held-out loss.

    .venv/bin/python bench/compact.py memory --model data/smollm2-135m --data data/kjv/train.txt
    .venv/bin/python bench/compact.py prepare --text data/kjv /usr/share/doc --work runs/compact
    .venv/bin/python bench/compact.py study --work runs/compact --tokens 10000000
    .venv/bin/python bench/compact.py finetune --work runs/finetune --model data/smollm2-135m \
        --data data/kjv/train.txt --valid data/kjv/valid.txt
    .venv/bin/python bench/compact.py report --results runs/compact/results.jsonl

Every run appends one JSON line to the results file; what is there already is not run again, so a
study that was interrupted goes on where it was. A study has two stages. Stage `rate`: every method
on a grid of learning rates, a factor of 2 apart, at a fifth of the tokens, one seed; the grid
grows until its best rate is not at an end. Stage `final`: the best rate, all tokens, three seeds
that all methods share. A difference below two standard errors of the paired differences is
reported as not resolved.
"""

import argparse
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HELD_OUT = re.compile(r"step (\d+): held-out loss ([0-9.]+|nan|inf)")

METHODS: dict[str, list[str]] = {
    "adamw": [],
    "adamw8bit": ["--optimizer", "adamw8bit"],
    "compact n/2": ["--method", "compact", "--rank-ratio", "0.5"],
    "compact n/4": ["--method", "compact", "--rank-ratio", "0.25"],
    "compact n/8": ["--method", "compact", "--rank-ratio", "0.125"],
    "prac 0.6n": ["--method", "prac"],
    "prac-lowrank 0.6n": ["--method", "prac-lowrank"],
}
# Weights, gradients and moments as in full AdamW, less stored for the backward pass: what a reader
# should hold low rank against.
ALTERNATIVES: dict[str, list[str]] = {
    "adamw8bit, cheap recompute": ["--optimizer", "adamw8bit", "--plan", "keep"],
    "adamw, fused update": ["--fused-update", "--clip", "0"],
    "adamw, int8 activations": ["PLAN:int8"],
    "adamw, int4 activations": ["PLAN:int4+o6"],
    "adamw, full recompute": ["--plan", "recompute"],
}
FINE_TUNING: dict[str, list[str]] = {
    "adamw": [],
    "compact n/4": ["--method", "compact", "--rank-ratio", "0.25"],
    "compact n/8": ["--method", "compact", "--rank-ratio", "0.125"],
    "compact r=16": ["--method", "compact", "--rank", "16"],
    "compact r=4": ["--method", "compact", "--rank", "4"],
    "compact r=16, 8-bit rest": [
        *("--method", "compact", "--rank", "16"),
        *("--optimizer", "adamw8bit"),
    ],
}


@dataclass(frozen=True)
class Job:
    """One run; `key` tells it apart from all others of a results file."""

    stage: str
    method: str
    lr: float
    seed: int
    steps: int

    @property
    def key(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "method": self.method,
            "lr": self.lr,
            "seed": self.seed,
            "steps": self.steps,
        }


class Results:
    """JSON lines; a half-written last line, as a killed study leaves it, is dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    self.rows.append(json.loads(line))
                except json.JSONDecodeError:
                    break
            path.write_text("".join(json.dumps(row) + "\n" for row in self.rows))

    def find(self, key: dict[str, Any]) -> dict[str, Any] | None:
        for row in self.rows:
            if all(row.get(name) == value for name, value in key.items()):
                return row
        return None

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())


def haversack(args: argparse.Namespace, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["nice", str(args.binary), *words], capture_output=True, text=True, check=False
    )


def flags_of(words: list[str], work: Path) -> list[str]:
    """PLAN:CODEC stands for a plan file that stores every open value with that codec."""
    if not words or not words[0].startswith("PLAN:"):
        return words
    codec = words[0].removeprefix("PLAN:")
    path = work / f"plan-{codec.split('/')[0].split('+')[0]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {"blocks.*.attn_out": "recompute", "blocks.*.gate_up": codec, "blocks.*.x_mid": codec}
    values |= {"blocks.*.qkv": codec}
    path.write_text(json.dumps({"default": "keep", "values": values}))
    return ["--plan", str(path), "--noise-share", "none"]


def measure(args: argparse.Namespace, job: Job, common: list[str], words: list[str]) -> dict:
    """Trains once and returns the result's line."""
    run = args.work / "run"
    shutil.rmtree(run, ignore_errors=True)
    metrics = args.work / "metrics.jsonl"
    flags = [*common, *flags_of(words, args.work)]
    train = haversack(
        args,
        *("train", "--out", str(run), "--metrics", str(metrics), "--lr", repr(job.lr)),
        *("--seed", str(job.seed), "--steps", str(job.steps), *flags),
    )
    row: dict[str, Any] = job.key | {"rc": train.returncode}
    if train.returncode != 0:
        last = train.stderr.strip().splitlines()
        return row | {"error": last[-1] if last else "", "held_out": math.inf}
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    held_out = [float(loss) for _, loss in HELD_OUT.findall(train.stderr)]
    warm = steps[1:] or steps
    shutil.rmtree(run, ignore_errors=True)
    return row | {
        "held_out": held_out[-1] if held_out else None,
        "loss": steps[-1]["loss"],
        "tokens_per_s": statistics.median(s["tokens_per_s"] for s in warm),
        "step_s": statistics.median(s["step_s"] for s in warm),
        "predicted_peak_bytes": steps[-1]["predicted_peak_bytes"],
        "live_peak_bytes": steps[-1]["live_peak_bytes"],
        "rss_peak_bytes": steps[-1]["rss_peak_bytes"],
    }


def run_once(
    args: argparse.Namespace, results: Results, job: Job, common: list[str], words: list[str]
) -> dict[str, Any]:
    found = results.find(job.key)
    if found is not None:
        return found
    row = measure(args, job, common, words)
    results.add(row)
    print(json.dumps(row), flush=True)
    return row


# memory


def memory(args: argparse.Namespace) -> None:
    """Resident peak and seconds a step on the same batch, with the same kept activations."""
    results = Results(args.work / "memory.jsonl")
    common = [
        *("--model", str(args.model), "--data", str(args.data), "--memory", args.memory),
        *("--batch", str(args.batch), "--seq", str(args.seq)),
        *("--micro-batch", str(args.micro_batch or args.batch)),
    ]
    keep = ["--plan", "keep"]
    table = {name: [*words, *keep] for name, words in (METHODS | FINE_TUNING).items()}
    for name, words in ALTERNATIVES.items():
        table[name] = words if words[0].startswith("PLAN:") or "--plan" in words else words + keep
    for name, words in table.items():
        stage = f"memory {args.batch}x{args.seq}/{args.micro_batch or args.batch}"
        job = Job(stage, name, 1e-5, 0, args.steps)
        if "--fused-update" in words and (args.micro_batch or args.batch) != args.batch:
            continue
        run_once(args, results, job, common, words)
    base = next(row for row in results.rows if row["method"] == "adamw")
    print(f"\n{'':28} {'resident peak':>14} {'saved':>7} {'s a step':>9}")
    for row in results.rows:
        if "rss_peak_bytes" not in row:
            print(f"{row['method']:28} {row['error']}")
            continue
        share = 1 - row["rss_peak_bytes"] / base["rss_peak_bytes"]
        print(
            f"{row['method']:28} {row['rss_peak_bytes'] / 2**20:10.0f} MiB {share:7.1%} "
            f"{row['step_s']:9.2f}"
        )


# pre-training


def documents(folders: list[Path]) -> Iterator[str]:
    for folder in folders:
        paths = [folder] if folder.is_file() else sorted(folder.rglob("*"))
        for path in paths:
            if not path.is_file() or path.suffix not in {".txt", ".rst", ".md", ".py"}:
                continue
            text = path.read_text(errors="replace")
            # A long file is many documents.
            for begin in range(0, len(text), 20_000):
                yield text[begin : begin + 20_000]


def prepare(args: argparse.Namespace) -> None:
    """A corpus with every 20th document held out, a byte-level tokenizer and a model directory."""
    from tokenizers import ByteLevelBPETokenizer

    args.work.mkdir(parents=True, exist_ok=True)
    train, valid = args.work / "train.jsonl", args.work / "valid.jsonl"
    seen: set[int] = set()
    with train.open("w") as kept, valid.open("w") as held_out:
        for text in documents(args.text):
            if hash(text) in seen:
                continue
            seen.add(hash(text))
            file = held_out if len(seen) % 20 == 0 else kept
            file.write(json.dumps({"text": text}) + "\n")
    tokenizer = ByteLevelBPETokenizer()
    texts = (json.loads(line)["text"] for line in train.open())
    tokenizer.train_from_iterator(
        texts, vocab_size=args.vocab, special_tokens=["<|endoftext|>"], show_progress=False
    )
    model = args.work / "model"
    model.mkdir(exist_ok=True)
    tokenizer.save(str(model / "tokenizer.json"))
    (model / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "architectures": ["LlamaForCausalLM"],
                "hidden_size": args.hidden,
                "intermediate_size": args.hidden * 8 // 3 // 16 * 16,
                "num_hidden_layers": args.layers,
                "num_attention_heads": args.hidden // 32,
                "num_key_value_heads": args.hidden // 32,
                "max_position_embeddings": 2048,
                "vocab_size": args.vocab,
                "tie_word_embeddings": True,
                "initializer_range": 0.02,
                "rms_norm_eps": 1e-5,
                "eos_token_id": 0,
            }
        )
    )
    count = sum(len(tokenizer.encode(json.loads(line)["text"]).ids) for line in train.open())
    print(f"{len(seen)} documents, {count} training tokens, {args.vocab} entries")


def best_rate(rows: list[dict[str, Any]]) -> float:
    return min(rows, key=lambda row: row["held_out"])["lr"]


def tuned(
    args: argparse.Namespace,
    results: Results,
    method: str,
    words: list[str],
    common: list[str],
    steps: int,
) -> float:
    """The best rate of a grid that reaches below and above it."""
    rates = [args.lr / 2, args.lr, args.lr * 2]
    while True:
        rows = [
            run_once(args, results, Job("rate", method, lr, 0, steps), common, words)
            for lr in rates
        ]
        best = best_rate(rows)
        if best == min(rates) and len(rates) < 8:
            rates.insert(0, best / 2)
        elif best == max(rates) and len(rates) < 8:
            rates.append(best * 2)
        else:
            return best


def compare(args: argparse.Namespace, table: dict[str, list[str]], common: list[str]) -> None:
    results = Results(args.work / "results.jsonl")
    steps = max(1, args.tokens // (args.batch * args.seq))
    chosen = [m for m in table if not args.methods or m in args.methods]
    for method in chosen:
        lr = tuned(args, results, method, table[method], common, max(1, steps // 5))
        for seed in range(1, args.seeds + 1):
            run_once(args, results, Job("final", method, lr, seed, steps), common, table[method])
    print_report(results.rows)


def study(args: argparse.Namespace) -> None:
    common = [
        *("--model", str(args.work / "model"), "--init", "random"),
        *("--data", str(args.work / "train.jsonl"), "--valid", str(args.work / "valid.jsonl")),
        *("--batch", str(args.batch), "--micro-batch", str(args.batch), "--seq", str(args.seq)),
        *("--memory", args.memory, "--plan", "keep", "--warmup", str(args.warmup)),
    ]
    compare(args, METHODS, common)


def finetune(args: argparse.Namespace) -> None:
    common = [
        *("--model", str(args.model), "--data", str(args.data), "--valid", str(args.valid)),
        *("--batch", str(args.batch), "--micro-batch", str(args.micro_batch or args.batch)),
        *("--seq", str(args.seq), "--memory", args.memory, "--plan", "keep"),
    ]
    compare(args, FINE_TUNING, common)


# report


def print_report(rows: list[dict[str, Any]]) -> None:
    final = [row for row in rows if row["stage"] == "final" and row["rc"] == 0]
    base = {row["seed"]: row["held_out"] for row in final if row["method"] == "adamw"}
    print(f"\n{'':24} {'rate':>8} {'loss':>8} {'+-':>7} {'perplexity':>10}  against AdamW")
    for method in dict.fromkeys(row["method"] for row in final):
        mine = [row for row in final if row["method"] == method]
        losses = [row["held_out"] for row in mine]
        mean = statistics.mean(losses)
        error = statistics.stdev(losses) / math.sqrt(len(losses)) if len(losses) > 1 else math.nan
        paired = [row["held_out"] - base[row["seed"]] for row in mine if row["seed"] in base]
        verdict = ""
        if method != "adamw" and paired:
            difference = statistics.mean(paired)
            spread = (
                statistics.stdev(paired) / math.sqrt(len(paired)) if len(paired) > 1 else math.inf
            )
            resolved = abs(difference) >= 2 * spread
            ratio = math.exp(difference) - 1
            verdict = f"{difference:+.4f} ({ratio:+.1%} perplexity)" + (
                "" if resolved else ", not resolved"
            )
        print(
            f"{method:24} {mine[0]['lr']:8.1e} {mean:8.4f} {error:7.4f} {math.exp(mean):10.2f}  "
            f"{verdict}"
        )


def report(args: argparse.Namespace) -> None:
    print_report(Results(args.results).rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "build" / "haversack")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, run: Any, work: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=run.__doc__)
        sub.set_defaults(run=run)
        sub.add_argument("--work", type=Path, default=ROOT / "runs" / work)
        return sub

    sub = command("memory", memory, "compact")
    sub.add_argument("--model", type=Path, required=True)
    sub.add_argument("--data", type=Path, required=True)
    sub.add_argument("--memory", default="6GiB")
    sub.add_argument("--batch", type=int, default=2)
    sub.add_argument("--micro-batch", type=int)
    sub.add_argument("--seq", type=int, default=1024)
    sub.add_argument("--steps", type=int, default=3)

    sub = command("prepare", prepare, "compact")
    sub.add_argument("--text", type=Path, nargs="+", required=True)
    sub.add_argument("--vocab", type=int, default=4096)
    sub.add_argument("--hidden", type=int, default=256)
    sub.add_argument("--layers", type=int, default=6)

    for name, run in (("study", study), ("finetune", finetune)):
        sub = command(name, run, "compact" if run is study else "finetune")
        sub.add_argument("--memory", default="4GiB")
        sub.add_argument("--batch", type=int, default=16 if run is study else 4)
        sub.add_argument("--micro-batch", type=int)
        sub.add_argument("--seq", type=int, default=256)
        sub.add_argument("--tokens", type=int, default=10_000_000 if run is study else 200_000)
        sub.add_argument("--lr", type=float, default=2e-3 if run is study else 2e-5)
        sub.add_argument("--warmup", type=int, default=20)
        sub.add_argument("--seeds", type=int, default=3)
        sub.add_argument("--methods", nargs="*", help="some of the methods, by name")
        if run is finetune:
            for flag in ("--model", "--data", "--valid"):
                sub.add_argument(flag, type=Path, required=True)

    sub = command("report", report, "compact")
    sub.add_argument("--results", type=Path, required=True)

    args = parser.parse_args()
    args.run(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
