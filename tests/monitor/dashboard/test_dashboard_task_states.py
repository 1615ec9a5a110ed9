"""States of tasks as the dashboard keeps them: those of the ledger, whatever happens to it."""

import secrets

import numpy as np
from contracts.ledger_contract import a_failure, a_record
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.monitor.dashboard.task_history import TaskHistory
from chunkflow_py.monitor.dashboard.task_states import CODES, TaskStates
from chunkflow_py.run.ledger import ledger_segments
from chunkflow_py.run.ledger.ledger import Ledger
from chunkflow_py.store.memory_store import MemoryStore

SPAN, SIZE = 20, 4
STATE_OF = {"done": "done", "skipped": "skipped", "dead": "failed"}

steps = st.lists(
    st.tuples(
        st.sampled_from(["done", "skipped", "dead", "fail", "begin", "reopen", "fold", "look"]),
        st.lists(st.integers(0, SPAN - 1), min_size=1, max_size=4, unique=True),
    ),
    max_size=25,
)


class CountingStore(MemoryStore):
    """Notes what is read, whole or in part."""

    def __init__(self, name):
        super().__init__(name)
        self.read = []

    def get(self, key):
        self.read.append(key)
        return super().get(key)


@settings(max_examples=60)
@given(steps)
def test_states_follow_the_ledger(program):
    """Loose, folded, failed and reopened, they agree with it; changes add up to the whole map."""
    store = MemoryStore(secrets.token_hex(8))
    ledger = Ledger(store, "infer", SPAN, segment_size=SIZE, in_background=False)
    states = TaskStates(store, "infer", np.arange(SPAN) != 7, SIZE)
    history = TaskHistory(states)
    seen, version = np.zeros(SPAN, np.uint8), 0
    for turn, (step, drawn) in enumerate([*program, ("look", [0])]):
        numbers = [number for number in drawn if number != 7]
        if step in STATE_OF:
            ledger.record([a_record(number, f"a{turn}", step) for number in numbers])
        elif step == "reopen":
            ledger.reopen(numbers)
        elif step == "fold":
            ledger.compact()
        elif step != "look":
            for number in numbers:
                if step == "fail":
                    ledger.fail(a_failure(number, f"f{turn}.{number}"))
                else:
                    ledger.begin(number, f"b{turn}.{number}", "cpu")
        if step != "look":
            continue
        states.update()
        history.read(10)
        ended = ledger.find(range(SPAN))
        told = {n: CODES[code] for n, code in enumerate(states.codes.tolist())}
        assert told[7] == "none"
        assert {n: s for n, s in told.items() if s in STATE_OF.values()} == {
            number: STATE_OF[state] for number, state in ended.items()
        }
        tried = {failure.number for failure in ledger.failures()}
        waiting = {n: s for n, s in told.items() if n != 7 and n not in ended}
        assert all(s == "retry" or s == "running" for n, s in waiting.items() if n in tried)
        assert all(s in ("missing", "running") for n, s in waiting.items() if n not in tried)
        assert states.totals(1.0).finished == ledger.counts().finished == len(ended)
        assert history.coverage() == (len(ended), len(ended))
        is_all, data = states.changes(version)
        if is_all:
            seen = np.frombuffer(data, np.uint8).copy()
        else:
            count = len(data) // 5
            seen[np.frombuffer(data[: 4 * count], "<u4")] = np.frombuffer(data[4 * count :], "u1")
        version = states.version
        assert (seen == states.codes).all()


def test_what_is_closed_is_not_read_again():
    """Full pages are read once, headers of open ones at every look, loose records once."""
    store = CountingStore(secrets.token_hex(8))
    ledger = Ledger(store, "infer", 400, segment_size=4, in_background=False)
    ledger.record([a_record(number) for number in range(398)])
    ledger.compact()
    ledger.record([a_record(398)])
    states = TaskStates(store, "infer", np.ones(400, bool), 4)
    history = TaskHistory(states)
    states.update()
    history.read(60)
    assert not history.left
    store.read.clear()
    for _ in range(3):
        states.update()
        history.read(60)
    pages = [key for key in store.read if "/pages/" in key]
    assert pages.count("ledger/infer/pages/99") == 3
    assert len(pages) < 3 * (16 + 2)
    assert not [key for key in store.read if "/loose/" in key]


def test_leases_say_what_runs(monkeypatch):
    """Where the queue tells them, they count and marks do not; what has ended does not run."""
    monkeypatch.setattr(
        ledger_segments, "COMPACT_EVERY", 1 << 40
    )  # by chance: a mark on a page is not seen
    store = MemoryStore(secrets.token_hex(8))
    ledger = Ledger(store, "infer", 8, segment_size=4, in_background=False)
    states = TaskStates(store, "infer", np.ones(8, bool), 4)
    ledger.record([a_record(0)])
    ledger.begin(1, "b", "cpu")
    ledger.fail(a_failure(2, "f"))
    states.update(None)
    words = [CODES[code] for code in states.codes.tolist()]
    assert words == ["done", "running", "retry"] + ["missing"] * 5
    states.update({0, 2, 3})
    words = [CODES[code] for code in states.codes.tolist()]
    assert words == ["done", "missing", "running", "running"] + ["missing"] * 4
