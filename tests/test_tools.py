"""The test helper and the quickstart's summary, on stand-ins for the binary and for a run."""

import json
from pathlib import Path

import pytest

from haversack_testing import Haversack
from quickstart_summary import summary


def stand_in(path: Path, script: str) -> Haversack:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Haversack(path)


def test_run_returns_output_error_and_metrics(tmp_path: Path) -> None:
    binary = stand_in(
        tmp_path / "binary",
        'echo \'{"loss": 2.5}\'; echo first >&2; echo last >&2; echo \'{"step": 1}\' >"$3"',
    )
    result = binary.run("train", "--metrics", tmp_path / "m.jsonl")
    assert (result.json(), result.error(), result.metrics) == ({"loss": 2.5}, "last", [{"step": 1}])


@pytest.mark.parametrize("script", ["exit 1", "exit 139", "kill -SEGV $$", "kill -ABRT $$"])
def test_a_bug_or_a_signal_is_never_an_expected_exit(tmp_path: Path, script: str) -> None:
    binary = stand_in(tmp_path / "binary", script)
    with pytest.raises(AssertionError, match="crashed or found a bug"):
        binary.run(rc=None)


def test_an_unexpected_exit_code_fails_with_the_output(tmp_path: Path) -> None:
    binary = stand_in(tmp_path / "binary", "echo no such field >&2; exit 2")
    assert binary.run(rc=2).error() == "no such field"
    assert binary.run(rc=(0, 2)).rc == 2
    with pytest.raises(AssertionError, match="no such field"):
        binary.run()


def test_summary_names_losses_peaks_and_speed(tmp_path: Path) -> None:
    for name, loss in (("before.json", 3.5), ("after.json", 3.25)):
        (tmp_path / name).write_text(json.dumps({"loss": loss, "perplexity": 2 * loss}))
    steps = [
        {
            "step": n,
            "tokens": 2000,
            "tokens_per_s": speed,
            "predicted_peak_bytes": 3 << 30,
            "rss_peak_bytes": n << 30,
            "plan": "keep",
        }
        for n, speed in ((1, 10.0), (2, 120.0))
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(s) + "\n" for s in steps))
    text = summary(tmp_path, "3GiB")
    assert "3.5000 before, 3.2500 after" in text
    assert "3072 MiB predicted, 2048 MiB measured, budget 3GiB" in text
    assert "120 tokens/s" in text
    assert "2 steps, 4000 target tokens" in text
