"""A plugin that does nothing, or sleeps, and keeps nothing of the task."""

import time


def execute(seconds: float = 0.0) -> None:
    """Sleep for *seconds*; at once is less than a microsecond."""
    if seconds:
        time.sleep(seconds)
