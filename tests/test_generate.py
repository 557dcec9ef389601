"""`generate`: where it stops, what it samples, and that the cache changes nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haversack_testing import (
    FAMILIES,
    Haversack,
    chain,
    judge,
    random_model,
    read_json,
    read_tensors,
    write_json,
    write_tensors,
)

A, B, C, Z = b"abcz"
END, IM_END = 256, 258


def generate(
    haversack: Haversack,
    model: Path,
    prompt: str,
    new: int,
    *more: str | float,
    threads: int = 1,
) -> str:
    """The new text, without the line's end."""
    result = haversack.run(
        *("generate", "--model", model, "--prompt", prompt, "--max-new-tokens", new),
        *("--threads", threads, *more),
    )
    assert result.stdout.endswith("\n")
    return result.stdout[:-1]


# Several ends.

STOPS: dict[str, tuple[Mapping[str, Any], Mapping[str, Any] | None, str]] = {
    "a list in generation_config": (
        {"eos_token_id": 256},
        {"eos_token_id": [256, 258]},
        "b",
    ),
    "a list in config": ({"eos_token_id": [256, 258]}, None, "b"),
    "a list in config, null in generation_config": (
        {"eos_token_id": [256, 258]},
        {"eos_token_id": None},
        "b",
    ),
    "another one in both": ({"eos_token_id": 256}, {"eos_token_id": 256}, "bzzzzzz"),
    "generation_config over config": ({"eos_token_id": 258}, {"eos_token_id": 256}, "bzzzzzz"),
    "none in either, the tokenizer's": ({"eos_token_id": None}, {"eos_token_id": None}, "b"),
    "an empty list": ({"eos_token_id": 256}, {"eos_token_id": []}, "bzzzzzz"),
    "an empty list in config": ({"eos_token_id": []}, None, "bzzzzzz"),
}


@pytest.mark.parametrize("case", STOPS)
def test_any_of_the_end_tokens_ends_the_text(
    case: str, haversack: Haversack, tmp_path: Path
) -> None:
    config, generation, text = STOPS[case]
    model = chain(
        tmp_path, {A: B, B: IM_END, IM_END: Z, Z: Z}, config=config, generation=generation
    )
    if case.startswith("none"):
        fields = read_json(model / "tokenizer_config.json")
        write_json(model / "tokenizer_config.json", fields | {"eos_token": "<|im_end|>"})
    assert generate(haversack, model, "a", 8) == text


@pytest.mark.parametrize("ids", [999, [256, 999], -1, 2**32 + 256, "256", [[256]], 1.5, True])
def test_an_end_token_that_is_none_is_refused_by_name(
    ids: Any, haversack: Haversack, tmp_path: Path
) -> None:
    model = chain(tmp_path, {A: B}, generation={"eos_token_id": ids})
    result = haversack.run("generate", "--model", model, "--prompt", "a", rc=2)
    assert "eos_token_id" in result.error()


# Past the last position.


def drop_end(model: Path) -> None:
    """No token ends a text: neither the configuration's nor, by default, the tokenizer's."""
    fields = read_json(model / "config.json")
    write_json(model / "config.json", fields | {"eos_token_id": []})
    (model / "generation_config.json").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def short_gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = random_model("gpt2", tmp_path_factory.mktemp("gpt2") / "m", n_positions=16)
    drop_end(model)
    return model


PROMPT = "In the beginning God"


def greedy(model_dir: Path, prompt: str, new: int) -> list[int]:
    """The new ids by transformers: the best of the whole text's logits, each time."""
    model = judge.load(model_dir)
    ids = list(prompt.encode())
    for _ in range(new):
        scores = judge.logits(model, ids)[-1]
        scores[259:] = -np.inf  # rows that pad the embedding
        ids.append(int(scores.argmax()))
    return ids[len(prompt) :]


def decoded(ids: list[int]) -> str:
    return bytes(i for i in ids if i < 256).decode(errors="replace")


@pytest.mark.parametrize("new", [6, 7, 20])
def test_learned_positions_end_the_text_and_it_is_said(
    new: int, haversack: Haversack, short_gpt2: Path
) -> None:
    prompt = PROMPT[:10]
    result = haversack.run(
        *("generate", "--model", short_gpt2, "--prompt", prompt, "--max-new-tokens", new),
        *("--threads", 1),
    )
    assert result.stdout == decoded(greedy(short_gpt2, prompt, 6)) + "\n"
    assert ("n_positions" in result.stderr) == (new > 6)


def test_a_prompt_may_fill_the_positions_but_not_pass_them(
    haversack: Haversack, short_gpt2: Path
) -> None:
    run = ("generate", "--model", short_gpt2, "--max-new-tokens", 3, "--threads", 1, "--prompt")
    full = haversack.run(*run, PROMPT[:16])
    assert full.stdout == "\n"
    assert "n_positions" in full.stderr
    for word in ("n_positions", "16", "17"):
        assert word in haversack.run(*run, PROMPT[:17], rc=2).error()


@pytest.mark.parametrize("command", ["train", "eval", "plan"])
def test_sequences_past_learned_positions_are_refused(
    command: str, haversack: Haversack, short_gpt2: Path, tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(PROMPT * 4)
    flags: dict[str, tuple[Any, ...]] = {
        "train": ("--memory", "600MiB", "--steps", 1, "--out", tmp_path / "out"),
        "plan": ("--memory", "600MiB"),
        "eval": (),
    }
    run = (command, "--model", short_gpt2, "--data", text, "--threads", 1, *flags[command], "--seq")
    for word in ("n_positions", "16", "32"):
        assert word in haversack.run(*run, 32, rc=2).error()
    haversack.run(*run, 16)


def test_rotary_positions_go_on_with_a_warning(haversack: Haversack, tmp_path: Path) -> None:
    model = random_model("llama", tmp_path / "m", max_position_embeddings=16)
    drop_end(model)
    for prompt, new in ((PROMPT[:10], 6), (PROMPT[:10], 20), (PROMPT[:17], 3)):
        result = haversack.run(
            *("generate", "--model", model, "--prompt", prompt, "--max-new-tokens", new),
            *("--threads", 1),
        )
        assert result.stdout == decoded(greedy(model, prompt, new)) + "\n"
        assert ("max_position_embeddings" in result.stderr) == (len(prompt) + new > 16)


def test_a_sliding_window_ends_the_text_and_it_is_said(
    haversack: Haversack, tmp_path: Path
) -> None:
    model = random_model("mistral", tmp_path / "m", sliding_window=16)
    drop_end(model)
    run = ("generate", "--model", model, "--max-new-tokens", 20, "--threads", 1, "--prompt")
    result = haversack.run(*run, PROMPT[:10])
    assert result.stdout == decoded(greedy(model, PROMPT[:10], 6)) + "\n"
    assert "sliding_window" in result.stderr
    assert "sliding_window" in haversack.run(*run, PROMPT[:17], rc=2).error()


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_is_that_of_transformers_without_a_cache(
    family: str, haversack: Haversack, tmp_path: Path
) -> None:
    model = random_model(family, tmp_path / "m")
    drop_end(model)
    ids = greedy(model, PROMPT, 24)
    assert generate(haversack, model, PROMPT, 24) == decoded(ids)
    # A prompt of the first tokens, and the rest from the cache.
    assert generate(haversack, model, PROMPT[:1], 3) == decoded(greedy(model, PROMPT[:1], 3))


# Sampling.


@pytest.fixture(scope="module")
def close_race(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After a, the logit of c is 0.999 of that of b: shares 0.502 and 0.496."""
    model = chain(tmp_path_factory.mktemp("race") / "m", {A: B, B: END, C: END})
    tensors = read_tensors(model)
    tensors["lm_head.weight"][C] = 0.999 * tensors["lm_head.weight"][B]
    write_tensors(model, tensors)
    return model


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--temperature", "0"),
        ("--temperature", "1e-40"),
        ("--temperature", "1e-300"),
        ("--temperature", "1e-6"),
        ("--temperature", "1", "--top-p", "0"),
        ("--temperature", "1", "--top-p", "1e-9"),
        ("--temperature", "1e30", "--top-p", "0"),
    ],
    ids=" ".join,
)
def test_no_temperature_and_no_share_mean_the_best_token(
    flags: tuple[str, ...], haversack: Haversack, close_race: Path
) -> None:
    for seed in range(4):
        assert generate(haversack, close_race, "a", 1, *flags, "--seed", seed) == "b"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--temperature", "-1"),
        ("--temperature", "nan"),
        ("--temperature", "inf"),
        ("--temperature", "hot"),
        ("--top-p", "1.5"),
        ("--top-p", "-0.1"),
        ("--top-p", "nan"),
        ("--max-new-tokens", "-1"),
        ("--seed", "-1"),
    ],
)
def test_what_is_no_temperature_or_share_is_refused_by_name(
    flag: str, value: str, haversack: Haversack, close_race: Path
) -> None:
    for arguments in ((flag, value), (f"{flag}={value}",)):
        result = haversack.run("generate", "--model", close_race, "--prompt", "a", *arguments, rc=2)
        assert flag in result.error()


def test_samples_have_the_shares_of_the_softmax(haversack: Haversack, close_race: Path) -> None:
    texts = [
        generate(haversack, close_race, "a", 1, "--temperature", 1, "--seed", seed)
        for seed in range(36)
    ]
    # 36 draws at one half: four standard deviations are 12. src/exec/sampler_test.cc takes 10,000.
    assert 6 <= texts.count("b") <= 30
    assert 6 <= texts.count("c") <= 30
    assert texts.count("b") + texts.count("c") >= 33


def test_any_temperature_samples(haversack: Haversack, close_race: Path) -> None:
    texts = {
        generate(haversack, close_race, "a", 1, "--temperature", "1e30", "--seed", seed)
        for seed in range(8)
    }
    assert len(texts - {"b", "c"}) >= 3  # 259 equals, of which the upper bytes look alike


def test_the_same_seed_gives_the_same_text_on_any_number_of_threads(
    haversack: Haversack, tmp_path: Path
) -> None:
    model = random_model("llama", tmp_path / "m", initializer_range=0.05)
    drop_end(model)
    run = ("--temperature", 1, "--top-p", 0.95, "--seed")
    texts = [
        generate(haversack, model, PROMPT, 40, *run, 3, threads=threads) for threads in (1, 1, 2)
    ]
    assert texts[0] == texts[1] == texts[2]
    assert texts[0] != generate(haversack, model, PROMPT, 40, *run, 4)


def test_an_empty_prompt_starts_from_the_begin_token_or_is_refused(
    haversack: Haversack, tmp_path: Path
) -> None:
    without = chain(tmp_path / "without", {A: B})
    for arguments in (("--prompt", ""), ("--prompt=",)):
        result = haversack.run("generate", "--model", without, *arguments, rc=2)
        assert "--prompt" in result.error()
    model = chain(tmp_path / "with", {257: B, B: END})
    fields = read_json(model / "tokenizer_config.json")
    write_json(model / "tokenizer_config.json", fields | {"bos_token": "<|im_start|>"})
    assert generate(haversack, model, "", 3) == "b"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_told_and_nothing_is_printed(
    bad: float, haversack: Haversack, tmp_path: Path
) -> None:
    model = chain(tmp_path, {A: B})
    tensors = read_tensors(model)
    tensors["model.norm.weight"][0] = bad
    write_tensors(model, tensors)
    for flags in ((), ("--temperature", 1)):
        result = haversack.run("generate", "--model", model, "--prompt", "a", *flags, rc=2)
        assert "finite" in result.error()
        assert not result.stdout


def test_no_new_tokens_is_an_empty_text(haversack: Haversack, close_race: Path) -> None:
    assert generate(haversack, close_race, "a", 0) == ""


# The real model.


def test_smollm2_continues_as_transformers_does(haversack: Haversack, smollm2_dir: Path) -> None:
    import torch
    from transformers import AutoTokenizer

    prompt = "The capital of France is"
    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir)
    ids = tokenizer(prompt, return_tensors="pt")
    with torch.no_grad():
        out = judge.load(smollm2_dir).generate(**ids, max_new_tokens=24, do_sample=False)
    expected = tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    result = haversack.run(
        "generate", "--model", smollm2_dir, "--prompt", prompt, "--max-new-tokens", 24
    )
    assert result.stdout == expected + "\n"
    assert result.stdout.startswith(" Paris")


def test_a_text_that_cannot_fit_memory_is_refused_with_the_length_that_does(
    haversack: Haversack, smollm2_dir: Path
) -> None:
    run = ("generate", "--model", smollm2_dir, "--prompt", "a", "--max-new-tokens")
    message = haversack.run(*run, 2**30, rc=3).error()
    assert "--max-new-tokens" in message
