"""One tiny model and text to train on; runs of it that are killed, resumed and compared."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .binary import Haversack, Result
from .runs import digits, exported, train_args, wait_for

# The chain that the model follows: a to b, b to c, up to i.
FOLLOWING = {97 + i: 98 + i for i in range(8)}


@dataclass
class Runner:
    """Runs on one tiny model and text; every flag can be changed or, with None, left out."""

    haversack: Haversack
    folder: Path
    flags: dict[str, Any] = field(default_factory=dict)

    def args(self, out: Path, *switches: str, **flags: Any) -> list[str]:
        return train_args(self.flags, out, *switches, **flags)

    @property
    def env(self) -> dict[str, str]:
        return {"HAVERSACK_CACHE": str(self.folder / "cache")}

    def run(self, out: Path, *switches: str, rc: int = 0, **flags: Any) -> Result:
        return self.haversack.run(*self.args(out, *switches, **flags), rc=rc, env=self.env)

    def start(self, out: Path, *switches: str, **flags: Any) -> Any:
        process = self.haversack.start(*self.args(out, *switches, **flags), env=self.env)
        process.metrics = Path(f"{out}.jsonl")
        return process

    def killed_after(self, out: Path, step: int, *switches: str, **flags: Any) -> None:
        """A run that is killed once the checkpoint of `step` is there."""
        done = out / "checkpoints" / f"step-{step:08}" / "DONE"
        before = out.with_name(f"{out.name}.before")
        if out.exists():
            shutil.copytree(out, before)
            shutil.copy(f"{out}.jsonl", f"{before}.jsonl")
        for _ in range(20):  # on a busy machine all steps may pass between two looks
            process = self.start(out, *switches, **flags)
            caught = wait_for(done.exists, process)
            process.kill()
            told = process.communicate()
            if caught:
                break
            assert process.returncode == 0, told
            shutil.rmtree(out)
            if before.exists():
                shutil.copytree(before, out)
                shutil.copy(f"{before}.jsonl", f"{out}.jsonl")
        else:
            raise AssertionError(f"never killed after step {step}")
        shutil.rmtree(before, ignore_errors=True)


@dataclass(frozen=True)
class Finished:
    out: Path
    result: Result


def assert_same(out: Path, result: Result, expected: Finished) -> None:
    assert digits(result.metrics) == digits(expected.result.metrics)
    assert exported(out) == exported(expected.out)


def line_count(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
