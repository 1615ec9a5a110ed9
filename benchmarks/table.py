"""A table of measured values, their targets and verdicts, as text and for the documentation."""

from __future__ import annotations

from dataclasses import dataclass

HEADER = ("what", "measured", "target or limit", "ratio", "verdict")


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Attributes:
        section: what is run.
        what: what is measured of it.
        measured: value with its unit.
        target: ``at least ...``, ``at most ...``, or empty for what stands there for sight.
        ratio: measured value divided by the target, if there are both.
        verdict: ``met``, ``not met``, ``not measured: reason``, or empty for what has no target.
    """

    section: str
    what: str
    measured: str
    target: str = ""
    ratio: float | None = None
    verdict: str = ""


def at_least(
    section: str, what: str, value: float, target: float, unit: str, note: str = ""
) -> Line:
    """Return the line of a value that should not be below *target*."""
    return _judged(section, what, value, target, unit, note, "at least", met=value >= target)


def at_most(section: str, what: str, value: float, limit: float, unit: str, note: str = "") -> Line:
    """Return the line of a value that should not be above *limit*."""
    return _judged(section, what, value, limit, unit, note, "at most", met=value <= limit)


def _judged(
    section: str,
    what: str,
    value: float,
    bound: float,
    unit: str,
    note: str,
    words: str,
    *,
    met: bool,
) -> Line:
    shown = _in_unit(value, unit)
    if unit == "%" and shown == _in_unit(bound, unit):
        shown = f"{value:.2%}"  # 1.0% above a limit of 1.0% would look like a contradiction
    return Line(
        section,
        what,
        shown + note,
        f"{words} {_in_unit(bound, unit)}",
        value / bound,
        "met" if met else "not met",
    )


def _in_unit(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.1%}"
    if unit == "GB":
        return f"{value / 1e9:.2f} GB"
    if unit == "x":
        return f"{value:.2f} x"
    number = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{number} {unit}".rstrip()


def within(section: str, what: str, ratio: float, limit: float, note: str = "") -> Line:
    """Return the line of a value *ratio* times what was expected, at most *limit* off."""
    distance = abs(ratio - 1)
    return Line(
        section,
        what,
        f"{ratio - 1:+.1%}{note}",
        f"within {limit:.0%}",
        distance / limit,
        "met" if distance <= limit else "not met",
    )


def not_measured(section: str, what: str, target: str, reason: str) -> Line:
    """Return the line of what could not be measured."""
    return Line(section, what, "", target, None, f"not measured: {reason}")


# --- as text -------------------------------------------------------------------------------------


def cells(line: Line) -> tuple[str, ...]:
    """Return the columns of *line* below `HEADER`."""
    ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
    return (line.what, line.measured, line.target, ratio, line.verdict)


def as_text(table: list[Line]) -> str:
    """Return the table for a terminal."""
    rows = [HEADER, *(cells(line) for line in table)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    result = []
    section = ""
    for line, row in zip([None, *table], rows, strict=True):
        if line is not None and line.section != section:
            section = line.section
            result.append(f"== {section}")
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        result.append("  ".join(["  " + padded[0], *padded[1:], row[4]]).rstrip())
    judged = [line for line in table if line.verdict]
    met = sum(line.verdict == "met" for line in judged)
    missed = sum(line.verdict == "not met" for line in judged)
    result.append(f"{met} met, {missed} not met, {len(judged) - met - missed} not measured")
    return "\n".join(result)


def as_markdown(table: list[Line]) -> str:
    """Return the table for the documentation."""
    result = []
    section = ""
    for line in table:
        if line.section != section:
            section = line.section
            result += ["", f"**{section}**", "", f"| {' | '.join(HEADER)} |", "|---" * 5 + "|"]
        verdict = f"**{line.verdict}**" if line.verdict == "not met" else line.verdict
        row = (*cells(line)[:4], verdict)
        result.append(f"| {' | '.join(cell.replace('|', ' ') for cell in row)} |")
    return "\n".join(result[1:]) + "\n"
