"""config.json in all its spellings, and models whose parts do not agree in size."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from haversack_testing import (
    Haversack,
    b0,
    chain,
    judge,
    random_model,
    read_header,
    read_json,
    read_tensors,
    variant,
    write_json,
    write_tensors,
)
from haversack_testing.sentence import TEXT, Evaluate, loss, train_one_step

SEQ = 40
ROPE_FIELDS = ("rope_parameters", "rope_scaling", "rope_theta", "head_dim")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RND Llama with as many key-value heads as query heads, rope theta 500,000."""
    return random_model(
        "llama",
        tmp_path_factory.mktemp("llama") / "model",
        num_key_value_heads=4,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )


@pytest.fixture(scope="module")
def evaluate(haversack: Haversack, sentence: Path) -> Evaluate:
    return Evaluate(haversack, sentence, SEQ)


DEFAULT_ROPE: dict[str, Mapping[str, Any]] = {
    "rope_parameters": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "theta at the top": {"rope_theta": 500000.0},
    "theta an integer, scaling null": {"rope_theta": 500000, "rope_scaling": None},
    "scaling of type default": {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "default"}},
    "nulls": {
        "rope_theta": 500000.0,
        "head_dim": None,
        "num_key_value_heads": None,
        "architectures": None,
    },
    "empty objects": {"rope_theta": 500000.0, "rope_scaling": {}, "architectures": []},
    "both generations of fields": {
        "rope_theta": 500000.0,
        "rope_scaling": {"type": "default"},
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    },
    "no model_type": {"rope_theta": 500000.0, "model_type": None},
    "the name without its head": {"rope_theta": 500000.0, "architectures": ["LlamaModel"]},
    "infinity as an object": {
        "rope_theta": 500000.0,
        "time_step_limit": [0.0, {"__float__": "Infinity"}],
    },
}
LINEAR_ROPE: dict[str, Mapping[str, Any]] = {
    "type": {"rope_theta": 500000.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "rope_type, integer": {
        "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 2},
    },
    "both keys": {
        "rope_theta": 500000.0,
        "rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2.0},
    },
    "rope_parameters": {
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500000.0}
    },
}


@pytest.fixture(scope="module")
def rope_losses(llama: Path) -> dict[str, float]:
    """By transformers, from the file that it wrote and from one with linear scaling."""
    linear = variant(llama, llama.parent / "linear", config=LINEAR_ROPE["rope_parameters"])
    return {
        "default": judge.loss(judge.load(llama), TEXT.encode(), SEQ),
        "linear": judge.loss(judge.load(linear), TEXT.encode(), SEQ),
    }


@pytest.mark.parametrize("spelling", DEFAULT_ROPE)
def test_spellings_of_one_model_have_one_loss(
    spelling: str,
    llama: Path,
    rope_losses: dict[str, float],
    evaluate: Evaluate,
    tmp_path: Path,
) -> None:
    model = variant(llama, tmp_path / "m", drop=ROPE_FIELDS, config=DEFAULT_ROPE[spelling])
    assert loss(evaluate(model)) == pytest.approx(rope_losses["default"], rel=1e-5)


@pytest.mark.parametrize("spelling", LINEAR_ROPE)
def test_spellings_of_linear_scaling_have_one_loss(
    spelling: str,
    llama: Path,
    rope_losses: dict[str, float],
    evaluate: Evaluate,
    tmp_path: Path,
) -> None:
    model = variant(llama, tmp_path / "m", drop=ROPE_FIELDS, config=LINEAR_ROPE[spelling])
    assert loss(evaluate(model)) == pytest.approx(rope_losses["linear"], rel=1e-5)
    assert rope_losses["linear"] != pytest.approx(rope_losses["default"], rel=1e-4)


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_llama3_scaling_without_the_original_length_takes_the_longest_position_and_says_so(
    key: str, llama: Path, evaluate: Evaluate, tmp_path: Path
) -> None:
    fields = {"rope_theta": 500000.0, "max_position_embeddings": 64}
    without = variant(llama, tmp_path / "a", drop=ROPE_FIELDS, config=fields | {key: LLAMA3})
    explicit = variant(
        llama,
        tmp_path / "b",
        drop=ROPE_FIELDS,
        config=fields | {key: LLAMA3 | {"original_max_position_embeddings": 64}},
    )
    result = evaluate(without)
    assert "original_max_position_embeddings" in result.stderr
    assert loss(result) == loss(evaluate(explicit))
    assert loss(result) == pytest.approx(
        judge.loss(judge.load(explicit), TEXT.encode(), SEQ), rel=1e-5
    )
    assert "original_max_position_embeddings" not in evaluate(explicit).stderr


REFUSED: dict[str, tuple[Mapping[str, Any], tuple[str, ...]]] = {
    "rope type": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
        ("yarn", "default, linear, llama3"),
    ),
    "old rope type": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, ("dynamic", "linear")),
    "rope type of transformers 5": (
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}},
        ("longrope", "llama3"),
    ),
    "rope by layer type": (
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
        ("full_attention",),
    ),
    "factor missing": ({"rope_scaling": {"rope_type": "linear"}}, ("rope_scaling", "'factor'")),
    "factor zero": ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, ("'factor'", "0")),
    "theta twice": (
        {"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        ("rope_theta", "10000", "500000"),
    ),
    "scaling twice": (
        {
            "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5},
            "rope_scaling": {"type": "linear", "factor": 2.0},
        },
        ("rope_parameters", "rope_scaling"),
    ),
    "part of the head": (
        {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 5e5}},
        ("partial_rotary_factor",),
    ),
    "architecture": (
        {"architectures": ["MambaForCausalLM"], "model_type": "mamba"},
        ("MambaForCausalLM", "LlamaForCausalLM", "GPT2LMHeadModel", "Qwen3ForCausalLM"),
    ),
    "model type alone": ({"architectures": None, "model_type": "gemma3"}, ("gemma3", "'qwen2'")),
    "another head": ({"architectures": ["LlamaForSequenceClassification"]}, ("Classification",)),
    "neither": ({"architectures": None, "model_type": None}, ("LlamaForCausalLM",)),
    "activation": ({"hidden_act": "relu2"}, ("hidden_act", "'relu2'", "silu")),
    "activation of others": ({"hidden_act": "gelu"}, ("hidden_act", "'gelu'", "silu")),
    "quantised": (
        {"quantization_config": {"quant_method": "gptq", "bits": 4}},
        ("quantization_config", "gptq"),
    ),
    "size of the wrong type": ({"hidden_size": "64"}, ("hidden_size", '"64"')),
    "no size": ({"num_hidden_layers": 0}, ("num_hidden_layers", "0")),
    "size missing": ({"intermediate_size": None}, ("intermediate_size", "missing")),
    "heads": ({"num_key_value_heads": 3}, ("num_key_value_heads", "3")),
    "end token": ({"eos_token_id": 2**32 + 256}, ("eos_token_id", str(2**32 + 256))),
    "begin token": ({"bos_token_id": 2**40}, ("bos_token_id", str(2**40))),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_supported_is_refused_by_name(
    case: str, llama: Path, evaluate: Evaluate, tmp_path: Path
) -> None:
    fields, words = REFUSED[case]
    theta = {} if "rope_parameters" in fields else {"rope_theta": 500000.0}
    model = variant(llama, tmp_path / "m", drop=ROPE_FIELDS, config=theta | dict(fields))
    message = evaluate(model, rc=2).error()
    assert "config.json" in message
    for word in words:
        assert word in message, message


def test_a_gpt2_activation_is_refused_with_the_list_of_those_it_may_have(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    model = random_model("gpt2", tmp_path / "rnd", n_positions=64)
    config = {"activation_function": "silu"}
    message = evaluate(variant(model, tmp_path / "m", config=config), rc=2).error()
    for word in ("config.json", "activation_function", "'silu'", "gelu_new"):
        assert word in message


@pytest.mark.parametrize("literal", ["Infinity", "-Infinity", "NaN"])
def test_a_python_literal_is_named_with_its_line(
    literal: str, llama: Path, evaluate: Evaluate, tmp_path: Path
) -> None:
    model = variant(llama, tmp_path / "m")
    fields = read_json(model / "config.json") | {"time_step_limit": "LITERAL"}
    lines = json.dumps(fields, indent=2).replace('"LITERAL"', f"[0.0, {literal}]").splitlines()
    (model / "config.json").write_text("\n".join(lines))
    number = next(i for i, line in enumerate(lines, 1) if literal in line)
    message = evaluate(model, rc=2).error()
    for word in ("config.json", f"line {number}:", literal):
        assert word in message, message


# Sliding windows: refused where a sequence reaches past one, else without effect.
WINDOWS: dict[str, tuple[str, Mapping[str, Any], bool]] = {
    "mistral": ("mistral", {"sliding_window": 16}, True),
    "mistral, wide enough": ("mistral", {"sliding_window": SEQ}, False),
    "mistral, none": ("mistral", {"sliding_window": None}, False),
    "qwen2": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
        True,
    ),
    "qwen2, not used": ("qwen2", {"use_sliding_window": False, "sliding_window": 16}, False),
    "qwen2, in no layer": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2},
        False,
    ),
    "qwen3, by layer type": (
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 16,
            "layer_types": ["full_attention", "sliding_attention"],
        },
        True,
    ),
    "qwen3, no such layer type": (
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 16,
            "max_window_layers": 0,
            "layer_types": ["full_attention", "full_attention"],
        },
        False,
    ),
}


@pytest.mark.parametrize("case", WINDOWS)
def test_a_sliding_window_is_refused_where_it_matters(
    case: str, evaluate: Evaluate, tmp_path: Path
) -> None:
    family, fields, matters = WINDOWS[case]
    model = variant(
        random_model(family, tmp_path / "rnd"), tmp_path / "m", drop=("layer_types",), config=fields
    )
    result = evaluate(model, rc=2 if matters else 0)
    if matters:
        for word in ("sliding_window", "16"):
            assert word in result.error()
    else:
        judged = judge.loss(judge.load(model), TEXT.encode(), SEQ)
        assert loss(result) == pytest.approx(judged, rel=1e-5)


# Tied or not.


class Tying:
    """RND Llama's weights with embedding E and head H, in the arrangements that occur."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.tensors = read_tensors(source)
        self.e = self.tensors["model.embed_tokens.weight"]
        self.h = self.tensors["lm_head.weight"]

    def write(self, path: Path, tie: bool | None, **named: Any) -> Path:
        model = variant(
            self.source,
            path,
            drop=("tie_word_embeddings",),
            config={} if tie is None else {"tie_word_embeddings": tie},
        )
        names = {"e": "model.embed_tokens.weight", "h": "lm_head.weight"}
        kept = {k: v for k, v in self.tensors.items() if k not in names.values()}
        write_tensors(model, kept | {names[k]: v for k, v in named.items()})
        return model


@pytest.fixture(scope="module")
def tying(llama: Path) -> Tying:
    return Tying(llama)


def check_export(
    haversack: Haversack, model: Path, sentence: Path, tmp_path: Path, evaluate: Evaluate
) -> bool:
    """One step and an export that transformers agrees with; returns whether it is tied."""
    exported = train_one_step(haversack, model, sentence, tmp_path / "out", seq=SEQ, lr=1e-3)
    header, _ = read_header(exported / "model.safetensors")
    tied = read_json(exported / "config.json")["tie_word_embeddings"]
    assert tied == ("lm_head.weight" not in header)
    judged = judge.loss(judge.load(exported), TEXT.encode(), SEQ)
    assert loss(evaluate(exported)) == pytest.approx(judged, rel=1e-5)
    return tied


def test_a_copy_of_the_embedding_as_head_is_the_tied_model(
    haversack: Haversack,
    tying: Tying,
    sentence: Path,
    evaluate: Evaluate,
    tmp_path: Path,
) -> None:
    alone = tying.write(tmp_path / "a", True, e=tying.e)
    copied = tying.write(tmp_path / "d", True, e=tying.e, h=tying.e)
    assert loss(evaluate(alone)) == loss(evaluate(copied))
    judged = judge.loss(judge.load(alone), TEXT.encode(), SEQ)
    assert loss(evaluate(alone)) == pytest.approx(judged, rel=1e-5)
    assert check_export(haversack, copied, sentence, tmp_path, evaluate)


def test_without_a_flag_llama_is_not_tied(
    haversack: Haversack,
    tying: Tying,
    sentence: Path,
    evaluate: Evaluate,
    tmp_path: Path,
) -> None:
    model = tying.write(tmp_path / "f", None, e=tying.e, h=tying.h)
    assert loss(evaluate(model)) == loss(evaluate(tying.source))
    assert not check_export(haversack, model, sentence, tmp_path, evaluate)


@pytest.mark.parametrize(
    ("tie", "tensors", "words"),
    [
        (True, "h", ["model.embed_tokens.weight", "missing"]),
        (True, "eh", ["model.embed_tokens.weight", "lm_head.weight", "tie_word_embeddings"]),
        (False, "e", ["lm_head.weight", "missing"]),
        (None, "e", ["lm_head.weight", "missing"]),
    ],
)
def test_a_flag_that_the_tensors_contradict_is_refused_by_name(
    tie: bool | None,
    tensors: str,
    words: list[str],
    tying: Tying,
    evaluate: Evaluate,
    tmp_path: Path,
) -> None:
    model = tying.write(tmp_path / "m", tie, **{k: getattr(tying, k) for k in tensors})
    message = evaluate(model, rc=2).error()
    for word in words:
        assert word in message, message


# Tokenizer and embedding of different sizes.


def test_a_token_without_a_row_is_refused_before_the_first_step(
    haversack: Haversack, llama: Path, tmp_path: Path
) -> None:
    model = variant(llama, tmp_path / "m")
    write_json(model / "tokenizer.json", b0(added=[{"id": 320, "content": "<new>"}]))
    data = tmp_path / "data.txt"
    lines = [TEXT] * 50
    flags = ("--memory", "600MiB", "--batch", 1, "--seq", SEQ, "--threads", 1)
    data.write_text("\n".join(lines))
    haversack.run(
        *("train", "--model", model, "--data", data, *flags, "--steps", 1),
        *("--out", tmp_path / "out"),
    )
    data.write_text("\n".join([*lines, "the <new> one"]))
    out = tmp_path / "refused"
    for command in (
        ("train", *flags, "--steps", 1, "--out", out),
        ("eval", "--seq", SEQ),
    ):
        result = haversack.run(*command, "--model", model, "--data", data, rc=2)
        for word in ("<new>", "320", "321"):
            assert word in result.error(), result.error()
    assert not list(out.glob("model*"))
    prompt = haversack.run("generate", "--model", model, "--prompt", "a <new>", rc=2)
    for word in ("<new>", "320"):
        assert word in prompt.error()


# A greedy reader of all 320 rows, or of all ids below the highest, would print nothing for 300.
@pytest.mark.parametrize("added", [[], [{"id": 310, "content": "<far>"}]], ids=["none", "a hole"])
def test_rows_without_a_token_are_never_sampled(
    added: list[dict[str, Any]], haversack: Haversack, tmp_path: Path
) -> None:
    model = chain(tmp_path, {97: 300, 98: 256}, tokenizer=b0(added=added))
    run = ("generate", "--model", model, "--prompt", "a", "--max-new-tokens", 3, "--threads", 1)
    # All other logits are 0 and the first of equals is taken: the byte 0, then again.
    assert haversack.run(*run).stdout == "\0\0\0\n"
    for seed in range(12):
        sampled = haversack.run(*run, "--temperature", 0.5, "--seed", seed)
        assert sampled.stdout != "\n"


def test_a_vocabulary_larger_than_the_file_is_refused_with_both_shapes(
    llama: Path, evaluate: Evaluate, tmp_path: Path
) -> None:
    message = evaluate(variant(llama, tmp_path / "m", config={"vocab_size": 384}), rc=2).error()
    for word in ("model.embed_tokens.weight", "[320, 64]", "[384, 64]"):
        assert word in message


def test_padded_rows_are_exported(haversack: Haversack, sentence: Path, tmp_path: Path) -> None:
    model = chain(tmp_path / "m", {97: 98, 98: 256})
    exported = train_one_step(haversack, model, sentence, tmp_path / "out", seq=SEQ, lr=1e-3)
    header, _ = read_header(exported / "model.safetensors")
    assert header["model.embed_tokens.weight"]["shape"] == [320, 32]
    assert header["lm_head.weight"]["shape"] == [320, 32]
