"""Trains a model with PyTorch and transformers, f32 on the CPU: what Haversack is compared with.

    python bench/pytorch_worker.py --mode eager --model DIR --data FILE --batch 4 --seq 512 \
        --steps 6 --metrics FILE

Mode `eager` is SDPA attention, `checkpoint` adds gradient checkpointing of each block, `compile` is
torch.compile of the model. AdamW is the fused one; the gradient's norm is clipped to 1. One JSON
line a step goes to the metrics file, with the names of Haversack's metrics.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

MODES = ("eager", "checkpoint", "compile")


def batches(model: Path, data: Path, batch: int, seq: int, steps: int) -> Iterator[torch.Tensor]:
    """`steps` batches of token ids [batch, seq], cut from the text one after another."""
    needed = batch * seq * steps
    # A token of real text has more than two bytes, and one is enough to go on with.
    text = data.read_text(encoding="utf-8")[: 16 * needed]
    ids = AutoTokenizer.from_pretrained(model)(text, return_tensors="pt")["input_ids"][0]
    if ids.numel() < needed:
        raise SystemExit(f"{data}: {ids.numel()} tokens, {needed} are needed")
    yield from ids[:needed].reshape(steps, batch, seq)


def load(path: Path, mode: str) -> tuple[PreTrainedModel, torch.nn.Module]:
    """The model, and what to call: the same or its compiled form."""
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="sdpa"
    )
    model.config.use_cache = False
    model.train()
    if mode == "checkpoint":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model, torch.compile(model) if mode == "compile" else model


def train(args: argparse.Namespace) -> None:
    model, forward = load(args.model, args.mode)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    data = batches(args.model, args.data, args.batch, args.seq, args.steps)
    with args.metrics.open("w", encoding="utf-8") as metrics:
        for step, ids in enumerate(data, start=1):
            start = time.perf_counter()
            loss = forward(input_ids=ids, labels=ids).loss
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            seconds = time.perf_counter() - start
            line = {
                "step": step,
                "loss": loss.item(),
                "grad_norm": norm.item(),
                "step_s": seconds,
                "tokens_per_s": ids.numel() / seconds,
            }
            print(json.dumps(line), file=metrics, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="One PyTorch training run, for comparison.")
    parser.add_argument("--mode", choices=MODES, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--seq", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--metrics", type=Path, required=True)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
