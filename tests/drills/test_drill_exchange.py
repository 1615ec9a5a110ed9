"""A run whose tasks exchange patches: kills, copies, and an exchange that disappears."""

import shutil
import time
from pathlib import Path

import pytest

from drills.invariants import check
from drills.rig import PATIENCE_S, STAGE, Drill

pytestmark = [pytest.mark.drill, pytest.mark.slow, pytest.mark.timeout(400)]

GRID = (3, 3, 3)
NETWORK = ("inference", "--framework", "identity", "--num-output-channels", 1)
PATCHES = ("--input-patch-size", 6, 12, 12, "--output-patch-overlap", 2, 4, 4)
MIDDLE = (*NETWORK, *PATCHES, "threshold", "-t", 0.4)
LOADING = ("--expand-margin-size", "auto")
LEASE = ("--lease", 4)


def test_kills_copies_and_deletions(make_drill, source, tmp_path_factory):
    """The same bytes as without a run; nothing of the exchange remains.

    One of two workers is killed every few seconds, each message has a copy, and the whole exchange
    is deleted again and again.
    """
    plain = Drill(tmp_path_factory.mktemp("plain"), source, GRID, middle=MIDDLE, loading=LOADING)
    plain.create_output()
    plain.must(*plain.source_words, *plain.line_words(plain.output, plain=True))
    drill = make_drill(GRID, {None: "sleep:0.3"}, middle=MIDDLE, loading=LOADING)
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
    kills = drill.churn(2, options, every_s=10, until=half_is_done, patience_s=250)
    codes = drill.wait(*drill.alive(), patience_s=2 * PATIENCE_S)
    assert set(codes) == {0}
    check(drill, plain.voxels(), faults=kills + 1, cap=20, copies=1)
    patches = drill.status()["stages"][0]["patches"]
    assert patches["found"] > 0
    assert not exchange.exists()
    assert deleted[0]
    print(f"{kills} kills, {deleted[0]} deletions, {STAGE}: {patches}")  # noqa: T201
