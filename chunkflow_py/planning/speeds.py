"""How long a line takes by the speed of its network, as `chunkflow tune --json` has recorded it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import OptionError
from chunkflow_py.planning.durations import Duration, told_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from chunkflow_py.pipeline.operator import Operator
    from chunkflow_py.planning.amounts import Patches
    from chunkflow_py.planning.durations import Crew

_DECIDES = ("input_patch_size", "batch_size", "backend", "dtype", "compile", "tf32")


def speed_duration(
    path: Path,
    operators: Sequence[Operator],
    patches: Sequence[Patches],
    tasks: int,
    crew: Crew,
) -> Duration:
    """Return how long the forwards of all tasks take; reading and writing run beside them.

    Args:
        path: of what `tune` has printed.
        operators: of the line.
        patches: of its networks.
        tasks: how many.
        crew: who works; processes are taken to be as fast side by side as alone.

    Raises:
        OptionError: the file is none of tune's, or has not measured the network as it is run here.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["measurements"]
        measured = [(row, float(row["seconds"])) for row in rows if row["seconds"] is not None]
    except OSError as error:
        msg = f"--speeds {path} cannot be read: {error.strerror}"
        raise OptionError(msg) from error
    except (ValueError, KeyError, TypeError) as error:
        msg = f"--speeds {path} is not what chunkflow tune --json prints ({error}); tune again"
        raise OptionError(msg) from error
    if not patches:
        msg = f"--speeds {path} tells of networks, and the line has none; leave it out"
        raise OptionError(msg)
    seconds = 0.0
    options = {operator.name: operator.options for operator in operators}
    for each in patches:
        asked = options[each.operator]
        found = next((s for row, s in measured if _is_it(row, asked)), None)
        if found is None:
            what = ", ".join(f"{name} {asked.get(name)}" for name in _DECIDES)
            there = "; ".join(
                ", ".join(f"{name} {row.get(name)}" for name in _DECIDES) for row, _ in measured[:3]
            )
            msg = (
                f"--speeds {path} has not measured {each.operator} with {what}; it has {there}; "
                "tune it so, or change the line"
            )
            raise OptionError(msg)
        seconds += found * each.computed / each.batch_size
    how = f"as {path.name} tells the speed of the network; what else is done is taken to run beside"
    return told_duration(tasks, seconds / max(1, tasks), crew, how)


def _is_it(row: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    def plain(value: Any) -> Any:
        return list(value) if isinstance(value, list | tuple) else value

    return all(plain(row.get(name)) == plain(asked.get(name)) for name in _DECIDES)
