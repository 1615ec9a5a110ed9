"""Tasks over the objects of a segmentation, by the first digits of their ids.

With two digits there are a hundred tasks, 0 to 99:

```
7      the object 7, whose id has fewer digits: 07
70     70, 700 to 709, 7000 to 7099, ...
```

so that each object belongs to one task, and a store lists what a task needs by the beginning of
names. As the region of a task is a box, task 70 is 70-71_0-1_0-1.
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
    """Return the tasks.

    Args:
        digits: how many digits tell them apart.
        number: of the only one (default: all).

    Raises:
        OptionError: the number has more digits.
    """
    total = 10**digits
    if number is not None and not 0 <= number < total:
        msg = f"prefix {number} has more than --digits {digits}; give --digits {len(str(number))}"
        raise OptionError(msg)
    grid = BoxGrid(Zyx(0, 0, 0), _ONE, _ONE, Zyx(total, 1, 1))
    return GridPlan(grid, indexes=None if number is None else range(number, number + 1))


def prefix_of(box: BoundingBox, digits: int) -> str | None:
    """Return what names of the objects of a task begin with; ``None`` if there can be none.

    Raises:
        OptionError: the box is that of no such task.
    """
    number = box.start.z
    if box != BoundingBox.from_size((number, 0, 0), _ONE) or not 0 <= number < 10**digits:
        msg = (
            f"task {box} is none of the prefixes 0 to {10**digits - 1} of --digits {digits}, "
            f"which are 0-1_0-1_0-1 to {10**digits - 1}-{10**digits}_0-1_0-1"
        )
        raise OptionError(msg)
    if number == 0:
        return None  # no id begins with 0
    return str(number) if len(str(number)) == digits else f"{number}:"


def fragments_of(
    folder: ObjectFolder, prefix: str | None, parts: int, command: str
) -> dict[int, list[str]]:
    """Return the names of the fragments of a task by their objects, both in order.

    Args:
        folder: of the fragments.
        prefix: what names begin with; ``None`` if there can be none.
        parts: see `by_object`.
        command: that makes fragments.

    Raises:
        VolumeNotFoundError: the folder holds no fragment at all, and is not described as theirs.
    """
    found = by_object([] if prefix is None else folder.names(prefix), parts)
    is_theirs = found or folder.read_json("info") is not None
    if not is_theirs and not any(by_object([name], parts) for name in folder.walk()):
        msg = f"{folder.url} holds no fragments of {command}; check the URL, or make them first"
        raise VolumeNotFoundError(msg)
    return found


def by_object(names: Iterable[str], parts: int) -> dict[int, list[str]]:
    """Return the names of fragments by their objects, both in order.

    Args:
        names: of all files, in order; others than fragments are passed over.
        parts: of the name of a fragment, between colons; the first is the id.
    """
    found: dict[int, list[str]] = {}
    for name in names:
        words = name.split(":")
        if len(words) == parts and is_digits(words[0]) and words[-1]:
            found.setdefault(int(words[0]), []).append(name)
    return dict(sorted(found.items()))


def xyz(box: BoundingBox) -> str:
    """Return a box as programs of the order x, y, z write it."""
    return str(BoundingBox(Zyx(*box.start[::-1]), Zyx(*box.stop[::-1])))
