"""Is a run right? Decided by readers that share no code with the package.

Voxels and metadata are read by zarr-python, cloud-volume and h5py, the ledger by `ledger_bytes`.
All of it is compared with what NumPy makes of the input.
"""

import json
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np

from drills.ledger_bytes import LedgerFiles


class Output(NamedTuple):
    """A volume that a run writes.

    Attributes:
        kind: ``zarr``, ``precomputed`` or ``files`` (one HDF5 file a task).
        place: its path, below the folder of the run.
        corner: global position of its first voxel, zyx.
        voxel_size: in nm, zyx.
        blocks: extent of what is stored as one, voxels, zyx.
    """

    kind: str
    place: str
    corner: tuple = (0, 0, 0)
    voxel_size: tuple = (40, 4, 4)
    blocks: tuple = (4, 16, 16)


class Task(NamedTuple):
    """A task of a step.

    Attributes:
        number: of it in the ledger.
        start: its first voxel, zyx.
        stop: the voxel after its last one, zyx.
    """

    number: int
    start: tuple
    stop: tuple

    @property
    def box(self):
        """The box as a string."""
        return "_".join(f"{low}-{high}" for low, high in zip(self.start, self.stop))


def contents(output, folder):
    """Return voxels (z, y, x), and all that the metadata mean, as another program reads them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return READERS[output.kind](Path(folder) / output.place)


def _zarr(place):
    import zarr

    group = zarr.open_group(str(place), mode="r")
    array = group["0"]
    attributes = dict(group.attrs)
    image = attributes.get("ome", attributes)["multiscales"][0]
    (dataset,) = image["datasets"]
    return array[:], {
        "shape": array.shape,
        "dtype": str(array.dtype),
        "fill": int(array.fill_value),
        "blocks": array.shards or array.chunks,
        "inner": array.chunks,
        "codecs": repr((array.filters, array.serializer if array.metadata.zarr_format == 3
                        else None, array.compressors)),
        "version": array.metadata.zarr_format,
        "axes": [(axis["name"], axis["type"], axis["unit"]) for axis in image["axes"]],
        "path": dataset["path"],
        "transforms": [(each["type"], each[each["type"]])
                       for each in dataset["coordinateTransformations"]],
    }  # fmt: skip


def _precomputed(place):
    from cloudvolume import CloudVolume

    volume = CloudVolume(f"file://{place.resolve()}", fill_missing=True, progress=False)
    return np.asarray(volume[:])[..., 0].T, {
        "shape": tuple(volume.shape),
        "corner": tuple(volume.bounds.minpt),
        "dtype": str(volume.dtype),
        "inner": tuple(volume.chunk_size),
        "voxel size": tuple(volume.resolution),
        "encoding": volume.encoding,
        "type": volume.layer_type,
        "scale": json.dumps(volume.scale, sort_keys=True),
    }


def _files(place):
    import h5py

    found, facts = {}, {}
    for path in sorted(place.glob("*.h5")):
        with h5py.File(path) as file:
            (name,) = (name for name, item in file.items() if item.ndim >= 3)
            corner = tuple(int(each) for each in file["voxel_offset"][:])
            found[corner] = file[name][:]
            facts[path.name] = (corner, found[corner].shape, str(found[corner].dtype))
    low = np.min(list(found), axis=0)
    high = np.max([np.add(corner, voxels.shape) for corner, voxels in found.items()], axis=0)
    whole = np.zeros(high - low, next(iter(found.values())).dtype)
    for corner, voxels in found.items():
        place = tuple(slice(a, a + n) for a, n in zip(np.subtract(corner, low), voxels.shape))
        whole[place] = voxels
    return whole, facts


READERS = {"zarr": _zarr, "precomputed": _precomputed, "files": _files}


def wrong_output(output, folder, expected, facts):
    """Yield what of an output is not as it should be.

    Args:
        output: which.
        folder: of the run.
        expected: all voxels.
        facts: what the metadata mean.
    """
    try:
        voxels, found = contents(output, folder)
    except Exception as error:  # noqa: BLE001 whatever the library says of damaged data
        yield f"{output.place} cannot be read: {type(error).__name__}: {str(error)[:200]}"
        return
    for name in sorted(facts.keys() | found.keys()):
        if facts.get(name) != found.get(name):
            yield f"{output.place}: {name} is {found.get(name)}, not {facts.get(name)}"
    if voxels.shape != expected.shape or voxels.dtype != expected.dtype:
        are, should = ((each.dtype, each.shape) for each in (voxels, expected))
        yield f"{output.place}: voxels are {are}, not {should}"
    elif count := np.count_nonzero(voxels != expected):
        first = np.argwhere(voxels != expected)[0] + np.array(output.corner)
        yield f"{output.place}: {count} voxels differ, the first at {first.tolist()}"


def wrong_records(ledger, tasks, states=("done", "skipped")):
    """Yield the tasks of which no record can be read that says that they have ended.

    Args:
        ledger: folder of the ledger of a step.
        tasks: of the step.
        states: in which they may have ended.
    """
    records = LedgerFiles(ledger).records()
    for task in tasks:
        said = records[task.number][1].said if task.number in records else None
        if said is None:
            yield f"there is no record of task {task.number}, {task.box}"
        elif said.get("state") not in states or said.get("box") != task.box:
            yield (
                f"the record of task {task.number}, {task.box}, says {said.get('state')} "
                f"of {said.get('box')}"
            )
