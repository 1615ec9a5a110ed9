"""The table of URL schemes of queues."""

import subprocess
import sys
from contextlib import closing
from importlib import import_module

import pytest

from chunkflow_py.errors import QueueError
from chunkflow_py.queue.queue_protocol import SCHEMES, open_queue


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize(
    ("url", "nearest"),
    [
        ("sqlit:///x/tasks.db", "sqlite:///x/tasks.db"),
        ("files:///x", "file:///x"),
        ("mem://a", "memory://a"),
        ("https://sqs.us-east-1.amazonaws.com/1/a", "sqs://"),
        ("s3://bucket/a", "sqs://bucket/a"),
        ("://a", "://a"),
    ],
)
def test_unknown_schemes(url, nearest, create):
    """The known schemes are listed, and the nearest is written out."""
    with pytest.raises(QueueError, match="one of sqs://, sqlite://, file://, memory://") as caught:
        open_queue(url, create=create)
    assert f"did you mean {nearest}" in str(caught.value) or nearest in str(caught.value)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_name(scheme):
    """A queue without a name is refused before anything is opened."""
    with pytest.raises(QueueError, match=f"has no name; write {scheme}://NAME"):
        open_queue(f"{scheme}://", create=True)


def test_the_table_is_right():
    """Every scheme leads to a class that has all the methods."""
    methods = {"send", "receive", "acknowledge", "extend", "release", "bury", "counts", "close"}
    for module, name in SCHEMES.values():
        assert methods | {"dead_letters", "longest_lease_s"} <= set(
            dir(getattr(import_module(module), name))
        )


@pytest.mark.parametrize("scheme", ["sqlite", "file", "memory"])
def test_what_is_missing_is_not_made(scheme, tmp_path):
    """A worker's mistyped name is an error that says who makes queues, and leaves nothing."""
    url = f"{scheme}://{tmp_path}/tasks"
    with pytest.raises(QueueError, match=rf"queue {url} does not exist.*generate-tasks.*submit"):
        open_queue(url)
    assert list(tmp_path.iterdir()) == []
    with closing(open_queue(url, create=True)) as queue:
        assert queue.url == url


def test_queues_without_a_server_are_light():
    """They need neither NumPy nor boto3: supervisors open them before anything heavy."""
    script = (
        "import sys; from chunkflow_py.queue import directory_queue, memory_queue, queue_protocol;"
        "from chunkflow_py.queue import sqlite_queue;"
        "assert not {'numpy', 'torch', 'boto3'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
