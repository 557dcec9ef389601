"""Invariant 3: the gradient of every tensor equals PyTorch autograd's on the same weights."""

import json
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from haversack_testing import FAMILIES, ROOT, random_model


class Probe(NamedTuple):
    answer: dict[str, Any]
    gradients: dict[str, Any]


def probe(model_dir: Path, request: dict[str, Any], tmp_path: Path) -> Probe:
    from safetensors.torch import load

    request_path, out = tmp_path / "request.json", tmp_path / "gradients.safetensors"
    request_path.write_text(json.dumps(request))
    binary = ROOT / "build" / "gradient_probe"
    run = subprocess.run(
        [binary, model_dir, request_path, out], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    # Not load_file: its tensors are the mapped file, which the next call writes over.
    return Probe(json.loads(run.stdout), load(out.read_bytes()))


def documents_request(vocab: int, sequences: int, seq: int, cuts: list[int]) -> dict[str, Any]:
    """Random tokens in documents that begin at `cuts` and at every sequence's start; a document's
    last token and every seventh one are not predicted."""
    import torch

    generator = torch.Generator().manual_seed(7)
    tokens = sequences * seq
    ids = torch.randint(0, vocab, (tokens,), generator=generator).tolist()
    starts = sorted({*cuts, *range(0, tokens, seq)})
    boundaries = [*starts, tokens]
    targets, positions = [], []
    for begin, end in pairwise(boundaries):
        positions += range(end - begin)
        targets += [*ids[begin + 1 : end], -1]
    targets = [-1 if i % 7 == 3 else t for i, t in enumerate(targets)]
    return {
        "sequences": sequences,
        "seq": seq,
        "ids": ids,
        "targets": targets,
        "positions": positions,
        "boundaries": boundaries,
        "loss_chunk": 24,
    }


def reference(model_dir: Path, request: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Loss sum and gradients of the mean loss: each document alone through transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, attn_implementation="eager"
    )
    model.train(mode=False)
    ids, targets = torch.tensor(request["ids"]), torch.tensor(request["targets"])
    valid = int((targets >= 0).sum())
    loss_sum = torch.zeros((), dtype=torch.float64)
    bounds = request["boundaries"]
    for begin, end in pairwise(bounds):
        logits = model(ids[begin:end][None]).logits[0]
        loss_sum = loss_sum + torch.nn.functional.cross_entropy(
            logits.double(), targets[begin:end], ignore_index=-1, reduction="sum"
        )
    (loss_sum / valid).backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return loss_sum.item(), gradients


def oriented(got: Probe, name: str, gradient: Any) -> Any:
    """Our gradient of a tensor in the checkpoint's own orientation (GPT-2 stores [in, out])."""
    ours = got.gradients[name]
    if name.startswith("transformer.h.") and name.endswith("weight") and ours.shape[1] > 1:
        ours = ours.T
    return ours.reshape(gradient.shape)


def assert_gradients_agree(got: Probe, loss_sum: float, want: dict[str, Any], bound: float) -> None:
    assert got.answer["loss_sum"] == pytest.approx(loss_sum, rel=1e-5)
    assert set(got.gradients) == set(want)
    for name, gradient in want.items():
        ours = oriented(got, name, gradient)
        error = ((ours - gradient).norm() / gradient.norm()).item()
        assert error < bound, f"{name}: relative error {error:.2e}"


VARIANTS: dict[str, list[dict[str, Any]]] = {
    "llama": [
        {},
        {"tie_word_embeddings": True},
        {"head_dim": 24},
        {"attention_bias": True, "mlp_bias": True},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
                "rope_theta": 500000.0,
            }
        },
    ],
    "gpt2": [{}, {"tie_word_embeddings": False}, {"activation_function": "gelu"}],
}
CASES = [(f, v) for f in FAMILIES for v in VARIANTS.get(f, [{}])]


@pytest.mark.parametrize(("family", "overrides"), CASES, ids=lambda v: str(v)[:40])
@pytest.mark.parametrize("plan", ["keep", "recompute"])
def test_every_gradient_equals_autograd(
    family: str, overrides: dict[str, Any], plan: str, tmp_path: Path
) -> None:
    model_dir = random_model(family, tmp_path / "model", **overrides)
    request = documents_request(320, sequences=2, seq=48, cuts=[5, 6, 70])
    loss_sum, want = reference(model_dir, request)
    got = probe(model_dir, request | {"plan": plan}, tmp_path)
    assert_gradients_agree(got, loss_sum, want, bound=1e-4)
    assert got.answer["peak_bytes"] == got.answer["arena_bytes"]


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_products_change_gradients_by_their_rounding_only(family: str, tmp_path: Path) -> None:
    """Operands carry 8 bits: each product errs by up to 2^-8, and this model has few."""
    model_dir = random_model(family, tmp_path / "model", initializer_range=0.02)
    request = documents_request(320, sequences=2, seq=48, cuts=[5, 6, 70])
    loss_sum, want = reference(model_dir, request)
    got = probe(model_dir, request | {"compute": "bf16"}, tmp_path)
    assert got.answer["loss_sum"] == pytest.approx(loss_sum, rel=1e-3)
    assert got.answer["loss_sum"] != loss_sum
    assert got.answer["peak_bytes"] == got.answer["arena_bytes"]
    error = sum(((oriented(got, n, g) - g) ** 2).sum().item() for n, g in want.items())
    norm = sum((g**2).sum().item() for g in want.values())
    assert error < 0.02**2 * norm


def test_smollm2_gradients_equal_autograd(smollm2_dir: Path, tmp_path: Path) -> None:
    request = documents_request(49152, sequences=1, seq=96, cuts=[40])
    loss_sum, want = reference(smollm2_dir, request)
    got = probe(smollm2_dir, request, tmp_path)
    assert_gradients_agree(got, loss_sum, want, bound=1e-4)
