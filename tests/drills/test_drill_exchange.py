"""A run whose tasks exchange patches: kills, copies, and an exchange that disappears."""

import shutil
import time
from pathlib import Path

import pytest

from drills.invariants import check
from drills.rig import PATIENCE_S, Drill

pytestmark = [pytest.mark.drill, pytest.mark.slow, pytest.mark.timeout(400)]

GRID = (3, 3, 3)
NETWORK = ("inference", "--framework", "identity", "--num-output-channels", 1)
PATCHES = ("--input-patch-size", 6, 12, 12, "--output-patch-overlap", 2, 4, 4)
LEASE = ("--lease", 4)


class NetworkDrill(Drill):
    """A run with a network before the plugin, which knows a task by the corner of its chunk."""

    def line_words(self, output, *, plain=False):
        load, *rest = super().line_words(output, plain=plain)
        margin = ("--expand-margin-size", "auto")
        return [load, *rest[:2], *margin, *NETWORK, *PATCHES, *rest[2:]]


@pytest.fixture
def drills(source, tmp_path):
    """Two drills with the same input."""
    made = [
        NetworkDrill(tmp_path / name, source, GRID, middle=("threshold", "-t", 0.4))
        for name in ("plain", "run")
    ]
    yield made
    for drill in made:
        drill.close()


def test_kills_copies_and_deletions(drills):
    """The same bytes as without a run; nothing of the exchange remains.

    One of two workers is killed every few seconds, each message has a copy, and the whole exchange
    is deleted again and again.
    """
    plain, drill = drills
    plain.create_output()
    plain.must(*plain.source_words, *plain.line_words(plain.output, plain=True))
    drill.act({None: "sleep:0.3"})
    drill.submit("--exchange", "on")
    drill.send(list(drill.bodies()))
    exchange = Path(drill.url) / "exchange"
    deleted = [0, time.monotonic()]

    def half_is_done():
        if exchange.exists() and time.monotonic() - deleted[1] > 2:
            shutil.rmtree(exchange, ignore_errors=True)
            deleted[:] = deleted[0] + 1, time.monotonic()
        return len(drill.records()) > drill.tasks // 2

    options = (*LEASE, "--max-failures", 20)
    kills = drill.churn(2, options, every_s=2, until=half_is_done, patience_s=250)
    codes = drill.wait(*drill.alive(), patience_s=2 * PATIENCE_S)
    assert set(codes) == {0}
    check(drill, plain.voxels(), faults=kills + 1, cap=20, copies=1)
    patches = drill.status()["stages"][0]["patches"]
    assert patches["found"] > 0
    assert not exchange.exists()
    assert deleted[0]
    assert kills
    print(f"{kills} kills, {deleted[0]} deletions: {patches}")  # noqa: T201
