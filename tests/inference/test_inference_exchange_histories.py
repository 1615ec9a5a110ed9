"""Random histories of the exchange: the bytes of one task, and no further patches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rigs.exchange_history import check_history

SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS)
@settings(max_examples=6, deadline=None)
def test_any_history_gives_the_bytes_of_one_task(seed):
    """A sample: kills, duplicates, lost and damaged parts, workers that interleave."""
    check_history(seed)


def test_the_sample_uses_parts():
    """The histories do exchange patches, or they would prove nothing."""
    histories = [check_history(seed) for seed in range(2)]
    assert sum(history.found for history in histories) > 10


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(SEEDS)
@settings(max_examples=1000, deadline=None)
def test_many_histories_give_the_bytes_of_one_task(seed):
    """The same of a thousand others."""
    check_history(seed)


def test_an_object_of_which_nothing_is_left():
    """This history cuts an object to nothing and disturbs it again."""
    check_history(983810)
