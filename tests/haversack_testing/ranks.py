"""Runs of several ranks under mpirun, on however few cores there are."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from haversack_testing.binary import Haversack, Result, read_metrics
from haversack_testing.chain import chain
from haversack_testing.runs import train_args, write_text

# A container's user is root, and more ranks than cores take turns.
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}

FOLLOWING = {97 + i: 98 + i for i in range(8)}


def rank_pids(launcher: int) -> dict[int, int]:
    """Process ids of the ranks that `launcher` (mpirun) has started so far, by rank."""
    pids = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            environ = (folder / "environ").read_bytes() if parent == launcher else b""
        except (OSError, IndexError):
            continue
        for entry in environ.split(b"\0"):
            if entry.startswith(b"OMPI_COMM_WORLD_RANK="):
                pids[int(entry.split(b"=")[1])] = int(folder.name)
    return pids


@dataclass
class Running:
    """A run under way."""

    process: subprocess.Popen[bytes]
    metrics: Path
    ranks: int

    def lines(self) -> int:
        return self.metrics.read_bytes().count(b"\n") if self.metrics.exists() else 0

    def wait_until(self, condition: Callable[[], Any], timeout: float = 90) -> None:
        end = time.monotonic() + timeout
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end, "timed out"
            time.sleep(0.002)

    def pids(self) -> dict[int, int]:
        found: dict[int, int] = {}

        def all_there() -> bool:
            found.update(rank_pids(self.process.pid))
            return len(found) == self.ranks

        self.wait_until(all_there)
        return found

    def signal(self, rank: int, signal: int) -> None:
        os.kill(self.pids()[rank], signal)

    def end(self, timeout: float) -> tuple[int, str]:
        """Exit status and standard error, within `timeout` seconds; then no rank runs."""
        try:
            _, stderr = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            for pid in rank_pids(self.process.pid).values():
                os.kill(pid, 9)
            self.process.kill()
            raise
        return self.process.returncode, stderr.decode(errors="replace")


@dataclass
class Ranks:
    """Runs of one tiny model and text over any number of ranks; 0: a process without mpirun.

    Every flag can be changed or, with None, left out.
    """

    haversack: Haversack
    folder: Path
    flags: dict[str, Any] = field(default_factory=dict)

    def args(self, out: Path, *switches: str, **flags: Any) -> list[str]:
        return train_args(self.flags, out, *switches, **flags)

    @property
    def env(self) -> dict[str, str]:
        return ENVIRONMENT | {"HAVERSACK_CACHE": str(self.folder / "cache")}

    def prefix(self, ranks: int) -> tuple[str, ...]:
        if ranks == 0:
            return ()
        assert shutil.which("mpirun"), "mpirun is missing: run `make setup`"
        return ("mpirun", "-n", str(ranks))

    def run(
        self, ranks: int, out: Path, *switches: str, rc: int | tuple[int, ...] = 0, **flags: Any
    ) -> Result:
        args = self.args(out, *switches, **flags)
        return self.haversack.run(*args, rc=rc, prefix=self.prefix(ranks), env=self.env)

    def start(self, ranks: int, out: Path, *switches: str, **flags: Any) -> Running:
        command = [*self.prefix(ranks), str(self.haversack.path)]
        process = subprocess.Popen(
            command + self.args(out, *switches, **flags),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, **self.env},
        )
        return Running(process, Path(f"{out}.jsonl"), ranks)

    def metrics(self, out: Path) -> list[dict[str, Any]]:
        return read_metrics(Path(f"{out}.jsonl"))


def tiny_ranks(haversack: Haversack, folder: Path, **flags: Any) -> Ranks:
    """A model of two small layers, 4,000 bytes of text and 600 held out."""
    chain(folder / "model", FOLLOWING, config={"num_hidden_layers": 2})
    write_text(folder / "data.txt", 4000)
    write_text(folder / "valid.txt", 600, seed=1)
    defaults = {
        "model": folder / "model",
        "data": folder / "data.txt",
        "valid": folder / "valid.txt",
        "init": "random",
        "batch": 4,
        "seq": 16,
        "steps": 6,
        "lr": 0.01,
        "threads": 1,
        "memory": "600MiB",
    }
    return Ranks(haversack, folder, defaults | flags)


def held_out(result: Result) -> list[float]:
    """The losses of the evaluations, as they were told."""
    return [
        float(line.split("held-out loss ")[1].split(",")[0])
        for line in result.stderr.splitlines()
        if "held-out loss" in line and line.startswith("step")
    ]
