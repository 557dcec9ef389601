"""Runs build/haversack and holds every run to the promises that no test should have to repeat."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Argument = str | int | float | os.PathLike[str]


@dataclass(frozen=True)
class Result:
    """How one run ended."""

    args: list[str]
    rc: int
    stdout: str
    stderr: str
    # The lines of the `--metrics` file, where one was asked for and written.
    metrics: list[dict[str, Any]] = field(default_factory=list)

    def json(self) -> Any:
        """The last line of standard output, parsed: `eval`'s answer, for one."""
        return json.loads(self.stdout.strip().splitlines()[-1])

    def error(self) -> str:
        """The message: the last line of standard error."""
        lines = self.stderr.strip().splitlines()
        return lines[-1] if lines else ""

    def __str__(self) -> str:
        command = " ".join(self.args)
        return f"$ {command}\nexit {self.rc}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


@dataclass(frozen=True)
class Haversack:
    """The binary under test.

        result = haversack.run("eval", "--model", model, "--data", text, "--seq", 32)
        assert result.json()["tokens"] == 31

    Where no expected `rc` is given, 0 is meant. An exit of 1 (a bug), a signal or a timeout fails
    the test whatever it expected.
    """

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def run(
        self,
        *args: Argument,
        rc: int | tuple[int, ...] | None = 0,
        stdin: str | bytes | None = None,
        timeout: float = 120,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        prefix: tuple[str, ...] = (),
    ) -> Result:
        """Runs `[prefix...] haversack args...`.

        rc: the exit code or codes to expect; None leaves the choice among 0 and 2-6 to the caller.
        prefix: what starts the binary, such as ("mpirun", "-n", "2").
        env: added to the environment.
        """
        command = [*prefix, str(self.path), *(str(a) for a in args)]
        process = subprocess.run(
            command,
            input=stdin.encode() if isinstance(stdin, str) else stdin or b"",
            capture_output=True,
            timeout=timeout,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            check=False,
        )
        result = Result(
            args=command,
            rc=process.returncode,
            stdout=process.stdout.decode(errors="replace"),
            stderr=process.stderr.decode(errors="replace"),
            metrics=read_metrics(metrics_path(command, cwd)),
        )
        assert result.rc in {0, 2, 3, 4, 5, 6}, f"crashed or found a bug in itself\n{result}"
        if rc is not None:
            expected = (rc,) if isinstance(rc, int) else rc
            assert result.rc in expected, f"expected exit {rc}\n{result}"
        return result

    def start(
        self, *args: Argument, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """A run that the test means to signal or kill; the caller ends and waits for it."""
        return subprocess.Popen(
            [str(self.path), *(str(a) for a in args)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
            cwd=cwd,
        )


def metrics_path(command: list[str], cwd: Path | None) -> Path | None:
    for i, argument in enumerate(command):
        if argument == "--metrics" and i + 1 < len(command):
            return (cwd or Path()) / command[i + 1]
        if argument.startswith("--metrics="):
            return (cwd or Path()) / argument.removeprefix("--metrics=")
    return None


def read_metrics(path: Path | None) -> list[dict[str, Any]]:
    """The records of a metrics file; a line that is no JSON object fails the test."""
    if path is None or not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
