"""Killed, stopped and resumed runs equal the uninterrupted run, bit for bit; RES-01, 03, 04."""

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from haversack_testing import Haversack, Result, chain
from haversack_testing.runs import checkpoint_steps, digits, exported, wait_for, write_text

FOLLOWING = {97 + i: 98 + i for i in range(8)}


@dataclass
class Runner:
    """Runs on one tiny model and text; every flag can be changed or, with None, left out."""

    haversack: Haversack
    folder: Path
    flags: dict[str, Any] = field(default_factory=dict)

    def args(self, out: Path, *switches: str, **flags: Any) -> list[str]:
        chosen = self.flags | {"metrics": f"{out}.jsonl"} | flags
        named = [(f"--{k.replace('_', '-')}", v) for k, v in chosen.items() if v is not None]
        return ["train", "--out", str(out), *switches, *(str(x) for pair in named for x in pair)]

    @property
    def env(self) -> dict[str, str]:
        return {"HAVERSACK_CACHE": str(self.folder / "cache")}

    def run(self, out: Path, *switches: str, rc: int = 0, **flags: Any) -> Result:
        return self.haversack.run(*self.args(out, *switches, **flags), rc=rc, env=self.env)

    def start(self, out: Path, *switches: str, **flags: Any) -> Any:
        process = self.haversack.start(*self.args(out, *switches, **flags), env=self.env)
        process.metrics = Path(f"{out}.jsonl")
        return process

    def killed_after(self, out: Path, step: int, *switches: str, **flags: Any) -> None:
        """A run that is killed once the checkpoint of `step` is there."""
        process = self.start(out, *switches, **flags)
        done = out / "checkpoints" / f"step-{step:08}" / "DONE"
        assert wait_for(done.exists, process), process.communicate()
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def runner(haversack: Haversack, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    folder = tmp_path_factory.mktemp("resume")
    chain(folder / "model", FOLLOWING, config={"num_hidden_layers": 2})
    write_text(folder / "data.txt", 4000)
    write_text(folder / "valid.txt", 600, seed=1)
    return Runner(
        haversack,
        folder,
        {
            "model": folder / "model",
            "data": folder / "data.txt",
            "init": "random",
            "batch": 2,
            "micro_batch": 2,
            "seq": 16,
            "steps": 8,
            "lr": 0.01,
            "threads": 1,
            "save_every": 1,
        },
    )


@dataclass(frozen=True)
class Finished:
    out: Path
    result: Result


@pytest.fixture(scope="module")
def whole(runner: Runner) -> Finished:
    """The uninterrupted run."""
    out = runner.folder / "whole"
    return Finished(out, runner.run(out))


def assert_same(out: Path, result: Result, expected: Finished) -> None:
    assert digits(result.metrics) == digits(expected.result.metrics)
    assert exported(out) == exported(expected.out)


def line_count(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


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


# Signals


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


# Which checkpoint is the last, and which may go


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


# Other flags on resume


@pytest.fixture(scope="module")
def half(runner: Runner) -> Path:
    """A run that was killed after step 4 of 8."""
    out = runner.folder / "half"
    runner.killed_after(out, 4)
    for step in checkpoint_steps(out):
        if step > 4:
            shutil.rmtree(out / "checkpoints" / f"step-{step:08}")
    return out


@pytest.fixture
def copy(half: Path, tmp_path: Path) -> Iterator[Path]:
    out = tmp_path / "run"
    shutil.copytree(half, out)
    shutil.copy(f"{half}.jsonl", f"{out}.jsonl")
    return out


def assert_untouched(out: Path, half: Path) -> None:
    assert Path(f"{out}.jsonl").read_bytes() == Path(f"{half}.jsonl").read_bytes()
    assert (out / "run.json").read_bytes() == (half / "run.json").read_bytes()
    assert checkpoint_steps(out) == checkpoint_steps(half)


REFUSED = {
    "batch": (4, "2"),
    "seq": (32, "16"),
    "seed": (7, "0"),
    "init": ("checkpoint", '"random"'),
    "loss_chunk": (8, "256"),
}


@pytest.mark.parametrize("flag", REFUSED)
def test_a_flag_that_would_change_the_data_is_refused(
    runner: Runner, half: Path, copy: Path, flag: str
) -> None:
    now, before = REFUSED[flag]
    result = runner.run(copy, "--resume", rc=2, **{flag: now})
    name = "--" + flag.replace("_", "-")
    for part in (name, str(now), before):
        assert part in result.error()
    assert_untouched(copy, half)


HONOURED = {
    "lr": 0,
    "schedule": "linear",
    "warmup": 6,
    "final_lr_ratio": 0.5,
    "clip": 0.1,
    "beta1": 0.8,
    "beta2": 0.9,
    "epsilon": 1e-3,
    "weight_decay": 0.5,
    "save_every": 2,
    "keep": 3,
    "eval_every": 3,
    "max_bad_steps": 2,
    "threads": 2,
    "plan": "recompute",
    "micro_batch": 1,
    "export_dtype": "bf16",
    "memory": "700MiB",
    "steps": 12,
}


@pytest.mark.parametrize("flag", HONOURED)
def test_a_flag_that_may_change_is_honoured_and_printed(
    runner: Runner, copy: Path, flag: str
) -> None:
    result = runner.run(copy, "--resume", **{flag: HONOURED[flag]})
    name = "--" + flag.replace("_", "-")
    assert f"resumed run: {name} changes from " in result.stderr
    assert [line["step"] for line in result.metrics] == list(range(1, 13 if flag == "steps" else 9))
    if flag == "lr":
        assert [line["lr"] for line in result.metrics[4:]] == [0] * 4
    if flag == "steps":
        assert "the learning-rate schedule now ends there" in result.stderr
    if flag == "micro_batch":
        assert "to rounding only" in result.stderr
    if flag == "export_dtype":
        assert load_file_dtype(copy) == "BF16"


def load_file_dtype(out: Path) -> str:
    raw = (out / "model" / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return next(v["dtype"] for k, v in header.items() if k != "__metadata__")


def test_a_micro_batch_that_is_not_given_stays(runner: Runner, whole: Finished, copy: Path) -> None:
    result = runner.run(copy, "--resume", micro_batch=None)
    assert_same(copy, result, whole)


def test_fused_update_on_a_run_that_accumulates_is_refused(runner: Runner, tmp_path: Path) -> None:
    out = tmp_path / "run"
    runner.killed_after(out, 2, micro_batch=1, clip=0)
    result = runner.run(out, "--resume", "--fused-update", rc=2, micro_batch=None, clip=0)
    assert "--fused-update" in result.error()
    assert "--micro-batch 2" in result.error()


@pytest.mark.parametrize("what", ["other", "byte", "model"])
def test_other_data_or_another_model_is_refused(
    runner: Runner, half: Path, copy: Path, tmp_path: Path, what: str
) -> None:
    if what == "model":
        other = chain(
            tmp_path / "model", FOLLOWING, config={"num_hidden_layers": 2, "rms_norm_eps": 1e-6}
        )
        result = runner.run(copy, "--resume", rc=2, model=other)
        flag, path, before = "--model", str(other), str(runner.flags["model"])
    else:
        data = tmp_path / "data.txt"
        content = bytearray(runner.flags["data"].read_bytes())
        content[100] = ord("Q")
        data.write_bytes(content if what == "byte" else b"other text " * 300)
        result = runner.run(copy, "--resume", rc=2, data=data)
        flag, path, before = "--data", str(data), str(runner.flags["data"])
    for part in (flag, path, before):
        assert part in result.error()
    assert_untouched(copy, half)


def test_the_same_data_and_model_under_another_path_go_on(
    runner: Runner, whole: Finished, copy: Path, tmp_path: Path
) -> None:
    shutil.copytree(runner.flags["model"], tmp_path / "moved-model")
    shutil.copy(runner.flags["data"], tmp_path / "moved.txt")
    result = runner.run(
        copy, "--resume", model=tmp_path / "moved-model", data=tmp_path / "moved.txt"
    )
    assert "--data changes from" in result.stderr
    assert_same(copy, result, whole)


def test_other_held_out_text_is_said_and_the_best_chosen_anew(
    runner: Runner, whole: Finished, copy: Path, tmp_path: Path
) -> None:
    valid = runner.folder / "valid.txt"
    result = runner.run(copy, "--resume", valid=valid, eval_every=1, steps=6)
    assert "--valid changes from" in result.stderr
    shutil.copy(valid, tmp_path / "valid.txt")
    (tmp_path / "valid.txt").open("a").write("more of it\n")
    result = runner.run(copy, "--resume", valid=tmp_path / "valid.txt", eval_every=1)
    assert "the best checkpoint is chosen anew" in result.stderr
    # That was learned with --steps 6 first, so the rate differs; the data does not.
    expected = [line["tokens"] for line in whole.result.metrics]
    assert [line["tokens"] for line in result.metrics] == expected


def test_fewer_steps_than_done_change_nothing(runner: Runner, half: Path, copy: Path) -> None:
    result = runner.run(copy, "--resume", steps=3)
    assert "nothing to do" in result.stderr
    assert not (copy / "model").exists()
    assert_untouched(copy, half)


def test_a_finished_run_resumed_does_nothing(
    runner: Runner, whole: Finished, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole.out, out)
    shutil.copy(f"{whole.out}.jsonl", f"{out}.jsonl")
    before = Path(f"{out}.jsonl").read_bytes()
    stamp = (out / "model" / "model.safetensors").stat().st_mtime_ns
    result = runner.run(out, "--resume")
    assert "nothing to do" in result.stderr
    assert Path(f"{out}.jsonl").read_bytes() == before
    assert exported(out) == exported(whole.out)
    assert (out / "model" / "model.safetensors").stat().st_mtime_ns == stamp


def test_a_run_directory_in_use_or_already_used_is_refused(
    runner: Runner, whole: Finished, tmp_path: Path
) -> None:
    assert "pass --resume" in runner.run(whole.out, rc=2, metrics=None).error()
    out = tmp_path / "run"
    process = runner.start(out, steps=100_000, save_every=None)
    assert wait_for(lambda: line_count(process.metrics) >= 1, process)
    error = runner.run(out, "--resume", rc=2, metrics=tmp_path / "other.jsonl").error()
    process.kill()
    process.communicate()
    assert str(out) in error
    assert "another process" in error
    assert not (tmp_path / "other.jsonl").exists()


def test_metrics_start_anew_without_resume_and_survive_a_refused_run(
    runner: Runner, whole: Finished, tmp_path: Path
) -> None:
    metrics = tmp_path / "metrics.jsonl"
    before = '{"step": 3, "loss": 1.0}\n'
    metrics.write_text(before)
    runner.run(tmp_path / "refused", rc=2, metrics=metrics, data=tmp_path / "missing.txt")
    assert metrics.read_text() == before
    result = runner.run(tmp_path / "run", metrics=metrics)
    assert digits(result.metrics) == digits(whole.result.metrics)


def test_the_model_that_the_export_would_replace_is_refused(runner: Runner, tmp_path: Path) -> None:
    model = tmp_path / "run" / "model"
    shutil.copytree(runner.flags["model"], model)
    before = exported(tmp_path / "run")
    error = runner.run(tmp_path / "run", rc=2, model=model).error()
    assert "--model" in error
    assert exported(tmp_path / "run") == before


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


# Numbers that are not finite


def broken(runner: Runner, path: Path, value: float) -> Path:
    chain(path, FOLLOWING)
    weights = dict(load_file(path / "model.safetensors"))
    weights["model.layers.0.mlp.up_proj.weight"] = np.array(
        weights["model.layers.0.mlp.up_proj.weight"]
    )
    weights["model.layers.0.mlp.up_proj.weight"][3, 4] = value
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_model_that_is_not_finite_is_refused_before_the_first_step(
    runner: Runner, tmp_path: Path, value: float
) -> None:
    model = broken(runner, tmp_path / "model", value)
    result = runner.run(tmp_path / "run", rc=2, model=model, init=None)
    assert "model.layers.0.mlp.up_proj.weight" in result.error()
    assert "model.safetensors" in result.error()
    assert result.metrics == []


@pytest.mark.parametrize("switches", [[], ["--fused-update"]])
def test_bad_steps_in_a_row_end_the_run_and_nothing_is_exported(
    runner: Runner, tmp_path: Path, switches: list[str]
) -> None:
    # Weights of 1e19: finite, but the next forward pass is not.
    out = tmp_path / "run"
    flags = {"lr": 1e19, "schedule": "constant", "steps": 20, "max_bad_steps": 3, "clip": 0}
    result = runner.run(out, *switches, rc=4, **flags)
    skipped = [line for line in result.metrics if line["skipped"]]
    assert len(skipped) == 3
    assert all(line["loss"] is None or line["grad_norm"] is None for line in skipped)
    assert "3 steps in a row" in result.error()
    assert not (out / "model").exists()
    for state in (out / "checkpoints").glob("step-*/state.safetensors"):
        assert all(np.isfinite(tensor).all() for tensor in load_file(state).values())


def test_a_fused_update_that_cannot_be_taken_back_ends_the_run(
    runner: Runner, tmp_path: Path
) -> None:
    # Weights of 1e25: the loss is finite, and so are the gradients that arrive first.
    out = tmp_path / "run"
    flags = {"lr": 1e25, "schedule": "constant", "steps": 3, "clip": 0}
    result = runner.run(out, "--fused-update", rc=4, **flags)
    assert "cannot take that back" in result.error()
    assert checkpoint_steps(out) == [1]
    assert not (out / "model").exists()


def test_a_run_whose_last_steps_were_skipped_exports_nothing(
    runner: Runner, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    flags = {"lr": 1e19, "schedule": "constant", "steps": 3, "max_bad_steps": 50, "clip": 0}
    assert "not finite" in runner.run(out, rc=4, **flags).error()
    assert not (out / "model").exists()


def test_weights_that_overflow_are_neither_saved_nor_exported(
    runner: Runner, tmp_path: Path
) -> None:
    # The update itself leaves the range of f32, in a step whose loss is finite.
    out = tmp_path / "run"
    error = runner.run(out, rc=4, lr=1e39, schedule="constant", steps=1, clip=0).error()
    assert "weights." in error
    assert checkpoint_steps(out) == []
    assert not (out / "model").exists()


def test_weights_too_large_for_the_exported_type_are_named(runner: Runner, tmp_path: Path) -> None:
    out = tmp_path / "run"
    flags = {"lr": 1e6, "schedule": "constant", "steps": 1, "clip": 0}
    error = runner.run(out, rc=2, export_dtype="f16", **flags).error()
    assert "--export-dtype" in error
    assert not (out / "model").exists()
    runner.run(out, "--resume", export_dtype="f32", **flags)
    assert (out / "model").exists()
