"""Compare a queue with a simple model; Hypothesis searches for calls whose results differ."""

import itertools
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from chunkflow_py.queue.queue_protocol import Counts, DeadLetter

SECONDS = st.sampled_from([0.0, 1.0, 5.0, 60.0])


@dataclass
class Modelled:
    """A message in the model; *receipt* is the handle from the most recent `receive`."""

    body: str
    receives: int = 0
    ends: float = 0.0
    receipt: str | None = None


class QueueModel(RuleBasedStateMachine):
    """Call methods of a queue and of the model in random order, with a simulated clock."""

    receipts = Bundle("receipts")

    def __init__(self, open_queue):
        """Start with an empty queue.

        Args:
            open_queue: function that returns an empty queue; its argument is a function that
                returns the time in seconds.
        """
        super().__init__()
        self.now = 1000.0
        self.queue = open_queue(lambda: self.now)
        self.numbers = itertools.count()
        self.messages = []
        self.dead = []

    def mine(self, message):
        """Return the model's message with the handle of *message*; ``None`` if there is none."""
        found = [each for each in self.messages if each.receipt == message.handle]
        return found[0] if found else None

    @rule(count=st.integers(0, 4))
    def send(self, count):
        bodies = [str(next(self.numbers)) for _ in range(count)]
        assert self.queue.send(bodies) == count
        self.messages += map(Modelled, bodies)

    @rule(seconds=SECONDS)
    def wait(self, seconds):
        self.now += seconds

    @rule(target=receipts, most=st.integers(0, 5), lease_s=SECONDS)
    def receive(self, most, lease_s):
        free = [each for each in self.messages if each.ends <= self.now]
        got = self.queue.receive(most, lease_s)
        assert len(got) == min(most, len(free))
        for message in got:
            (modelled,) = (each for each in free if each.body == message.body)
            free.remove(modelled)
            modelled.receives += 1
            assert message.receives == modelled.receives
            modelled.ends, modelled.receipt = self.now + lease_s, message.handle
        return multiple(*got)

    @rule(message=receipts)
    def acknowledge(self, message):
        mine = self.mine(message)
        assert self.queue.acknowledge([message]) == ([] if mine else [message])
        if mine:
            self.messages.remove(mine)

    @rule(message=receipts, lease_s=SECONDS)
    def extend(self, message, lease_s):
        mine = self.mine(message)
        assert self.queue.extend([message], lease_s) == ([] if mine else [message])
        if mine:
            mine.ends = self.now + lease_s

    @rule(message=receipts, delay_s=SECONDS)
    def release(self, message, delay_s):
        self.queue.release([message], delay_s)
        if mine := self.mine(message):
            mine.ends, mine.receipt = self.now + delay_s, None

    @rule(message=receipts, reason=st.sampled_from(["", "no such block"]))
    def bury(self, message, reason):
        self.queue.bury([message], reason)
        if mine := self.mine(message):
            self.messages.remove(mine)
            self.dead.append(DeadLetter(mine.body, reason))

    @invariant()
    def same_counts(self):
        leased = sum(each.receipt is not None and each.ends > self.now for each in self.messages)
        assert self.queue.counts() == Counts(len(self.messages) - leased, leased, len(self.dead))
        assert list(self.queue.dead_letters()) == self.dead

    def teardown(self):
        self.queue.close()
