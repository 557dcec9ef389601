"""One sentence that tiny models are evaluated on, and trained on for a step."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .binary import Haversack, Result

TEXT = "In the beginning God created the heaven and the earth. And the earth was without form."


@dataclass(frozen=True)
class Evaluate:
    """`haversack eval` of a model on the sentence, in windows of `seq`."""

    haversack: Haversack
    sentence: Path
    seq: int

    def __call__(self, model: Path, **options: Any) -> Result:
        return self.haversack.run(
            *("eval", "--model", model, "--data", self.sentence),
            *("--seq", self.seq, "--threads", 1),
            **options,
        )


def loss(result: Result) -> float:
    assert result.json()["tokens"] == len(TEXT) - 1
    return result.json()["loss"]


def train_one_step(
    haversack: Haversack, model: Path, sentence: Path, out: Path, *, seq: int, lr: float
) -> Path:
    """The exported model; with a rate of 0 it is the one that was given."""
    haversack.run(
        *("train", "--model", model, "--data", sentence, "--memory", "600MiB", "--batch", 1),
        *("--seq", seq, "--steps", 1, "--lr", lr, "--out", out, "--threads", 1),
    )
    return out / "model"
