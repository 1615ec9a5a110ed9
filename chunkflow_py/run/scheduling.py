"""The priority of a run in a pool, and whether the run is paused.

```
<run>/scheduling.json    {"priority": 5, "paused": false}
```

The file is not part of the spec, so both values can be changed while workers run. A run without the
file has the priority 0 and is not paused.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from chunkflow_py.core import strict_json
from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from chunkflow_py.store.store_protocol import Store

MOST_PRIORITY = 1000
_KEY = "scheduling.json"
_LONGEST = 1024  # bytes


@dataclass(frozen=True)
class Scheduling:
    """The priority of a run in a pool of workers, and whether the run is paused.

    Attributes:
        priority: number from -1000 to 1000. The workers of a pool take tasks of the run with the
            highest priority first.
        paused: whether the run is paused, so that workers take no tasks of the run.
    """

    priority: int = 0
    paused: bool = False


def scheduling_of(store: Store) -> Scheduling:
    """Return the priority of a run, and whether it is paused.

    Raises:
        OptionError: the stored file cannot be read.
    """
    content = store.get(_KEY, _LONGEST)
    return Scheduling() if content is None else _parsed(content, store.url)


def change_scheduling(store: Store, **changes: Any) -> Scheduling:
    """Change the priority of a run, or whether it is paused; return the new values.

    A damaged file is replaced.

    Args:
        store: store of the run directory.
        changes: new values of attributes of `Scheduling`, with the name of the attribute as key.

    Raises:
        OptionError: the priority is out of range.
    """
    check_priority(changes.get("priority", 0))

    def changed(content: bytes | None) -> bytes:
        try:
            old = Scheduling() if content is None else _parsed(content, store.url)
        except OptionError:
            old = Scheduling()
        return json.dumps(asdict(replace(old, **changes))).encode()

    return _parsed(store.update(_KEY, changed), store.url)


def check_priority(priority: int) -> None:
    """Check that the priority of a run is between -1000 and 1000.

    Raises:
        OptionError: the priority is out of range.
    """
    if not -MOST_PRIORITY <= priority <= MOST_PRIORITY:
        msg = (
            f"the priority must be between -{MOST_PRIORITY} and {MOST_PRIORITY}, but is {priority}"
        )
        raise OptionError(msg)


def _parsed(content: bytes, url: str) -> Scheduling:
    try:
        values = strict_json.loads(content)
        priority, paused = values["priority"], values["paused"]
    except (ValueError, TypeError, KeyError):
        priority = paused = None
    is_number = isinstance(priority, int) and not isinstance(priority, bool)
    if is_number and isinstance(paused, bool) and abs(priority) <= MOST_PRIORITY:
        return Scheduling(priority, paused)
    msg = (
        f"{url}/{_KEY} contains {content[:80]!r}, which is not a priority such as "
        '{"priority": 0, "paused": false}; set the priority again with '
        "chunkflow priority RUN NUMBER"
    )
    raise OptionError(msg)
