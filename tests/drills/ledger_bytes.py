"""The ledger of a stage as bytes on a disk, read and forged without the package.

```
loose/<shard>/<page>.<number>.<generation>.record              lines, one of which is the task's
loose/<shard>/<page>.<number>.<generation>.<kind>.<attempt>    one line
pages/<page>                                                   a header line, and gzip of lines
```

A line is JSON, a tab, and eight hexadecimal digits: the CRC-32 of all before the tab. Lines of
pages begin with kind and generation. The header of a page holds length and CRC-32 of what follows
it. A checksum keeps nobody from forging: what is written here is sealed as what a worker writes.
"""

import gzip
import json
import zlib
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

PAGE = 2048  # numbers of tasks
SHARDS = 16


class Entry(NamedTuple):
    """A line about one task.

    Attributes:
        kind: ``record``, or of what else may be said of a task.
        generation: how often the task was reopened before.
        said: what is said.
    """

    kind: str
    generation: int
    said: dict


def sealed(text):
    """Return a line with its checksum."""
    return f"{text}\t{zlib.crc32(text.encode()):08x}"


def opened(line):
    """Return the text of a sealed line; ``None`` if its checksum is another."""
    text, tab, _ = line.rpartition("\t")
    return text if tab and sealed(text) == line else None


def is_number(text):
    """Return whether a name is a number as the ledger writes it."""
    return text.isdecimal() and text.isascii()


def packed(said):
    """Return JSON as the ledger writes it."""
    return json.dumps(said, separators=(",", ":"))


def parsed(text):
    """Return the object that a text holds; ``None`` if it holds none."""
    try:
        said = json.loads(text)
    except (TypeError, ValueError):
        return None
    return said if isinstance(said, dict) else None


# --- a page ---------------------------------------------------------------------------------------


def page_parts(data):
    """Return header and lines of a page, as far as they can be read; the header may be ``None``."""
    first, _, body = data.partition(b"\n")
    header = parsed(opened(first.decode(errors="replace")))
    unpacked = bytearray()
    while body:
        member = zlib.decompressobj(31)
        try:
            unpacked += member.decompress(body)
        except zlib.error:
            break
        body = member.unused_data
    return header, unpacked.decode(errors="replace").splitlines()


def entry_of(line):
    """Return what a line of a page says; ``None`` if it cannot be read."""
    text = opened(line)
    if text is None:
        return None
    kind, _, rest = text.partition(" ")
    generation, _, rest = rest.partition(" ")
    said = parsed(rest)
    return Entry(kind, int(generation), said) if said and is_number(generation) else None


def line_of(entry):
    """Return the line of a page that says so."""
    return sealed(f"{entry.kind} {entry.generation} {packed(entry.said)}")


def page_bytes(header, lines, *, is_sealed=True):
    """Return a page with these lines; *is_sealed*: with a header that fits them."""
    body = gzip.compress("".join(f"{line}\n" for line in lines).encode(), 6, mtime=0)
    if is_sealed:
        header = header | {"body": [len(body), zlib.crc32(body)]}
    return f"{sealed(packed(header))}\n".encode() + body


# --- a ledger -------------------------------------------------------------------------------------


class LedgerFiles:
    """The files of the ledger of one stage.

    Args:
        folder: ``ledger/<stage>`` of a run.
    """

    def __init__(self, folder):
        self.folder = Path(folder)

    def pages(self):
        """Return the files that are pages, by number."""
        folder = self.folder / "pages"
        files = folder.iterdir() if folder.is_dir() else ()
        return {int(p.name): p for p in files if is_number(p.name) and p.is_file()}

    def loose(self):
        """Return the files that are loose objects, with page, number, generation and kind."""
        found = {}
        for path in sorted(self.folder.glob("loose/*/*")):
            parts = path.name.split(".", 4)
            if len(parts) >= 4 and all(map(is_number, parts[:3])) and path.is_file():
                found[path] = (*map(int, parts[:3]), parts[3])
        return found

    def loose_path(self, number, generation, kind="record", attempt=""):
        """Return where something loose is."""
        page = number // PAGE
        name = f"{page}.{number}.{generation}.{kind}"
        name += f".{quote(attempt, safe='')}" if attempt else ""
        return self.folder / "loose" / f"{page % SHARDS:x}" / name

    def entries(self):
        """Return all that can be read and is not void, with the file in which it is.

        What cannot be read says nothing, neither that a task has ended nor that it was reopened.
        """
        found, generations = [], {}
        for number, path in self.pages().items():
            header, lines = page_parts(path.read_bytes())
            known = (header or {}).get("generations", {})
            if isinstance(known, dict):
                generations |= {number * PAGE + int(key): value for key, value in known.items()}
            found += [(path, entry) for line in lines if (entry := entry_of(line))]
        for path, (_, number, generation, kind) in self.loose().items():
            for line in path.read_bytes().decode(errors="replace").splitlines():
                said = parsed(opened(line))
                if said is not None and said.get("number") == number:
                    found.append((path, Entry(kind, generation, said)))
        return [
            (path, entry)
            for path, entry in found
            if entry.generation == generations.get(entry.said.get("number"), entry.generation)
        ]

    def records(self):
        """Return the entry that says how each task ended, by its number, with its file."""
        return {
            entry.said["number"]: (path, entry)
            for path, entry in reversed(self.entries())
            if entry.kind == "record" and isinstance(entry.said.get("number"), int)
        }

    def rewrite(self, number, change):
        """Replace the record of a task where it is, sealed; nothing in its place removes it.

        Args:
            number: of the task.
            change: what was said -> what is to be said, or ``None``.
        """
        path, entry = self.records()[number]
        said = change(dict(entry.said))
        new = None if said is None else entry._replace(said=said)
        if path.parent.name == "pages":
            header, lines = page_parts(path.read_bytes())
            lines = [line for line in lines if entry_of(line) != entry]
            lines += [line_of(new)] if new else []
            path.write_bytes(page_bytes(header or {}, lines))  # one damaged before stays so
        elif new:
            path.write_bytes(sealed(packed(said)).encode())
        else:
            path.unlink()
        return path

    def unfold(self):
        """Put what is on pages back into loose objects, as it was before they were folded."""
        for path in self.pages().values():
            header, lines = page_parts(path.read_bytes())
            for entry in map(entry_of, lines):
                attempt = "" if entry.kind == "record" else entry.said["attempt"]
                where = self.loose_path(entry.said["number"], entry.generation, entry.kind, attempt)
                where.parent.mkdir(parents=True, exist_ok=True)
                where.write_bytes(sealed(packed(entry.said)).encode())
            if not header["generations"]:
                path.unlink()
