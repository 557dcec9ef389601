"""Trainers that adapt their batch and merge: DIS-01 of adloco, lengths in tokens, resumes."""

import json
import re
import signal
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from haversack_testing import Haversack, Result
from haversack_testing.ranks import Ranks, held_out, tiny_ranks
from haversack_testing.runs import checkpoint_steps, exported

TOKENS = 12000
MERGE = re.compile(
    r"the merge after round (\d+): (\d+) trainers of (\d+) ranks, held-out loss ([\d.]+) against "
    r"([\d.]+) of the parents in the mean, ([\d.]+) of the best: (kept|the best goes on alone)"
)


@pytest.fixture(scope="module")
def ranks(haversack: Haversack, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    folder = tmp_path_factory.mktemp("adloco")
    return tiny_ranks(
        haversack, folder, dist="adloco", inner_steps=4, steps=None, tokens=TOKENS, micro_batch=2
    )


def rounds(metrics: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    return [list(lines) for _, lines in groupby(metrics, key=lambda line: line["round"])]


def learned(metrics: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    names = ("step", "trainer", "trainers", "loss", "tokens", "batch", "lr")
    return [tuple(line[name] for name in names) for line in metrics]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("batch", [3, 4])
def test_documents_and_batches_that_do_not_divide(
    ranks: Ranks, tmp_path: Path, count: int, batch: int
) -> None:
    data, valid = tmp_path / "data.jsonl", tmp_path / "valid.jsonl"
    data.write_text("".join(json.dumps({"text": "ab" * n}) + "\n" for n in (1, 2, 25, 100, 1)))
    valid.write_text("".join(json.dumps({"text": "abc" * n}) + "\n" for n in (1, 9, 30)))
    flags = {"data": data, "valid": valid, "batch": batch, "inner_steps": 2}
    result = ranks.run(count, tmp_path / "out", steps=12, tokens=None, **flags)
    assert [x["step"] for x in result.metrics] == list(range(1, 13))
    assert (result.metrics[-1]["bytes_sent"] == 0) == (count == 1)
    assert len(held_out(result)) == 2


@pytest.mark.parametrize("trainers", [1, 2, 4])
def test_a_run_ends_at_its_token_budget_with_one_model(
    ranks: Ranks, tmp_path: Path, trainers: int
) -> None:
    result = ranks.run(4, tmp_path / "out", trainers=trainers, merge_every=3)
    last = sum(x["tokens"] for x in result.metrics if x["step"] == result.metrics[-1]["step"])
    total = sum(x["tokens"] for x in result.metrics)
    assert TOKENS <= total < TOKENS + 2 * last
    before, after = held_out(result)
    assert after < before - 1
    merged = [int(m[2]) for m in MERGE.finditer(result.stderr)]
    assert sum(n - 1 for n in merged) == trainers - 1
    # Replicas are compared by hash after every round and every merge; the last line says one.
    numbers = [x["trainers"] for x in result.metrics]
    assert numbers == sorted(numbers, reverse=True)


def test_batches_grow_at_most_twofold_and_in_sizes_that_are_planned(
    ranks: Ranks, tmp_path: Path
) -> None:
    result = ranks.run(2, tmp_path / "out", batch=2, batch_max=32, tokens=40000, lr=1e-3)
    # The workers' batch: 1, 2 (the micro-batch; also for 3 and 4), then whole micro-batches.
    batches = [lines[-1]["batch"] // 2 for lines in rounds(result.metrics)]
    assert batches[0] == 1
    assert batches == sorted(batches)
    assert set(batches) <= {1, 2, *range(6, 17, 2)}
    assert batches[-1] >= 6, "text of random words has noise"
    for line in result.metrics:
        # Sequences of 16 targets, none missing: what is said is what was used.
        assert line["tokens"] == 16 * line["batch"]


def test_the_rate_grows_with_the_root_of_the_batch(ranks: Ranks, tmp_path: Path) -> None:
    flags = {"batch": 2, "batch_max": 16, "schedule": "constant"}
    for scaling, power in (("sqrt", 0.5), ("none", 0), ("linear", 1)):
        result = ranks.run(2, tmp_path / scaling, batch_lr_scaling=scaling, **flags)
        assert max(x["batch"] for x in result.metrics) > 2
        for line in result.metrics:
            assert line["lr"] == pytest.approx(0.01 * (line["batch"] / 2) ** power)


def test_a_growing_batch_changes_neither_warm_up_nor_decay(ranks: Ranks, tmp_path: Path) -> None:
    flags = {"batch": 2, "batch_max": 16, "warmup": 40, "batch_lr_scaling": "none"}
    result = ranks.run(2, tmp_path / "out", **flags)
    steps = TOKENS / 32
    done = 0
    for line in result.metrics:
        # The schedule's step is that of a run whose batch had stayed at 2.
        step = done // 32
        expected = (step + 1) / 40 if step < 40 else None
        if expected is not None:
            assert line["lr"] == pytest.approx(0.01 * expected)
        done += line["tokens"]
    assert result.metrics[-1]["step"] < steps
    assert result.metrics[-1]["lr"] < 0.0015


def test_merging_identical_trainers_is_the_identity(ranks: Ranks, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text((json.dumps({"text": "abcdefgh" * 2 + "a"}) + "\n") * 64)
    flags = {"data": data, "seq": 18, "steps": 12, "tokens": None, "batch": 4, "batch_max": 4}
    two = ranks.run(4, tmp_path / "two", trainers=2, merge_every=2, **flags)
    one = ranks.run(4, tmp_path / "one", trainers=1, **flags)
    (merge,) = MERGE.finditer(two.stderr)
    assert merge[4] == merge[5] == merge[6]
    assert merge[7] == "kept"
    by_step = {x["step"]: x["loss"] for x in one.metrics}
    for line in two.metrics:
        assert line["loss"] == pytest.approx(by_step[line["step"]], rel=1e-6)
    # Total batch and data are conserved.
    for lines in rounds(two.metrics):
        first = [x for x in lines if x["step"] == lines[-1]["step"]]
        assert sum(x["batch"] for x in first) == 4


@pytest.mark.parametrize(("count", "trainers"), [(2, 1), (4, 2), (3, 3)])
def test_a_killed_run_resumes_bit_for_bit(
    ranks: Ranks, tmp_path: Path, count: int, trainers: int
) -> None:
    flags = {"save_every": 4, "trainers": trainers, "merge_every": 4, "transport": "int4"}
    whole = ranks.run(count, tmp_path / "whole", **flags)
    out = tmp_path / "out"
    running = ranks.start(count, out, **flags)
    running.wait_until(lambda: len(checkpoint_steps(out)) >= 2)
    running.signal(count - 1, signal.SIGKILL)
    running.end(timeout=30)
    resumed = ranks.run(count, out, "--resume", **flags)
    assert learned(resumed.metrics) == learned(whole.metrics)
    assert exported(out) == exported(tmp_path / "whole")


@pytest.mark.parametrize("after", [0, 0.02, 0.05, 0.1])
def test_a_rank_killed_about_a_merge_leaves_a_whole_round(
    ranks: Ranks, tmp_path: Path, after: float
) -> None:
    import time

    # A merge every round.
    flags = {"save_every": 1, "trainers": 4, "merge_every": 1, "inner_steps": 2, "tokens": 4000}
    out = tmp_path / "out"
    running = ranks.start(4, out, **flags)
    running.wait_until(lambda: checkpoint_steps(out))
    time.sleep(after)
    if running.process.poll() is None:
        running.signal(1, signal.SIGKILL)
    running.end(timeout=30)
    resumed = ranks.run(4, out, "--resume", **flags)
    whole = ranks.run(4, tmp_path / "whole", **flags)
    assert learned(resumed.metrics) == learned(whole.metrics)


def test_resumes_with_other_ranks(ranks: Ranks, tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = {"save_every": 4, "trainers": 2, "schedule": "constant"}
    total = 0
    for count, tokens in ((4, 3000), (3, 6000), (6, 9000)):
        # The end merges what is left, so the last trainers go on as one.
        result = ranks.run(count, out, "--resume", tokens=tokens, **flags)
        total = sum(x["tokens"] for x in result.metrics)
        assert total >= tokens
    steps = {x["step"] for x in result.metrics}
    assert steps == set(range(1, max(steps) + 1))
    assert all(x["tokens"] == 16 * x["batch"] for x in result.metrics)


def test_fewer_ranks_than_trainers_are_refused(ranks: Ranks, tmp_path: Path) -> None:
    result: Result = ranks.run(2, tmp_path / "out", trainers=3, rc=2)
    assert "--trainers 3" in result.stderr
    assert result.stderr.count("haversack: ") == 1
    out = tmp_path / "resumed"
    flags = {"save_every": 4, "trainers": 3}
    running = ranks.start(3, out, **flags)
    running.wait_until(lambda: checkpoint_steps(out))
    running.signal(0, signal.SIGKILL)
    running.end(timeout=30)
    result = ranks.run(2, out, "--resume", rc=2, **flags | {"trainers": 2})
    assert "3" in result.stderr


def test_a_run_without_a_length_is_refused(ranks: Ranks, tmp_path: Path) -> None:
    result = ranks.run(0, tmp_path / "out", tokens=None, dist=None, inner_steps=None, rc=2)
    assert "--steps or --tokens" in result.stderr


@pytest.mark.parametrize("mode", [None, "ddp", "diloco"])
def test_a_token_budget_is_a_number_of_steps_where_the_batch_is_fixed(
    ranks: Ranks, tmp_path: Path, mode: str | None
) -> None:
    flags = {"dist": mode, "inner_steps": 3 if mode == "diloco" else None, "tokens": 6 * 64 - 10}
    result = ranks.run(2 if mode else 0, tmp_path / "out", **flags)
    assert [x["step"] for x in result.metrics] == [1, 2, 3, 4, 5, 6]
