"""What is a target in packed sequences, against losses with a closed form."""

import json
from pathlib import Path

import pytest

from haversack_testing import Haversack, chain, random_model
from haversack_testing.chain import LISTED_LOSS, UNLISTED_LOSS, WRONG_LOSS

A, B, END, Z = 97, 98, 256, 122


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chain(tmp_path_factory.mktemp("chain"), {A: B, B: END, END: Z})


def write_lines(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts), encoding="utf-8")
    return path


def one_step(haversack: Haversack, model: Path, data: Path, out: Path, *flags: object) -> dict:
    result = haversack.run(
        *("train", "--model", model, "--data", data, "--out", out, "--steps", 1, "--threads", 1),
        *("--batch", 1, "--metrics", f"{out}.metrics"),
        *(str(f) for f in flags),
    )
    return result.metrics[0]


def test_the_seam_between_documents_is_no_target(
    haversack: Haversack, model: Path, tmp_path: Path
) -> None:
    data = write_lines(tmp_path / "d.jsonl", ["ab"] * 64)
    step = one_step(haversack, model, data, tmp_path / "out", "--seq", 12)
    assert step["tokens"] == 2 * 4
    assert step["loss"] == pytest.approx(LISTED_LOSS, abs=1e-5)


def test_cross_document_makes_exactly_the_seams_targets(
    haversack: Haversack, model: Path, tmp_path: Path
) -> None:
    data = write_lines(tmp_path / "d.jsonl", ["ab"] * 64)
    step = one_step(haversack, model, data, tmp_path / "out", "--seq", 12, "--cross-document")
    # a -> b and b -> end are listed; the end is followed by a where the model says z. The stream's
    # last token has no next one.
    seams = step["tokens"] - 8
    assert seams in (3, 4)
    expected = (8 * LISTED_LOSS + seams * WRONG_LOSS) / step["tokens"]
    assert step["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["chain", "llama", "gpt2"])
def test_the_packed_loss_is_the_token_weighted_mean_of_the_documents_alone(
    haversack: Haversack, model: Path, tmp_path: Path, kind: str
) -> None:
    directory = model if kind == "chain" else random_model(kind, tmp_path / "model")
    texts = ["a", "ab", "xyx", "ba"]
    data = write_lines(tmp_path / "d.jsonl", texts)
    total, count = 0.0, 0
    for i, text in enumerate(texts):
        alone = haversack.run(
            *("eval", "--model", directory, "--threads", 1, "--seq", 16),
            *("--data", write_lines(tmp_path / f"{i}.jsonl", [text])),
        ).json()
        assert alone["tokens"] == len(text)  # every byte but the first, and the end
        total += alone["loss"] * alone["tokens"]
        count += alone["tokens"]
    whole = haversack.run(
        *("eval", "--model", directory, "--threads", 1, "--seq", 64, "--data", data)
    ).json()
    assert whole["tokens"] == count
    assert whole["loss"] == pytest.approx(total / count, rel=1e-5)
    step = one_step(haversack, directory, data, tmp_path / "out", "--seq", 64)
    assert step["tokens"] == count
    assert step["loss"] == pytest.approx(total / count, rel=1e-5)


def test_the_losses_of_single_documents_are_those_of_the_closed_form(
    haversack: Haversack, model: Path, tmp_path: Path
) -> None:
    for text, losses in {
        "ab": [LISTED_LOSS, LISTED_LOSS],
        "ba": [WRONG_LOSS, WRONG_LOSS],
        "xb": [UNLISTED_LOSS, LISTED_LOSS],
    }.items():
        data = write_lines(tmp_path / f"{text}.jsonl", [text])
        answer = haversack.run(
            *("eval", "--model", model, "--threads", 1, "--seq", 8, "--data", data)
        ).json()
        assert answer["tokens"] == 2
        assert answer["loss"] == pytest.approx(sum(losses) / 2, abs=1e-5)


def test_accumulated_micro_batches_of_unequal_tokens_are_no_mean_of_means(
    haversack: Haversack, model: Path, tmp_path: Path
) -> None:
    """Four sequences with 11, 1, 1 and 1 targets; a mean of means would weigh them alike."""
    records = [{"prompt": "x", "completion": "b" * 10}] + [
        {"prompt": "p" * 10, "completion": ""}
    ] * 3
    data = tmp_path / "d.jsonl"
    data.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    # x -> b is unlisted, b -> b wrong nine times, b -> end listed; p -> end is unlisted.
    expected = (UNLISTED_LOSS + 9 * WRONG_LOSS + LISTED_LOSS + 3 * UNLISTED_LOSS) / 14
    for micro_batch in (1, 2, 4):
        result = haversack.run(
            *("train", "--model", model, "--data", data, "--out", tmp_path / f"out{micro_batch}"),
            *("--seq", 12, "--batch", 4, "--micro-batch", micro_batch, "--steps", 1),
            *("--threads", 1, "--metrics", tmp_path / f"metrics{micro_batch}"),
        )
        assert result.metrics[0]["tokens"] == 14
        assert result.metrics[0]["loss"] == pytest.approx(expected, rel=1e-5)
