"""What transformers makes of a model directory: the figures that Haversack has to reach."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def load(model_dir: Path, dtype: str = "float32") -> Any:
    """The model in `dtype`; a tensor that is missing or unexpected fails the test."""
    # Slow to import, and not every test needs them.
    import torch
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(
        model_dir,
        dtype=getattr(torch, dtype),
        attn_implementation="eager",
        output_loading_info=True,
    )
    assert not info["missing_keys"], info
    assert not info["unexpected_keys"], info
    assert not info["mismatched_keys"], info
    return model.train(mode=False)


def logits(model: Any, ids: Sequence[int]) -> Any:
    """Logits [len(ids), vocab] as f32."""
    return batch_logits(model, [ids])[0]


def batch_logits(model: Any, rows: Sequence[Sequence[int]]) -> Any:
    """Logits [len(rows), len(rows[0]), vocab] as f32, of rows of one length."""
    import torch

    with torch.no_grad():
        return model(torch.tensor([list(row) for row in rows])).logits.float()


def loss(model: Any, ids: Sequence[int], seq: int) -> float:
    """Mean loss of `ids` cut into windows of `seq` inputs, every token but the first predicted."""
    import torch

    windows = [list(ids[begin : begin + seq + 1]) for begin in range(0, len(ids) - 1, seq)]
    total = 0.0
    for rows in (windows[:-1], windows[-1:]):  # only the last may be shorter
        if rows:
            scores = batch_logits(model, [row[:-1] for row in rows]).double().flatten(0, 1)
            targets = torch.tensor([token for row in rows for token in row[1:]])
            total += torch.nn.functional.cross_entropy(scores, targets, reduction="sum").item()
    return total / (len(ids) - 1)
