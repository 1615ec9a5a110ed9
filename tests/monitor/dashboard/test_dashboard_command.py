"""The dashboard command, in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest
from rigs.command_line import say
from rigs.planted import planted_run, record

from chunkflow_py.core.geometry import BoxGrid, Zyx
from chunkflow_py.planning.prices import load_prices
from chunkflow_py.tasks.task_plan import GridPlan

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
    with start(f"{tmp_path}/r", "--instance", "g5.xlarge") as process:
        said = process.stdout.readline()
        assert said.startswith(f"{tmp_path}/r is shown at http://127.0.0.1:"), said
        url = said.split(" at ")[1].split()[0]
        with urllib.request.urlopen(f"{url}status.json", timeout=30) as answer:
            status = json.loads(answer.read())
        process.send_signal(number)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""
    assert status["stages"][0]["counts"]["done"] == 1
    prices = load_prices()
    assert status["price"] == prices.instance("g5.xlarge").hour
    assert status["price_source"] == f"g5.xlarge, prices of {prices.date}, on demand"
    assert "the run has no queue" in status["running"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", "create the run with chunkflow submit"),
        ("--instance g5.xlrge", "g5.xlarge, g5.2xlarge, g6.xlarge; give one of these types"),
        ("--spot", "add --instance, such as g5.xlarge, or give --price"),
    ],
)
def test_what_cannot_be_is_told(more, said, tmp_path, monkeypatch):
    """In one sentence, with exit code 2."""
    monkeypatch.chdir(tmp_path)
    assert said in say(f"dashboard nothing {more}", code=2)
