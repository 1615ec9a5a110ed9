"""Speeds, ends and units."""

from __future__ import annotations

import pytest

from chunkflow_py.cli.progress import Pace, bar, duration, voxel_speed


@pytest.mark.parametrize(
    ("speed", "text"),
    [(0.5, "0.5 voxel/s"), (999, "999 voxel/s"), (1234, "1.23 kvoxel/s"),
     (12_400_000, "12.4 Mvoxel/s"), (2.5e9, "2.5 Gvoxel/s")],
)  # fmt: skip
def test_speeds_have_prefixes_of_the_si(speed: float, text: str) -> None:
    """Voxels a second, by thousands."""
    assert voxel_speed(speed) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (9.94, "9.9 s"), (10, "0:10"), (62.9, "1:02"), (11_265, "3:07:45"),
     (2 * 86400 + 11_265, "2 d 03:07")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    """As people say them."""
    assert duration(seconds) == text


def test_a_bar_is_filled_from_the_left() -> None:
    """And never longer than it is."""
    assert [bar(share, 4) for share in (0, 0.49, 1, 1.2)] == ["....", "##..", "####", "####"]


def test_a_pace_is_that_of_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a minute or twenty steps, whichever is longer; it falls while nothing comes."""
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    pace = Pace(100)
    assert pace.per_second is None
    now = 10.0
    pace.reached(200)
    assert pace.per_second == 10
    now = 100.0
    assert pace.per_second == 1
    for _ in range(100):
        now += 2
        pace.reached(now)
    assert pace.per_second == pytest.approx(1, rel=0.1)
    for _ in range(100):
        now += 10
        pace.reached(3 * now)
    assert pace.per_second == pytest.approx(3, rel=0.2)
