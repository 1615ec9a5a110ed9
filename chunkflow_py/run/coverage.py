"""What the tasks of a step store: kept in the spec, and compared with what records name.

```
spec     outputs: address, how a task's box becomes the box that is saved, checksums of metadata
           |
plan  -> region of a task -> box that is saved -> write units that it touches -> their addresses
                                                                                   |
ledger   the task's record names each of them, as stored or as left out  <---------+
```

Nothing of this is taken from what workers say, so that a record that leaves out what its task
should have stored is found, whoever wrote it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.core.outputs import BOX, Output
from chunkflow_py.errors import ChunkflowError
from chunkflow_py.pipeline.hooks import (
    MovesFaces,
    SetsBox,
    StoresOutputs,
    TurnsAxes,
    WritesTo,
    WritesToSeveral,
    moved_by,
)
from chunkflow_py.run.metadata_documents import difference, parsed, restored
from chunkflow_py.run.run_spec import StepOutput, sha256_of
from chunkflow_py.store import open_store
from chunkflow_py.store.local_files import absolute
from chunkflow_py.volume import open_volume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from chunkflow_py.core.geometry import Region
    from chunkflow_py.pipeline.pipeline import Pipeline
    from chunkflow_py.store.store_protocol import Store
    from chunkflow_py.volume.protocol import Volume

# Operators that skip a task because somebody has stored its output already.
_SKIPS_STORED = {"skip-task-by-blocks-in-volume", "skip-task-by-file"}


def outputs_of(pipeline: Pipeline) -> tuple[StepOutput, ...]:
    """Return what the operators of a checked line store; of metadata nothing yet, see `documented`.

    Raises:
        ChunkflowError: an address cannot be understood.
    """
    found: list[StepOutput] = []
    moves: list[tuple[Any, ...]] = []
    is_known = True
    for operator in pipeline.operators:
        body: Any = operator.body
        outline = pipeline.outlines[operator.name]
        domain = None if outline.domain is None else str(outline.domain)
        scale = tuple(outline.scale)
        for output in _stored_by(body):
            place = tuple(moves), scale, domain, is_known
            found.append(StepOutput(operator.name, output, *place))  # type: ignore[arg-type]
        if isinstance(body, TurnsAxes):
            moves.append(("turn", tuple(body.order)))
        elif isinstance(body, MovesFaces):
            low, high = moved_by(body, outline.scale)
            moves.append(("move", tuple(low), tuple(high)))
        if isinstance(body, SetsBox) and body.set_bbox:
            is_known = False
    return tuple(found)


def _stored_by(body: object) -> tuple[Output, ...]:
    if isinstance(body, StoresOutputs):
        return body.stores()
    places: tuple[str, ...] = ()
    if isinstance(body, WritesToSeveral):
        places = body.destinations
    elif isinstance(body, WritesTo):
        places = (body.destination,)
    return tuple(Output("objects", _prefix(place)) for place in places)


def _prefix(place: str) -> str:
    """Return how the addresses of objects begin that are stored in a place of `WritesTo`."""
    scheme, separator, path = place.partition("://")
    if separator and scheme != "file":
        return place
    return f"file://{absolute(path if separator else place)}"


def documented(outputs: Iterable[StepOutput], contents: dict[str, bytes]) -> tuple[StepOutput, ...]:
    """Return outputs with the checksums of the metadata that is there now.

    Args:
        outputs: of a step; their volumes are there.
        contents: gets the documents, by their SHA-256.

    Raises:
        ChunkflowError: a volume cannot be opened.
    """
    found = []
    for each in outputs:
        if each.output.kind == "volume":
            store, keys = open_store(each.output.url), []
            for key in _document_keys(opened(each.output)):
                if (content := store.get(key)) is not None:
                    digest = sha256_of(content)
                    contents[digest] = content
                    keys.append((key, digest))
            each = _with_documents(each, keys)  # noqa: PLW2901
        found.append(each)
    return tuple(found)


def _with_documents(output: StepOutput, keys: Iterable[tuple[str, str]]) -> StepOutput:
    said = {each.name: getattr(output, each.name) for each in fields(output)}
    return StepOutput(**said | {"documents": tuple(keys)})


def opened(output: Output) -> Volume:
    """Return the level of a volume that tasks write."""
    return open_volume(output.url, output.mip, format=output.format)


def _document_keys(volume: Volume) -> tuple[str, ...]:
    return getattr(volume, "documents", ())


class Coverage:
    """Tells what the records of a step have to name, and whether metadata is as it was.

    Args:
        outputs: of the step.
        document: SHA-256 -> content of the document as the run keeps it, ``None`` if it is gone.
        copies: address under which the run keeps them.
        operators: names of the step's operators.
    """

    def __init__(
        self,
        outputs: Sequence[StepOutput],
        document: Callable[[str], bytes | None],
        copies: str,
        operators: Iterable[str] = (),
    ) -> None:
        """Open nothing yet."""
        self._outputs, self._document, self._copies = outputs, document, copies
        self._volumes: dict[Output, Volume | None] = {}
        self._stores: dict[str, Store] = {}
        self.skips_stored = not _SKIPS_STORED.isdisjoint(operators)

    # --- metadata --------------------------------------------------------------------------------

    def wrong_documents(self) -> Iterator[tuple[str, str]]:
        """Yield the address of every document that is not as it was, and what is wrong.

        Volumes whose metadata is not sound are not opened afterwards.
        """
        seen: dict[tuple[str, str, str], str | None] = {}
        for output in (each for each in self._outputs if each.output.kind == "volume"):
            place, is_sound = output.output, True
            for key, digest in output.documents:
                what = place.url, key, digest
                if what not in seen:
                    seen[what] = self._wrong(place.url, key, digest)
                    if seen[what] is not None:
                        yield self._address(place.url, key), seen[what] or ""
                is_sound = is_sound and seen[what] is None
            self._volumes[place] = None
            if is_sound:
                try:
                    self._volumes[place] = opened(place)
                except ChunkflowError as error:
                    yield place.url, str(error)

    def _wrong(self, url: str, key: str, digest: str) -> str | None:
        content = self._store(url).get(key)
        if content is not None and sha256_of(content) == digest:
            return None
        recorded = parsed(self._document(digest))
        if recorded is None:
            found = "it is gone" if content is None else f"its SHA-256 is {sha256_of(content)}"
            copy = f"{self._copies}/{digest}"
            return f"{found}, and the run's copy of it, {copy}, cannot be read: restore one of them"
        if content is None:
            return "it is gone"
        if (said := parsed(content)) is None:
            return "it is no JSON"
        return difference(recorded, said)

    def restore(self) -> list[str]:
        """Put metadata back that is not as it was; return the addresses of what was mended."""
        mended = []
        for output in self._outputs:
            place = output.output
            for key, digest in output.documents:
                if self._wrong(place.url, key, digest) is None:
                    continue
                content = self._document(digest)
                if content is None:
                    continue  # `wrong_documents` goes on to name it
                self._store(place.url).update(key, lambda old, new=content: _mended(old, new))  # type: ignore[misc]
                mended.append(self._address(place.url, key))
        return mended

    def _store(self, url: str) -> Store:
        if url not in self._stores:
            self._stores[url] = open_store(url)
        return self._stores[url]

    def _address(self, url: str, key: str) -> str:
        return f"{self._store(url).url.rstrip('/')}/{key}"

    # --- objects ---------------------------------------------------------------------------------

    def expected(self, region: Region) -> dict[str, bool]:
        """Return the addresses that the record of a task must name -> whether of a volume.

        Those of volumes whose metadata is not sound are left out; call `wrong_documents` before.
        """
        found: dict[str, bool] = {}
        for each in self._outputs:
            output = each.output
            if output.kind == "file":
                found[_file(each, region)] = False
            elif output.kind == "volume" and each.is_known:
                volume = self._volumes.get(output)
                if volume is None:
                    continue
                box = saved_box(each, region).intersection(volume.bounds)
                time = region.time if output.time is None else output.time
                if volume.times is None:
                    time = None
                if not box.is_empty:
                    found.update(dict.fromkeys(volume.objects(box, time=time), True))
        return found

    def is_output(self, url: str) -> bool:
        """Tell whether an object lies where an operator of the step stores."""
        if ".." in url.split("/") or "\0" in url:
            return False
        return any(url.startswith(self._begins(each.output)) for each in self._outputs)

    def _begins(self, output: Output) -> str:
        if output.kind == "volume":
            return f"{self._store(output.url).url.rstrip('/')}/"
        if output.kind == "file":
            return output.url.rpartition(BOX)[0] or output.url
        return output.url


def _mended(old: bytes | None, new: bytes) -> bytes:
    import json

    found, recorded = parsed(old), parsed(new)
    if found is None or recorded is None:
        return new
    content = restored(recorded, found)
    return new if content == recorded else json.dumps(content, indent=2).encode() + b"\n"


def _moved(output: StepOutput, box: BoundingBox) -> BoundingBox:
    for kind, *numbers in output.moves:
        if kind == "turn":
            box = box.turned(numbers[0])
        else:
            box = BoundingBox(box.start + Zyx(*numbers[0]), box.stop + Zyx(*numbers[1]))
    return box


def saved_box(output: StepOutput, region: Region) -> BoundingBox:
    """Return the box of a volume that a task fills."""
    box = _moved(output, region.bbox).coarser(output.scale)
    if output.domain is not None:
        box = box.intersection(BoundingBox.parse(output.domain))
    return box.coarser(output.output.shrink)


def _file(output: StepOutput, region: Region) -> str:
    before, box, after = output.output.url.rpartition(BOX)
    moved = region.with_box(_moved(output, region.bbox))
    return f"{before}{moved}{after}" if box else after
