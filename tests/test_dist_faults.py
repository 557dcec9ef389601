"""Ranks that are killed or stand still: every run ends in bounded time, and goes on from a whole
checkpoint; DIS-04 a and b."""

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from haversack_testing import Haversack
from haversack_testing.ranks import Ranks, Running, rank_pids, tiny_ranks
from haversack_testing.runs import checkpoint_steps

DEADLINE = 4
# What may pass after a loss: the deadline, and the launcher's own time to end what is left.
BOUND = DEADLINE + 10
MODES = ["ddp", "diloco"]


@pytest.fixture(scope="module")
def ranks(haversack: Haversack, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    folder = tmp_path_factory.mktemp("faults")
    return tiny_ranks(haversack, folder, deadline=DEADLINE, schedule="constant", valid=None)


def long_run(ranks: Ranks, out: Path, mode: str, **flags: Any) -> Running:
    if mode == "diloco":
        flags = {"inner_steps": 20} | flags
    flags = {"steps": 10**6, "save_every": 100} | flags
    return ranks.start(3, out, dist=mode, **flags)


def newest(out: Path) -> int:
    """The newest checkpoint that is whole."""
    done = [p.parent for p in (out / "checkpoints").glob("step-*/DONE")]
    return max((int(p.name[5:]) for p in done), default=0)


def goes_on(ranks: Ranks, out: Path, mode: str, extra: int = 40, **flags: Any) -> None:
    """A resumed run takes up the newest checkpoint and loses no step of it."""
    start = newest(out)
    assert start > 0
    if mode == "diloco":
        flags = {"inner_steps": 20} | flags
    result = ranks.run(3, out, "--resume", dist=mode, steps=start + extra, **flags)
    assert f"resumed after step {start}" in result.stderr
    assert [x["step"] for x in result.metrics] == list(range(1, start + extra + 1))
    assert all(x["tokens"] == 64 for x in result.metrics)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_ends_the_run(ranks: Ranks, tmp_path: Path, mode: str, victim: int) -> None:
    out = tmp_path / "out"
    running = long_run(ranks, out, mode)
    running.wait_until(lambda: newest(out) > 0)
    running.signal(victim, signal.SIGKILL)
    status, stderr = running.end(timeout=BOUND)
    assert status not in {0, 1}
    assert f"rank {victim}" in stderr
    assert not rank_pids(running.process.pid)
    goes_on(ranks, out, mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_rank_killed_while_checkpoints_are_written(
    ranks: Ranks, tmp_path: Path, mode: str
) -> None:
    out = tmp_path / "out"
    save = 20 if mode == "diloco" else 1
    running = long_run(ranks, out, mode, save_every=save)
    running.wait_until(lambda: newest(out) > 0)
    pids = running.pids()
    running.wait_until(lambda: any((out / "checkpoints").glob("writing-*/*")))
    running.signal(1, signal.SIGKILL)
    status, _ = running.end(timeout=BOUND)
    assert status not in {0, 1}
    assert len(pids) == 3
    goes_on(ranks, out, mode, save_every=save)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_stands_still_is_named_within_the_deadline(
    ranks: Ranks, tmp_path: Path, mode: str, victim: int
) -> None:
    out = tmp_path / "out"
    running = long_run(ranks, out, mode)
    running.wait_until(lambda: newest(out) > 0)
    running.signal(victim, signal.SIGSTOP)
    start = time.monotonic()
    status, stderr = running.end(timeout=BOUND)
    assert time.monotonic() - start >= DEADLINE - 1
    assert status == 6, stderr
    assert f"haversack: rank {victim} did not come to" in stderr
    assert not rank_pids(running.process.pid)
    goes_on(ranks, out, mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_short_stand_still_changes_nothing(ranks: Ranks, tmp_path: Path, mode: str) -> None:
    flags = {"steps": 1500, "dist": mode, "save_every": 1500}
    if mode == "diloco":
        flags["inner_steps"] = 2
    running = ranks.start(3, tmp_path / "out", **flags)
    running.wait_until(lambda: running.lines() > 4)
    running.signal(1, signal.SIGSTOP)
    time.sleep(DEADLINE / 3)
    running.signal(1, signal.SIGCONT)
    status, stderr = running.end(timeout=120)
    assert status == 0, stderr
    whole = ranks.run(3, tmp_path / "whole", **flags)
    stopped = ranks.metrics(tmp_path / "out")
    assert [x["loss"] for x in stopped] == [x["loss"] for x in whole.metrics]
    assert max(x["wait_s"] for x in stopped) > DEADLINE / 3 - 1


def test_a_stop_signal_to_one_rank_saves_and_ends_all(ranks: Ranks, tmp_path: Path) -> None:
    out = tmp_path / "out"
    running = long_run(ranks, out, "ddp", save_every=None)
    running.wait_until(lambda: running.lines() > 4)
    running.signal(1, signal.SIGTERM)
    status, stderr = running.end(timeout=30)
    assert status == 0, stderr
    (step,) = checkpoint_steps(out)
    assert f"stopped by another rank's signal after step {step}" in stderr
    goes_on(ranks, out, "ddp")


def test_a_disk_that_fails_on_one_rank_ends_all_with_its_code(ranks: Ranks, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "checkpoints").write_text("in the way")
    result = ranks.run(3, out, dist="diloco", inner_steps=2, rc=(2, 5))
    assert result.stderr.count("haversack: ") == 1, result
