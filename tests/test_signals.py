"""A signal finishes the step, saves and exits 0; a second one ends the run at once."""

import signal
import time
from pathlib import Path

import pytest

from haversack_testing.runner import Finished, Runner, assert_same, line_count
from haversack_testing.runs import checkpoint_steps, wait_for, write_text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_saves_and_exits_zero(
    runner: Runner, tmp_path: Path, number: signal.Signals
) -> None:
    flags = {"steps": 3000, "save_every": None, "schedule": "constant"}
    out = tmp_path / "run"
    process = runner.start(out, **flags)
    assert wait_for(lambda: line_count(process.metrics) >= 3, process)
    process.send_signal(number)
    stderr = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 0, stderr
    assert "--resume goes on from there" in stderr
    step = line_count(process.metrics)
    assert checkpoint_steps(out) == [step]
    assert not (out / "model").exists()

    flags["steps"] = step + 2
    expected = Finished(tmp_path / "whole", runner.run(tmp_path / "whole", **flags))
    assert_same(out, runner.run(out, "--resume", **flags), expected)


def test_a_second_signal_ends_the_run_at_once_and_tears_nothing(
    runner: Runner, tmp_path: Path
) -> None:
    # One step is some thousand micro-batches: it is not over when the second signal comes.
    flags = {"batch": 4096, "micro_batch": 1, "steps": 2}
    out = tmp_path / "run"
    process = runner.start(out, **flags)
    assert wait_for(lambda: line_count(process.metrics) >= 1, process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    result = runner.run(out, "--resume", **flags)
    expected = Finished(tmp_path / "whole", runner.run(tmp_path / "whole", **flags))
    assert_same(out, result, expected)


def test_a_signal_during_tokenisation_exits_zero(runner: Runner, tmp_path: Path) -> None:
    data = write_text(tmp_path / "long.txt", 60_000_000)
    out = tmp_path / "run"
    process = runner.start(out, data=data)
    tokens = runner.folder / "cache" / "tokens"
    assert wait_for(lambda: list(tokens.glob("*.tmp/tokens.bin")), process)
    process.send_signal(signal.SIGTERM)
    stderr = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 0, stderr
    assert "before the first step" in stderr
    assert not list(tokens.glob("*.tmp"))
    assert checkpoint_steps(out) == []


def test_a_signal_while_waiting_for_another_tokenisation_exits_zero(
    runner: Runner, tmp_path: Path
) -> None:
    data = write_text(tmp_path / "long.txt", 60_000_000, seed=3)
    first = runner.start(tmp_path / "first", data=data)
    tokens = runner.folder / "cache" / "tokens"
    assert wait_for(lambda: list(tokens.glob("*.tmp/tokens.bin")), first)
    second = runner.start(tmp_path / "second", data=data)
    log = tmp_path / "second" / "train.log"
    assert wait_for(lambda: log.exists() and "waiting for another" in log.read_text(), second)
    second.send_signal(signal.SIGTERM)
    assert "before the first step" in second.communicate(timeout=30)[1].decode()
    first.kill()
    first.communicate()
    assert second.returncode == 0


def test_a_signal_during_evaluation_saves_the_step_and_exits_zero(
    runner: Runner, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    small = runner.folder / "valid.txt"
    large = write_text(tmp_path / "large.txt", 8_000_000, seed=4)
    flags = {"save_every": None, "schedule": "constant", "eval_every": 2}
    runner.run(out, steps=1, valid=small, **flags)
    process = runner.start(out, "--resume", steps=8, valid=large, **flags)
    assert wait_for(lambda: line_count(process.metrics) == 2, process)
    time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    stderr = process.communicate(timeout=30)[1].decode()
    assert process.returncode == 0, stderr
    assert "stopped by signal 15 after step 2; --resume goes on from there" in stderr
    assert checkpoint_steps(out) == [1, 2]
    # The evaluation that was cut short is made up for.
    result = runner.run(out, "--resume", steps=4, valid=small, **flags)
    assert "step 2: held-out loss" in result.stderr
