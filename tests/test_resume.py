"""Killed and resumed runs equal the uninterrupted run, bit for bit; RES-04."""

import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from haversack_testing.runner import Finished, Runner, assert_same, line_count
from haversack_testing.runs import checkpoint_steps, wait_for


def moments(out: Path, process: Any, rng: random.Random, steps: int) -> Callable[[], bool]:
    """A moment to kill at: some step, inside a checkpoint's write, inside the export, or any."""
    kind = rng.choice(["step", "checkpoint", "export", "delay"])
    if kind == "step":
        step = rng.randint(1, steps)
        return lambda: line_count(process.metrics) >= step
    if kind == "checkpoint":
        step = rng.randint(1, steps)
        return lambda: (
            line_count(process.metrics) >= step
            and any((out / "checkpoints").glob("writing-*/state.*"))
        )
    if kind == "export":
        return lambda: (out / "model.writing").exists()
    end = time.monotonic() + rng.uniform(0, 1.5)
    return lambda: time.monotonic() > end


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fused": {"fused_update": "true", "clip": 0},
    "accumulation": {"batch": 4, "micro_batch": 1},
    "best": {"valid": "valid.txt", "eval_every": 2, "keep": 1},
    "8-bit moments": {"optimizer": "adamw8bit"},
    "low rank": {"method": "compact", "rank_ratio": 0.25, "refresh": 3},
    "low rank, fused": {
        "method": "compact",
        "rank": 8,
        "refresh": 2,
        "moments": "reset",
        "fused_update": "true",
        "clip": 0,
    },
    "principal": {"method": "prac-lowrank", "refresh": 3, "batch": 4, "micro_batch": 2},
    "principal, full moments": {"method": "prac", "refresh": 3},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_killed_at_random_moments_equals_the_uninterrupted_run(
    runner: Runner, tmp_path: Path, variant: str
) -> None:
    steps = 24
    flags = VARIANTS[variant] | {"steps": steps}
    switches = ["--fused-update"] if flags.pop("fused_update", None) else []
    if "valid" in flags:
        flags["valid"] = runner.folder / flags["valid"]
    expected = Finished(tmp_path / "whole", runner.run(tmp_path / "whole", *switches, **flags))

    rng = random.Random(variant)
    out = tmp_path / "killed"
    for _ in range(10):
        process = runner.start(out, *switches, "--resume", **flags)
        wait_for(moments(out, process, rng, steps), process)
        time.sleep(rng.uniform(0, 0.003))
        process.kill()
        process.communicate()
    assert_same(out, runner.run(out, *switches, "--resume", **flags), expected)
    assert checkpoint_steps(out) == checkpoint_steps(expected.out)
    assert not list((out / "checkpoints").glob("writing-*"))
    assert {p.name for p in out.iterdir()} == {p.name for p in expected.out.iterdir()}


def test_a_kill_inside_the_export_is_made_good_by_resume(
    runner: Runner, whole: Finished, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    for _ in range(20):  # the export takes milliseconds
        process = runner.start(out, "--resume")
        caught = wait_for((out / "model.writing").exists, process)
        process.kill()
        process.communicate()
        if caught and not (out / "exported.json").exists():
            break
        shutil.rmtree(out)
    else:
        pytest.fail("never killed inside the export")
    result = runner.run(out, "--resume")
    assert "the export is made now" in result.stderr
    assert_same(out, result, whole)
    assert not (out / "model.writing").exists()


def test_an_export_that_was_removed_is_made_again(
    runner: Runner, whole: Finished, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole.out, out)
    shutil.rmtree(out / "model")
    shutil.copy(f"{whole.out}.jsonl", f"{out}.jsonl")
    assert_same(out, runner.run(out, "--resume"), whole)


def test_other_threads_budget_and_plan_leave_every_digit(
    runner: Runner, whole: Finished, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    runner.killed_after(out, 2, plan="keep", memory="1GiB", threads=2)
    runner.killed_after(out, 4, "--resume", plan="recompute", memory="512MiB", threads=1)
    result = runner.run(out, "--resume", plan="keep", memory="768MiB", threads=2)
    for flag in ("--plan", "--memory", "--threads"):
        assert f"{flag} changes from" in result.stderr
    assert_same(out, result, whole)


# The edge of an epoch


@pytest.mark.parametrize(("documents", "batch"), [(8, 2), (9, 2), (3, 4)])
def test_a_kill_on_the_edge_of_an_epoch_skips_and_repeats_nothing(
    runner: Runner, tmp_path: Path, documents: int, batch: int
) -> None:
    # Each document fills a sequence of 16 with its end: 15 bytes, every one other.
    lines = [json.dumps({"text": f"{chr(97 + i) * 14}{i}"}) for i in range(documents)]
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(lines) + "\n")
    flags = {"data": data, "batch": batch, "steps": 12, "save_every": 4, "micro_batch": batch}
    expected = Finished(tmp_path / "whole", runner.run(tmp_path / "whole", **flags))
    out = tmp_path / "run"
    runner.killed_after(out, 4, **flags)
    runner.killed_after(out, 8, "--resume", **flags)
    result = runner.run(out, "--resume", **flags)
    assert_same(out, result, expected)
    # Every sequence has the same number of targets: an epoch's worth comes round exactly.
    tokens = sum(line["tokens"] for line in result.metrics)
    assert tokens == 12 * batch * result.metrics[0]["tokens"] // batch
