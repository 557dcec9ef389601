"""Every rank keeps to its budget, outer state and messages included."""

import re
from pathlib import Path
from typing import Any

import pytest

from haversack_testing import Haversack, random_model
from haversack_testing.ranks import Ranks, tiny_ranks

MIB = 1 << 20
MODES = [
    {"dist": "ddp"},
    {"dist": "diloco", "inner_steps": 2},
    {"dist": "diloco", "inner_steps": 2, "transport": "int4"},
    {"dist": "adloco", "inner_steps": 2, "trainers": 2, "merge_every": 1},
]


@pytest.fixture(scope="module")
def ranks(haversack: Haversack, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    folder = tmp_path_factory.mktemp("memory")
    ranks = tiny_ranks(haversack, folder)
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4}
    ranks.flags["model"] = random_model("llama", folder / "larger", **sizes)
    return ranks


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(str(v) for v in mode.values()))
def test_the_smallest_budget_that_is_told_holds(
    ranks: Ranks, tmp_path: Path, mode: dict[str, Any]
) -> None:
    refused = ranks.run(3, tmp_path / "refused", rc=3, memory="90MiB", **mode)
    smallest = int(re.search(r"the smallest that fits is (\d+)MiB", refused.stderr)[1])
    if mode["dist"] != "ddp":
        assert "outer state and messages" in refused.stderr
    # Ranks differ by what the kernel maps around the pages that each touches.
    budget = smallest + 2
    result = ranks.run(3, tmp_path / "out", memory=f"{budget}MiB", **mode)
    for line in result.metrics:
        assert line["rss_peak_bytes"] <= budget * MIB
        assert line["rss_peak_bytes"] <= line["predicted_peak_bytes"]
        assert line["live_peak_bytes"] < line["rss_peak_bytes"]
    # What is told of a part is that part: weights, gradients and two moments, and theta_start.
    parameters = 4 * sum(p.stat().st_size // 4 for p in (ranks.folder / "larger").glob("*.saf*"))
    outer = {"ddp": 0, "diloco": 1, "adloco": 1}[mode["dist"]]
    assert result.metrics[0]["live_peak_bytes"] > (4 + outer) * parameters
