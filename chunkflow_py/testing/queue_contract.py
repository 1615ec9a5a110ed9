"""Contract of queues: inherit `QueueContract` and define a fixture `url`, new for each test."""

import os
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chunkflow_py.errors import QueueError
from chunkflow_py.queue.queue_protocol import DeadLetter, Message, open_queue
from chunkflow_py.testing.peak_memory import peak_of
from chunkflow_py.testing.queue_processes import (
    DRAIN,
    HOLD,
    LONG_S,
    PATIENCE_S,
    received,
    run_script,
)


class QueueContract:
    """Tests of everything that `chunkflow_py.queue.queue_protocol.Queue` promises.

    Attributes:
        short_lease_s: duration, in seconds, of leases that expire while a test waits.
        many_messages: number of messages that a test sends to measure the memory of `send`;
            ``None`` skips this test.
        counts_are_exact: whether a change is immediately visible in the counts of messages.
        crosses_processes: whether other processes can open the queue.
        tells_lost: whether `acknowledge` and `extend` return the messages whose leases have ended.
        delivers_stale_handles: whether the handle of a received message may still work after the
            lease has ended.
        keeps_reasons: whether dead letters are stored with their reasons.
        any_text: whether messages may contain any character.
    """

    short_lease_s = 0.3
    many_messages = 60_000
    counts_are_exact = True
    crosses_processes = True
    tells_lost = True
    delivers_stale_handles = False
    keeps_reasons = True
    any_text = True

    @pytest.fixture
    def url(self):
        """Return the address of a queue that does not exist yet, for this test."""
        pytest.fail("a class that inherits QueueContract must define the fixture url")

    @pytest.fixture
    def queue(self, url):
        """Create the queue at *url*."""
        with closing(open_queue(url, create=True)) as queue:
            yield queue

    @pytest.fixture
    def stale(self, queue):
        """Receive a message twice; return it with the ended lease and with the new lease."""
        if self.delivers_stale_handles:
            pytest.skip("this queue does not tell old handles from new ones")
        queue.send(["a"])
        (old,) = received(queue, 1, self.short_lease_s)
        (new,) = received(queue, 1)
        return old, new

    def assert_lost(self, lost, messages):
        """Check that a call reported *messages* as lost, if the queue tells lost messages."""
        assert lost == (messages if self.tells_lost else lost)

    def assert_counts(self, queue, waiting, leased, dead=0):
        """Check the counts of messages; wait if the counts are not exact immediately."""
        end = time.monotonic() + (0 if self.counts_are_exact else PATIENCE_S)
        while True:
            counts = queue.counts()
            if (counts.waiting, counts.leased, counts.dead or 0) == (waiting, leased, dead):
                return
            if time.monotonic() > end:
                pytest.fail(f"{counts}, not {waiting} waiting, {leased} leased and {dead} dead")
            time.sleep(0.1)

    def test_what_it_says(self, queue):
        """A queue can be opened again with its address, and allows leases of more than an hour."""
        queue.send(["a"])
        assert "://" in queue.url
        assert queue.longest_lease_s > 3600
        if self.crosses_processes:
            with closing(open_queue(queue.url)) as again:
                assert received(again, 1)[0].body == "a"

    def test_a_queue_is_made_on_request_only(self, url):
        """Without *create*, a missing queue is an error that names the command to create it."""
        with pytest.raises(QueueError, match="generate-tasks|submit"):
            open_queue(url)
        open_queue(url, create=True).close()
        open_queue(url).close()

    def test_made_by_several_at_once(self, url):
        """Producers that start together create one queue, and all can send to it."""

        def make(number):
            with closing(open_queue(url, create=True)) as mine:
                return mine.send([str(number)])

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(make, range(8))) == [1] * 8
        with closing(open_queue(url)) as queue:
            assert sorted(message.body for message in received(queue, 8)) == sorted("01234567")

    def test_creating_again_keeps_the_messages(self, queue, url):
        """A producer that is run again finds the messages that it sent."""
        queue.send(["a"])
        with closing(open_queue(url, create=True)) as again:
            assert received(again, 1)[0].body == "a"

    def test_every_message_comes_once(self, queue):
        """A leased message is not received again, and an acknowledged message is deleted."""
        bodies = [f"0-1_0-1_{n}-{n + 1}" for n in range(43)]
        assert queue.send(iter(bodies)) == 43
        messages = received(queue, 43)
        assert sorted(message.body for message in messages) == sorted(bodies)
        assert {message.receives for message in messages} == {1}
        assert queue.receive(10, LONG_S) == []
        for first in range(0, 43, 10):
            assert queue.acknowledge(messages[first : first + 10]) == []
        assert queue.receive(10, LONG_S) == []
        self.assert_counts(queue, 0, 0)

    def test_nothing(self, queue):
        """Every call accepts an empty list of messages."""
        assert queue.send([]) == 0
        assert queue.receive(5, LONG_S) == []
        assert queue.acknowledge([]) == []
        assert queue.extend([], 10) == []
        queue.release([])
        queue.bury([], "none")
        assert list(queue.dead_letters()) == []

    def test_same_text_twice(self, queue):
        """Two messages with the same text are separate messages."""
        assert queue.send(["a", "a"]) == 2
        messages = received(queue, 2)
        assert queue.acknowledge(messages[:1]) == []
        queue.release(messages[1:])
        assert [message.body for message in received(queue, 1)] == ["a"]

    @pytest.mark.parametrize("most", [1, 3, 10])
    def test_no_more_than_asked_for(self, queue, most):
        """A call of `receive` returns at most the requested number of messages."""
        queue.send(map(str, range(20)))
        assert 1 <= len(queue.receive(most, LONG_S, 5)) <= most

    def test_a_lease_that_ends_is_redelivered(self, queue):
        """A message that is not acknowledged can be received again after its lease has ended."""
        queue.send(["a"])
        (first,) = received(queue, 1, self.short_lease_s)
        (second,) = received(queue, 1)
        assert (second.body, first.receives, second.receives) == ("a", 1, 2)
        assert second.handle != first.handle

    def test_extended_leases_last(self, queue):
        """Extending a lease replaces its end; the new end may even be earlier than the old end."""
        queue.send(["a"])
        messages = received(queue, 1, self.short_lease_s)
        assert queue.extend(messages, LONG_S) == []
        assert queue.receive(1, LONG_S, 2 * self.short_lease_s) == []
        assert queue.extend(messages, self.short_lease_s) == []
        assert [message.receives for message in received(queue, 1)] == [2]

    def test_extended_leases_can_be_acknowledged(self, queue):
        """Handles stay valid after one or several extensions."""
        queue.send(["a", "b"])
        messages = received(queue, 2)
        for _ in range(3):
            assert queue.extend(messages, LONG_S) == []
        assert queue.acknowledge(messages[:1]) == []
        queue.release(messages[1:])
        assert [message.body for message in received(queue, 1)] == [messages[1].body]

    def test_stale_acknowledgement(self, queue, stale):
        """Acknowledging a message after its lease has ended is reported, and deletes nothing."""
        old, new = stale
        self.assert_lost(queue.acknowledge([old]), [old])
        assert queue.receive(1, LONG_S) == []
        assert queue.extend([new], LONG_S) == []
        assert queue.acknowledge([new]) == []

    def test_stale_extension(self, queue, stale):
        """Extending a lease that has ended is reported, and changes no other lease."""
        old, new = stale
        self.assert_lost(queue.extend([old], self.short_lease_s), [old])
        assert queue.receive(1, LONG_S, 2 * self.short_lease_s) == []
        assert queue.acknowledge([new]) == []

    def test_stale_release(self, queue, stale):
        """Releasing a lease that has ended does not change the lease of another worker."""
        old, new = stale
        queue.release([old])
        assert queue.receive(1, LONG_S) == []
        assert queue.acknowledge([new]) == []

    def test_stale_burial(self, queue, stale):
        """A worker whose lease has ended cannot move the message to the dead letters."""
        old, new = stale
        queue.bury([old], "too late")
        assert list(queue.dead_letters()) == []
        assert queue.acknowledge([new]) == []

    def test_handles_end_with_the_lease(self, queue):
        """An acknowledged or released message no longer belongs to its receiver."""
        if self.delivers_stale_handles:
            pytest.skip("this queue does not tell old handles from new ones")
        queue.send(["a", "b"])
        gone, free = received(queue, 2)
        queue.acknowledge([gone])
        queue.release([free], LONG_S)
        self.assert_lost(queue.extend([gone, free], LONG_S), [gone, free])
        self.assert_lost(queue.acknowledge([free]), [free])
        self.assert_counts(queue, 1, 0)

    def test_release_at_once(self, queue):
        """Released messages can be received again immediately, with a higher count of receipts."""
        queue.send(["a"])
        for receives in (1, 2, 3):
            messages = received(queue, 1)
            assert [message.receives for message in messages] == [receives]
            queue.release(messages)

    def test_release_with_a_delay(self, queue):
        """A message that is released with a delay cannot be received before the delay is over."""
        queue.send(["soon", "late"])
        for message in received(queue, 2):
            queue.release([message], self.short_lease_s if message.body == "soon" else LONG_S)
        assert [message.body for message in received(queue, 1)] == ["soon"]
        assert queue.receive(1, LONG_S) == []

    def test_dead_letters(self, queue):
        """A dead letter is not received again, and can be read with its reason."""
        queue.send(["a", "b", "c"])
        messages = {message.body: message for message in received(queue, 3)}
        queue.bury([messages["a"], messages["b"]], "ValueError: no\nsecond line")
        self.assert_counts(queue, 0, 1, 2)
        for _ in range(2):  # they stay
            letters = sorted(queue.dead_letters(), key=lambda letter: letter.body)
            assert [letter.body for letter in letters] == ["a", "b"]
            if self.keeps_reasons:
                assert letters[0] == DeadLetter("a", "ValueError: no\nsecond line")
        queue.release([messages["c"]])
        assert [message.body for message in received(queue, 1)] == ["c"]

    def test_counts(self, queue):
        """Counts follow the state of each message."""
        queue.send(map(str, range(5)))
        self.assert_counts(queue, 5, 0)
        first, second, third = received(queue, 3)
        self.assert_counts(queue, 2, 3)
        queue.acknowledge([first])
        queue.release([second])
        self.assert_counts(queue, 3, 1)
        queue.release([third], LONG_S)
        self.assert_counts(queue, 4, 0)

    def test_ended_leases_count_as_waiting(self, queue):
        """A message whose lease has expired counts as waiting, even before the next receive."""
        queue.send(["a"])
        received(queue, 1, self.short_lease_s)
        end = time.monotonic() + PATIENCE_S
        while queue.counts().waiting != 1:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert queue.counts().leased == 0

    def test_an_empty_receive_waits_as_long_as_asked(self, queue):
        """Without messages, `receive` returns after its waiting time, not before."""
        assert queue.receive(1, LONG_S) == []
        start = time.monotonic()
        assert queue.receive(1, LONG_S, 1.0) == []
        assert 0.9 < time.monotonic() - start < PATIENCE_S

    def test_a_waiting_receive_is_served(self, queue, url):
        """A waiting `receive` returns a message as soon as it is sent."""
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(queue.receive, 1, LONG_S, 20.0)
            time.sleep(0.3)
            start = time.monotonic()
            with closing(open_queue(url)) as other:
                other.send(["a"])
            assert [message.body for message in waiting.result()] == ["a"]
            assert time.monotonic() - start < 15

    @settings(
        max_examples=10,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
        ],
    )
    @given(st.lists(st.text(min_size=1), min_size=1, max_size=8))
    def test_any_text(self, queue, bodies):
        """Bodies are received as they were sent, with any characters."""
        if not self.any_text:
            pytest.skip("this queue refuses some characters")
        queue.send(bodies)
        messages = received(queue, len(bodies))
        assert Counter(message.body for message in messages) == Counter(bodies)
        assert queue.acknowledge(messages) == []

    @pytest.mark.parametrize(
        "body", ["0-64_0-512_0-512", "日本 ü \U0001f9e0 \"'\\ / %41 <&>", "x" * 4096]
    )
    def test_text(self, queue, body):
        """Names of boxes, long texts and texts in any script are received as they were sent."""
        queue.send([body])
        assert [message.body for message in received(queue, 1)] == [body]

    def test_many_in_constant_memory(self, queue, url):
        """The memory of `send` does not grow with the number of messages from a generator."""
        if self.many_messages is None:
            pytest.skip("this queue sets no number of messages for this test")

        def send(count):
            with closing(open_queue(url)) as own:  # a connection does not survive a fork
                assert own.send(f"{n}-{n + 1}_0-512_0-512" for n in range(count)) == count

        few = peak_of(lambda: send(self.many_messages // 2)).traced
        many = peak_of(lambda: send(self.many_messages * 2)).traced
        assert many < few * 1.2 + 500_000

    def test_many_workers(self, queue, url):
        """Threads and processes drain a queue together: nothing is lost or leased twice."""
        bodies = [f"{n}-{n + 1}_0-512_0-512" for n in range(300)]
        queue.send(bodies)
        count = 8 if self.crosses_processes else 0
        others = [run_script(DRAIN, queue.url, LONG_S) for _ in range(count)]
        try:
            for other in others:
                assert other.stdout.readline() == "ready\n"

            def drain(_):
                done = []
                with closing(open_queue(url)) as mine:
                    while messages := mine.receive(3, LONG_S, 1):
                        time.sleep(0.002)
                        assert mine.acknowledge(messages) == []
                        done += [message.body for message in messages]
                return done

            with ThreadPoolExecutor(8) as pool:
                by_thread = pool.map(drain, range(8))
                for other in others:
                    other.stdin.write("\n")
                    other.stdin.flush()
                done = [body for part in by_thread for body in part]
            for other in others:
                done += other.communicate(timeout=PATIENCE_S)[0].splitlines()
                assert other.returncode == 0
        finally:
            for other in others:
                other.kill()
                other.communicate()
        assert Counter(done) == Counter(bodies)
        self.assert_counts(queue, 0, 0)

    def test_one_queue_in_many_threads(self, queue):
        """One queue object serves several threads at once."""
        queue.send(map(str, range(100)))

        def drain(_):
            done = []
            while messages := queue.receive(2, LONG_S, 0.5):
                assert queue.extend(messages, LONG_S) == []
                assert queue.acknowledge(messages) == []
                done += [message.body for message in messages]
            return done

        with ThreadPoolExecutor(8) as pool:
            done = [body for part in pool.map(drain, range(8)) for body in part]
        assert Counter(done) == Counter(map(str, range(100)))

    def test_a_killed_worker(self, queue):
        """Messages that a killed process had leased can be received again after the leases end."""
        if not self.crosses_processes:
            pytest.skip("only one process can use this queue")
        queue.send(["a", "b"])
        worker = run_script(HOLD, queue.url, max(2.0, self.short_lease_s))
        try:
            assert int(worker.stdout.readline()) >= 1
            os.kill(worker.pid, signal.SIGKILL)
        finally:
            worker.kill()
            worker.communicate()
        messages = received(queue, 2)
        assert sorted(message.body for message in messages) == ["a", "b"]
        assert max(message.receives for message in messages) == 2

    def test_unknown_handles(self, queue):
        """Handles that this queue has not issued have no effect."""
        if self.delivers_stale_handles:
            pytest.skip("this queue does not tell old handles from new ones")
        queue.send(["a"])
        (message,) = received(queue, 1)
        for handle in ("", "nonsense", "1", "../../x", message.handle + "0"):
            strange = Message("a", handle)
            self.assert_lost(queue.acknowledge([strange]), [strange])
            self.assert_lost(queue.extend([strange], LONG_S), [strange])
            queue.release([strange])
            queue.bury([strange], "strange")
        self.assert_counts(queue, 0, 1)
        assert queue.acknowledge([message]) == []
