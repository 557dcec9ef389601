"""Numbers that are not finite are neither trained on, saved nor exported."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from haversack_testing import chain
from haversack_testing.runner import FOLLOWING, Runner
from haversack_testing.runs import checkpoint_steps


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
