"""What a resumed run may change: honoured and printed, or refused by name; RES-03."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from haversack_testing import chain
from haversack_testing.runner import FOLLOWING, Finished, Runner, assert_same, line_count
from haversack_testing.runs import checkpoint_steps, digits, exported, wait_for


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
