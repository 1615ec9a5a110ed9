"""The dashboard command, in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest
from rigs.planted import planted_run, record

from chunkflow_py.geometry import BoxGrid, Zyx
from chunkflow_py.task_plan import GridPlan

PLAN = GridPlan(BoxGrid(Zyx(0, 0, 0), Zyx(8, 8, 8), Zyx(8, 8, 8), Zyx(2, 2, 2)))


def start(*words):
    """Start the command."""
    return subprocess.Popen(
        [sys.executable, "-m", "chunkflow_py", "dashboard", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_interrupted(tmp_path, number):
    """On loopback, by the address that it prints; its end is no error."""
    home = planted_run(f"{tmp_path}/r", {"infer": PLAN})
    home.ledger("infer").record([record(PLAN, 3)])
    with start(f"{tmp_path}/r", "--price", "2") as process:
        said = process.stdout.readline()
        assert said.startswith(f"{tmp_path}/r is shown at http://127.0.0.1:"), said
        url = said.split(" at ")[1].split()[0]
        with urllib.request.urlopen(f"{url}status.json", timeout=30) as answer:
            status = json.loads(answer.read())
        process.send_signal(number)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""
    assert (status["stages"][0]["counts"]["done"], status["price"]) == (1, 2.0)
    assert "not known" in status["running"]


def test_a_run_that_is_not_there(tmp_path):
    """Is one sentence, and exit code 2."""
    with start(f"{tmp_path}/nothing") as process:
        assert process.wait(30) == 2
        assert "chunkflow submit makes one" in process.stderr.read()
