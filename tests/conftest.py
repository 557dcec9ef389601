"""Fixtures of the end-to-end tests; what needs no set-up is in haversack_testing."""

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from haversack_testing import ROOT, Haversack, chain
from haversack_testing.runner import FOLLOWING, Finished, Runner
from haversack_testing.runs import write_text
from haversack_testing.sentence import TEXT

# The judges work on local directories; nothing may be looked up on a hub.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"


class Kjv(NamedTuple):
    """The King James Bible without, and its last book."""

    train: Path
    valid: Path


def fetch(script: str) -> None:
    subprocess.run([ROOT / "tools" / script], check=True, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="session")
def haversack() -> Haversack:
    """The binary of `make build`, or the one that HAVERSACK_BINARY names."""
    path = Path(os.environ.get("HAVERSACK_BINARY", ROOT / "build" / "haversack"))
    assert path.is_file(), f"{path} does not exist: run `make build`"
    return Haversack(path.resolve())


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face directory, f32."""
    fetch("fetch_model.sh")
    return ROOT / "data" / "smollm2-135m"


@pytest.fixture(scope="session")
def kjv() -> Kjv:
    fetch("fetch_text.sh")
    return Kjv(train=ROOT / "data/kjv/train.txt", valid=ROOT / "data/kjv/valid.txt")


@pytest.fixture(scope="session")
def runner(haversack: Haversack, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    folder = tmp_path_factory.mktemp("resume")
    chain(folder / "model", FOLLOWING, config={"num_hidden_layers": 2})
    write_text(folder / "data.txt", 4000)
    write_text(folder / "valid.txt", 600, seed=1)
    return Runner(
        haversack,
        folder,
        {
            "model": folder / "model",
            "data": folder / "data.txt",
            "init": "random",
            "batch": 2,
            "micro_batch": 2,
            "seq": 16,
            "steps": 8,
            "lr": 0.01,
            "threads": 1,
            "save_every": 1,
        },
    )


@pytest.fixture(scope="session")
def whole(runner: Runner) -> Finished:
    """The uninterrupted run."""
    out = runner.folder / "whole"
    return Finished(out, runner.run(out))


@pytest.fixture(scope="session")
def sentence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sentence") / "text.txt"
    path.write_text(TEXT)
    return path
