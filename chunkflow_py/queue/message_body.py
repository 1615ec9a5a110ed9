"""Format and parse the text of a message: a box string, or JSON with a box and a step.

```
0-64_0-512_0-512                                                 the format of chunkflow 1.x
{"bbox": "0-64_0-512_0-512", "run": "3f9a…", "stage": "infer"}    a task of one step of a run
```

The value of ``run`` is the hash of the step (`chunkflow_py.run.run_spec.RunStep.hash`).

The text is parsed, never evaluated as code.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from chunkflow_py.core import strict_json
from chunkflow_py.core.geometry import Region
from chunkflow_py.errors import GeometryError, QueueError

LONGEST = 4096  # characters; a box string has about 40
_NAME = re.compile(r"\w[\w.-]{0,127}")  # never a path such as . or ..
_LARGEST = 1 << 62  # voxels: int64 arithmetic on larger positions could overflow
_KEYS = {"bbox", "run", "stage"}


class BodyError(QueueError, ValueError):
    """The text of a message describes no task; receivers move the message to the dead letters."""


@dataclass(frozen=True, slots=True)
class Body:
    """The parsed text of a message.

    Attributes:
        region: box and time index of the task.
        run: hash of the step; ``None`` in a message of chunkflow 1.x.
        stage: name of the step; ``None`` in a message of chunkflow 1.x.
    """

    region: Region
    run: str | None = None
    stage: str | None = None

    def __str__(self) -> str:
        """Return the text of the message."""
        return body_text(str(self.region), self.run, self.stage)


def body_text(box: str, run: str | None = None, stage: str | None = None) -> str:
    """Return the text of a message: a box string, or JSON if *run* or *stage* is given."""
    values = {"bbox": box, "run": run, "stage": stage}
    given = {key: value for key, value in values.items() if value is not None}
    return box if len(given) == 1 else json.dumps(given)


def parse_body(text: str) -> Body:
    """Parse the text of a message.

    Raises:
        BodyError: the text is neither a box string nor JSON with the keys bbox, run and stage.
    """
    shown = repr(text if len(text) <= 80 else f"{text[:80]}…")
    if len(text) > LONGEST:
        msg = f"message {shown} has {len(text)} characters, but a task may have at most {LONGEST}"
        raise BodyError(msg)
    values: dict[str, Any] = {"bbox": text}
    if text.lstrip().startswith("{"):
        try:
            values = strict_json.loads(text)
        except ValueError as error:
            msg = (
                f"message {shown} is not valid JSON ({error}); correct the JSON, or send a box "
                "string such as 0-64_0-512_0-512"
            )
            raise BodyError(msg) from error
    if unknown := set(values) - _KEYS:
        known = ", ".join(sorted(_KEYS))
        msg = f"message {shown} has the key {min(unknown)!r}, but may only have the keys {known}"
        raise BodyError(msg)
    for name in ("run", "stage"):
        value = values.get(name)
        if value is not None and not (isinstance(value, str) and _NAME.fullmatch(value)):
            msg = (
                f"message {shown}: {name} must consist of letters, digits, _, . and -, "
                f"and must not start with . or -"
            )
            raise BodyError(msg)
    box = values.get("bbox")
    if not isinstance(box, str):
        msg = f"message {shown} is not a task: bbox must be a box string, got {type(box).__name__}"
        raise BodyError(msg)
    return Body(_region(box, shown), values.get("run"), values.get("stage"))


def run_of(text: str) -> str | None:
    """Return the hash of the step in a message, or ``None`` if the message has no such hash."""
    try:
        return parse_body(text).run
    except BodyError:
        return None


def _region(box: str, shown: str) -> Region:
    try:
        region = Region.parse(box)
    except (GeometryError, ValueError) as error:
        msg = f"message {shown} is not a task: {error}"
        raise BodyError(msg) from error
    corners = (*region.bbox.start, *region.bbox.stop, region.time or 0)
    if region.bbox.is_empty or max(map(abs, corners)) > _LARGEST:
        msg = (
            f"message {shown} is not a task: its box is empty, or more than {_LARGEST} voxels from "
            f"the origin"
        )
        raise BodyError(msg)
    return region
