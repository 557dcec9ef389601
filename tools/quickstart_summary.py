"""Prints what the quickstart's run came to, from the files that the run left.

python tools/quickstart_summary.py runs/quickstart --memory 3GiB
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

MIB = 1 << 20


def last_json_line(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8").strip().splitlines()[-1])


def speed(metrics: list[dict[str, Any]]) -> float:
    """tokens/s: the median over the steps after the first, which warms up."""
    return statistics.median(step["tokens_per_s"] for step in metrics[1:] or metrics)


def summary(run: Path, memory: str) -> str:
    before, after = (last_json_line(run / name) for name in ("before.json", "after.json"))
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    metrics = [json.loads(line) for line in lines]
    predicted = max(step["predicted_peak_bytes"] for step in metrics)
    measured = max(step["rss_peak_bytes"] for step in metrics)
    # `plan` may be a long description; its first word or line names it.
    plan = str(metrics[-1]["plan"]).splitlines()[0]
    rows = {
        "held-out loss": f"{before['loss']:.4f} before, {after['loss']:.4f} after",
        "perplexity": f"{before['perplexity']:.2f} before, {after['perplexity']:.2f} after",
        "training": f"{len(metrics)} steps, {sum(s['tokens'] for s in metrics)} target tokens",
        "speed": f"{speed(metrics):.0f} tokens/s",
        "memory": f"{predicted / MIB:.0f} MiB predicted, {measured / MIB:.0f} MiB measured,"
        f" budget {memory}",
        "plan": plan,
        "trained model": f"{run}/model (a Hugging Face directory)",
        "checkpoints": f"{run}/checkpoints",
        "metrics": f"{run}/metrics.jsonl",
        "sample": f"{run}/sample.txt",
    }
    width = max(len(name) for name in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())


def main() -> None:
    parser = argparse.ArgumentParser(description="Summary of a quickstart run.")
    parser.add_argument("run", type=Path)
    parser.add_argument("--memory", required=True, help="the budget, as given to the run")
    args = parser.parse_args()
    print(f"\n{summary(args.run, args.memory)}")


if __name__ == "__main__":
    main()
