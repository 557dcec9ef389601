"""Low-rank training and 8-bit moments from the command line: memory, equalities, refusals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from haversack_testing import Haversack, Result
from haversack_testing.random_model import random_model
from haversack_testing.runs import digits, exported, write_text

HIDDEN, FFN, LAYERS, Q_KV = 64, 128, 2, 64 + 2 * 32

COMPACT = {"method": "compact", "rank_ratio": 0.25, "refresh": 2}
PRAC = {"method": "prac-lowrank", "refresh": 2}

Train = Callable[..., Result]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model("llama", tmp_path_factory.mktemp("low-rank") / "model")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "data.txt", 6000)


@pytest.fixture
def train(haversack: Haversack, model: Path, text: Path, tmp_path: Path) -> Train:
    """Trains into `out` with flags of one's own choice; the file of metrics lies beside it."""

    def run(out: str, *switches: str, rc: int = 0, command: str = "train", **flags: Any) -> Result:
        values = {
            "model": model,
            "data": text,
            "batch": 4,
            "micro_batch": 4,  # not what some measurement prefers
            "seq": 32,
            "steps": 5,
            "lr": 0.003,
            "threads": 1,
            "memory": "1GiB",
            "plan": "keep",
        } | flags
        if command == "train":
            values |= {"out": tmp_path / out, "metrics": tmp_path / f"{out}.jsonl"}
        named = [(f"--{k.replace('_', '-')}", v) for k, v in values.items() if v is not None]
        return haversack.run(
            command,
            *switches,
            *(str(x) for pair in named for x in pair),
            rc=rc,
            env={"HAVERSACK_CACHE": str(tmp_path / "cache")},
        )

    return run


def weights(out: Path) -> dict[str, np.ndarray]:
    return load_file(out / "model" / "model.safetensors")


@pytest.mark.parametrize("flags", [COMPACT, PRAC], ids=["compact", "prac-lowrank"])
def test_micro_batches_sum_to_the_whole_batch(
    train: Train, tmp_path: Path, flags: dict[str, Any]
) -> None:
    whole = train("whole", micro_batch=4, **flags)
    split = train("split", micro_batch=2, **flags)
    # PRAC takes its directions from the first micro-batch of a step, so those differ.
    steps = slice(0, None if flags is COMPACT else 1)
    for a, b in zip(whole.metrics[steps], split.metrics[steps], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=2e-5)
    if flags is COMPACT:
        for a, b in zip(whole.metrics, split.metrics, strict=True):
            assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3)


@pytest.mark.parametrize("flags", [COMPACT, PRAC], ids=["compact", "prac-lowrank"])
def test_threads_and_plans_leave_every_digit(
    train: Train, tmp_path: Path, flags: dict[str, Any]
) -> None:
    one = train("one", micro_batch=2, **flags)
    two = train("two", micro_batch=2, threads=2, plan="recompute", **flags)
    assert digits(one.metrics) == digits(two.metrics)
    assert exported(tmp_path / "one") == exported(tmp_path / "two")


def test_a_refresh_changes_the_projection_and_the_first_step_does_not_depend_on_it(
    train: Train,
) -> None:
    often = train("often", **COMPACT | {"refresh": 1})
    seldom = train("seldom", **COMPACT | {"refresh": 100})
    assert often.metrics[1]["loss"] == seldom.metrics[1]["loss"]
    assert often.metrics[2]["loss"] != seldom.metrics[2]["loss"]


@pytest.mark.parametrize("rule", ["keep", "reset", "transfer"])
def test_every_rule_for_moments_trains(train: Train, rule: str) -> None:
    result = train("run", steps=20, moments=rule, **COMPACT)
    assert result.metrics[-1]["loss"] < result.metrics[0]["loss"]


def test_unprojected_weights_see_the_same_gradients(train: Train, tmp_path: Path) -> None:
    """One step of Adam moves by the sign of the gradient, which is exact but for projected ones."""
    train("full", steps=1, clip=0, weight_decay=0)
    train("low", steps=1, clip=0, weight_decay=0, **COMPACT)
    full, low = weights(tmp_path / "full"), weights(tmp_path / "low")
    for name, value in full.items():
        projected = any(part in name for part in ("q_proj", "k_proj", "v_proj", "gate", "up_proj"))
        if projected:
            assert not np.array_equal(value, low[name]), name
        elif "down_proj" not in name:
            assert np.array_equal(value, low[name]), name


def test_the_plan_states_the_bytes_saved_by_kind(train: Train) -> None:
    def plan(**flags: Any) -> Any:
        return train("", "--json", command="plan", **flags).json()

    saved = plan(**COMPACT)["low_rank"]["saved_bytes"]
    # q, k, v; gate, up; down, whose rank 32 (128 + 64) is below 128 x 64.
    elements = HIDDEN * Q_KV * 3 // 4 + HIDDEN * 2 * FFN * 3 // 4 + FFN * HIDDEN * 3 // 4
    assert saved["gradients"] == 4 * LAYERS * elements
    assert saved["moments"] == 8 * LAYERS * elements
    assert saved["activations"] == 0
    assert saved["projections"] < 0
    prac = plan(method="prac", refresh=2)["low_rank"]["saved_bytes"]
    assert prac["moments"] == 0
    assert prac["gradients"] > 0
    assert plan()["low_rank"] is None


def test_the_log_states_ranks_refresh_and_bytes(train: Train) -> None:
    stderr = train("run", **COMPACT).stderr
    assert "method compact: 2 x attn_norm 64 -> 16, 2 x ffn_norm 64 -> 16" in stderr
    assert "new projections every 2 steps, moments low-rank, transfer" in stderr
    assert "of gradients, " in stderr


def test_measured_memory_stays_within_the_prediction(train: Train) -> None:
    for name, flags in (("compact", COMPACT), ("prac", PRAC), ("8", {"optimizer": "adamw8bit"})):
        for step in train(name, **flags).metrics:
            assert step["rss_peak_bytes"] <= step["predicted_peak_bytes"], name


def test_eight_bit_moments_follow_full_ones(train: Train) -> None:
    full = train("full", steps=20)
    eight = train("eight", steps=20, optimizer="adamw8bit")
    drop = full.metrics[0]["loss"] - full.metrics[-1]["loss"]
    # A moment is off by 1% of its block's largest; the loss follows far closer than it falls.
    assert abs(full.metrics[-1]["loss"] - eight.metrics[-1]["loss"]) < 0.05 * drop


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"method": "compact", "rank": 65}, ["--rank 65", "64 columns of blocks.0.attn_norm"]),
        ({"method": "compact", "rank_ratio": 1.0}, ["--method compact", "--rank-ratio"]),
        ({"method": "prac", "rank": 64}, ["--rank 64", "64 columns"]),
        ({"method": "galore"}, ["'galore'", "adamw, compact, prac or prac-lowrank"]),
        ({"rank": 8}, ["--rank", "--method compact"]),
        ({"method": "compact", "rank": 8, "rank_ratio": 0.5}, ["--rank and --rank-ratio"]),
        ({"method": "compact", "moments": "mix"}, ["'mix'", "keep, reset or transfer"]),
        ({"method": "prac", "projection": "orthonormal"}, ["--projection"]),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(
    train: Train, flags: dict[str, Any], words: list[str]
) -> None:
    error = train("run", rc=2, **flags).error()
    for word in words:
        assert word in error


@pytest.mark.parametrize(
    ("flag", "change"),
    [
        ("--rank", {"rank": 8}),
        ("--refresh", {"refresh": 3}),
        ("--moments", {"moments": "keep"}),
        ("--method", {"method": "prac-lowrank"}),
        ("--method", {"method": None, "rank": None, "refresh": None}),
        ("--optimizer", {"optimizer": "adamw8bit"}),
    ],
)
def test_a_run_does_not_go_on_with_other_projections(
    train: Train, flag: str, change: dict[str, Any]
) -> None:
    flags = {"method": "compact", "rank": 16, "refresh": 2}
    train("run", **flags)
    error = train("run", "--resume", rc=2, steps=7, **flags | change).error()
    assert f"{flag} is " in error
    assert "start a new run with another --out" in error
