"""What a ledger must do on every store: inherit `LedgerContract` and say where it is."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from chunkflow_py.errors import GeometryError
from chunkflow_py.run.ledger.ledger import Ledger
from chunkflow_py.run.ledger.ledger_record import FailedAttempt, Record
from chunkflow_py.store import open_store
from chunkflow_py.store.store_protocol import Stored

SPAN = 100
SIZE = 8  # of a page


def a_record(number, attempt="first", state="done", **said):
    """Return a record of which only some things matter."""
    said = {"seconds": {"inference": 2.0}, "finished": 1000.0 + number, "profile": "cpu"} | said
    said.setdefault("written", (Stored(f"mem://volume/{number}", 10, "ab" * 16),))
    return Record(number, f"box {number}", state, "5bec", attempt, "worker", **said)


def a_failure(number, attempt, kind="permanent", seconds=None):
    """Return a failure of which only some things matter."""
    who = number, f"box {number}", attempt, "worker"
    return FailedAttempt(*who, kind, "it is broken", when=1.0, seconds=seconds)


class LedgerContract:
    """Tests of the promises of `chunkflow_py.run.ledger.ledger`."""

    @pytest.fixture
    def url(self):
        """Return where the run of this test goes; nothing is there."""
        pytest.fail("a class that inherits this contract says where")

    @pytest.fixture
    def store(self, url):
        """Open it."""
        return open_store(url)

    @pytest.fixture
    def ledger(self, store):
        """Return a ledger on which nothing is."""
        return Ledger(store, "infer", SPAN, segment_size=SIZE, in_background=False)

    @pytest.fixture
    def other(self, url):
        """Return the same ledger as another process has it."""
        return Ledger(open_store(url), "infer", SPAN, segment_size=SIZE, in_background=False)

    def test_ended_agrees_with_counts(self, ledger, other):
        """Loose, folded, both at once and reopened, it is the number that counting all gives."""
        for first in range(0, 24, 4):
            ledger.record([a_record(number) for number in range(first, first + 4)])
            if first % 8:
                ledger.compact()
            assert ledger.ended() == other.ended() == ledger.counts().finished == first + 4
        ledger.record([a_record(SPAN - 1, state="dead")])
        assert ledger.ended() == other.ended() == 25
        ledger.reopen([3, 30, SPAN - 1])
        assert Ledger(ledger._segments._store, "infer", SPAN, segment_size=SIZE).ended() == 23

    def test_nothing(self, ledger, store):
        """On a new ledger there is nothing, and looking leaves nothing behind."""
        assert ledger.find(range(20)) == {}
        assert ledger.counts().finished == 0
        assert list(ledger.records()) == list(ledger.failures()) == ledger.attempts(3) == []
        assert list(ledger.missing([5, 3, 99])) == [5, 3, 99]
        ledger.compact()
        assert ledger.record([]) == []
        assert list(store.list()) == []

    def test_round_trip(self, ledger, other):
        """What is recorded is there for everybody, word for word, before and after folding."""
        records = [
            a_record(0, profile="cpu é", seconds={"load-zarr": 0.25, "inference#2": 1.5}),
            a_record(7, state="skipped", reason="all zero", written=()),
            a_record(8, state="dead", reason="it is\nbroken", written=()),
            a_record(99, written=(Stored("s3://b/a/1", 5, "cd" * 16), Stored("s3://b/a/2"))),
        ]
        assert ledger.record(records) == [True] * 4
        for each in (ledger, other):
            assert each.find(range(SPAN)) == {0: "done", 7: "skipped", 8: "dead", 99: "done"}
            assert list(each.records()) == records
        ledger.compact()
        for each in (ledger, other):
            assert each.find([99, 8, 1]) == {8: "dead", 99: "done"}
            assert list(each.records()) == records
        assert list(other.records(states={"dead", "skipped"})) == records[1:3]
        assert list(other.records(states={"dead"})) == records[2:3]

    @pytest.mark.parametrize("folds", [(), (0,), (1,), (0, 1)])
    def test_first_wins(self, ledger, other, folds):
        """A task has one record, the first, whenever a zombie comes with another one."""
        assert ledger.record([a_record(3, "first"), a_record(4, "first")]) == [True, True]
        if 0 in folds:
            ledger.compact()
        assert other.record([a_record(3, "zombie", "dead"), a_record(5, "zombie")]) == [False, True]
        assert other.find([3]) == {3: "done"}
        if 1 in folds:
            other.compact()
        assert ledger.find([3, 4, 5]) == {3: "done", 4: "done", 5: "done"}
        assert ledger.counts().finished == 3
        assert ledger.counts().dead == 0
        assert {r.number: r.attempt for r in ledger.records()} == {
            3: "first",
            4: "first",
            5: "zombie",
        }

    @pytest.mark.parametrize("folded", [False, True])
    def test_recorded_again(self, ledger, other, folded):
        """Who records again, as the answer was lost, has won again; in one call one has won."""
        assert ledger.record([a_record(3, "a"), a_record(3, "b"), a_record(3, "a")]) == [
            True,
            False,
            True,
        ]
        if folded:
            ledger.compact()
        assert other.record([a_record(3, "b"), a_record(3, "a")]) == [False, True]
        assert ledger.counts().done == 1

    def test_one_object_a_page(self, ledger, store):
        """After folding there is one object a page that has something, whatever was said."""
        for number in range(0, SPAN, 7):
            ledger.record([a_record(number)])
            ledger.begin(number, "x", "cpu")
            ledger.finish(a_record(number, "x"))
            ledger.fail(a_failure(number, f"y{number}"))
        ledger.compact()
        assert len(list(store.list())) == 13
        assert ledger.counts().done == ledger.counts().failures == 15
        assert len(list(ledger.failures())) == 15

    def test_sums(self, ledger, other):
        """Sums are the same whether what they are over is loose, on pages, or both."""
        ledger.record([a_record(n) for n in range(10)])
        for attempt, seconds in enumerate((1.5, 2.0, None)):
            ledger.fail(a_failure(20, f"{attempt}", seconds=seconds))
        loose = ledger.counts(now=1100)
        assert (loose.failures, loose.failed_s) == (3, 3.5)
        assert (loose.done, loose.skipped, loose.dead, loose.finished) == (10, 0, 0, 10)
        assert (loose.stored_bytes, loose.seconds) == (100, {"inference": 20.0})
        assert (loose.first, loose.last, loose.recent) == (1000, 1009, pytest.approx(0.1))
        ledger.compact()
        assert other.counts(now=1100) == loose
        other.record([a_record(50, state="skipped", written=(), seconds={"load": 1.0})])
        both = ledger.counts(now=1100)
        assert (both.done, both.skipped, both.stored_bytes) == (10, 1, 100)
        assert both.seconds == {"inference": 20.0, "load": 1.0}
        assert ledger.counts(now=10000).recent == 0

    def test_died_between_update_and_removal(self, ledger, other, store):
        """A fold that dies when the page is written leaves nothing that counts twice."""
        ledger.record([a_record(n) for n in range(4)])
        ledger.fail(a_failure(5, "x"))
        loose = {key: store.get(key) for key in store.list("ledger/infer/loose")}
        ledger.compact()
        for key, content in loose.items():
            store.put(key, content)
        assert other.counts().done == 4
        assert len(list(other.records())) == 4
        assert len(list(other.failures())) == 1
        assert other.fail(a_failure(5, "y")) == {"permanent": 2}
        other.compact()
        assert list(store.list("ledger/infer/loose")) == []
        assert (ledger.counts().done, ledger.counts().failures) == (4, 2)

    def test_failures(self, ledger, other):
        """Attempts that fail are counted by kind and kept; one that is told twice counts once."""
        assert ledger.fail(a_failure(3, "a/1")) == {"permanent": 1}
        assert other.fail(a_failure(3, "b.2", "transient")) == {"permanent": 1, "transient": 1}
        ledger.compact()
        assert other.fail(a_failure(3, "a/1")) == {"permanent": 1, "transient": 1}
        assert other.fail(a_failure(3, "c")) == {"permanent": 2, "transient": 1}
        assert other.fail(a_failure(4, "d", "resource")) == {"resource": 1}
        said = Counter(failure.attempt for failure in ledger.failures())
        assert said == {"a/1": 1, "b.2": 1, "c": 1, "d": 1}
        assert list(ledger.failures(4)) == [a_failure(4, "d", "resource")]
        assert ledger.find([3, 4]) == {}

    def test_missing(self, ledger, other):
        """Tasks without a record are named, in the order of the plan."""
        ledger.record([a_record(n) for n in (1, 9, 17)])
        ledger.compact()
        ledger.record([a_record(30, state="dead")])
        assert list(other.missing([30, 17, 16, 9, 2, 1, 70])) == [16, 2, 70]

    @pytest.mark.parametrize("folded", [False, True])
    def test_reopen(self, ledger, other, store, folded):
        """A task that is reopened is as if it had never been worked on; the others stay."""
        ledger.record([a_record(n) for n in range(5)])
        ledger.fail(a_failure(3, "a"))
        ledger.fail(a_failure(4, "b"))
        old = {key: store.get(key) for key in store.list("ledger/infer/loose")}
        if folded:
            ledger.compact()
        other.reopen([3, 50])
        assert ledger.find(range(60)) == dict.fromkeys((0, 1, 2, 4), "done")
        assert list(ledger.missing(range(5))) == [3]
        assert (ledger.counts().done, ledger.counts().failures) == (4, 1)
        assert [failure.attempt for failure in ledger.failures()] == ["b"]
        assert ledger.record([a_record(3, "second")]) == [True]
        assert ledger.fail(a_failure(3, "c")) == {"permanent": 1}
        # A fold that began before sees what it has read, and removes it.
        for key, content in old.items():
            store.put(key, content)
        other.compact()
        assert {r.number: r.attempt for r in ledger.records()}[3] == "second"
        assert other.record([a_record(3, "zombie")]) == [False]
        other.reopen([3])
        assert ledger.record([a_record(3, "third")]) == [True]
        ledger.compact()
        assert {r.number: r.attempt for r in other.records()}[3] == "third"
        assert other.counts().done == 5
        assert list(store.list("ledger/infer/loose")) == []

    @pytest.mark.parametrize("folded", [False, True])
    def test_attempts(self, ledger, other, folded):
        """Attempts say what they are about to write, and what they have written if they lose."""
        ledger.begin(3, "a", "cpu")
        other.begin(3, "b", "gpu")
        ledger.begin(3, "c", "cpu")
        ledger.begin(2, "d", "cpu")
        other.record([a_record(3, "b", profile="gpu")])
        ledger.finish(a_record(3, "a"))
        if folded:
            ledger.compact()
        found = {each.attempt: (each.profile, each.record) for each in other.attempts(3)}
        assert found == {
            "a": ("cpu", a_record(3, "a")),
            "b": ("gpu", a_record(3, "b", profile="gpu")),
            "c": ("cpu", None),
        }
        ledger.reopen([3])
        assert other.attempts(3) == []

    def test_stages(self, ledger, store):
        """The ledgers of two stages know nothing of each other."""
        second = Ledger(store, "infer2", SPAN, segment_size=SIZE)
        ledger.record([a_record(3)])
        assert second.record([a_record(3, "x")]) == [True]
        assert second.counts().done == 1
        ledger.compact()
        assert second.find([3]) == {3: "done"}

    def test_not_of_the_stage(self, ledger, store):
        """A task that the stage has not is refused; both numbers are named."""
        for call in (
            lambda: ledger.record([a_record(3), a_record(SPAN)]),
            lambda: ledger.fail(a_failure(SPAN, "a")),
            lambda: ledger.begin(SPAN, "a", "cpu"),
            lambda: ledger.reopen([-1, SPAN]),
        ):
            with pytest.raises(GeometryError, match=r"has no task (100|-1), .* numbered 0 to 99"):
                call()
        assert list(store.list()) == []

    def test_far_numbers(self, store):
        """Numbers may be far apart: pages without tasks cost nothing."""
        ledger = Ledger(store, "infer", 10**12)
        far = [5, 10**9, 10**12 - 1]
        ledger.record([a_record(number) for number in far])
        ledger.compact()
        assert ledger.find([*far, 6]) == dict.fromkeys(far, "done")
        assert len(list(store.list())) == 3

    def test_one_winner(self, url):
        """Of many who record the same tasks while others fold, one wins each, and it is there."""
        ledgers = [Ledger(open_store(url), "infer", SPAN, segment_size=SIZE) for _ in range(4)]

        def work(which):
            won = []
            for number in range(which, which + 12):
                records = [a_record(n % 12, str(which)) for n in (number, number + 1)]
                said = ledgers[which].record(records)
                won += [r.number for r, is_ours in zip(records, said) if is_ours]
                if number % 4 == 0:
                    ledgers[which].compact()
            return set(won)

        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(work, range(4)))
        assert sorted(number for each in won for number in each) == list(range(12))
        assert {(r.number, int(r.attempt)) for r in ledgers[0].records()} == {
            (number, which) for which, each in enumerate(won) for number in each
        }
        assert ledgers[0].counts().done == 12
