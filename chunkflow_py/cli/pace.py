"""How fast a run goes, when it ends, and how both are said."""

from __future__ import annotations

import time
from collections import deque

WINDOW_S = 60.0  # that a speed looks back, at least
SAMPLES = 20  # and at least over so many steps: tasks may take minutes


class Pace:
    """The speed of something that grows in steps, over the last of them.

    Args:
        amount: that is there at the beginning.
    """

    def __init__(self, amount: float = 0.0) -> None:
        """Begin now."""
        self._steps = deque([(time.monotonic(), amount)])

    def reached(self, amount: float) -> None:
        """Say how much there is now."""
        now = time.monotonic()
        self._steps.append((now, amount))
        while len(self._steps) > SAMPLES and self._steps[1][0] < now - WINDOW_S:
            self._steps.popleft()

    @property
    def per_second(self) -> float | None:
        """The speed until now, which falls while nothing comes; ``None`` before the first step."""
        if len(self._steps) < 2:
            return None
        (since, first), (_, last) = self._steps[0], self._steps[-1]
        return (last - first) / max(time.monotonic() - since, 1e-9)


def bar(share: float, width: int = 20) -> str:
    """Return a bar, filled from the left."""
    filled = min(width, int(share * width + 0.5))
    return "#" * filled + "." * (width - filled)


def voxel_speed(per_second: float) -> str:
    """Return voxels a second with the prefixes of the SI, such as ``12.4 Mvoxel/s``."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if per_second >= factor:
            return f"{per_second / factor:.3g} {prefix}voxel/s"
    return f"{per_second:.3g} voxel/s"


def duration(seconds: float) -> str:
    """Return ``4.2 s``, ``1:02`` (minutes), ``3:07:45`` or ``2 d 03:07``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    minutes, hours, days = whole // 60 % 60, whole // 3600 % 24, whole // 86400
    if days:
        return f"{days} d {hours:02d}:{minutes:02d}"
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def end_in(seconds: float) -> str:
    """Return when it ends: how long that is from now, and the time of day here."""
    there = time.localtime(time.time() + seconds)
    return f"ends in {duration(seconds)}, {time.strftime('%a %H:%M', there)}"
