"""Division of the objects of a segmentation into tasks, by the first digits of ids.

With two digits, there are a hundred tasks, 0 to 99. Two of these tasks are:

```
7      only object 7, because its id has fewer than two digits
70     objects 70, 700 to 709, 7000 to 7099, ...
```

Each object belongs to one task. The names of an object's files begin with its id, so a store can
list the files of a task by prefix. Like other tasks, such a task is named by a box: task 70 has the
box 70-71_0-1_0-1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import OptionError, VolumeNotFoundError
from chunkflow_py.tasks.task_plan import GridPlan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chunkflow_py.segmentation.labels.object_folder import ObjectFolder

_ONE = Zyx(1, 1, 1)


def prefix_plan(digits: int, number: int | None = None) -> GridPlan:
    """Return the plan with one task for each prefix.

    Args:
        digits: number of decimal digits of the prefix.
        number: the only prefix to plan for (default: all).

    Raises:
        OptionError: *number* has more than *digits* digits.
    """
    total = 10**digits
    if number is not None and not 0 <= number < total:
        msg = (
            f"prefix {number} has more digits than --digits {digits}; give --digits "
            f"{len(str(number))}"
        )
        raise OptionError(msg)
    grid = BoxGrid(Zyx(0, 0, 0), _ONE, _ONE, Zyx(total, 1, 1))
    return GridPlan(grid, indexes=None if number is None else range(number, number + 1))


def prefix_of(box: BoundingBox, digits: int) -> str | None:
    """Return the start of the file names of a task's objects, from the box of the task.

    The result is ``None`` for task 0, because no id begins with 0.

    Raises:
        OptionError: *box* does not belong to a task of `prefix_plan`.
    """
    number = box.start.z
    if box != BoundingBox.from_size((number, 0, 0), _ONE) or not 0 <= number < 10**digits:
        msg = (
            f"task {box} is not the box of a prefix; with --digits {digits}, give boxes from "
            f"0-1_0-1_0-1 (prefix 0) to {10**digits - 1}-{10**digits}_0-1_0-1 (prefix "
            f"{10**digits - 1})"
        )
        raise OptionError(msg)
    if number == 0:
        return None  # no id starts with 0
    return str(number) if len(str(number)) == digits else f"{number}:"


def fragments_of(
    folder: ObjectFolder, prefix: str | None, parts: int, command: str
) -> dict[int, list[str]]:
    """Return the names of the fragments of each object of a task; ids and names are sorted.

    Args:
        folder: folder of the fragments.
        prefix: start of the names, as `prefix_of` returns it; with ``None``, the result is empty.
        parts: number of parts of a fragment's name, separated by colons; see `by_object`.
        command: name of the command that makes fragments, for messages.

    Raises:
        VolumeNotFoundError: the folder has neither fragments nor an info file.
    """
    fragments = by_object([] if prefix is None else folder.names(prefix), parts)
    is_in_use = fragments or folder.read_json("info") is not None
    if not is_in_use and not any(by_object([name], parts) for name in folder.walk()):
        raise no_fragments(folder, command)
    return fragments


def no_fragments(folder: ObjectFolder, command: str) -> VolumeNotFoundError:
    """Return the error for a folder without fragments, with the advice to run *command*."""
    msg = f"{folder.url} has no fragments made by {command}; check the URL, or run {command} first"
    return VolumeNotFoundError(msg)


def by_object(names: Iterable[str], parts: int) -> dict[int, list[str]]:
    """Return *names* grouped by object id; ids are sorted, and names keep their order.

    Args:
        names: names of files; files that are not fragments are ignored.
        parts: number of parts of a fragment's name. Colons separate the parts. The first part is
            the object id. For example, ``7:0:0-64_0-64_0-64`` has 3 parts.
    """
    fragments: dict[int, list[str]] = {}
    for name in names:
        fields = name.split(":")
        if len(fields) == parts and is_digits(fields[0]) and fields[-1]:
            fragments.setdefault(int(fields[0]), []).append(name)
    return dict(sorted(fragments.items()))


def xyz(box: BoundingBox) -> str:
    """Return a box as text in the axis order x, y, z."""
    return str(BoundingBox(Zyx(*box.start[::-1]), Zyx(*box.stop[::-1])))
