"""Which variants of a test that takes seconds run in `make test`; `make drills` runs all."""

import pytest


def gate_runs(values, *kept):
    """Return *values* as parameters of a test, all but *kept* marked as long."""
    rest = pytest.mark.long
    return [value if value in kept else pytest.param(value, marks=rest) for value in values]
