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
    import torch

    with torch.no_grad():
        return model(torch.tensor([list(ids)])).logits[0].float()


def loss(model: Any, ids: Sequence[int], seq: int) -> float:
    """Mean loss of `ids` cut into windows of `seq` inputs, every token but the first predicted."""
    import torch

    total = 0.0
    for begin in range(0, len(ids) - 1, seq):
        window = list(ids[begin : begin + seq + 1])
        scores = logits(model, window[:-1]).double()
        target = torch.tensor(window[1:])
        total += torch.nn.functional.cross_entropy(scores, target, reduction="sum").item()
    return total / (len(ids) - 1)
