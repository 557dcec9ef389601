"""Every family against transformers: the same loss, and an export with the same logits."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from haversack_testing import (
    Haversack,
    judge,
    random_model,
    read_header,
    read_json,
    read_tensors,
    variant,
    write_tensors,
)

TEXT = (
    "In the beginning God created the heaven and the earth. And the earth was without form, and "
    "void; and darkness was upon the face of the deep. Et l'esprit se mouvait à la surface."
)
IDS = list(TEXT.encode())
SEQ = 48

VARIANTS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-head_dim": ("llama", {"head_dim": 24}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-eps": ("llama", {"rms_norm_eps": 1e-2}),
    "llama-linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    ),
    "llama-llama3": (
        "llama",
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
    ),
    "mistral": ("mistral", {}),
    "mistral-head_dim": ("mistral", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {}),
    "qwen3-head_dim": ("qwen3", {"head_dim": 40, "tie_word_embeddings": True}),
    "qwen3-biases": ("qwen3", {"attention_bias": True}),
    "gpt2": ("gpt2", {}),
    "gpt2-untied": ("gpt2", {"tie_word_embeddings": False}),
    "gpt2-erf": ("gpt2", {"activation_function": "gelu", "n_inner": 96}),
    "gpt2-tanh": ("gpt2", {"activation_function": "gelu_pytorch_tanh"}),
}


class Judged(NamedTuple):
    path: Path
    loss: float
    logits: Any


def evaluate(haversack: Haversack, model: Path, text: Path, *more: str | int) -> float:
    run = ("eval", "--model", model, "--data", text, "--seq", SEQ, "--threads", 1)
    answer = haversack.run(*run, *more).json()
    assert answer["tokens"] == len(IDS) - 1
    return answer["loss"]


def export(haversack: Haversack, model: Path, text: Path, out: Path, *more: str) -> Path:
    """One step that changes nothing; returns the exported directory."""
    haversack.run(
        *("train", "--model", model, "--data", text, "--memory", "600MiB", "--batch", 2),
        *("--seq", SEQ, "--steps", 1, "--lr", 0, "--out", out, "--threads", 1, *more),
    )
    return out / "model"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=VARIANTS)
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    family, overrides = VARIANTS[request.param]
    path = random_model(family, tmp_path_factory.mktemp(request.param) / "model", **overrides)
    model = judge.load(path)
    return Judged(path, judge.loss(model, IDS, SEQ), judge.logits(model, IDS[:SEQ]))


def test_loss_is_that_of_transformers(haversack: Haversack, judged: Judged, text: Path) -> None:
    assert evaluate(haversack, judged.path, text) == pytest.approx(judged.loss, rel=1e-5)


def test_export_has_the_logits_and_the_loss(
    haversack: Haversack, judged: Judged, text: Path, tmp_path: Path
) -> None:
    import torch

    exported = export(haversack, judged.path, text, tmp_path / "out")
    model = judge.load(exported)
    # The weights are the same bits, so the logits are.
    torch.testing.assert_close(judge.logits(model, IDS[:SEQ]), judged.logits, rtol=0, atol=0)
    assert judge.loss(model, IDS, SEQ) == judged.loss
    assert evaluate(haversack, exported, text) == pytest.approx(judged.loss, rel=1e-5)
    assert (exported / "tokenizer.json").read_bytes() == (
        judged.path / "tokenizer.json"
    ).read_bytes()


# Half the step of the format at 1: what rounding a weight may change of it.
HALF_STEPS = {"bf16": 2**-9, "f16": 2**-12}
NAMES = {"bf16": "bfloat16", "f16": "float16"}
ONE_OF_EACH = ["llama-tied", "qwen3", "gpt2"]


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_half_precision_export_rounds_each_weight_once(
    name: str, dtype: str, haversack: Haversack, text: Path, tmp_path: Path
) -> None:
    import torch

    family, overrides = VARIANTS[name]
    source = random_model(family, tmp_path / "source", **overrides)
    exported = export(haversack, source, text, tmp_path / "out", "--export-dtype", dtype)
    header, _ = read_header(exported / "model.safetensors")
    expected_type = dtype.upper()
    assert {v["dtype"] for k, v in header.items() if k != "__metadata__"} == {expected_type}
    config = read_json(exported / "config.json")
    assert config.get("dtype", config.get("torch_dtype")) == NAMES[dtype]

    target = getattr(torch, NAMES[dtype])
    original, rounded = judge.load(source), judge.load(exported)
    for (key, a), (_, b) in zip(
        original.named_parameters(), rounded.named_parameters(), strict=True
    ):
        torch.testing.assert_close(b, a.to(target).float(), rtol=0, atol=0, msg=key)
    # Computed in f32 from the rounded weights, both have one loss.
    assert evaluate(haversack, exported, text) == pytest.approx(
        judge.loss(rounded, IDS, SEQ), rel=1e-5
    )
    # Weights off by at most half a step, through some 20 products: far below a hundred half steps.
    assert judge.loss(rounded, IDS, SEQ) == pytest.approx(
        judge.loss(original, IDS, SEQ), rel=100 * HALF_STEPS[dtype]
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "shards"])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_half_precision_and_sharded_weights_have_the_loss_of_transformers(
    name: str, sharded: bool, dtype: str, haversack: Haversack, text: Path, tmp_path: Path
) -> None:
    family, overrides = VARIANTS[name]
    source = random_model(family, tmp_path / "source", **overrides)
    path = tmp_path / "model"
    shutil.copytree(source, path)
    (path / "model.safetensors").unlink()
    judge.load(source, dtype).save_pretrained(path, max_shard_size="60KB" if sharded else "5GB")
    assert (path / "model.safetensors.index.json").exists() == sharded
    loss = judge.loss(judge.load(path), IDS, SEQ)
    assert evaluate(haversack, path, text) == pytest.approx(loss, rel=1e-5)
    # What is exported from it is one file of f32.
    exported = export(haversack, path, text, tmp_path / "out")
    assert judge.loss(judge.load(exported), IDS, SEQ) == loss


@pytest.mark.parametrize("name", ["gpt2", "llama-tied", "qwen2-tied"])
def test_a_checkpoint_of_the_base_model_is_read_without_its_prefix(
    name: str, haversack: Haversack, text: Path, tmp_path: Path
) -> None:
    from transformers import AutoModel

    family, overrides = VARIANTS[name]
    source = random_model(family, tmp_path / "source", **overrides)
    path = tmp_path / "base"
    shutil.copytree(source, path)
    (path / "model.safetensors").unlink()
    AutoModel.from_pretrained(source).save_pretrained(path)
    header, _ = read_header(path / "model.safetensors")
    assert "wte.weight" in header or "embed_tokens.weight" in header
    loss = evaluate(haversack, path, text)
    assert loss == evaluate(haversack, source, text)
    exported = export(haversack, path, text, tmp_path / "out")
    assert judge.loss(judge.load(exported), IDS, SEQ) == pytest.approx(loss, rel=1e-5)


def test_buffers_that_older_versions_saved_are_ignored(
    haversack: Haversack, text: Path, tmp_path: Path
) -> None:
    import numpy as np

    buffers = {
        "gpt2": {
            "h.0.attn.bias": np.ones((1, 1, 512, 512), np.float32),
            "h.0.attn.masked_bias": np.full((), -1e4, np.float32),
        },
        "llama": {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)},
    }
    for family, extra in buffers.items():
        model = random_model(family, tmp_path / family)
        loss = evaluate(haversack, model, text)
        tensors = read_tensors(model)
        if family == "gpt2":  # as its first checkpoints were saved
            tensors = {k.removeprefix("transformer."): v for k, v in tensors.items()}
        write_tensors(model, tensors | extra)
        result = haversack.run("eval", "--model", model, "--data", text, "--seq", SEQ)
        assert result.json()["loss"] == pytest.approx(loss, rel=1e-6)
        assert "ignored" not in result.stderr


@pytest.mark.parametrize("seq", [1, 7, 500])
def test_windows_of_any_length_have_the_loss_of_transformers(
    seq: int, haversack: Haversack, text: Path, tmp_path: Path
) -> None:
    model = random_model("llama", tmp_path / "m")
    run = ("eval", "--model", model, "--data", text, "--threads", 1, "--seq")
    whole = haversack.run(*run, seq).json()
    expected = judge.loss(judge.load(model), IDS, seq)
    assert whole["loss"] == pytest.approx(expected, rel=1e-5)
    assert whole["tokens"] == len(IDS) - 1


def test_random_weights_have_the_spread_that_the_configuration_asks_for(
    haversack: Haversack, text: Path, tmp_path: Path
) -> None:
    source = random_model("llama", tmp_path / "source", initializer_range=0.05)
    (source / "model.safetensors").unlink()  # not needed
    exported = export(haversack, source, text, tmp_path / "out", "--init", "random")
    tensors = read_tensors(exported)
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            assert (tensor == 1).all(), name
        else:
            assert tensor.std() == pytest.approx(0.05, rel=0.1), name
            assert abs(tensor.mean()) < 0.01, name
    again = export(haversack, source, text, tmp_path / "again", "--init", "random")
    other = export(haversack, source, text, tmp_path / "o", "--init", "random", "--seed", "1")
    assert (again / "model.safetensors").read_bytes() == (
        exported / "model.safetensors"
    ).read_bytes()
    assert (other / "model.safetensors").read_bytes() != (
        exported / "model.safetensors"
    ).read_bytes()
    judge.load(exported)


def test_transformers_4_files_are_read_and_exported_for_it(
    haversack: Haversack, text: Path, tmp_path: Path
) -> None:
    """`rope_scaling`, `rope_theta` at the top and `torch_dtype`, as transformers 4 wrote them."""
    source = random_model("llama", tmp_path / "source")
    model = variant(
        source,
        tmp_path / "m",
        drop=("rope_parameters", "dtype"),
        config={
            "rope_theta": 500000.0,
            "torch_dtype": "float32",
            "rope_scaling": {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
                "rope_type": "llama3",
            },
        },
    )
    loss = evaluate(haversack, model, text)
    assert loss == pytest.approx(judge.loss(judge.load(model), IDS, SEQ), rel=1e-5)
    exported = export(haversack, model, text, tmp_path / "out", "--export-dtype", "bf16")
    config = read_json(exported / "config.json")
    assert config["torch_dtype"] == "bfloat16"
    assert config["rope_scaling"]["rope_type"] == "llama3"
    assert "dtype" not in config


def test_smollm2_has_the_loss_of_transformers(
    haversack: Haversack, smollm2_dir: Path, text: Path
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir)
    ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    assert len(ids) > 40
    expected = judge.loss(judge.load(smollm2_dir), ids, 24)
    run = ("eval", "--model", smollm2_dir, "--seq", 24, "--data", text)
    answer = haversack.run(*run).json()
    assert answer["tokens"] == len(ids) - 1
    assert answer["loss"] == pytest.approx(expected, rel=1e-5)
