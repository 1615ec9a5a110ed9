"""Leftovers: objects of other runs at the addresses to which tasks of a new run will write.

A skipped task writes nothing, so an object of another run in the box of this task would remain and
look like a result of the new run.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import Region
from chunkflow_py.errors import GeometryError, OptionError, VolumeError
from chunkflow_py.run.task_boxes import TaskBoxes
from chunkflow_py.store import open_store
from chunkflow_py.store.store_address import without_secrets
from chunkflow_py.store.store_protocol import Leftover
from chunkflow_py.volume.array_identity import same_array

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from chunkflow_py.pipeline.pipeline import Pipeline
    from chunkflow_py.tasks.task_plan import Plan

_SHOWN = 3
_BOX = r"(?:t[0-9]+_)?-?[0-9]+--?[0-9]+_-?[0-9]+--?[0-9]+_-?[0-9]+--?[0-9]+"


def leftovers(pipeline: Pipeline, plan: Plan) -> Iterator[Leftover]:
    """Yield existing objects at the addresses to which tasks will write.

    The stores are listed, but no objects are read. An output is excluded if the pipeline skips
    tasks whose output exists (skip-task-by-blocks-in-volume, skip-task-by-file).

    Args:
        pipeline: checked pipeline whose output volumes have been created.
        plan: plan of the tasks of the pipeline.

    Raises:
        VolumeError: a store cannot be listed.
    """
    kept = [each.hooks.kept for each in pipeline.operators]
    if None in kept:  # skip-task-by-file: a marker file stands for all outputs of its task
        return
    for operator, tasks in TaskBoxes.along(plan, pipeline.operators, pipeline.outlines):
        places = operator.hooks.destinations
        if any(same_array(place, other) for place in places for other in kept if other):
            continue
        own = operator.hooks.leftovers(tasks)
        if own is not None:
            yield from own
        else:
            for place in places:
                yield from _files(place, tasks)


def clear_leftovers(objects: Iterable[Leftover], *, clear: bool) -> int:
    """If *clear* is true, delete leftovers; if it is false, raise an error if there are leftovers.

    Returns:
        The number of deleted objects.

    Raises:
        OptionError: there are leftovers, and *clear* is false. The message contains the number of
            leftovers and the addresses of the first three.
        VolumeError: a leftover cannot be deleted.
    """
    count, shown = 0, list[str]()
    for each in objects:
        count += 1
        if clear:
            each.remove()
        elif len(shown) < _SHOWN:
            shown.append(without_secrets(each.url))
    if shown:
        exist = "object already exists" if count == 1 else "objects already exist"
        addresses = ", ".join(sorted(shown)) + (", …" if count > len(shown) else "")
        msg = (
            f"{count} {exist} where tasks of this run will write, and may belong to another run: "
            f"{addresses}; write to another address, or add --clear-output to delete all objects "
            "inside the boxes of this run's tasks"
        )
        raise OptionError(msg)
    return count


def _files(place: str, tasks: TaskBoxes) -> Iterator[Leftover]:
    """Yield the existing files of tasks.

    Args:
        place: address of one file, of files with the placeholder BOX in their name, or of a folder.
        tasks: boxes of the tasks.
    """
    if "://" in place and not place.startswith("file://"):
        folder, _, name = place.rpartition("/")
    else:
        folder, _, name = place.removeprefix("file://").rpartition("/")
        folder = folder or "/"
    store = open_store(folder)
    if "BOX" in name:
        first, _, last = name.rpartition("BOX")
        pattern = re.compile(f"{re.escape(first)}(?P<box>{_BOX}){re.escape(last)}")
        names = _names(store, first)
    elif store.size(name) is not None:
        yield Leftover(f"{store.url}/{name}", partial(store.delete, name))
        return
    else:  # a folder of objects, each named by the box of its task
        pattern = re.compile(rf"(?P<box>{_BOX})(?:[^/0-9].*)?")
        store = open_store(f"{folder.rstrip('/')}/{name}")
        names = _names(store, "")
    for each in names:
        match = pattern.fullmatch(each)
        region = match and _region(match["box"])
        if region and tasks.has(region):
            yield Leftover(f"{store.url}/{each}", partial(store.delete, each))


def _region(text: str) -> Region | None:
    try:
        return Region.parse(text)
    except GeometryError:
        return None


def _names(store: Any, prefix: str) -> Iterator[str]:
    if store.is_local:
        from pathlib import Path

        folder = Path(store.url.removeprefix("file://"))
        try:
            yield from (each.name for each in folder.iterdir() if each.name.startswith(prefix))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            msg = f"cannot list {folder}: {error.strerror}; change the permissions of the folder"
            raise VolumeError(msg) from error
        return
    yield from (key for key in store.list(prefix) if "/" not in key)
