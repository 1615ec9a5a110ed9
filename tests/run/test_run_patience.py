"""When a worker blames a task, and when itself."""

from __future__ import annotations

from chunkflow_py.run.worker.patience import Patience


def test_two_refusals_in_a_row_stop_a_worker() -> None:
    """No attempt of a task is used up by a worker that has no access to anything."""
    patience = Patience(1.0)
    assert patience.access_refused(1) == "release"
    assert patience.access_refused(2) == "stop"


def test_a_task_that_alone_is_refused_is_blamed() -> None:
    """When others go well between its attempts, what it wants is at fault."""
    patience = Patience(1.0)
    assert patience.access_refused(1) == "release"
    patience.succeeded()
    assert patience.access_refused(1) == "blame"
    patience.succeeded()
    assert patience.access_refused(2) == "release"
