"""Contract of stores: inherit `StoreContract` and define a fixture `url`, new for each test."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from chunkflow_py.errors import VolumeError
from chunkflow_py.store import open_store
from chunkflow_py.store.store_protocol import sizes_of, subfolders_of


def run_together(calls):
    """Run *calls* at the same time, each in a thread; return their results."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


class StoreContract:
    """Tests of everything that `chunkflow_py.store.store_protocol.Store` promises."""

    @pytest.fixture
    def url(self):
        """Return the address of an empty store for this test."""
        pytest.fail("a class that inherits StoreContract must define the fixture url")

    @pytest.fixture
    def store(self, url):
        """Open the store at *url*."""
        return open_store(url)

    def test_what_it_says(self, store, url):
        """A store states its address, whether it is local, and how many connections are useful."""
        assert store.url == (url if "://" in url else f"file://{url}")
        assert store.connections > 1
        assert store.is_local == store.url.startswith("file:")

    @pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 5000])
    def test_round_trip(self, store, url, data):
        """Written bytes can be read, also through a store that is opened later."""
        store.put("a/b/c", data)
        again = open_store(url)
        assert again.get("a/b/c") == data
        assert isinstance(again.get("a/b/c"), bytes)
        assert again.size("a/b/c") == len(data)

    def test_what_is_too_long_is_not_read(self, store):
        """Reading an object above the size limit is an error that names the size and the limit."""
        store.put("a/object", bytes(1000))
        assert store.get("a/object", 1000) == bytes(1000)
        with pytest.raises(VolumeError, match="a/object has 1000 bytes, but .* at most 999 bytes"):
            store.get("a/object", 999)
        assert store.get("a/none", 10) is None

    def test_views(self, store):
        """A memory view can be written; the caller need not copy it."""
        store.put("view", memoryview(bytearray(b"0123456789"))[2:5])
        assert store.put_if_absent("other", memoryview(b"0123456789")[5:])
        assert store.get("view") == b"234"
        assert store.get("other") == b"56789"

    def test_replaced(self, store):
        """A later write replaces the whole object, even with a shorter one."""
        store.put("key", b"long content")
        store.put("key", b"short", content_type="text/plain", cache_control="no-cache")
        assert store.get("key") == b"short"

    def test_absent(self, store):
        """Reading a missing key returns None, even if keys below or beside it exist."""
        store.put("folder/object", b"x")
        for key in ("nothing", "folder", "fold", "folder/object/below", "folder/other"):
            assert store.get(key) is None
            assert store.get_range(key, 0, 5) is None
            assert store.get_range(key, -5, 0) is None
            assert store.get_range(key, 0, 0) is None
            assert store.size(key) is None

    @pytest.mark.parametrize(
        ("start", "stop", "part"),
        [
            (0, 10, b"0123456789"),
            (3, 6, b"345"),
            (8, 50, b"89"),
            (10, 20, b""),
            (50, 60, b""),
            (4, 4, b""),
            (-3, 0, b"789"),
            (-10, 0, b"0123456789"),
            (-50, 0, b"0123456789"),
        ],
    )
    def test_ranges(self, store, start, stop, part):
        """A range is cut off at the end of the object; a negative start counts from the end."""
        store.put("digits", b"0123456789")
        assert store.get_range("digits", start, stop) == part

    @pytest.mark.parametrize(("start", "stop"), [(0, 5), (5, 9), (-5, 0)])
    def test_ranges_of_nothing(self, store, start, stop):
        """Every range of an empty object is empty."""
        store.put("empty", b"")
        assert store.get_range("empty", start, stop) == b""

    def test_put_if_absent(self, store):
        """The first write wins, and the second changes nothing."""
        assert store.put_if_absent("a/claim", b"first") is True
        assert store.put_if_absent("a/claim", b"second") is False
        assert store.put_if_absent("a/claim", b"first") is False
        assert store.get("a/claim") == b"first"
        store.delete("a/claim")
        assert store.put_if_absent("a/claim", b"third") is True

    def test_one_winner(self, url):
        """If 16 writers create one key at once, one writer succeeds, and its content is stored."""
        stores = [open_store(url) for _ in range(16)]

        def claim(number):
            return lambda: stores[number].put_if_absent("claim", b"%d" % number)

        won = run_together([claim(number) for number in range(16)])
        assert sum(won) == 1
        assert stores[0].get("claim") == b"%d" % won.index(True)

    def test_update(self, store):
        """An update maps the old content (None for a missing object) to the new content."""
        seen = []

        def change(old):
            seen.append(old)
            return (old or b"") + b"x"

        assert store.update("log", change) == b"x"
        assert store.update("log", change) == b"xx"
        assert store.get("log") == b"xx"
        assert seen == [None, b"x"]

    def test_no_update_is_lost(self, url):
        """Concurrent updates are applied one after the other, even if they create the object."""

        def add(store):
            return lambda: [
                store.update("n", lambda old: b"%d" % (int(old or 0) + 1)) for _ in "123"
            ]

        run_together([add(open_store(url)) for _ in range(5)])
        assert open_store(url).get("n") == b"15"
        assert list(open_store(url).list()) == ["n"]

    def test_failing_change(self, store):
        """An update whose function raises an error changes nothing, and later updates work."""
        store.put("key", b"old")

        def change(old):
            raise ValueError

        with pytest.raises(ValueError):  # noqa: PT011 it is ours, raised above
            store.update("key", change)
        assert store.get("key") == b"old"
        assert store.update("key", lambda old: old + b"er") == b"older"

    def test_delete(self, store):
        """A deleted object no longer exists; deleting a missing object does not fail."""
        store.put("a/b", b"x")
        store.delete("a/b")
        store.delete("a/b")
        store.delete("never/was")
        assert store.get("a/b") is None
        assert list(store.list()) == []

    def test_sizes(self, store):
        """A listing with sizes has the same keys as a listing without sizes."""
        for key, size in (("a/1", 0), ("a/2", 3), ("b", 5)):
            store.put(key, b"x" * size)
        assert dict(sizes_of(store)) == {"a/1": 0, "a/2": 3, "b": 5}
        assert dict(sizes_of(store, "a/")) == {"a/1": 0, "a/2": 3}

    def test_subfolders(self, store):
        """The folders directly below the URL are listed; deeper folders and objects are not."""
        assert subfolders_of(store) == set()
        for key in ("a.run/spec.json", "a.run/ledger/1/2", "b.run/spec.json", "c"):
            store.put(key, b"1")
        assert subfolders_of(store) == {"a.run", "b.run"}

    def test_list(self, store):
        """A prefix matches the beginning of keys, even if the prefix is not a folder."""
        keys = ["a/1", "a/10", "a/2", "ab/1", "b", "c/d/e/f"]
        for key in keys:
            store.put(key, b"x")
        assert sorted(store.list()) == keys
        assert sorted(store.list("a")) == ["a/1", "a/10", "a/2", "ab/1"]
        assert sorted(store.list("a/")) == ["a/1", "a/10", "a/2"]
        assert sorted(store.list("a/1")) == ["a/1", "a/10"]
        assert sorted(store.list("c/d")) == ["c/d/e/f"]
        assert sorted(store.list("c/d/e/f")) == ["c/d/e/f"]
        assert sorted(store.list("nothing/here")) == []

    def test_neighbours(self, store, url):
        """A store at ``…/a`` does not list the objects of a store at ``…/ab``."""
        open_store(f"{url}2").put("key", b"2")
        store.put("key", b"1")
        assert list(store.list()) == ["key"]
        assert store.get("key") == b"1"

    @pytest.mark.parametrize("key", ["a b", "a+b=c&d", "é/ü", "50%", "a#b?c", "c/0/0/0", ".zarray"])
    def test_odd_keys(self, store, key):
        """Keys may contain any character that a file name may have."""
        store.put(key, b"x")
        assert store.get(key) == b"x"
        assert list(store.list()) == [key]

    @pytest.mark.parametrize(
        "key", ["", "/etc/x", "../x", "a/../../x", "a//b", "a/", "./a", "a\0b"]
    )
    def test_keys_that_lead_out(self, store, key):
        """A key such as ``../key`` is refused, because metadata with such keys may be malicious."""
        for call in (
            lambda: store.get(key),
            lambda: store.put(key, b"x"),
            lambda: store.put_if_absent(key, b"x"),
            lambda: store.size(key),
            lambda: store.delete(key),
        ):
            with pytest.raises(VolumeError, match="cannot be the key of an object below"):
                call()

    def test_many_at_once(self, store):
        """Calls from several threads do not interfere."""

        def work(number):
            def call():
                data = bytes([number]) * (1000 + number)
                for turn in range(3):
                    store.put(f"{number}/{turn}", data)
                    assert store.get(f"{number}/{turn}") == data

            return call

        start = time.monotonic()
        run_together([work(number) for number in range(8)])
        assert len(list(store.list())) == 24
        assert time.monotonic() - start < 60
