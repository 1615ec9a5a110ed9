"""The network over dask arrays, with the same bytes as a line of commands.

```
output chunks   |---------|---------|---------|      of any size
input of each |-------------|                        the patches that touch it: the grid says which
```

Patches lie where they lie in a line over the same volume, so that neither the chunks nor the
scheduler change a voxel (for one compute profile: see docs/inference.md).

Example:
    >>> from chunkflow_py import open_volume
    >>> from chunkflow_py.dask import inference
    >>> affinity = inference(open_volume("em.zarr"), "-m net.py -w net.pt -s 20 256 256")
    >>> affinity.to_zarr("affinity.zarr")
"""

from __future__ import annotations

import atexit
import hashlib
import pickle
import shlex
from contextlib import suppress
from importlib import import_module
from itertools import product
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import ChunkError, OptionError, needs_extra

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Kind
    from chunkflow_py.inference.inferencer import Inferencer
    from chunkflow_py.volume.protocol import Volume

__all__ = ["inference", "inferencer_from", "release_networks"]


def inference(
    source: Any,
    network: Inferencer | str,
    *,
    chunks: Iterable[int] | None = None,
    channels: tuple[int, ...] | None = None,
    time: int | None = None,
    voxel_offset: Iterable[int] = (0, 0, 0),
    voxel_size_nm: tuple[float, float, float] = (1.0, 1.0, 1.0),
    kind: Kind | None = "image",
) -> Any:
    """Return the blended output of a network on a whole volume or array, as a dask array.

    Nothing is computed yet. Networks are loaded once a process, and stay until
    `release_networks` or the end of the process.

    Args:
        source: a volume, or a dask array (z, y, x) or (c, z, y, x), which is the whole domain.
        network: an `Inferencer` that has not been entered, or the options of the command
            ``inference`` as they are typed, such as ``-m net.py -w net.pt -s 20 256 256``.
        chunks: extent of an output chunk, voxels, zyx (default: the write units of a volume, the
            chunks of an array). Larger ones compute less twice.
        channels: of a volume, which to read (default: all).
        time: of a volume, which time index to read.
        voxel_offset: of an array, position of its first voxel in the volume.
        voxel_size_nm: of an array, nanometres, zyx.
        kind: of an array, what its voxels mean.

    Returns:
        (c, z, y, x) of the output dtype; for a network with several outputs, a dict of those. It
        begins where the domain does; with ``--pad none``, where the output does.

    Raises:
        OptionError: the network's patches are to be counted from the corner of chunks, so that
            the result would depend on them, or options contradict each other.
        ChunkError: the array is neither 3D nor 4D.
        MissingExtraError: dask is not installed.
    """
    with needs_extra("dask", "inference over dask arrays"):
        dask: Any = import_module("dask")  # which says little of its types
        da: Any = import_module("dask.array")
        from dask.base import tokenize
    inferencer = inferencer_from(network) if isinstance(network, str) else network
    placement = inferencer.placement
    if placement.grid == "chunk" or any(placement.output_margin) or placement.output_crop_margin:
        msg = (
            "--grid chunk, --output-margin and --output-crop-margin make the result depend on how "
            "the volume is cut, which dask chooses; leave them out"
        )
        raise OptionError(msg)
    settings, holder = placement.settings, _Network(inferencer)
    reader: _VolumeReader | _ArrayReader
    if hasattr(source, "bounds"):
        reader, usual = _VolumeReader(source, channels, time), source.write_unit
    else:
        reader = _ArrayReader(source, Zyx.of(voxel_offset), voxel_size_nm, kind)
        usual = Zyx.of(source.chunksize[-3:])
    domain = reader.domain
    cover = settings.grid(domain).cover
    size = usual if chunks is None else Zyx.of(chunks)
    boxes = BoxGrid.covering(cover, size.low(cover.size), respect_stop=True)
    run = dask.delayed(_run, pure=True)
    lengths: dict[str | None, int] = {o.name: o.channels for o in settings.outputs}
    lengths = lengths or {None: settings.output_channels}
    token = tokenize(holder, reader, domain, cover, size)
    blocks: dict[Any, Any] = {}
    for cell in product(*(range(n) for n in boxes.count)):
        box = boxes.box(cell)
        need = placement.required_input(box, domain)
        arguments = (holder, reader.part(need), need, domain, reader.voxel_size_nm, reader.kind)
        key = f"inference-{token}-{box}"
        done = run(*arguments, box, dask_key_name=key)
        for name, length in lengths.items():
            part = done if name is None else done[name]
            shape = (length, *box.size)
            blocks[name, cell] = da.from_delayed(part, shape, settings.stored_dtype)
    rows, columns = range(boxes.count.y), range(boxes.count.x)
    found: dict[str | None, Any] = {}
    for name in lengths:
        planes = [
            [[blocks[name, (z, y, x)] for x in columns] for y in rows] for z in range(boxes.count.z)
        ]
        found[name] = da.block([planes])
    return found.get(None, found)


def inferencer_from(options: str) -> Inferencer:
    """Return the `Inferencer` that the command ``inference`` makes of *options*.

    Raises:
        OptionError: the options are wrong.
    """
    import click

    from chunkflow_py.ops.inference import command

    try:
        stage = command.main(shlex.split(options), prog_name="inference", standalone_mode=False)
    except click.ClickException as error:
        raise OptionError(error.format_message()) from error
    body: Inferencer = stage.body
    return body


def release_networks() -> None:
    """Let go of the networks that this process has loaded for dask."""
    with _lock:
        while _loaded:
            _, inferencer = _loaded.popitem()
            inferencer.__exit__(None, None, None)


# --- where the chunks come from -----------------------------------------------------------------


class _VolumeReader:
    """Parts of a volume, which the task that needs them reads itself."""

    def __init__(self, volume: Volume, channels: tuple[int, ...] | None, time: int | None) -> None:
        from chunkflow_py.volume.dask_array import VolumeArray

        self._volume, self._channels, self._time = volume, channels, time
        self._token = VolumeArray(volume, channels, time).__dask_tokenize__()
        self.domain, self.voxel_size_nm = volume.bounds, volume.voxel_size_nm
        self.kind = volume.kind

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return self._token

    def part(self, box: BoundingBox) -> _VolumePart:
        return _VolumePart(self._volume, box, self._channels, self._time)


class _VolumePart:
    def __init__(self, *reading: Any) -> None:
        self._reading = reading

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        volume, box, channels, time = self._reading
        return np.array(volume.read(box, channels, time=time).array, dtype=dtype, copy=copy)


class _ArrayReader:
    """Parts of a dask array."""

    def __init__(
        self,
        array: Any,
        voxel_offset: Zyx,
        voxel_size_nm: tuple[float, float, float],
        kind: Kind | None,
    ) -> None:
        if array.ndim not in (3, 4):
            msg = f"inference takes (z, y, x) or (c, z, y, x); got an array of shape {array.shape}"
            raise ChunkError(msg)
        self._array, self.voxel_size_nm, self.kind = array, voxel_size_nm, kind
        self.domain = BoundingBox.from_size(voxel_offset, array.shape[-3:])

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return (self._array.name, self.domain, self.voxel_size_nm, self.kind)

    def part(self, box: BoundingBox) -> Any:
        return self._array[(..., *box.slices(self.domain.start))]


# --- what a worker does -------------------------------------------------------------------------

_loaded: dict[str, Inferencer] = {}
_lock = Lock()


class _Network:
    """An inferencer on its way to workers, each of which loads the network once."""

    def __init__(self, inferencer: Inferencer) -> None:
        self._pickled = pickle.dumps(inferencer)
        self._name = hashlib.sha256(self._pickled).hexdigest()

    def __dask_tokenize__(self) -> str:
        return self._name

    def loaded(self) -> Inferencer:
        with _lock:
            if self._name not in _loaded:
                inferencer: Inferencer = pickle.loads(self._pickled)  # noqa: S301  (our own)
                _loaded[self._name] = inferencer.__enter__()
            return _loaded[self._name]


def _run(
    network: _Network,
    part: Any,
    box: BoundingBox,
    domain: BoundingBox,
    voxel_size_nm: tuple[float, float, float],
    kind: Kind | None,
    target: BoundingBox,
) -> NDArray[Any] | dict[str, NDArray[Any]]:
    """Return the output on *target*, whose required input is *part* on *box*."""
    chunk = Chunk(np.asarray(part), box.start, voxel_size_nm, kind, domain)
    result = network.loaded()(chunk, bbox=target)
    if isinstance(result, dict):
        return {name: each.array for name, each in result.items()}
    return result.array


def _release_at_exit() -> None:
    with suppress(Exception):  # the process ends anyway
        release_networks()


atexit.register(_release_at_exit)
