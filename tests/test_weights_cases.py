"""Weight files as they are found: odd tensors, leftovers of other models, files cut short."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haversack_testing import (
    Haversack,
    Result,
    judge,
    random_model,
    read_header,
    read_json,
    read_tensors,
    variant,
    write_header,
    write_json,
    write_tensors,
)
from haversack_testing.sentence import TEXT, Evaluate, loss, train_one_step

SEQ = 32


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """RND Llamas of one shape and other weights: A and B in a file each, B in shards too."""
    from transformers import AutoModelForCausalLM

    root = tmp_path_factory.mktemp("models")
    a = random_model("llama", root / "a", seed=1)
    b = random_model("llama", root / "b", seed=2)
    shards = variant(b, root / "shards")
    (shards / "model.safetensors").unlink()
    AutoModelForCausalLM.from_pretrained(b).save_pretrained(shards, max_shard_size="200KB")
    assert len(list(shards.glob("model-*.safetensors"))) >= 2
    return {"a": a, "b": b, "shards": shards}


@pytest.fixture(scope="module")
def evaluate(haversack: Haversack, sentence: Path) -> Evaluate:
    return Evaluate(haversack, sentence, SEQ)


@pytest.fixture(scope="module")
def losses(models: dict[str, Path], evaluate: Evaluate) -> dict[str, float]:
    """Of A and of B, equal to transformers'."""
    result = {}
    for name in ("a", "b"):
        result[name] = loss(evaluate(models[name]))
        judged = judge.loss(judge.load(models[name]), TEXT.encode(), SEQ)
        assert result[name] == pytest.approx(judged, rel=1e-5)
    return result


def assert_refused(result: Result, *words: str) -> None:
    for word in words:
        assert word in result.error(), result.error()


# Tensors without elements.


def test_tensors_without_elements_and_scalars_do_no_harm(
    models: dict[str, Path],
    losses: dict[str, float],
    evaluate: Evaluate,
    haversack: Haversack,
    sentence: Path,
    tmp_path: Path,
) -> None:
    model = variant(models["a"], tmp_path / "m")
    header, data = read_header(model / "model.safetensors")
    end = len(data)
    entries = {
        "extra.empty": {"dtype": "F32", "shape": [0], "data_offsets": [end, end]},
        "extra.flat": {"dtype": "F32", "shape": [2, 0], "data_offsets": [0, 0]},
        "extra.other": {"dtype": "I64", "shape": [0, 3], "data_offsets": [end, end]},
        "extra.scalar": {"dtype": "F32", "shape": [], "data_offsets": [end, end + 4]},
    }
    write_header(model / "model.safetensors", header | entries, data + bytes(4))
    result = evaluate(model)
    assert loss(result) == losses["a"]
    for name in entries:
        assert name in result.stderr
    exported = train_one_step(haversack, model, sentence, tmp_path / "out", seq=SEQ, lr=0)
    header, _ = read_header(exported / "model.safetensors")
    assert not [name for name in header if name.startswith("extra")]
    assert loss(evaluate(exported)) == losses["a"]


@pytest.mark.parametrize("shape", [[0], [0, 64], [], [64, 1], [63]])
def test_a_needed_tensor_of_another_shape_is_refused_with_both_shapes(
    shape: list[int], models: dict[str, Path], evaluate: Evaluate, tmp_path: Path
) -> None:
    model = variant(models["a"], tmp_path / "m")
    tensors = read_tensors(model)
    tensors["model.norm.weight"] = np.zeros(shape, np.float32)
    write_tensors(model, tensors)
    got = "[" + ", ".join(map(str, shape)) + "]"
    assert_refused(evaluate(model, rc=2), "model.norm.weight", got, "[64]", "model.safetensors")


def test_every_missing_and_misshapen_tensor_is_named(
    models: dict[str, Path], evaluate: Evaluate, tmp_path: Path
) -> None:
    model = variant(models["a"], tmp_path / "m")
    tensors = read_tensors(model)
    for layer in (0, 1):
        del tensors[f"model.layers.{layer}.mlp.up_proj.weight"]
    tensors["model.layers.1.self_attn.q_proj.weight"] = np.zeros((8, 64), np.float32)
    tensors["model.norm.weight"] = np.zeros(64, np.int64)
    write_tensors(model, tensors)
    assert_refused(
        evaluate(model, rc=2),
        "tensor model.layers.0.mlp.up_proj.weight is missing (and so in blocks 1)",
        "model.layers.1.self_attn.q_proj.weight has shape [8, 64]",
        "model.norm.weight has type I64",
    )


def test_tensors_of_more_layers_than_the_model_has_are_named_once(
    models: dict[str, Path], evaluate: Evaluate, tmp_path: Path
) -> None:
    result = evaluate(variant(models["a"], tmp_path / "m", config={"num_hidden_layers": 1}))
    assert "model.layers.1.mlp.up_proj.weight" in result.stderr


# A directory that is not one model.


def put(source: Path, target: Path, pattern: str) -> None:
    for path in source.glob(pattern):
        shutil.copy(path, target)


def test_shards_have_the_loss_of_the_one_file(
    models: dict[str, Path], losses: dict[str, float], evaluate: Evaluate
) -> None:
    assert loss(evaluate(models["shards"])) == losses["b"]


@pytest.mark.parametrize("second_shard", [True, False])
def test_one_file_beside_shards_is_used_alone(
    second_shard: bool,
    models: dict[str, Path],
    losses: dict[str, float],
    evaluate: Evaluate,
    tmp_path: Path,
) -> None:
    model = variant(models["a"], tmp_path / "m")
    put(models["shards"], model, "model*")
    if not second_shard:
        sorted(model.glob("model-*.safetensors"))[1].unlink()
    result = evaluate(model)
    assert loss(result) == losses["a"]
    assert "model.safetensors.index.json" in result.stderr


def test_a_missing_shard_is_refused_by_name(
    models: dict[str, Path], evaluate: Evaluate, tmp_path: Path
) -> None:
    model = variant(models["shards"], tmp_path / "m")
    gone = sorted(model.glob("model-*.safetensors"))[1]
    header, _ = read_header(gone)
    gone.unlink()
    message = evaluate(model, rc=2).error()
    assert gone.name in message
    assert any(name in message for name in header)


def change_index(model: Path, change: Callable[[dict[str, Any]], None]) -> None:
    index = read_json(model / "model.safetensors.index.json")
    change(index)
    write_json(model / "model.safetensors.index.json", index)


def test_a_tensor_in_another_shard_than_the_index_says_is_refused(
    models: dict[str, Path], evaluate: Evaluate, tmp_path: Path
) -> None:
    model = variant(models["shards"], tmp_path / "m")
    first, second = sorted(path.name for path in model.glob("model-*.safetensors"))[:2]
    moved = next(iter(name for name in read_header(model / second)[0] if name != "__metadata__"))
    change_index(model, lambda index: index["weight_map"].update({moved: first}))
    assert_refused(evaluate(model, rc=2), moved, first, second)


@pytest.mark.parametrize("size", [1, "many", None, -5, 1.5], ids=str)
def test_the_total_size_of_an_index_means_nothing(
    size: Any,
    models: dict[str, Path],
    losses: dict[str, float],
    evaluate: Evaluate,
    tmp_path: Path,
) -> None:
    model = variant(models["shards"], tmp_path / "m")

    def change(index: dict[str, Any]) -> None:
        if size is None:
            del index["metadata"]
        else:
            index["metadata"]["total_size"] = size

    change_index(model, change)
    assert loss(evaluate(model)) == losses["b"]


@pytest.mark.parametrize("way", ["..", "absolute", "link", "link to a folder", "empty", "number"])
def test_an_index_that_leads_out_of_the_directory_is_refused(
    way: str, models: dict[str, Path], evaluate: Evaluate, tmp_path: Path
) -> None:
    model = variant(models["shards"], tmp_path / "m")
    other = variant(models["b"], tmp_path / "other")
    (model / "link.safetensors").symlink_to(other / "model.safetensors")
    (model / "folder").symlink_to(other)
    place: Any = {
        "..": "../other/model.safetensors",
        "absolute": str(other / "model.safetensors"),
        "link": "link.safetensors",
        "link to a folder": "folder/model.safetensors",
        "empty": "",
        "number": 7,
    }[way]
    change_index(model, lambda index: index["weight_map"].update({"model.norm.weight": place}))
    assert_refused(evaluate(model, rc=2), "model.norm.weight", "model.safetensors.index.json")


@pytest.mark.parametrize("shards", [False, True], ids=["one file", "a shard"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:"
            + b"0" * 64
            + b"\nsize 269060552\n",
            ("git-lfs", "pointer"),
        ),
        (b"", ("safetensors",)),
        (b"PK\x03\x04" + bytes(60), ("safetensors",)),
        (b"\x10\0\0\0\0\0\0\0{", ("cut off",)),
        (b"\x02\0\0\0\0\0\0\0{}", ("tensor",)),
    ],
    ids=["lfs", "empty", "zip", "header cut", "no tensors"],
)
def test_what_is_no_weight_file_is_named(
    content: bytes,
    words: tuple[str, ...],
    shards: bool,
    models: dict[str, Path],
    evaluate: Evaluate,
    tmp_path: Path,
) -> None:
    model = variant(models["shards" if shards else "a"], tmp_path / "m")
    path = sorted(model.glob("model*.safetensors"))[0]
    path.write_bytes(content)
    assert_refused(evaluate(model, rc=2), path.name if content[:2] != b"\x02\0" else "m", *words)


@pytest.mark.parametrize("shards", [False, True], ids=["one file", "a shard"])
@pytest.mark.parametrize("share", [0.5, 0.01])
def test_a_file_cut_short_is_refused_with_tensor_and_file(
    share: float,
    shards: bool,
    models: dict[str, Path],
    evaluate: Evaluate,
    tmp_path: Path,
) -> None:
    model = variant(models["shards" if shards else "a"], tmp_path / "m")
    path = sorted(model.glob("model*.safetensors"))[0]
    names = read_header(path)[0]
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    message = evaluate(model, rc=2).error()
    assert path.name in message
    # Within the header no tensor is known yet, but for a shard the index tells one.
    if share == 0.5 or shards:
        assert any(name in message for name in names), message


def test_only_pickled_weights_are_refused_with_what_to_do(
    models: dict[str, Path], evaluate: Evaluate, tmp_path: Path
) -> None:
    model = variant(models["a"], tmp_path / "m")
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    assert_refused(evaluate(model, rc=2), "pytorch_model.bin", "safetensors")


def test_no_weights_no_configuration_no_directory(
    models: dict[str, Path], evaluate: Evaluate, tmp_path: Path
) -> None:
    model = variant(models["a"], tmp_path / "m")
    (model / "model.safetensors").unlink()
    assert_refused(evaluate(model, rc=2), "model.safetensors")
    (model / "config.json").unlink()
    # The exit of a file that cannot be opened is 5.
    assert_refused(evaluate(model, rc=(2, 5)), "config.json")
    assert_refused(evaluate(tmp_path / "none", rc=2), "none")


# Export.


def test_export_over_a_larger_model_leaves_nothing_of_it(
    models: dict[str, Path],
    losses: dict[str, float],
    evaluate: Evaluate,
    haversack: Haversack,
    sentence: Path,
    tmp_path: Path,
) -> None:
    target = tmp_path / "out" / "model"
    larger = random_model("llama", tmp_path / "larger", num_hidden_layers=3)
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(larger).save_pretrained(target, max_shard_size="200KB")
    assert (target / "model.safetensors.index.json").exists()
    exported = train_one_step(haversack, models["a"], sentence, tmp_path / "out", seq=SEQ, lr=0)
    assert exported == target
    assert sorted(path.name for path in target.glob("model*")) == ["model.safetensors"]
    assert not [p for p in target.parent.iterdir() if p.name.startswith("model.")]
    judged = judge.loss(judge.load(target), TEXT.encode(), SEQ)
    assert judged == pytest.approx(losses["a"], rel=1e-5)
    assert loss(evaluate(target)) == losses["a"]


def test_export_of_a_file_that_names_no_family_is_one_that_transformers_loads(
    models: dict[str, Path], haversack: Haversack, sentence: Path, tmp_path: Path
) -> None:
    model = variant(models["a"], tmp_path / "m", drop=("model_type",))
    exported = train_one_step(haversack, model, sentence, tmp_path / "out", seq=SEQ, lr=0)
    config = json.loads((exported / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert config["architectures"] == ["LlamaForCausalLM"]
    judge.load(exported)
