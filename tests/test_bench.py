"""`haversack bench`: one step, op by op, and the guard that compares two reports."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from haversack_testing import ROOT, Haversack, chain

COMPARE = ROOT / "bench" / "compare.py"


@pytest.mark.parametrize("plan", ["keep", "recompute"])
def test_a_step_is_the_sum_of_its_rows(haversack: Haversack, tmp_path: Path, plan: str) -> None:
    model = chain(tmp_path / "model", {97: 98}, config={"num_hidden_layers": 2})
    flags = (
        "bench",
        "--model",
        model,
        "--init",
        "random",
        "--seq",
        32,
        "--batch",
        4,
        "--micro-batch",
        2,
    )
    flags += ("--plan", plan, "--steps", 1, "--threads", 1, "--json")
    report = haversack.run(*(str(f) for f in flags)).json()
    rows = report["rows"]
    assert report["plan"] == plan and report["micro_batch"] == 2
    assert report["tokens_per_s"] == pytest.approx(4 * 32 / report["step_seconds"])
    spent = sum(row["seconds"] for row in rows)
    assert spent + report["between_ops_seconds"] == pytest.approx(report["step_seconds"])
    assert report["between_ops_seconds"] >= 0
    of_rows = {(row["name"], row["work"]): row for row in rows}
    # 2 layers in 2 micro-batches.
    for work in ("forward", "backward"):
        assert of_rows["gate_up", work]["count"] == 4
    assert (("gate_up", "recompute") in of_rows) == (plan == "recompute")
    assert of_rows["optimizer", "update"]["count"] == 1
    limit = sum(row["limit_seconds"] for row in rows if row["bound"] != "memory")
    assert report["limit_seconds"] == pytest.approx(limit)
    assert report["of_limit"] == pytest.approx(limit / report["step_seconds"])


def test_a_fused_update_is_a_row(haversack: Haversack, tmp_path: Path) -> None:
    model = chain(tmp_path / "model", {97: 98})
    flags = ("bench", "--model", model, "--seq", 16, "--batch", 2, "--threads", 1)
    table = haversack.run(*(str(f) for f in flags), "--fused-update", "--clip", "0").stdout
    updates = [line.split() for line in table.splitlines() if line.split()[:1] == ["optimizer"]]
    assert [words[1] for words in updates] == ["update"]
    assert "products and attention at their best rates" in table


def compare(tmp_path: Path, old: Any, new: Any) -> subprocess.CompletedProcess:
    paths = [tmp_path / "old.json", tmp_path / "new.json"]
    for path, report in zip(paths, (old, new), strict=True):
        path.write_text(json.dumps(report), encoding="utf-8")
    return subprocess.run(
        [sys.executable, COMPARE, *paths], capture_output=True, text=True, check=False
    )


def reports(speed: float, memory: float, of_limit: float, share: float = 0.3) -> dict:
    row = {"name": "gate_up", "work": "forward", "share": share, "of_limit": of_limit}
    return {
        "vs_pytorch": {
            "summary": {
                "Haversack keep": {
                    "tokens_per_s": 300 * speed,
                    "speed_vs_eager": speed,
                    "memory_vs_eager": memory,
                }
            }
        },
        "step": {"of_limit": 0.8, "rows": [row]},
    }


BEFORE = reports(speed=1.5, memory=0.5, of_limit=0.9)


@pytest.mark.parametrize(
    ("after", "flagged"),
    [
        (reports(speed=1.43, memory=0.52, of_limit=0.86), []),
        (reports(speed=1.42, memory=0.5, of_limit=0.9), ["speed_vs_eager"]),
        (reports(speed=1.5, memory=0.53, of_limit=0.9), ["memory_vs_eager"]),
        (reports(speed=1.5, memory=0.5, of_limit=0.85), ["gate_up forward"]),
        (reports(speed=3, memory=0.1, of_limit=0.99), []),
    ],
)
def test_a_ratio_that_fell_by_more_than_five_percent_is_flagged(
    tmp_path: Path, after: dict, flagged: list[str]
) -> None:
    result = compare(tmp_path, BEFORE, after)
    lines = [line for line in result.stdout.splitlines() if line.startswith("worse")]
    assert len(lines) == len(flagged), result
    assert all(name in line for name, line in zip(flagged, lines, strict=True))
    assert result.returncode == (1 if flagged else 0)


def test_what_is_a_small_part_of_a_step_is_noise(tmp_path: Path) -> None:
    before, after = (reports(1.5, 0.5, of_limit, share=0.01) for of_limit in (0.9, 0.5))
    assert compare(tmp_path, before, after).returncode == 0


def test_a_ratio_that_is_gone_is_said(tmp_path: Path) -> None:
    after = reports(speed=1.5, memory=0.5, of_limit=0.9)
    del after["vs_pytorch"]["summary"]["Haversack keep"]["speed_vs_eager"]
    result = compare(tmp_path, BEFORE, after)
    assert result.returncode == 1
    assert "gone" in result.stdout and "speed_vs_eager" in result.stdout


def test_reports_without_a_ratio_in_common_are_refused(tmp_path: Path) -> None:
    result = compare(tmp_path, BEFORE, {"step": {}})
    assert result.returncode == 1
    assert compare(tmp_path, {}, {}).returncode == 2
