"""Records of a report by case and contestant, and what their rounds say together.

A *record* is one process: ``case``, ``contestant``, ``round``, and either what it measured or
``error``.
"""

from __future__ import annotations

from statistics import median
from typing import Any

Record = dict[str, Any]
Report = dict[str, Any]


class Case:
    """The records of one case by contestant."""

    def __init__(self, name: str, report: Report) -> None:
        """Take the records of case *name*."""
        self.name = name
        self.settings: dict[str, Any] = report["cases"][name]
        self.records: dict[str, list[Record]] = {}
        self.errors: dict[str, str] = {}
        for record in report["runs"]:
            if record["case"] != name:
                continue
            if "error" in record:
                self.errors[record["contestant"]] = record["error"]
            else:
                self.records.setdefault(record["contestant"], []).append(record)

    def values(self, contestant: str, key: str) -> list[float]:
        """Return what every round measured."""
        return [record[key] for record in self.records[contestant]]

    def median(self, contestant: str, key: str) -> float:
        """Return the median over the rounds."""
        return median(self.values(contestant, key))

    def fastest(self, contestants: list[str], key: str = "wall_s") -> str:
        """Return the contestant with the lowest median time."""
        return min(contestants, key=lambda name: self.median(name, key))

    def missing(self, contestants: tuple[str, ...]) -> str:
        """Return why one of *contestants* has no record, or nothing."""
        for name in contestants:
            if name not in self.records:
                return self.errors.get(name, f"{name} did not run")
        return ""


def spread(values: list[float], unit: str) -> str:
    """Return the median, and from where to where the rounds went."""
    text = f"{median(values):.3g} {unit}"
    if len(values) == 1:
        return f"{text} (one run)"
    return f"{text} ({min(values):.3g} to {max(values):.3g}, {len(values)} runs)"
