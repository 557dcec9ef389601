"""Data parallel over ranks equals one process on the same batch; DIS-01 and DIS-03 of ddp."""

import json
from pathlib import Path

import pytest

from haversack_testing import Haversack, Result, random_model
from haversack_testing.ranks import Ranks, held_out, tiny_ranks
from haversack_testing.runs import checkpoint_steps

# Gradients are summed in another order, and a step divides them by sqrt(v): after some steps the
# losses of a small model differ by some units of the seventh digit.
ROUNDING = 2e-5


@pytest.fixture(scope="module")
def ranks(haversack: Haversack, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return tiny_ranks(haversack, tmp_path_factory.mktemp("ddp"), dist="ddp")


@pytest.fixture(scope="module")
def alone(ranks: Ranks) -> Result:
    """One process without --dist."""
    return ranks.run(0, ranks.folder / "alone", dist=None)


def assert_close(result: Result, expected: Result) -> None:
    assert [line["tokens"] for line in result.metrics] == [
        line["tokens"] for line in expected.metrics
    ]
    for line, wanted in zip(result.metrics, expected.metrics, strict=True):
        assert line["loss"] == pytest.approx(wanted["loss"], rel=ROUNDING)
        assert line["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=ROUNDING * 10)
        assert line["lr"] == wanted["lr"]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_ddp_equals_one_process_on_the_same_batch(
    ranks: Ranks, alone: Result, tmp_path: Path, count: int
) -> None:
    result = ranks.run(count, tmp_path / "out")
    assert_close(result, alone)
    assert held_out(result) == pytest.approx(held_out(alone), abs=2e-4)
    assert len(held_out(result)) == 2
    sent = result.metrics[-1]["bytes_sent"]
    assert (sent == 0) == (count == 1)
    assert result.metrics[-1]["syncs"] == (0 if count == 1 else 6)


def test_one_rank_is_bit_exact_with_no_dist(ranks: Ranks, alone: Result, tmp_path: Path) -> None:
    result = ranks.run(1, tmp_path / "out")
    assert [x["loss"] for x in result.metrics] == [x["loss"] for x in alone.metrics]


def test_gradients_in_bf16_cost_half_the_bytes_and_learn_the_same(
    ranks: Ranks, alone: Result, tmp_path: Path
) -> None:
    exact = ranks.run(2, tmp_path / "f32")
    half = ranks.run(2, tmp_path / "bf16", transport="bf16")
    # The vector is padded to whole rows of 1024; headers come on top.
    assert half.metrics[-1]["bytes_sent"] < 0.55 * exact.metrics[-1]["bytes_sent"]
    # Each gradient is rounded twice, by 2^-9 at most.
    assert half.metrics[-1]["loss"] == pytest.approx(alone.metrics[-1]["loss"], rel=1e-2)


@pytest.mark.parametrize("count", [2, 3])
def test_low_rank_gradients_are_reduced_as_they_are(
    ranks: Ranks, alone: Result, tmp_path: Path, count: int
) -> None:
    flags = {"method": "compact", "rank": 8, "refresh": 2}
    one = ranks.run(0, tmp_path / "one", dist=None, **flags)
    result = ranks.run(count, tmp_path / "many", **flags)
    assert_close(result, one)
    assert result.metrics[-1]["loss"] != alone.metrics[-1]["loss"]


@pytest.mark.parametrize("batch", [3, 4])
@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_documents_and_batches_that_do_not_divide(
    ranks: Ranks, tmp_path: Path, count: int, batch: int
) -> None:
    data, valid = tmp_path / "data.jsonl", tmp_path / "valid.jsonl"
    data.write_text("".join(json.dumps({"text": "ab" * n}) + "\n" for n in (1, 2, 25, 100, 1)))
    valid.write_text("".join(json.dumps({"text": "abc" * n}) + "\n" for n in (1, 9, 30)))
    flags = {"data": data, "valid": valid, "batch": batch, "steps": 12}
    one = ranks.run(0, tmp_path / "one", dist=None, **flags)
    result = ranks.run(count, tmp_path / "many", **flags)
    assert_close(result, one)


def test_resumes_with_any_number_of_ranks(ranks: Ranks, tmp_path: Path) -> None:
    flags = {"schedule": "constant", "save_every": 2}
    whole = ranks.run(4, tmp_path / "whole", steps=12, **flags)
    out = tmp_path / "out"
    for count, until in ((4, 4), (2, 6), (3, 8), (6, 10), (1, 12)):
        result = ranks.run(count, out, "--resume", steps=until, **flags)
    assert_close(result, whole)
    assert checkpoint_steps(out)[-1] == 12


def test_a_bad_start_is_told_once_with_its_own_code(ranks: Ranks, tmp_path: Path) -> None:
    result = ranks.run(3, tmp_path / "out", rc=2, data=tmp_path / "nowhere.txt")
    assert result.stderr.count("nowhere.txt") == 1, result
    assert not (tmp_path / "out" / "checkpoints").exists()
    result = ranks.run(2, tmp_path / "out2", rc=3, memory="90MiB")
    assert result.stderr.count("does not fit") == 1, result


def test_dist_does_not_go_with_a_fused_update(ranks: Ranks, tmp_path: Path) -> None:
    flags = {"clip": 0, "batch": 2}
    result = ranks.run(2, tmp_path / "out", "--fused-update", rc=2, **flags)
    assert "--fused-update" in result.stderr


def test_a_diverged_run_ends_with_4_on_all_ranks(ranks: Ranks, tmp_path: Path) -> None:
    result = ranks.run(2, tmp_path / "out", rc=4, lr=1e30, steps=40, clip=0)
    assert result.stderr.count("training diverged") == 1, result
    assert not (tmp_path / "out" / "exported.json").exists()


@pytest.mark.parametrize("plan", ["keep", "recompute"])
def test_tied_embeddings_are_reduced_when_both_ends_are_through(
    ranks: Ranks, tmp_path: Path, plan: str
) -> None:
    model = random_model("gpt2", tmp_path / "model")
    flags = {"model": model, "plan": plan, "micro_batch": 1, "steps": 4, "lr": 0.001}
    one = ranks.run(0, tmp_path / "one", dist=None, **flags)
    two = ranks.run(2, tmp_path / "two", **flags)
    assert_close(two, one)
