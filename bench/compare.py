"""Flags what became worse between two reports of `make bench` (or of its parts).

    bench/compare.py OLD.json NEW.json

Only ratios within one run count, since machines drift: speed and memory against PyTorch, and the
share of this machine's limit that a step and its larger ops reach. Prints one line a ratio that is
worse by more than 5% and exits 1 if there is any.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

TOLERANCE = 0.05
# An op that takes less of a step is timed too coarsely to be held to 5%.
LEAST_SHARE = 0.02


class Ratio(NamedTuple):
    value: float
    share: float  # of a step; 1 where that has no meaning
    higher_is_better: bool


def ratios(report: Any, path: str = "") -> Iterator[tuple[str, Ratio]]:
    """Every ratio of a report with a name that is the same in each report."""
    if isinstance(report, list):
        for entry in report:
            name = f"{entry.get('name')} {entry.get('work')}" if isinstance(entry, dict) else "?"
            yield from ratios(entry, f"{path}/{name}")
    if not isinstance(report, dict):
        return
    for key, value in report.items():
        if isinstance(value, dict | list):
            yield from ratios(value, f"{path}/{key}")
        elif key.startswith(("speed_vs_", "of_limit")):
            yield f"{path}/{key}", Ratio(value, report.get("share", 1), True)
        elif key.startswith("memory_vs_"):
            yield f"{path}/{key}", Ratio(value, 1, False)


def change(old: Ratio, new: Ratio) -> float:
    """By how much `new` is better, as a share of `old`: negative where it is worse."""
    if old.value <= 0 or new.value <= 0:
        return 0.0 if old.value == new.value else -1.0
    better = new.value / old.value if old.higher_is_better else old.value / new.value
    return better - 1


def compare(old: dict[str, Ratio], new: dict[str, Ratio]) -> list[str]:
    """A line for each ratio that is worse or gone."""
    worse = []
    for name, before in old.items():
        if name not in new:
            worse.append(f"gone   {name}: was {before.value:.3f}")
            continue
        after = new[name]
        gain = change(before, after)
        if max(before.share, after.share) >= LEAST_SHARE and gain < -TOLERANCE:
            worse.append(f"worse  {name}: {before.value:.3f} to {after.value:.3f} ({gain:+.1%})")
    return worse


def main() -> int:
    parser = argparse.ArgumentParser(description="Flags ratios that became worse by more than 5%.")
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    args = parser.parse_args()
    old, new = (
        dict(ratios(json.loads(p.read_text(encoding="utf-8")))) for p in (args.old, args.new)
    )
    if not old:
        print(f"{args.old}: no ratio in it", file=sys.stderr)
        return 2
    worse = compare(old, new)
    print("\n".join(worse) if worse else f"{len(old)} ratios: none is worse by more than 5%")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
