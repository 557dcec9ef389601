"""Full and unwritable disks: exit 5, one line, and what was saved stays good; DSK-01."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from haversack_testing import Haversack, Result, chain
from haversack_testing.runs import checkpoint_steps, digits, exported, write_text

FOLLOWING = {97 + i: 98 + i for i in range(8)}
Mount = Callable[[str, int], Path]


def mount(folder: Path, *options: str) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Mount]:
    """Makes file systems of a given size in bytes; a second call of the same name resizes."""
    mounted: list[Path] = []

    def make(name: str, size: int) -> Path:
        folder = tmp_path / name
        if folder in mounted:
            options = f"remount,size={size}"
            subprocess.run(["mount", "-o", options, str(folder)], check=True)
            return folder
        folder.mkdir()
        if not mount(folder, f"size={size}"):
            pytest.skip("cannot mount a tmpfs here (that needs root)")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("disk")
    chain(folder / "model", FOLLOWING, config={"num_hidden_layers": 2})
    write_text(folder / "data.txt", 4000)
    return folder


Train = Callable[..., Result]


@pytest.fixture(scope="module")
def train(haversack: Haversack, folder: Path) -> Train:
    def run(
        out: Path, *switches: str, rc: int = 0, cache: Path | None = None, **flags: object
    ) -> Result:
        chosen = {
            "model": folder / "model",
            "data": folder / "data.txt",
            "init": "random",
            "batch": 2,
            "micro_batch": 2,
            "seq": 16,
            "steps": 4,
            "lr": 0.01,
            "threads": 1,
            "save_every": 1,
            "keep": 2,
            "metrics": folder / f"{out.parent.name}-{out.name}.jsonl",
        } | flags
        named = [x for k, v in chosen.items() for x in (f"--{k.replace('_', '-')}", str(v))]
        env = {"HAVERSACK_CACHE": str(cache or folder / "cache")}
        return haversack.run("train", "--out", out, *switches, *named, rc=rc, env=env)

    return run


@pytest.fixture(scope="module")
def whole(train: Train, folder: Path) -> tuple[Path, Result]:
    out = folder / "whole"
    return out, train(out)


@pytest.fixture(scope="module")
def checkpoint_bytes(whole: tuple[Path, Result]) -> int:
    files = (whole[0] / "checkpoints" / "step-00000004").iterdir()
    return sum(-(-p.stat().st_size // 4096) * 4096 for p in files)


def assert_one_line(result: Result, *parts: str) -> None:
    messages = [x for x in result.stderr.splitlines() if x.startswith("haversack: ")]
    assert len(messages) == 1, result
    for part in parts:
        assert part in messages[0], result


def assert_resumed(train: Train, out: Path, whole: tuple[Path, Result]) -> None:
    result = train(out, "--resume")
    assert digits(result.metrics) == digits(whole[1].metrics)
    assert exported(out) == exported(whole[0])


def test_a_disk_that_fills_at_the_second_checkpoint_keeps_the_first(
    train: Train, whole: tuple[Path, Result], checkpoint_bytes: int, small_disk: Mount
) -> None:
    disk = small_disk("disk", int(1.6 * checkpoint_bytes))
    out = disk / "run"
    result = train(out, rc=5)
    assert "warning: " in result.stderr
    assert_one_line(result, str(out / "checkpoints"), "No space left", "free", "KiB")
    assert checkpoint_steps(out) == [1]
    assert not list((out / "checkpoints").glob("writing-*"))
    assert len(result.metrics) == 2

    small_disk("disk", 8 * checkpoint_bytes)
    assert_resumed(train, out, whole)


def test_a_disk_too_small_for_one_checkpoint_is_refused_before_the_first_step(
    train: Train, checkpoint_bytes: int, small_disk: Mount
) -> None:
    out = small_disk("disk", checkpoint_bytes // 2) / "run"
    result = train(out, rc=5)
    assert_one_line(result, str(out), "it takes", "are free")
    assert result.metrics == []


def test_a_disk_that_fills_in_the_export_keeps_the_checkpoints(
    train: Train, whole: tuple[Path, Result], checkpoint_bytes: int, small_disk: Mount
) -> None:
    out = small_disk("disk", int(2.2 * checkpoint_bytes)) / "run"
    result = train(out, rc=5)
    assert_one_line(result, str(out / "model"), "No space left", "free")
    assert not (out / "model").exists()
    assert not (out / "model.writing").exists()
    assert checkpoint_steps(out) == [3, 4]
    # Still no room: the same answer, and the checkpoints are there yet.
    assert_one_line(train(out, "--resume", rc=5), str(out / "model"))
    assert checkpoint_steps(out) == [3, 4]

    small_disk("disk", 8 * checkpoint_bytes)
    assert_resumed(train, out, whole)


def test_a_disk_that_the_rotation_makes_room_on_is_not_refused(
    train: Train, whole: tuple[Path, Result], checkpoint_bytes: int, small_disk: Mount
) -> None:
    out = small_disk("disk", int(2.85 * checkpoint_bytes)) / "run"
    train(out, steps=2)
    # Two checkpoints and a model fill it; the older checkpoint goes before the third is written.
    result = train(out, "--resume", steps=4)
    assert "resumed after step 2" in result.stderr
    assert checkpoint_steps(out) == [3, 4]


def test_a_full_cache_disk_is_named_with_the_way_out(
    train: Train, folder: Path, tmp_path: Path, small_disk: Mount
) -> None:
    cache = small_disk("cache", 64 << 10)
    data = write_text(tmp_path / "data.txt", 300_000)
    result = train(tmp_path / "run", rc=5, cache=cache, data=data)
    assert_one_line(result, str(cache), "No space left", "free", "HAVERSACK_CACHE")
    assert not list((cache / "tokens").glob("*/*")), "no part of the tokens may stay"
    assert result.metrics == []


def test_a_lost_metrics_line_is_an_error_and_the_checkpoint_before_it_resumes(
    train: Train, whole: tuple[Path, Result], tmp_path: Path, small_disk: Mount
) -> None:
    disk = small_disk("disk", 4096)
    metrics = disk / "metrics.jsonl"
    # One page: the first steps fit, a later one does not.
    out = tmp_path / "run"
    result = train(out, rc=5, metrics=metrics, steps=40)
    assert_one_line(result, str(metrics), "No space left", "free", " B to ")
    last = checkpoint_steps(out)[-1]
    assert 1 < last < 40
    small_disk("disk", 1 << 20)
    expected = train(tmp_path / "whole", steps=40)
    result = train(out, "--resume", metrics=metrics, steps=40)
    assert digits(result.metrics) == digits(expected.metrics)
    assert exported(out) == exported(tmp_path / "whole")


def test_a_log_that_cannot_be_written_is_an_error(train: Train, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "train.log").symlink_to("/dev/full")
    assert_one_line(train(out, rc=5), str(out / "train.log"), "No space left")


def test_metrics_may_go_to_a_device_or_a_pipe(train: Train, tmp_path: Path) -> None:
    train(tmp_path / "null", metrics="/dev/null")
    result = train(tmp_path / "pipe", metrics="/dev/stdout")
    assert [f'"step":{i}' in line for i, line in enumerate(result.stdout.splitlines(), 1)] == [
        True
    ] * 4


@pytest.mark.parametrize("metrics", ["/dev/full", "missing/metrics.jsonl"])
def test_metrics_that_cannot_be_written_are_named(
    train: Train, tmp_path: Path, metrics: str
) -> None:
    assert_one_line(train(tmp_path / "run", rc=5, metrics=metrics), metrics)


def test_a_directory_that_is_not_writable_is_named(train: Train, tmp_path: Path) -> None:
    folder = tmp_path / "sealed"
    folder.mkdir()
    sealed = os.geteuid() == 0
    if sealed and not mount(folder, "ro"):
        pytest.skip("cannot mount a read-only tmpfs here")
    if not sealed:
        folder.chmod(0o500)
    try:
        assert_one_line(train(folder / "run", rc=5), str(folder / "run"))
        assert_one_line(train(folder, rc=5), str(folder))
    finally:
        if sealed:
            subprocess.run(["umount", str(folder)], check=True)


def test_an_out_that_is_a_file_is_bad_usage(train: Train, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    assert_one_line(train(tmp_path / "run", rc=2), "--out", str(tmp_path / "run"))


def test_a_full_standard_error_changes_no_exit_code(haversack: Haversack) -> None:
    command = [str(haversack.path), "train", "--no-such-flag"]
    with Path("/dev/full").open("w") as full:
        assert subprocess.run(command, stderr=full, check=False).returncode == 2
