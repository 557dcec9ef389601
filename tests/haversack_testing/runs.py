"""Training runs that are killed, resumed and compared."""

import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# What depends on the clock and on memory, and so is no part of a run's identity.
MEASURED = {
    "step_s",
    "tokens_per_s",
    "live_peak_bytes",
    "predicted_peak_bytes",
    "rss_peak_bytes",
    "plan",
}


def train_args(flags: dict[str, Any], out: Path, *switches: object, **changes: Any) -> list[str]:
    """`train` with `flags`, of which every one can be changed or, with None, left out."""
    chosen = flags | {"metrics": f"{out}.jsonl"} | changes
    named = [(f"--{k.replace('_', '-')}", v) for k, v in chosen.items() if v is not None]
    words = ("train", "--out", out, *switches, *(x for pair in named for x in pair))
    return [str(word) for word in words]


def digits(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Metrics without what is measured: equal between a run and its resumed twin."""
    return [{k: v for k, v in line.items() if k not in MEASURED} for line in metrics]


def exported(out: Path) -> dict[str, bytes]:
    """The exported model, file by file."""
    return {p.name: p.read_bytes() for p in sorted((out / "model").iterdir())}


def checkpoint_steps(out: Path) -> list[int]:
    return sorted(int(p.name[5:]) for p in (out / "checkpoints").glob("step-*"))


def write_text(path: Path, size: int, seed: int = 0) -> Path:
    """Lines of random words, about `size` bytes."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 7))) for _ in range(200)]
    block = "".join(" ".join(rng.choices(words, k=8)) + "\n" for _ in range(400))
    with path.open("w") as file:
        for _ in range(size // len(block) + 1):
            file.write(block[: min(size, len(block))])
    return path


def wait_for(
    condition: Callable[[], Any], process: subprocess.Popen[bytes], timeout: float = 120
) -> bool:
    """Whether the condition came true before the process ended."""
    end = time.monotonic() + timeout
    while not condition():
        if process.poll() is not None:
            return False
        assert time.monotonic() < end, "timed out"
        time.sleep(0.0005)
    return True
