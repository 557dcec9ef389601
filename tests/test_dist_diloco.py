"""Rounds of local steps and outer steps over ranks; DIS-01, DIS-03 and DIS-04 of diloco."""

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from haversack_testing import Haversack, Result
from haversack_testing.ranks import Ranks, held_out, tiny_ranks
from haversack_testing.runs import checkpoint_steps, digits, exported

TRANSPORTS = ["f32", "bf16", "int8", "int4"]


@pytest.fixture(scope="module")
def ranks(haversack: Haversack, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    folder = tmp_path_factory.mktemp("diloco")
    return tiny_ranks(haversack, folder, dist="diloco", inner_steps=3, steps=12)


def learned(metrics: list[dict[str, Any]]) -> list[tuple[int, float | None, int]]:
    """What does not depend on the clock or on counters that begin anew in a resumed process."""
    return [(line["step"], line["loss"], line["tokens"]) for line in metrics]


def same_run(metrics: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert learned(metrics) == learned(expected)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_loss_falls_and_replicas_stay_equal(
    ranks: Ranks, tmp_path: Path, transport: str
) -> None:
    # Replicas that differed after a round would end the run with exit 1.
    result = ranks.run(3, tmp_path / "out", transport=transport, steps=60, inner_steps=2)
    before, after = held_out(result)
    assert after < before - 2
    assert [line["round"] for line in result.metrics] == [i // 2 for i in range(60)]
    assert result.metrics[-1]["syncs"] == 30


def test_transports_cost_what_their_bits_say(ranks: Ranks, tmp_path: Path) -> None:
    flags = {"steps": 30, "inner_steps": 1}
    sent = {
        t: ranks.run(2, tmp_path / t, transport=t, **flags).metrics[-1]["bytes_sent"]
        for t in TRANSPORTS
    }
    headers = 30 * 200
    assert sent["bf16"] < 0.5 * sent["f32"] + headers
    # 8 bits and a 16-bit scale for 64; 4 bits and a scale and a minimum.
    assert sent["int8"] < (8.25 / 32 + 0.01) * sent["f32"] + headers
    assert sent["int4"] < (4.5 / 32 + 0.01) * sent["f32"] + headers


def test_one_rank_with_rate_1_and_no_momentum_is_plain_training(
    ranks: Ranks, tmp_path: Path
) -> None:
    plain = ranks.run(0, tmp_path / "plain", dist=None, inner_steps=None)
    for inner in (1, 5):
        result = ranks.run(
            1, tmp_path / str(inner), inner_steps=inner, outer_lr=1, outer_momentum=0
        )
        for line, wanted in zip(result.metrics, plain.metrics, strict=True):
            # theta_start - (theta_start - theta) is theta to rounding.
            assert line["loss"] == pytest.approx(wanted["loss"], rel=2e-5)
        assert result.metrics[-1]["bytes_sent"] == 0
        assert result.metrics[-1]["syncs"] == 0


def test_workers_with_equal_data_are_one_worker(ranks: Ranks, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text((json.dumps({"text": "abcdefgh" * 2 + "a"}) + "\n") * 64)
    flags = {"data": data, "outer_lr": 1, "outer_momentum": 0, "seq": 18}
    one = ranks.run(
        0,
        tmp_path / "one",
        batch=1,
        dist=None,
        inner_steps=None,
        **{k: v for k, v in flags.items() if not k.startswith("outer")},
    )
    three = ranks.run(3, tmp_path / "three", batch=3, **flags)
    for line, wanted in zip(three.metrics, one.metrics, strict=True):
        assert line["loss"] == pytest.approx(wanted["loss"], rel=2e-5)
        assert line["tokens"] == 3 * wanted["tokens"]


@pytest.mark.parametrize("batch", [3, 4])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_documents_and_batches_that_do_not_divide(
    ranks: Ranks, tmp_path: Path, count: int, batch: int
) -> None:
    data, valid = tmp_path / "data.jsonl", tmp_path / "valid.jsonl"
    data.write_text("".join(json.dumps({"text": "ab" * n}) + "\n" for n in (1, 2, 25, 100, 1)))
    valid.write_text("".join(json.dumps({"text": "abc" * n}) + "\n" for n in (1, 9, 30)))
    flags = {"data": data, "valid": valid, "batch": batch, "inner_steps": 2}
    one = ranks.run(0, tmp_path / "one", **flags | {"dist": None, "inner_steps": None})
    result = ranks.run(count, tmp_path / "out", **flags)
    # Every step deals the same sequences as one process would draw.
    assert [x["tokens"] for x in result.metrics] == [x["tokens"] for x in one.metrics]
    assert all(x["loss"] > 0 for x in result.metrics)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_killed_run_resumes_bit_for_bit(ranks: Ranks, tmp_path: Path, transport: str) -> None:
    flags = {"save_every": 3, "transport": transport, "steps": 30}
    whole = ranks.run(3, tmp_path / "whole", **flags)
    out = tmp_path / "out"
    running = ranks.start(3, out, **flags)
    running.wait_until(lambda: running.lines() >= 9 and checkpoint_steps(out))
    running.signal(1, signal.SIGKILL)
    status, _ = running.end(timeout=30)
    assert status not in {0, 1}
    resumed = ranks.run(3, out, "--resume", **flags)
    same_run(resumed.metrics, whole.metrics)
    assert exported(out) == exported(tmp_path / "whole")


def stopped_inside_a_round(ranks: Ranks, out: Path, **flags: Any) -> int:
    """Ends a run by SIGTERM inside a round; the step at which all ranks stopped."""
    running = ranks.start(3, out, steps=10**6, inner_steps=10**6, schedule="constant", **flags)
    log = out / "train.log"
    running.wait_until(lambda: log.exists() and "step 0: held-out loss" in log.read_text())
    running.signal(2, signal.SIGTERM)
    status, stderr = running.end(timeout=60)
    assert status == 0, stderr
    (step,) = checkpoint_steps(out)
    assert f"stopped by another rank's signal after step {step}" in stderr
    return step


def test_a_stop_inside_a_round_is_agreed_on_and_resumes_bit_for_bit(
    ranks: Ranks, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    step = stopped_inside_a_round(ranks, out)
    flags = {"schedule": "constant", "inner_steps": 10**6, "steps": step + 3}
    resumed = ranks.run(3, out, "--resume", **flags)
    whole = ranks.run(3, tmp_path / "whole", **flags)
    same_run(resumed.metrics, whole.metrics)
    assert exported(out) == exported(tmp_path / "whole")


@pytest.mark.parametrize("count", [2, 5])
def test_other_ranks_end_the_round_that_was_stopped(
    ranks: Ranks, tmp_path: Path, count: int
) -> None:
    out = tmp_path / "out"
    step = stopped_inside_a_round(ranks, out)
    result = ranks.run(
        count, out, "--resume", schedule="constant", inner_steps=10**6, steps=step + 5
    )
    assert "3 ranks" in result.stderr or "of 3" in result.stderr
    assert [x["step"] for x in result.metrics] == list(range(1, step + 6))
    # The data have 250 sequences of 16 targets; no sequence is left out or taken twice.
    assert all(x["tokens"] == 64 for x in result.metrics)
    assert result.metrics[-1]["loss"] < result.metrics[0]["loss"] - 1


def test_resumes_with_other_ranks_and_no_document_is_lost(ranks: Ranks, tmp_path: Path) -> None:
    # Document n has a length of its own, so tokens tell which documents a step used.
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"text": "a" * n}) + "\n" for n in range(1, 61)))
    flags = {
        "data": data,
        "seq": 64,
        "batch": 6,
        "save_every": 2,
        "inner_steps": 2,
        "schedule": "constant",
        "valid": None,
    }
    whole = ranks.run(4, tmp_path / "whole", steps=20, **flags)
    out = tmp_path / "out"
    for count, until in ((4, 6), (2, 10), (3, 14), (6, 18), (1, 20)):
        result = ranks.run(count, out, "--resume", steps=until, **flags)
    assert [x["tokens"] for x in result.metrics] == [x["tokens"] for x in whole.metrics]
    assert [x["step"] for x in result.metrics] == list(range(1, 21))
    assert result.metrics[-1]["round"] == 9
    assert result.metrics[-1]["loss"] < 0.5 * result.metrics[0]["loss"]
    assert Counter(x["lr"] for x in result.metrics) == {0.01: 20}


def test_the_kind_of_run_cannot_change_on_resume(ranks: Ranks, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ranks.run(2, out, steps=3)
    result = ranks.run(2, out, "--resume", rc=2, steps=6, dist="ddp")
    assert "--dist is ddp here, but the checkpoint's run has diloco" in result.stderr
    result = ranks.run(0, out, "--resume", rc=2, steps=6, dist=None)
    assert "--dist is none here" in result.stderr


def test_the_transport_may_change_on_resume(ranks: Ranks, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ranks.run(3, out, steps=6, transport="int4")
    result: Result = ranks.run(3, out, "--resume", steps=12, transport="int8")
    assert "what rounding owed is dropped" in result.stderr
    assert digits(result.metrics)[-1]["step"] == 12
