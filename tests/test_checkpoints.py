"""Which checkpoint is the last, which may go, and what is made of damaged ones; RES-01."""

import os
import shutil
import time
from pathlib import Path

import pytest

from haversack_testing.runner import Finished, Runner, assert_same
from haversack_testing.runs import checkpoint_steps


@pytest.mark.parametrize("keep", [1, 2])
def test_rotation_keeps_the_highest_steps_and_whatever_is_not_ours(
    runner: Runner, tmp_path: Path, keep: int
) -> None:
    steps = 12
    expected = Finished(tmp_path / "whole", runner.run(tmp_path / "whole", steps=steps, keep=2))
    out = tmp_path / "run"
    runner.killed_after(out, 11, steps=steps, keep=2)
    checkpoints = out / "checkpoints"
    shutil.rmtree(checkpoints / "step-00000012", ignore_errors=True)  # the kill came late
    copy = tmp_path / "elsewhere"
    shutil.copytree(out, copy)
    shutil.copy(f"{out}.jsonl", f"{copy}.jsonl")
    oldest = checkpoints / f"step-{checkpoint_steps(out)[0]:08}"
    ahead = time.time() + 3600
    os.utime(copy / "checkpoints" / oldest.name, (ahead, ahead))
    (copy / "checkpoints" / "best-of-mine").mkdir()
    (copy / "checkpoints" / "best-of-mine" / "note").write_text("mine")
    (copy / "checkpoints" / "step-9").mkdir()
    unfinished = copy / "checkpoints" / "writing-00000012"
    unfinished.mkdir()
    (unfinished / "state.safetensors").write_bytes(b"torn")
    (copy / "checkpoints" / "writing-00000003").mkdir()
    result = runner.run(copy, "--resume", steps=steps, keep=keep)
    assert "resumed after step 11" in result.stderr
    assert_same(copy, result, expected)
    left = {p.name for p in (copy / "checkpoints").iterdir()}
    kept = {f"step-{steps - i:08}" for i in range(keep)}
    assert left == kept | {"best-of-mine", "step-9"}


@pytest.mark.parametrize("harm", ["cut", "flipped"])
@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "DONE"])
def test_a_checkpoint_with_a_harmed_byte_is_passed_over(
    runner: Runner, whole: Finished, tmp_path: Path, name: str, harm: str
) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole.out, out)
    shutil.copy(f"{whole.out}.jsonl", f"{out}.jsonl")
    harmed = out / "checkpoints" / "step-00000008" / name
    content = bytearray(harmed.read_bytes())
    if harm == "cut":
        # DONE ends in a line feed that is no part of its content.
        del content[-2 if name == "DONE" else -1 :]
    else:
        content[len(content) * 3 // 4] ^= 1
    harmed.write_bytes(content)
    result = runner.run(out, "--resume")
    assert "step-00000008 is passed over" in result.stderr
    assert "resumed after step 7" in result.stderr
    assert_same(out, result, whole)


def test_the_best_checkpoint_stays_whatever_its_age(runner: Runner, tmp_path: Path) -> None:
    # The held-out text is other than what is learned: its loss soon rises, an early step is best.
    out = tmp_path / "run"
    (tmp_path / "data.txt").write_text("abcabcabd" * 300)
    (tmp_path / "valid.txt").write_text("zyxw vuts" * 20)
    flags = {
        "data": tmp_path / "data.txt",
        "valid": tmp_path / "valid.txt",
        "eval_every": 1,
        "steps": 10,
        "lr": 0.05,
    }
    result = runner.run(out, **flags)
    losses = {}
    for line in result.stderr.splitlines():
        if "held-out loss" in line and line.startswith("step "):
            losses[int(line.split()[1].rstrip(":"))] = float(line.split("loss ")[1].split(",")[0])
    losses.pop(0, None)
    best = min(losses, key=lambda s: losses[s])
    assert best < 9, losses
    assert checkpoint_steps(out) == [best, 9, 10]
