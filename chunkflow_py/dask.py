"""Inference over dask arrays, with the same output bytes as a pipeline.

```
output chunks      |---------|---------|---------|   chunks of the dask array, of any size
input of chunk 0 |-------------|                     all patches that touch the chunk
```

As in a pipeline, the patch grid is anchored to the start of the whole volume. Therefore, the output
depends neither on the chunks nor on the scheduler, as long as the compute profile (backend, device,
threads and precision) is the same.

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

    The computation is lazy. Each process loads a network once, and keeps it until
    `release_networks` is called or the process ends.

    Args:
        source: a volume, or a dask array (z, y, x) or (c, z, y, x). The patch grid is anchored
            to the first voxel of *source*.
        network: an `Inferencer` that is not open (no ``with`` block has entered it), or options of
            the command ``inference``, such as ``-m net.py -w net.pt -s 20 256 256``.
        chunks: size of an output chunk, in voxels, zyx (default: for a volume, its write unit; for
            an array, its chunk size). Patches at the borders of chunks are computed several times,
            so larger chunks need less computation.
        channels: channels to read from a volume (default: all).
        time: time index to read from a volume.
        voxel_offset: coordinates of an array's first voxel, in voxels, zyx.
        voxel_size_nm: voxel size of an array, in nanometres, zyx.
        kind: meaning of an array's voxels, such as ``image``; ``None`` if unknown.

    Returns:
        An array (c, z, y, x) of the output dtype; for a network with several outputs, a dictionary
        from the name of each output to its array. An array covers all of *source*. With
        ``--pad none``, an array omits the patch margin on each side of *source*.

    Raises:
        OptionError: the result would depend on the chunks, or options contradict each other.
        ChunkError: the array is neither 3D nor 4D.
        MissingExtraError: dask is not installed.
    """
    with needs_extra("dask", "inference over dask arrays"):
        dask: Any = import_module("dask")  # mostly untyped
        da: Any = import_module("dask.array")
        from dask.base import tokenize
    inferencer = inferencer_from(network) if isinstance(network, str) else network
    placement = inferencer.placement
    if placement.grid == "chunk" or any(placement.output_margin) or placement.output_crop_margin:
        msg = (
            "--grid chunk, --output-margin and --output-crop-margin make the result depend on the "
            "chunks of the dask array; leave them out"
        )
        raise OptionError(msg)
    settings, holder = placement.settings, _Network(inferencer)
    reader: _VolumeReader | _ArrayReader
    if hasattr(source, "bounds"):
        reader, default_size = _VolumeReader(source, channels, time), source.write_unit
    else:
        reader = _ArrayReader(source, Zyx.of(voxel_offset), voxel_size_nm, kind)
        default_size = Zyx.of(source.chunksize[-3:])
    domain = reader.domain
    cover = settings.grid(domain).cover
    size = default_size if chunks is None else Zyx.of(chunks)
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
        result = run(*arguments, box, dask_key_name=key)
        for name, length in lengths.items():
            part = result if name is None else result[name]
            shape = (length, *box.size)
            blocks[name, cell] = da.from_delayed(part, shape, settings.stored_dtype)
    rows, columns = range(boxes.count.y), range(boxes.count.x)
    arrays: dict[str | None, Any] = {}
    for name in lengths:
        planes = [
            [[blocks[name, (z, y, x)] for x in columns] for y in rows] for z in range(boxes.count.z)
        ]
        arrays[name] = da.block([planes])
    return arrays.get(None, arrays)


def inferencer_from(options: str) -> Inferencer:
    """Create an `Inferencer` from options of the command ``inference``.

    Raises:
        OptionError: the options are invalid.
    """
    import click

    from chunkflow_py.ops.inference import command

    try:
        operator = command.main(shlex.split(options), prog_name="inference", standalone_mode=False)
    except click.ClickException as error:
        raise OptionError(error.format_message()) from error
    if operator.before:
        msg = (
            "--resample changes the voxel size of chunks, which is not possible for a dask array; "
            "resample the array before and after inference, or use a pipeline"
        )
        raise OptionError(msg)
    body: Inferencer = operator.body
    return body


def release_networks() -> None:
    """Release the networks that `inference` has loaded in this process."""
    with _lock:
        while _loaded:
            _, inferencer = _loaded.popitem()
            inferencer.__exit__(None, None, None)


# --- sources of chunks --------------------------------------------------------------------------


class _VolumeReader:  # a part is read in the dask task that needs the part
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
    def __init__(
        self,
        array: Any,
        voxel_offset: Zyx,
        voxel_size_nm: tuple[float, float, float],
        kind: Kind | None,
    ) -> None:
        if array.ndim not in (3, 4):
            msg = (
                "inference needs an array (z, y, x) or (c, z, y, x); got an array of shape "
                f"{array.shape}"
            )
            raise ChunkError(msg)
        self._array, self.voxel_size_nm, self.kind = array, voxel_size_nm, kind
        self.domain = BoundingBox.from_size(voxel_offset, array.shape[-3:])

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return (self._array.name, self.domain, self.voxel_size_nm, self.kind)

    def part(self, box: BoundingBox) -> Any:
        return self._array[(..., *box.slices(self.domain.start))]


# --- execution in a process ----------------------------------------------------------------------

_loaded: dict[str, Inferencer] = {}
_lock = Lock()


class _Network:
    """An inferencer, stored as a pickle; each process unpickles and opens the inferencer once."""

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
    # *part* contains the input voxels of *box*; the result contains the output of *target*.
    chunk = Chunk(np.asarray(part), box.start, voxel_size_nm, kind, domain)
    result = network.loaded()(chunk, bbox=target)
    if isinstance(result, dict):
        return {name: each.array for name, each in result.items()}
    return result.array


def _release_at_exit() -> None:
    with suppress(Exception):  # the process ends anyway
        release_networks()


atexit.register(_release_at_exit)
