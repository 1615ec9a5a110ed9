"""Start processes that use a queue, for tests that kill them."""

import subprocess
import sys
import time

LONG_S = 60.0  # a lease that no test waits out
PATIENCE_S = 30.0  # timeout for expected events, on a busy machine

# Their arguments are the URL and a lease in seconds.
DRAIN = """
import sys, time
from chunkflow_py.queue.queue_protocol import open_queue
queue = open_queue(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
while messages := queue.receive(3, float(sys.argv[2]), 1):
    time.sleep(0.002)
    assert queue.acknowledge(messages) == []
    print(*(message.body for message in messages), sep="\\n", flush=True)
"""
HOLD = """
import sys, time
from chunkflow_py.queue.queue_protocol import open_queue
queue = open_queue(sys.argv[1])
held = queue.receive(2, float(sys.argv[2]), 10)
print(len(held), flush=True)
time.sleep(600)
"""


def run_script(script, *arguments):
    """Start a Python process that runs *script*, with pipes to its input and output."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


# Receives messages and writes each to a file before it is acknowledged; is killed at any time.
NOTE = """
import os, sys
from chunkflow_py.queue.queue_protocol import open_queue
queue = open_queue(sys.argv[1])
notes = os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
print("ready", flush=True)
while True:
    messages = queue.receive(4, float(sys.argv[2]), 0.1)
    queue.extend(messages, float(sys.argv[2]))
    for message in messages:
        os.write(notes, f"{message.body}\\n".encode())
    queue.acknowledge(messages[:3])
    queue.release(messages[3:])
"""
# Sends batches and reports each that was sent; is killed at any time.
SEND = """
import sys
from chunkflow_py.queue.queue_protocol import open_queue
queue = open_queue(sys.argv[1])
while True:
    queue.send(f"{n}-{n + 1}_0-512_0-512" for n in range(int(sys.argv[2])))
    print("sent", flush=True)
"""


def killed_consumers(queue, notes, *, kills=8, lease_s=0.5, before=""):
    """Kill consumers at different times, then empty the queue; return the texts of all messages.

    Args:
        queue: queue with messages.
        notes: path of a file in which the consumers record the received messages.
        kills: number of consumers to start and kill.
        lease_s: duration of the leases of the consumers, seconds.
        before: Python code that the consumers run first.

    Returns:
        The texts of the messages that the consumers recorded, and of those that this process
        received while it emptied the queue.
    """
    for number in range(kills):
        consumer = run_script(before + NOTE, queue.url, lease_s, str(notes))
        try:
            assert consumer.stdout.readline() == "ready\n"
            time.sleep(0.01 + 0.02 * number)
        finally:
            consumer.kill()
            consumer.communicate()
    had = notes.read_text().splitlines()
    while messages := queue.receive(10, LONG_S, 3 * lease_s):
        had += [message.body for message in messages]
        assert queue.acknowledge(messages) == []
    return had


def killed_producer(url, batch):
    """Start a producer, kill it, and return the number of messages that it reported as sent.

    Args:
        url: address of the queue.
        batch: number of messages that the producer sends with each call of `send`.
    """
    producer = run_script(SEND, url, batch)
    try:
        for _ in range(3):
            assert producer.stdout.readline() == "sent\n"
        time.sleep(0.05)
    finally:
        producer.kill()
        rest = producer.communicate()[0]
    return batch * (3 + rest.count("sent\n"))


def received(queue, count, lease_s=LONG_S):
    """Receive *count* messages, and return them."""
    end = time.monotonic() + PATIENCE_S
    messages = []
    while len(messages) < count:
        assert time.monotonic() < end, f"{len(messages)} of {count} messages came"
        messages += queue.receive(min(10, count - len(messages)), lease_s, 0.5)
    return messages
