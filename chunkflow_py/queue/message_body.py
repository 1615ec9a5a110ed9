"""The text of a message: a box string, or JSON that says more. Data; never evaluated.

```
0-64_0-512_0-512                                                 as users of chunkflow 1.x send it
{"bbox": "0-64_0-512_0-512", "run": "3f9a…", "stage": "infer"}    of one stage of one run
```
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
_NAME = re.compile(r"\w[\w.-]{0,127}")  # no path: neither . nor ..
_LARGEST = 1 << 62  # voxels: what the arithmetic of arrays still holds
_KEYS = {"bbox", "run", "stage"}


class BodyError(QueueError, ValueError):
    """A message is no task; it goes to the dead letters with the reason."""


@dataclass(frozen=True, slots=True)
class Body:
    """What a message says.

    Attributes:
        region: of the task.
        run: hash of the run's spec that the task belongs to, if the message says it.
        stage: name of the stage, if the message says it.
    """

    region: Region
    run: str | None = None
    stage: str | None = None

    def __str__(self) -> str:
        """Return the text of the message."""
        return body_text(str(self.region), self.run, self.stage)


def body_text(box: str, run: str | None = None, stage: str | None = None) -> str:
    """Return the text of a message for the task of that box string."""
    said = {"bbox": box, "run": run, "stage": stage}
    kept = {key: value for key, value in said.items() if value is not None}
    return box if len(kept) == 1 else json.dumps(kept)


def parse_body(text: str) -> Body:
    """Return what a message says.

    Raises:
        BodyError: it is neither a box string nor such JSON; says what is wrong.
    """
    shown = repr(text if len(text) <= 80 else f"{text[:80]}…")
    if len(text) > LONGEST:
        msg = f"message {shown} has {len(text)} characters; a task has {LONGEST} at most"
        raise BodyError(msg)
    said: dict[str, Any] = {"bbox": text}
    if text.lstrip().startswith("{"):
        try:
            said = strict_json.loads(text)
        except ValueError as error:
            msg = f"message {shown} is no JSON ({error}); send a box string"
            raise BodyError(msg) from error
    if unknown := set(said) - _KEYS:
        msg = f"message {shown} says {min(unknown)!r}; known are {', '.join(sorted(_KEYS))}"
        raise BodyError(msg)
    for name in ("run", "stage"):
        value = said.get(name)
        if value is not None and not (isinstance(value, str) and _NAME.fullmatch(value)):
            msg = (
                f"message {shown}: {name} must be a name of letters, digits, _, . and -, "
                f"and begin with none of the last two"
            )
            raise BodyError(msg)
    box = said.get("bbox")
    if not isinstance(box, str):
        msg = f"message {shown} is no task: bbox must be a box string, got {type(box).__name__}"
        raise BodyError(msg)
    return Body(_region(box, shown), said.get("run"), said.get("stage"))


def run_of(text: str) -> str | None:
    """Return of which run a message is, or ``None`` if it does not say so."""
    try:
        return parse_body(text).run
    except BodyError:
        return None


def _region(box: str, shown: str) -> Region:
    try:
        region = Region.parse(box)
    except (GeometryError, ValueError) as error:
        msg = f"message {shown} is no task: {error}"
        raise BodyError(msg) from error
    corners = (*region.bbox.start, *region.bbox.stop, region.time or 0)
    if region.bbox.is_empty or max(map(abs, corners)) > _LARGEST:
        msg = f"message {shown} is no task: its box is empty or beyond {_LARGEST} voxels"
        raise BodyError(msg)
    return region
