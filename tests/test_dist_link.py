"""A slow link for real: two ranks in a network namespace whose loopback is shaped to 100 Mbit/s."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from haversack_testing import Haversack, random_model
from haversack_testing.ranks import ENVIRONMENT
from haversack_testing.runs import write_text

BITS_PER_SECOND = 100e6
STEPS = 4
# Shared memory would go round the link.
OVER_TCP = [
    *("--mca", "btl", "tcp,self"),
    *("--mca", "btl_tcp_if_include", "lo"),
    *("--mca", "oob_tcp_if_include", "lo"),
]


@pytest.fixture(scope="module")
def slow_loopback() -> Iterator[tuple[str, ...]]:
    """What runs a command behind the slow link."""
    name = f"haversack-{os.getpid()}"
    inside = ("ip", "netns", "exec", name)
    shape = ("tc", "qdisc", "add", "dev", "lo", "root", "tbf")
    rate = ("rate", "100mbit", "burst", "256kb", "latency", "5s")
    try:
        subprocess.run(["ip", "netns", "add", name], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    try:
        for command in (("ip", "link", "set", "lo", "up"), (*shape, *rate)):
            ran = subprocess.run([*inside, *command], capture_output=True, check=False)
            if ran.returncode != 0:
                pytest.skip(f"no traffic shaping here: {ran.stderr.decode().strip()}")
        yield inside
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("link")
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4}
    random_model("llama", folder / "model", **sizes)
    write_text(folder / "data.txt", 4000)
    return folder


def train(
    haversack: Haversack, folder: Path, inside: tuple[str, ...], name: str, *flags: str, delay: str
) -> list[dict]:
    out = folder / name
    common = ["--model", folder / "model", "--data", folder / "data.txt", "--out", out]
    sizes = ["--batch", "2", "--seq", "16", "--steps", STEPS, "--threads", "1"]
    result = haversack.run(
        *("train", *common, *sizes, "--memory", "900MiB", "--metrics", f"{out}.jsonl", *flags),
        prefix=(*inside, "mpirun", "-n", "2", *OVER_TCP),
        env=ENVIRONMENT | {"HAVERSACK_CACHE": str(folder / "cache"), "HAVERSACK_LINK_DELAY": delay},
        timeout=300,
    )
    return result.metrics


@pytest.mark.slow
def test_waits_are_what_bytes_and_the_link_say(
    haversack: Haversack, folder: Path, slow_loopback: tuple[str, ...]
) -> None:
    ddp = train(haversack, folder, slow_loopback, "ddp", "--dist", "ddp", delay="30ms")[-1]
    flags = ("--dist", "diloco", "--inner-steps", str(STEPS), "--transport", "int8")
    diloco = train(haversack, folder, slow_loopback, "diloco", *flags, delay="30ms")[-1]
    assert ddp["syncs"] == STEPS
    assert diloco["syncs"] == 1
    assert ddp["bytes_sent"] > 3.7 * STEPS * diloco["bytes_sent"]
    for line in (ddp, diloco):
        # Both ranks send through the one loopback.
        transfer = 8 * 2 * line["bytes_sent"] / BITS_PER_SECOND
        # Less what a backward pass hides; more for TCP's headers and acknowledgements, messages
        # that wait for each other, and latencies: 2 a small message and 8 a vector at most.
        latencies = 0.03 * (2 * STEPS + 8 * line["syncs"] + 6)
        assert 0.5 * transfer < line["wait_s"] < 1.5 * transfer + latencies


@pytest.mark.slow
def test_a_distant_rank_costs_its_latency(
    haversack: Haversack, folder: Path, slow_loopback: tuple[str, ...]
) -> None:
    near, far = (
        train(haversack, folder, slow_loopback, f"d{delay}", "--dist", "ddp", delay=delay)[-1]
        for delay in ("1us", "100ms")
    )
    # A step waits for its header, for parts, for results and for the loss.
    assert far["wait_s"] - near["wait_s"] > 2 * STEPS * 0.1
