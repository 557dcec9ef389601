"""Runs of several ranks under mpirun, on however few cores there are."""

import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

# A container's user is root, and more ranks than cores take turns.
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}


def mpirun(ranks: int) -> tuple[str, ...]:
    """What starts `ranks` ranks; ENVIRONMENT goes with it."""
    assert shutil.which("mpirun"), "mpirun is missing: run `make setup`"
    return ("mpirun", "-n", str(ranks))


def rank_pids(launcher: int) -> dict[int, int]:
    """Process ids of the ranks that `launcher` (mpirun) has started so far, by rank."""
    pids = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
            environ = (folder / "environ").read_bytes()
        except OSError:
            continue
        parent = int(stat.rsplit(")", 1)[1].split()[1])
        for entry in environ.split(b"\0"):
            if parent == launcher and entry.startswith(b"OMPI_COMM_WORLD_RANK="):
                pids[int(entry.split(b"=")[1])] = int(folder.name)
    return pids


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    return {**ENVIRONMENT, **extra}
