"""Ways to damage a run, each drawn at random: what bad disks, editors, crashes and vandals do.

A damage is a function of a `Site`. It returns a sentence that says what it has done, or `None`
where the run has nothing of the kind.
"""

import hashlib
import json
import random
import shutil
import zlib
from itertools import product
from pathlib import Path
from typing import NamedTuple

from drills.damaged_runs import Run
from drills.ledger_bytes import LedgerFiles, packed, page_bytes, page_parts, sealed

METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", "info")
DAMAGES = {}
STRAY = (  # names that are of nothing in a ledger
    ".nfs000000000a1b2c3d00000001",
    "0~",
    ".#0",
    "0.swp",
    ".DS_Store",
    "a.b.c.d",
    "0.1.2",
    "0.0.0.record~",
    "0.0.x.record",
    "-1.0.0.record",
    "0.0.0.nonsense",
    "1e3",
    "\N{ARABIC-INDIC DIGIT THREE}",  # a digit to Python
)
ALIEN = (  # names that could be of something in a ledger, but are of no task of the plan
    "pages/7",
    "loose/0/0.99.0.record",
    "loose/5/5.3.0.record",
    "loose/0/0.3.0.record.x",
    "loose/0/0.2.9.permanent.a-0",
)


class Site:
    """A run that is being damaged.

    Args:
        run: of which everything is as it was.
        seed: of all that is drawn.

    Attributes:
        random: what damages draw from.
        blocking: paths that have to be mended by hand before the run can go on.
    """

    def __init__(self, run: Run, seed):
        self.run, self.random = run, random.Random(seed)
        self.folder = run.folder
        self.blocking = []
        self.step = self.random.choice(run.recipe.steps)

    def draw(self, items):
        """Return one of some items; `None` if there is none."""
        items = sorted(items)
        return self.random.choice(items) if items else None

    @property
    def ledger(self) -> LedgerFiles:
        """The ledger of the step that is damaged."""
        return self.run.ledger(self.step)

    def ledger_files(self):
        """Return the files of the ledger."""
        return [*self.ledger.pages().values(), *self.ledger.loose()]

    def outputs(self):
        """Return the files of the output."""
        return [p for p in (self.folder / self.step.output.place).rglob("*") if p.is_file()]

    def metadata(self):
        """Return the files of the output that describe it."""
        return [path for path in self.outputs() if path.name in METADATA]

    def blocks(self):
        """Return the files of the output that hold voxels."""
        return [path for path in self.outputs() if path.name not in METADATA]

    def places(self):
        """Return where a zarr array has the objects of the tasks, be they there or not."""
        output, found = self.step.output, set()
        root = self.folder / output.place / "0"
        if output.kind == "zarr":
            folder = root / "c" if (root / "zarr.json").exists() else root
            for task in self.step.tasks:
                ranges = (
                    range((a - corner) // block, -(-(b - corner) // block))
                    for a, b, corner, block in zip(
                        task.start, task.stop, output.corner, output.blocks
                    )
                )
                found |= {folder / "/".join(map(str, cell)) for cell in product(*ranges)}
        return found

    def name(self, path):
        """Return a path below the folder of the run."""
        return str(Path(path).relative_to(self.folder))

    def blocks_of(self, number):
        """Return the files of a task that are recorded, and there."""
        path_and_entry = self.ledger.records().get(number)
        written = _written(path_and_entry[1].said) if path_and_entry else ()
        paths = (Path(url.removeprefix("file://")) for url, size, _ in written if size)
        return [path for path in paths if path.is_file()]


def _written(said):
    """Return the objects of a record, but for what an earlier damage has made of them."""
    try:
        return [(str(url), size, checksum) for url, size, checksum in said["written"]]
    except (KeyError, TypeError, ValueError):
        return []


class Damage(NamedTuple):
    """A way to damage a run.

    Attributes:
        do: of a site; returns what it has done.
        harmless: whether `verify` must find nothing, since nothing is damaged.
        weight: how often it is drawn, beside the others.
    """

    do: object
    harmless: bool
    weight: int


def enter(name, do, *, harmless=False, weight=1):
    """Enter a function among the damages; see `Damage`."""
    DAMAGES[name] = Damage(do, harmless, weight)


def damage(function=None, **more):
    """Enter a function among the damages, under its own name; see `Damage`."""
    if function is None:
        return lambda function: damage(function, **more)
    enter(function.__name__, function, **more)
    return function


def damage_at_random(site, count, only=None):
    """Do some damages, of all or of *only* some; return their names with what they have done."""
    done = []
    names = list(only or DAMAGES)
    weights = [DAMAGES[name].weight for name in names]
    while len(done) < count:
        name = site.random.choices(names, weights)[0]
        if (what := DAMAGES[name].do(site)) is not None:
            done.append((name, what))
    return done


# --- bytes of any file ----------------------------------------------------------------------------


def _empty(site, data):
    return b"", "emptied"


def _cut(site, data):
    length = site.random.randrange(max(1, len(data)))
    return data[:length], f"cut to {length} of {len(data)} bytes"


def _flip(site, data):
    if not data:
        return None
    where, bit = site.random.randrange(len(data)), 1 << site.random.randrange(8)
    changed = bytearray(data)
    changed[where] ^= bit
    return bytes(changed), f"bit {bit} of byte {where} flipped"


def _append(site, data):
    more = site.random.choice([b"\n", b"\0", b"{}", b"garbage\n", data[-20:], bytes(4096)])
    return data + more, f"{more[:12]!r} ({len(more)} bytes) appended"


def _double(site, data):
    return data * 2, "doubled"


def _zero(site, data):
    return bytes(len(data)), f"{len(data)} bytes made zero"


def _prepend(site, data):
    return b"\xef\xbb\xbf" + data, "given a byte order mark"


def _noise(site, data):
    return site.random.randbytes(len(data)), f"{len(data)} bytes made noise"


BYTES = (_empty, _cut, _cut, _flip, _flip, _append, _double, _zero, _prepend, _noise)


def _damage_bytes(site, path, ways=BYTES):
    """Change the bytes of a file; or remove it."""
    if path is None or not path.exists():  # it was removed by another damage
        return None
    data = path.read_bytes()
    way = site.random.choice(ways)
    changed = way(site, data)
    if changed is None or changed[0] == data:
        return None
    path.write_bytes(changed[0])
    return f"{site.name(path)} {changed[1]}"


def _delete(site, path):
    if path is None:
        return None
    path.unlink()
    return f"{site.name(path)} deleted"


def _swap(site, paths):
    if len(paths) < 2:
        return None
    one, other = site.random.sample(sorted(paths), 2)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    return f"{site.name(one)} and {site.name(other)} swapped"


def _copy_over(site, paths):
    if len(paths) < 2:
        return None
    one, other = site.random.sample(sorted(paths), 2)
    other.write_bytes(one.read_bytes())
    return f"{site.name(other)} replaced by {site.name(one)}"


def _make_folder(site, path):
    """Put a folder where a file was."""
    if path is None:
        return None
    path.unlink()
    path.mkdir()
    if site.random.random() < 0.5:
        (path / "file").write_bytes(b"in the way")
    site.blocking.append(path)
    return f"{site.name(path)} replaced by a folder"


# --- the ledger -----------------------------------------------------------------------------------


@damage(weight=4)
def ledger_bytes(site):
    """Any object of the ledger."""
    return _damage_bytes(site, site.draw(site.ledger_files()))


@damage(weight=2)
def ledger_delete(site):
    """Any object of the ledger."""
    return _delete(site, site.draw(site.ledger_files()))


@damage
def ledger_swap(site):
    """Two objects of the ledger."""
    return _swap(site, site.ledger_files())


@damage
def ledger_copy(site):
    """One object of the ledger over another."""
    return _copy_over(site, site.ledger_files())


@damage
def ledger_folder(site):
    """A folder in place of an object of the ledger."""
    return _make_folder(site, site.draw(site.ledger_files()))


def _page(site):
    path = site.draw(site.ledger.pages().values())
    if path is None:
        return None
    header, lines = page_parts(path.read_bytes())
    return (path, header, lines) if header and lines else None


@damage(weight=3)
def page_cut_at_a_member(site):
    """As where a write was cut off between two members of gzip."""
    if (found := _page(site)) is None:
        return None
    path, _, _ = found
    first, _, body = path.read_bytes().partition(b"\n")
    ends, rest = [0], body
    while rest:
        member = zlib.decompressobj(31)
        try:
            member.decompress(rest)
        except zlib.error:  # another damage came first
            break
        rest = member.unused_data
        ends.append(len(body) - len(rest))
    if len(ends) == 1:
        return None
    end = site.random.choice(ends[:-1])
    path.write_bytes(first + b"\n" + body[:end])
    return f"{site.name(path)} cut behind {ends.index(end)} of {len(ends) - 1} members"


@damage(weight=3)
def page_lines_removed(site):
    """Lines of a page, whose header counts them still, or fits what is left."""
    if (found := _page(site)) is None:
        return None
    path, header, lines = found
    is_sealed = site.random.random() < 0.5
    count = site.random.randint(1, len(lines))
    kept = sorted(site.random.sample(range(len(lines)), len(lines) - count))
    path.write_bytes(page_bytes(header, [lines[i] for i in kept], is_sealed=is_sealed))
    how = "sealed anew" if is_sealed else "as it was"
    return f"{count} of {len(lines)} lines of {site.name(path)} removed, its header {how}"


@damage
def page_lines_doubled(site):
    """Lines of a page are there twice; nothing of it is wrong."""
    if (found := _page(site)) is None:
        return None
    path, header, lines = found
    path.write_bytes(page_bytes(header, lines + site.random.sample(lines, 1)))
    return f"a line of {site.name(path)} doubled"


@damage(weight=2)
def page_line_changed(site):
    """A line of a page; its own checksum is as it was, that of the page fits."""
    if (found := _page(site)) is None:
        return None
    path, header, lines = found
    index = site.random.randrange(len(lines))
    way = site.random.choice(BYTES)
    changed = way(site, lines[index].encode())
    if changed is None:
        return None
    text = changed[0].decode("latin-1").replace("\n", " ").replace("\r", " ")
    path.write_bytes(page_bytes(header, [*lines[:index], text, *lines[index + 1 :]]))
    return f"line {index} of {site.name(path)} {changed[1]}"


@damage(weight=2)
def page_header_changed(site):
    """A value of a page's header, sealed anew."""
    if (found := _page(site)) is None:
        return None
    path, header, lines = found
    name = site.random.choice(sorted(header))
    value = site.random.choice([None, 0, 7, -1, 1e9, "", "AAAA", [], {}, {"1": 3}, {"0": -1}, True])
    path.write_bytes(page_bytes(header | {name: value}, lines))
    if name in ("format", "size"):  # it claims to be of another version, which may know better
        site.blocking.append(path)
    return f"{name} of {site.name(path)} set to {value!r}"


@damage(harmless=True)
def stray_names(site):
    """What network file systems, editors and consoles of buckets leave in folders."""
    folders = [p for p in site.ledger.folder.rglob("*") if p.is_dir()]
    folder = site.draw([site.ledger.folder, *folders])
    path = folder / site.random.choice(STRAY)
    if path.exists():
        return None
    if site.random.random() < 0.2:
        path.mkdir()
    else:
        source = site.draw(site.ledger_files())
        content = [b"", b"\0\0", b"{}", source.read_bytes() if source else b"x"]
        path.write_bytes(site.random.choice(content))
    return f"{site.name(path)} added"


@damage
def ledger_alien(site):
    """What could be of a ledger, but is of no task of the plan."""
    name = site.random.choice(ALIEN)
    path, source = site.ledger.folder / name, site.draw(site.ledger_files())
    if path.exists() or source is None:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(site.random.choice([b"", b"{}", source.read_bytes()]))
    return f"{site.name(path)} added"


@damage(harmless=True)
def temporary_file_left(site):
    """What a writer that was killed leaves beside blocks."""
    block = site.draw(site.blocks())
    if block is None or site.step.output.kind == "files":
        return None
    path = block.with_name(f".tmp-{site.random.randrange(1 << 32):08x}")
    path.write_bytes(block.read_bytes()[:100])
    return f"{site.name(path)} left"


# --- records that were forged ---------------------------------------------------------------------


def _rewrite(site, change, blocks_too):
    """Replace a record that is done by a forged one, properly sealed."""
    records = site.ledger.records()
    done = [n for n, (_, entry) in records.items() if entry.said.get("state") == "done"]
    number = site.draw(done)
    if number is None:
        return None
    blocks = site.blocks_of(number)
    others = [n for n in done if n != number]
    said, what = change(site, dict(records[number][1].said), records, site.draw(others))
    if said is None:
        return None
    site.ledger.rewrite(number, lambda _: said)
    for path in blocks if blocks_too else ():
        path.unlink(missing_ok=True)
    gone = f", and {len(blocks)} of its objects deleted" if blocks_too and blocks else ""
    return f"record of task {number} of {site.step.name} forged: {what}{gone}"


def _without_objects(site, said, records, other):
    return said | {"written": []}, "nothing written"


def _fewer_objects(site, said, records, other):
    if len(_written(said)) < 2:
        return None, ""
    kept = site.random.sample(said["written"], site.random.randrange(len(said["written"])))
    return said | {"written": kept}, f"{len(kept)} of {len(said['written'])} written"


def _objects_of_another(site, said, records, other):
    if other is None:
        return None, ""
    return said | {"written": _written(records[other][1].said)}, f"objects of task {other}"


def _objects_outside(site, said, records, other):
    path = site.random.choice(["/etc/hostname", str(site.folder / "acts.json"), "/dev/zero",
                               f"{site.folder}/out.zarr/../acts.json"])  # fmt: skip
    written = [[f"file://{path}", 4, "0" * 32]]
    if site.random.random() < 0.5:
        written += _written(said)
    return said | {"written": written}, f"object {path}"


def _another_spec(site, said, records, other):
    return said | {"spec": "0" * 32}, "another spec"


def _another_box(site, said, records, other):
    if other is None:
        return None, ""
    return said | {"box": records[other][1].said.get("box")}, f"box of task {other}"


def _another_number(site, said, records, other):
    number = site.random.choice([-1, 99, 1 << 40, "0", None, 1.5, True])
    return said | {"number": number}, f"number {number!r}"


def _another_state(site, said, records, other):
    state = site.random.choice(["", "Done", "running", None, 3])
    return said | {"state": state}, f"state {state!r}"


def _wrong_type(site, said, records, other):
    name = site.random.choice(sorted(said))
    value = site.random.choice([None, 0, -1, 1e400, "x", [], {}, [[]], [["x"]], [[1, 2, 3]], True])
    if said[name] == value:
        return None, ""
    return said | {name: value}, f"{name} {value!r}"


def _field_missing(site, said, records, other):
    name = site.random.choice(sorted(said))
    del said[name]
    return said, f"no {name}"


FORGED = (
    _without_objects, _fewer_objects, _objects_of_another, _objects_outside, _another_spec,
    _another_box, _another_number, _another_state, _wrong_type, _field_missing,
)  # fmt: skip


def _forging(change):
    """Return the damage of a record that says what is not so, most often without its objects."""
    return lambda site: _rewrite(site, change, blocks_too=site.random.random() < 0.7)


for _change in FORGED:
    enter(f"forged{_change.__name__}", _forging(_change))


@damage(weight=3)
def record_invented(site):
    """A task that has not ended has a record all the same, properly sealed."""
    records = site.ledger.records()
    source = site.draw([n for n, (_, e) in records.items() if e.said.get("state") == "done"])
    task = site.draw([task for task in site.step.tasks if task.number not in records])
    if source is None or task is None:
        return None
    said = records[source][1].said | {"number": task.number, "box": task.box, "attempt": "f-0"}
    if site.random.random() < 0.5:
        said["written"] = []
    path = site.ledger.loose_path(task.number, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(sealed(packed(said)).encode())
    return f"record of task {task.number} of {site.step.name} invented from task {source}"


@damage(weight=2)
def record_and_blocks_lost(site):
    """As where a file system has lost the last minutes."""
    number = site.draw(site.ledger.records())
    if number is None:
        return None
    blocks = site.blocks_of(number)
    site.ledger.rewrite(number, lambda _: None)
    for path in blocks:
        path.unlink(missing_ok=True)
    return f"record of task {number} of {site.step.name} lost, and {len(blocks)} of its objects"


# --- metadata -------------------------------------------------------------------------------------


@damage(weight=2)
def metadata_bytes(site):
    """Any file that describes the output."""
    return _damage_bytes(site, site.draw(site.metadata()))


@damage(weight=2)
def metadata_deleted(site):
    """Any file that describes the output, or all of them."""
    if site.random.random() < 0.7:
        return _delete(site, site.draw(site.metadata()))
    paths = site.metadata()
    for path in paths:
        path.unlink()
    return (
        f"all {len(paths)} files of metadata of {site.step.output.place} deleted" if paths else None
    )


@damage
def metadata_folder(site):
    """A folder in place of metadata."""
    return _make_folder(site, site.draw(site.metadata()))


def _document(path):
    """Return the document in a file; `None` where an earlier damage has left none."""
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return None


def _places(said, path=()):
    """Yield where the leaves of a document are."""
    items = said.items() if isinstance(said, dict) else enumerate(said)
    for key, value in items:
        if isinstance(value, dict | list) and value:
            yield from _places(value, (*path, key))
        else:
            yield (*path, key)


@damage(weight=5)
def metadata_value(site):
    """One value of the document that describes the output: the fill value, an offset, a codec."""
    path = site.draw(site.metadata())
    if path is None:
        return None
    said = _document(path)
    if not said:
        return None
    where = site.random.choice(list(_places(said)))
    if "chunkflow_py" in where or where[-2:] == (0, "name"):
        return None  # for the package itself, or for people
    inner = said
    for key in where[:-1]:
        inner = inner[key]
    before = inner[where[-1]]
    inner[where[-1]] = _another(site, before)
    if inner[where[-1]] == before:
        return None
    path.write_text(json.dumps(said))
    return f"{'.'.join(map(str, where))} of {site.name(path)} set to {inner[where[-1]]!r}"


@damage(weight=2)
def metadata_removed(site):
    """A field or an item of the document that describes the output."""
    path = site.draw(site.metadata())
    said = _document(path) if path else None
    if not isinstance(said, dict) or not said:
        return None
    where = site.random.choice([*_parents(said), *_places(said)])
    if "chunkflow_py" in where or where[-2:] == (0, "name"):
        return None
    inner = said
    for key in where[:-1]:
        inner = inner[key]
    del inner[where[-1]]
    path.write_text(json.dumps(said))
    return f"{'.'.join(map(str, where))} removed from {site.name(path)}"


@damage(weight=2)
def metadata_added(site):
    """A field or an item that was not there, in the document that describes the output."""
    path = site.draw(site.metadata())
    said = _document(path) if path else None
    if not isinstance(said, dict):
        return None
    where = site.random.choice([(), *_parents(said)])
    inner = said
    for key in where:
        inner = inner[key]
    if isinstance(inner, list):
        item = site.random.choice([*inner, 1, "x", {"name": "x"}])
        inner.insert(site.random.randint(0, len(inner)), item)
        what = f"item {item!r}"
    else:
        name = site.random.choice(["note", "sharding", "storage_transformers", "filters", "@x"])
        if name in inner:
            return None
        inner[name] = site.random.choice([1, "x", [], [{"name": "x"}], {"name": "gzip"}])
        what = f"{name} = {inner[name]!r}"
    path.write_text(json.dumps(said))
    return f"{what} added to {'.'.join(map(str, where)) or 'top'} of {site.name(path)}"


def _parents(said, path=()):
    """Yield where the objects and lists of a document are, below its top."""
    items = said.items() if isinstance(said, dict) else enumerate(said)
    for key, value in items:
        if isinstance(value, dict | list):
            yield (*path, key)
            yield from _parents(value, (*path, key))


@damage
def document_bytes(site):
    """The copy of the metadata that the run keeps."""
    path = site.draw(site.folder.glob("a.run/documents/*"))
    what = _damage_bytes(site, path) if site.random.random() < 0.7 else _delete(site, path)
    site.blocking += [path] if what else []
    return what


def _another(site, value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return type(value)(value + site.random.choice([-1, 1, 8, 77]))
    if isinstance(value, str):
        others = {"uint8": "int8", "|u1": "|i1", "zstd": "gzip", "raw": "jpeg", "/": "."}
        return others.get(value, value + "x")
    return site.random.choice([77, "x", {"a": 1}])


@damage(harmless=True)
def metadata_reformatted(site):
    """The same document, written by another program."""
    path = site.draw(site.metadata())
    if path is None:
        return None
    said = _document(path)
    if not said:
        return None
    indent, sort = site.random.choice([None, 1, 4]), site.random.random() < 0.5
    text = json.dumps(said, indent=indent, sort_keys=sort)
    path.write_text(text + site.random.choice(["", "\n", " \n\n"]))
    return f"{site.name(path)} written with indent {indent}, sorted {sort}"


# --- blocks ---------------------------------------------------------------------------------------


@damage(weight=3)
def block_bytes(site):
    """Any object of voxels."""
    return _damage_bytes(site, site.draw(site.blocks()))


@damage(weight=3)
def block_deleted(site):
    """Any object of voxels."""
    return _delete(site, site.draw(site.blocks()))


@damage
def blocks_deleted(site):
    """All objects of voxels, or many."""
    if not (paths := site.blocks()):
        return None
    chosen = site.random.sample(sorted(paths), site.random.randint(len(paths) // 2, len(paths)))
    for path in chosen:
        path.unlink()
    return f"{len(chosen)} of {len(paths)} objects of {site.step.output.place} deleted"


@damage
def block_swap(site):
    """Two objects of voxels."""
    return _swap(site, site.blocks())


@damage(weight=2)
def block_copy(site):
    """One object of voxels over another."""
    return _copy_over(site, site.blocks())


@damage
def block_folder(site):
    """A folder in place of an object of voxels."""
    return _make_folder(site, site.draw(site.blocks()))


@damage(weight=2)
def block_unexpected(site):
    """An object of voxels where nothing was stored, in the box of a task that has ended."""
    empty = [path for path in site.places() if not path.exists()]
    path, source = site.draw(empty), site.draw(site.blocks())
    if path is None or source is None:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(source.read_bytes())
    return f"{site.name(path)} made of {site.name(source)}"


@damage
def output_deleted(site):
    """The whole output."""
    place = site.folder / site.step.output.place
    if not place.is_dir():
        return None
    shutil.rmtree(place)
    return f"{site.name(place)} deleted"


# --- the run --------------------------------------------------------------------------------------


@damage
def marker_lost(site):
    """What says that a step is sent, or closed."""
    path = site.draw(site.folder.glob("a.run/stages/*/*"))
    return None if path is None or path.name == "profile.json" else _delete(site, path)


@damage
def marker_bytes(site):
    """What says that a step is sent, or closed."""
    path = site.draw(site.folder.glob("a.run/stages/*/*"))
    return None if path is None else _damage_bytes(site, path)


@damage
def closed_forged(site):
    """A step that has not ended is said to have."""
    path = site.folder / "a.run" / "stages" / site.step.name / "closed"
    if path.exists():
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = {"done": len(site.step.tasks), "skipped": 0, "dead": 0, "failures": 0}
    path.write_text(json.dumps(counts))
    return f"{site.name(path)} forged"


@damage(weight=2)
def spec_bytes(site):
    """The spec, as bytes."""
    path = site.folder / "a.run" / "spec.json"
    what = _damage_bytes(site, path)
    site.blocking += [path] if what else []
    return what


@damage
def spec_deleted(site):
    """The spec."""
    path = site.folder / "a.run" / "spec.json"
    if not path.exists():
        return None
    site.blocking.append(path)
    return _delete(site, path)


@damage(weight=3)
def spec_edited(site):
    """Another threshold, in what workers do, in what the hash covers, or in both."""
    return _edited(site, site.random.choice([("words",), ("options",), ("words", "options")]))


@damage
def spec_replaced(site):
    """Another threshold throughout, and the checksum of the spec as well."""
    what = _edited(site, ("words", "options"))
    if what is None:
        return None
    path = site.folder / "a.run" / "spec.sha256"
    content = (site.folder / "a.run" / "spec.json").read_bytes()
    path.write_text(f"{hashlib.sha256(content).hexdigest()}\n")
    site.blocking.append(path)
    return f"{what}, and {site.name(path)} made to fit"


def _edited(site, parts):
    path = site.folder / "a.run" / "spec.json"
    try:
        spec = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    stage, threshold = spec["stages"][-1], site.random.randint(110, 200)
    if "words" in parts:
        words = stage["words"]
        words[words.index("--threshold") + 1] = str(threshold)
    if "options" in parts:
        dict(stage["options"])["threshold"]["threshold"] = float(threshold)
    path.write_bytes(json.dumps(spec, sort_keys=True, separators=(",", ":")).encode() + b"\n")
    site.blocking.append(path)
    return f"threshold set to {threshold} in {' and '.join(parts)} of {site.name(path)}"


@damage
def plan_bytes(site):
    """The plan, where it is a file."""
    path = site.draw(site.folder.glob("a.run/plan/*"))
    what = _damage_bytes(site, path) if site.random.random() < 0.7 else _delete(site, path)
    site.blocking += [path] if what else []
    return what


@damage
def file_bytes(site):
    """A plugin that the run keeps."""
    path = site.draw(site.folder.glob("a.run/files/*/*"))
    what = _damage_bytes(site, path) if site.random.random() < 0.7 else _delete(site, path)
    site.blocking += [path] if what else []
    return what


@damage
def queue_lost(site):
    """The disk of the queue is gone."""
    paths = [p for p in site.folder.glob("a.run/*.sqlite*") if p.is_file()]
    for path in paths:
        path.unlink()
    return f"{', '.join(map(site.name, paths))} deleted" if paths else None


@damage
def queue_bytes(site):
    """The queue."""
    path = site.draw(site.folder.glob("a.run/*.sqlite"))
    what = _damage_bytes(site, path)
    site.blocking += [path] if what else []
    return what
