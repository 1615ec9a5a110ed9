"""The schema of JSON lines, as docs/progress.md has it."""

import json
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "progress.md"
_ALWAYS = {"time", "level", "event"}
_MAY = {"message", "traceback", "run", "worker", "stage"}
_TYPES = {
    "tasks": int, "done": int, "skipped": int, "failed": int, "given_up": int, "failures": int,
    "code": int, "voxels": int, "written_bytes": int, "process": int, "seconds": float,
    "network_seconds": float, "outside_network": float, "profile": dict,
}  # fmt: skip


def documented():
    """Return the events of the page: name -> fields that are there, fields that may be there."""
    rows = re.findall(r"^\| `(\w+)` \| [^|]* \| ([^|]*) \|$", PAGE.read_text(), re.MULTILINE)
    events = {}
    for name, cell in rows:
        fields = re.findall(r"`(\w+\??)`", re.sub(r"\([^)]*\)", "", cell))
        must = {each for each in fields if not each.endswith("?")}
        events[name] = must, {each.rstrip("?") for each in fields} - must
    return events


def metric_names():
    """Return the metrics of the page: name -> labels."""
    rows = re.findall(r"^\| `(chunkflow_\w+)` \|([^|]*)\|", PAGE.read_text(), re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}


def events_of(text):
    """Return the events of JSON lines, each of which follows the page."""
    events = documented()
    found = [json.loads(line) for line in text.splitlines()]
    for each in found:
        must, may = events[each["event"]]
        fields = set(each)
        assert fields >= must | _ALWAYS, each
        assert fields <= must | may | _ALWAYS | _MAY, each
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", each["time"])
        assert each["level"] in ("debug", "info", "warning", "error")
        for name, value in each.items():
            kind = dict if name == "operators" and "seconds" in each else _TYPES.get(name, str)
            kind = list if name == "operators" and each["event"] == "run_started" else kind
            assert isinstance(value, (int, float) if kind is float else kind), (name, each)
    return found
