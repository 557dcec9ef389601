"""The budget holds for the whole process: what is told before the run is what is measured in it."""

import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from haversack_testing import Haversack, Result, chain, random_model

MIB = 1 << 20

# Runs the rest of the command line and writes its peak of resident bytes, as the kernel has it, to
# a file. A process of its own: a fork of pytest's would begin with pytest's peak.
MEASURE = """
import resource, subprocess, sys
rc = subprocess.call(sys.argv[2:])
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
open(sys.argv[1], "w").write(str(peak))
sys.exit(rc if rc >= 0 else 128 - rc)
"""


class Measured(NamedTuple):
    result: Result
    peak: int  # bytes

    @property
    def last(self) -> dict:
        return self.result.metrics[-1]


def measure(
    haversack: Haversack, folder: Path, *args: object, cache: str = "cache", timeout: float = 300
) -> Measured:
    """Runs under a token cache of the test's own, which is cold at first."""
    peak = folder / "peak"
    result = haversack.run(
        *(str(a) for a in args),
        prefix=(sys.executable, "-S", "-E", "-c", MEASURE, str(peak)),
        env={"HAVERSACK_CACHE": str(folder / cache)},
        timeout=timeout,
    )
    return Measured(result, int(peak.read_text(encoding="utf-8")))


def smallest(haversack: Haversack, folder: Path, *args: object) -> int:
    """The smallest budget that fits, in MiB, as the refusal of 1 MiB tells it."""
    refused = haversack.run(
        *(str(a) for a in args),
        *("--memory", "1MiB"),
        rc=3,
        env={"HAVERSACK_CACHE": str(folder / "cache")},
    )
    found = re.search(r"short by (\d+) MiB; the smallest that fits is (\d+)MiB", refused.error())
    assert found, refused
    assert int(found[1]) == int(found[2]) - 1
    assert not (folder / "cache" / "tokens").exists()  # told before any work on the data
    return int(found[2])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 layers of 256: what is kept of a batch is ten times the weights."""
    shape = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4}
    return random_model("llama", tmp_path_factory.mktemp("model"), **shape, initializer_range=0.02)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1 MB of words that are all different, so that tokenising has something to hold."""
    path = tmp_path_factory.mktemp("text") / "train.txt"
    letters = np.random.default_rng(0).integers(97, 123, 1_000_000).astype(np.uint8)
    letters[::7] = 32
    letters[::97] = 10
    path.write_bytes(letters.tobytes())
    path.with_name("valid.txt").write_bytes(letters[:5000].tobytes())
    return path


def train_flags(model: Path, text: Path, out: Path, *, steps: int = 3) -> tuple[object, ...]:
    return (
        *("train", "--model", model, "--data", text, "--valid", text.with_name("valid.txt")),
        *(
            "--out",
            out,
            "--metrics",
            f"{out}.metrics",
            "--seq",
            128,
            "--batch",
            8,
            "--steps",
            steps,
        ),
        *("--eval-every", 2, "--save-every", 2, "--threads", 1),
    )


def assert_within(run: Measured, budget: int) -> None:
    assert run.peak <= budget
    assert run.last["rss_peak_bytes"] <= run.last["predicted_peak_bytes"] <= budget
    assert run.last["live_peak_bytes"] <= run.last["predicted_peak_bytes"]
    # What checkpoints and the export took after the last step was in the prediction.
    assert run.peak <= run.last["predicted_peak_bytes"]


@pytest.mark.parametrize("plan", [("auto", None), ("keep", 8), ("recompute", 8), ("keep", 1)])
def test_the_smallest_budget_that_is_told_fits_and_holds(
    haversack: Haversack, model: Path, text: Path, tmp_path: Path, plan: tuple[str, int | None]
) -> None:
    flags = (*train_flags(model, text, tmp_path / "out"), "--plan", plan[0])
    flags += ("--micro-batch", plan[1]) if plan[1] else ()
    least = smallest(haversack, tmp_path, *flags)
    assert_within(measure(haversack, tmp_path, *flags, "--memory", f"{least}MiB"), least * MIB)
    # 8 MiB less is less than any rounding.
    less = (
        *train_flags(model, text, tmp_path / "less"),
        *flags[len(train_flags(model, text, model)) :],
    )
    refused = haversack.run(*(str(f) for f in less), "--memory", f"{least - 8}MiB", rc=3)
    assert "the smallest that fits is" in refused.error() and "raise --memory" in refused.error()


@pytest.mark.parametrize("more", [16, 60, 400])
def test_more_than_the_smallest_budget_holds_too(
    haversack: Haversack, model: Path, text: Path, tmp_path: Path, more: int
) -> None:
    budget = smallest(haversack, tmp_path, *train_flags(model, text, tmp_path / "out")) + more
    cold, warm = (
        measure(
            haversack,
            tmp_path,
            *train_flags(model, text, tmp_path / out),
            "--memory",
            f"{budget}MiB",
        )
        for out in ("cold", "warm")
    )
    for run in (cold, warm):
        assert_within(run, budget * MIB)


def test_a_budget_is_told_to_programs(
    haversack: Haversack, model: Path, text: Path, tmp_path: Path
) -> None:
    flags = ("plan", *train_flags(model, text, tmp_path / "out")[1:])
    answer = haversack.run(*(str(f) for f in flags), "--memory", "600MiB", "--json").json()
    assert answer["fits"] and answer["budget_bytes"] == 600 * MIB
    assert answer["predicted_peak_bytes"] <= 600 * MIB
    train = train_flags(model, text, tmp_path / "out")
    told = smallest(haversack, tmp_path, *train)
    assert abs(answer["smallest_budget_bytes"] // MIB - told) <= 3


def test_more_than_is_free_is_refused_with_both_numbers(
    haversack: Haversack, model: Path, text: Path, tmp_path: Path
) -> None:
    commands = {"train": train_flags(model, text, tmp_path / "out")}
    commands["eval"] = ("eval", "--model", model, "--data", text, "--seq", 32)
    for flags in commands.values():
        refused = haversack.run(*(str(f) for f in flags), "--memory", "100TiB", rc=2)
        assert re.search(r"--memory 100 TiB is more than the [\d.]+ [GM]iB", refused.error())


def test_the_default_budget_is_nine_tenths_of_what_is_free(
    haversack: Haversack, model: Path, text: Path, tmp_path: Path
) -> None:
    available = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("MemAvailable")
    )
    flags = ("plan", *train_flags(model, text, tmp_path / "out")[1:], "--json")
    budget = haversack.run(*(str(f) for f in flags)).json()["budget_bytes"]
    # A control group may leave less; other processes move the rest.
    assert budget <= available
    if budget > 0.5 * available:
        assert budget == pytest.approx(0.9 * available, rel=0.2)


def test_evaluation_holds_the_budget(
    haversack: Haversack, model: Path, text: Path, tmp_path: Path
) -> None:
    flags = ("eval", "--model", model, "--data", text.with_name("valid.txt"), "--seq", 512)
    least = smallest(haversack, tmp_path, *flags)
    answers = []
    # With more memory each thread evaluates windows of its own.
    for more in (0, 16, 32, 48, 64, 200):
        for threads in (1, 2):
            budget = ("--memory", f"{least + more}MiB", "--threads", threads)
            run = measure(haversack, tmp_path, *flags, *budget)
            assert run.peak <= (least + more) * MIB
            answers.append(run.result.json())
    assert all(answer == answers[0] for answer in answers)
    haversack.run(*(str(f) for f in flags), "--memory", f"{least - 8}MiB", rc=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "flags"),
    [
        (2300, ("--plan", "recompute")),
        (2600, ()),
        (4000, ("--plan", "keep")),
        (2000, ("--fused-update", "--clip", 0, "--micro-batch", 4)),
    ],
)
def test_the_peak_of_a_real_model_is_predicted_within_two_percent(
    haversack: Haversack, smollm2_dir: Path, kjv: Any, tmp_path: Path, budget: int, flags: tuple
) -> None:
    valid = tmp_path / "valid.txt"
    valid.write_text(kjv.valid.read_text(encoding="utf-8")[:2000], encoding="utf-8")
    run = measure(
        haversack,
        tmp_path,
        *("train", "--model", smollm2_dir, "--data", kjv.train, "--valid", valid),
        *("--out", tmp_path / "out", "--metrics", tmp_path / "metrics", "--seq", 64, "--batch", 4),
        *("--steps", 2, "--save-every", 1, "--eval-every", 1, "--memory", f"{budget}MiB", *flags),
        timeout=1800,
    )
    assert_within(run, budget * MIB)
    assert run.peak >= 0.98 * run.last["predicted_peak_bytes"]


# --- memory that grows with the corpus and the steps ----------------------------------------------


def write_records(path: Path, count: int, seed: int) -> Path:
    """`count` records of 1 to 2,000 bytes of text, every text different."""
    rng = np.random.default_rng(seed)
    with path.open("wb") as file:
        for first in range(0, count, 10_000):
            lengths = rng.integers(1, 2001, min(10_000, count - first))
            letters = rng.integers(97, 123, lengths.sum()).astype(np.uint8)
            letters[rng.integers(0, len(letters), len(letters) // 6)] = 32
            ends = np.cumsum(lengths)
            block = letters.tobytes()
            file.writelines(
                b'{"text":"%d %s"}\n' % (first + i, block[end - length : end])
                for i, (length, end) in enumerate(zip(lengths, ends, strict=True))
            )
    return path


def train_on_records(
    haversack: Haversack,
    folder: Path,
    records: int,
    steps: int,
    budget: int,
    evaluated: int,
    timeout: float,
) -> None:
    """Cold cache, warm cache, evaluation of `evaluated` records: all within the budget."""
    model = chain(folder / "model", {97: 98, 98: 256, 256: 122})
    data = write_records(folder / "d.jsonl", records, seed=1)
    valid = write_records(folder / "valid.jsonl", 50, seed=2)
    losses = []
    for out in ("cold", "warm"):
        run = measure(
            haversack,
            folder,
            *("train", "--model", model, "--data", data, "--valid", valid),
            *("--out", folder / out, "--metrics", folder / f"{out}.metrics"),
            *("--seq", 64, "--batch", 4, "--steps", steps, "--memory", f"{budget}MiB"),
            *("--eval-every", steps // 4, "--save-every", steps // 2, "--threads", 1),
            timeout=timeout,
        )
        assert_within(run, budget * MIB)
        peaks = [m["rss_peak_bytes"] for m in run.result.metrics]
        assert peaks[-1] <= 1.01 * peaks[len(peaks) // 10]
        losses.append([m["loss"] for m in run.result.metrics])
    assert losses[0] == losses[1]
    if evaluated < records:
        data = write_records(folder / "part.jsonl", evaluated, seed=1)
    flags = ("eval", "--model", model, "--data", data, "--seq", 256)
    run = measure(haversack, folder, *flags, "--memory", f"{budget}MiB", timeout=timeout)
    assert run.peak <= budget * MIB
    assert run.result.json()["tokens"] > evaluated


def test_memory_does_not_grow_with_the_corpus_or_the_steps(
    haversack: Haversack, tmp_path: Path
) -> None:
    train_on_records(
        haversack, tmp_path, records=10_000, steps=200, budget=128, evaluated=500, timeout=600
    )


@pytest.mark.slow
def test_memory_does_not_grow_with_a_gigabyte_and_thousands_of_steps(
    haversack: Haversack, tmp_path: Path
) -> None:
    train_on_records(
        haversack,
        tmp_path,
        records=1_000_000,
        steps=2000,
        budget=640,
        evaluated=1_000_000,
        timeout=7200,
    )


def test_a_record_that_cannot_be_tokenised_within_the_budget_is_named(
    haversack: Haversack, tmp_path: Path
) -> None:
    model = chain(tmp_path / "model", {97: 98})
    data = tmp_path / "d.jsonl"
    data.write_bytes(b'{"text":"ab"}\n{"text":"' + b"ab " * 5_000_000 + b'"}\n')
    flags = ("eval", "--model", model, "--data", data, "--seq", 32)
    refused = haversack.run(
        *(str(f) for f in flags),
        *("--memory", "160MiB"),
        rc=3,
        env={"HAVERSACK_CACHE": str(tmp_path / "cache")},
    )
    assert "d.jsonl:2:" in refused.error() and "14.3 MiB" in refused.error()
    run = measure(haversack, tmp_path, *flags, "--memory", "480MiB")
    assert run.peak <= 480 * MIB
