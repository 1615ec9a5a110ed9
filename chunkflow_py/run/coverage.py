"""Coverage: the objects (blocks, shards and files) that the record of a finished task must name.

```
plan     region of the task
           |
spec       +- box that the task saves to an output -> blocks or shards that this box touches
                                                              |
ledger   record of the task: names each of these objects, <---+
                             as stored or as omitted because it is empty
```

The expected objects are derived from the spec and the plan alone, not from what workers report. A
record that does not name all expected objects is therefore detected. The spec also contains
checksums of the metadata of each output, which this module compares with the stored metadata.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import BoundingBox, Scale, Zyx
from chunkflow_py.core.task import BOX, Output
from chunkflow_py.errors import ChunkflowError
from chunkflow_py.pipeline.effects import moved_by
from chunkflow_py.run.metadata_documents import difference, parsed, restored
from chunkflow_py.run.run_spec import StepOutput, sha256_of
from chunkflow_py.store import open_store
from chunkflow_py.store.local_files import absolute
from chunkflow_py.volume import open_volume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from chunkflow_py.core.geometry import Region
    from chunkflow_py.core.operator_base import OperatorBase
    from chunkflow_py.pipeline.pipeline import Pipeline
    from chunkflow_py.store.store_protocol import Store
    from chunkflow_py.volume.protocol import Volume

# Operators that skip a task whose output is already stored.
_SKIPS_STORED = {"skip-task-by-blocks-in-volume", "skip-task-by-file"}


def outputs_of(pipeline: Pipeline) -> tuple[StepOutput, ...]:
    """Return the outputs of a checked pipeline, without the checksums of their metadata.

    Therefore, `StepOutput.documents` is empty. When the output volumes exist, call
    `with_documents` to add the checksums of their metadata documents.

    Raises:
        ChunkflowError: the address of an output is invalid.
    """
    outputs: list[StepOutput] = []
    moves: list[tuple[Any, ...]] = []
    is_known = True
    for operator in pipeline.operators:
        hooks = operator.hooks
        outline = pipeline.outlines[operator.name]
        domain = None if outline.domain is None else str(outline.domain)
        scale = outline.scale.as_numbers
        for output in _outputs_of_operator(hooks):
            box_changes = tuple(moves), scale, domain, is_known
            outputs.append(StepOutput(operator.name, output, *box_changes))
        if hooks.order is not None:
            moves.append(("turn", tuple(hooks.order)))
        elif hooks.face_offsets is not None:
            low, high = moved_by(hooks, outline.scale)
            moves.append(("move", tuple(low), tuple(high)))
        if hooks.set_bbox:
            is_known = False
    return tuple(outputs)


def _outputs_of_operator(hooks: OperatorBase) -> tuple[Output, ...]:
    outputs = hooks.stores()
    if outputs is None:
        return tuple(Output("objects", _prefix(place)) for place in hooks.destinations)
    return outputs


def _prefix(place: str) -> str:
    scheme, separator, path = place.partition("://")
    if separator and scheme != "file":
        return place
    return f"file://{absolute(path if separator else place)}"


def with_documents(
    outputs: Iterable[StepOutput], contents: dict[str, bytes]
) -> tuple[StepOutput, ...]:
    """Read the metadata documents of *outputs*; return *outputs* with the documents' checksums.

    Args:
        outputs: outputs of a step; their volumes must exist.
        contents: dictionary to which the content of each document is added, with the SHA-256 of
            the content as key.

    Raises:
        ChunkflowError: a volume cannot be opened.
    """
    result = []
    for each in outputs:
        if each.output.kind == "volume":
            store, keys = open_store(each.output.url), []
            for key in _document_keys(open_output(each.output)):
                if (content := store.get(key)) is not None:
                    digest = sha256_of(content)
                    contents[digest] = content
                    keys.append((key, digest))
            each = _with_documents(each, keys)  # noqa: PLW2901
        result.append(each)
    return tuple(result)


def _with_documents(output: StepOutput, keys: Iterable[tuple[str, str]]) -> StepOutput:
    values = {each.name: getattr(output, each.name) for each in fields(output)}
    return StepOutput(**values | {"documents": tuple(keys)})


def open_output(output: Output) -> Volume:
    """Open an output volume at the level to which its tasks write."""
    return open_volume(output.url, output.mip, format=output.format)


def _document_keys(volume: Volume) -> tuple[str, ...]:
    return getattr(volume, "documents", ())


class Coverage:
    """Lists the objects that the records of a step must name, and checks the outputs' metadata.

    Args:
        outputs: outputs of the step.
        document: function that takes a SHA-256 and returns the run's copy of the metadata document
            with this SHA-256, or ``None`` if the copy is lost.
        copies: address of the folder with the run's copies of metadata documents, for messages.
        operators: names of the operators of the step. These names show whether the step skips tasks
            whose output is already stored.
    """

    def __init__(
        self,
        outputs: Sequence[StepOutput],
        document: Callable[[str], bytes | None],
        copies: str,
        operators: Iterable[str] = (),
    ) -> None:
        self._outputs, self._document, self._copies = outputs, document, copies
        self._volumes: dict[Output, Volume | None] = {}
        self._stores: dict[str, Store] = {}
        self.skips_stored = not _SKIPS_STORED.isdisjoint(operators)

    # --- metadata --------------------------------------------------------------------------------

    def invalid_documents(self) -> Iterator[tuple[str, str]]:
        """Yield the address and the problem of each metadata document that is missing or changed.

        If a volume cannot be opened, yield the address of the volume and the error. Call this
        method before `expected`, which leaves out the volumes whose metadata is invalid.
        """
        seen: dict[tuple[str, str, str], str | None] = {}
        for output in (each for each in self._outputs if each.output.kind == "volume"):
            volume, is_valid = output.output, True
            for key, digest in output.documents:
                document = volume.url, key, digest
                if document not in seen:
                    seen[document] = self._problem(volume.url, key, digest)
                    if seen[document] is not None:
                        yield self._address(volume.url, key), seen[document] or ""
                is_valid = is_valid and seen[document] is None
            self._volumes[volume] = None
            if is_valid:
                try:
                    self._volumes[volume] = open_output(volume)
                except ChunkflowError as error:
                    yield volume.url, str(error)

    def _problem(self, url: str, key: str, digest: str) -> str | None:
        content = self._store(url).get(key)
        if content is not None and sha256_of(content) == digest:
            return None
        recorded = parsed(self._document(digest))
        if recorded is None:
            state = (
                "the file is missing"
                if content is None
                else f"the SHA-256 of the file is {sha256_of(content)}, not {digest}"
            )
            copy = f"{self._copies}/{digest}"
            return (
                f"{state}, and the run's copy, {copy}, cannot be read; restore the file or the copy"
            )
        if content is None:
            return "the file is missing"
        if (current := parsed(content)) is None:
            return "the file is not valid JSON"
        return difference(recorded, current)

    def restore(self) -> list[str]:
        """Restore invalid metadata documents from the run's copies; return their addresses."""
        addresses = []
        for output in self._outputs:
            url = output.output.url
            for key, digest in output.documents:
                if self._problem(url, key, digest) is None:
                    continue
                content = self._document(digest)
                if content is None:
                    continue  # `invalid_documents` still reports it
                self._store(url).update(key, lambda old, new=content: _restored_json(old, new))  # type: ignore[misc]
                addresses.append(self._address(url, key))
        return addresses

    def _store(self, url: str) -> Store:
        if url not in self._stores:
            self._stores[url] = open_store(url)
        return self._stores[url]

    def _address(self, url: str, key: str) -> str:
        return f"{self._store(url).url.rstrip('/')}/{key}"

    # --- objects ---------------------------------------------------------------------------------

    def expected(self, region: Region) -> dict[str, bool]:
        """Return the addresses of the objects that the record of a task must name.

        Call `invalid_documents` first. Objects of volumes with invalid metadata are excluded.

        Args:
            region: region of the task in the plan.

        Returns:
            Dictionary with the address of each object as key. The value is true for a block or
            shard of a volume, and false for a file that contains the whole output of the task.
        """
        addresses: dict[str, bool] = {}
        for each in self._outputs:
            output = each.output
            if output.kind == "file":
                addresses[_file(each, region)] = False
            elif output.kind == "volume" and each.is_known:
                volume = self._volumes.get(output)
                if volume is None:
                    continue
                box = saved_box(each, region).intersection(volume.bounds)
                time = region.time if output.time is None else output.time
                if volume.times is None:
                    time = None
                if not box.is_empty:
                    addresses.update(dict.fromkeys(volume.objects(box, time=time), True))
        return addresses

    def is_output(self, url: str) -> bool:
        """Return whether the address of an object belongs to an output of the step."""
        if ".." in url.split("/") or "\0" in url:
            return False
        return any(url.startswith(self._prefix(each.output)) for each in self._outputs)

    def _prefix(self, output: Output) -> str:
        if output.kind == "volume":
            return f"{self._store(output.url).url.rstrip('/')}/"
        if output.kind == "file":
            return output.url.rpartition(BOX)[0] or output.url
        return output.url


def _restored_json(old: bytes | None, new: bytes) -> bytes:
    import json

    current, recorded = parsed(old), parsed(new)
    if current is None or recorded is None:
        return new
    content = restored(recorded, current)
    return new if content == recorded else json.dumps(content, indent=2).encode() + b"\n"


def _moved(output: StepOutput, box: BoundingBox) -> BoundingBox:
    for kind, *numbers in output.moves:
        if kind == "turn":
            box = box.turned(numbers[0])
        else:
            box = BoundingBox(box.start + Zyx(*numbers[0]), box.stop + Zyx(*numbers[1]))
    return box


def saved_box(output: StepOutput, region: Region) -> BoundingBox:
    """Return the box that a task writes, in voxels of the output volume."""
    box = Scale.of(output.scale).coarser(_moved(output, region.bbox))
    if output.domain is not None:
        box = box.intersection(BoundingBox.parse(output.domain))
    return box.coarser(output.output.shrink)


def _file(output: StepOutput, region: Region) -> str:
    before, box, after = output.output.url.rpartition(BOX)
    moved = region.with_box(_moved(output, region.bbox))
    return f"{before}{moved}{after}" if box else after
