"""What ran: the part of the page that a run could be repeated from."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from chunkflow_py.monitor.report.markup import Html, facts, table, tag
from chunkflow_py.run.spec import FILE_MARK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.monitor.report.measured import RunReport, StageReport

_SHOWN_PROFILES = 10


def ran_parts(report: RunReport) -> Iterator[Html]:
    """Yield the run and its stages."""
    spec = report.spec
    yield facts([
        ("run", report.address.partition("#")[0]),
        ("SHA-256 of the spec", spec.digest),
        ("chunkflow_py", spec.version),
        ("submitted in", spec.folder),
        ("queue", spec.queue or "none: handed out by a Dask scheduler"),
        ("taken over", "; ".join(f"stage {n} from {url}" for n, url in spec.reused.items())
         or "nothing: all stages were done by this run"),
    ])  # fmt: skip
    for stage in report.stages:
        yield tag("h3", f"Stage {stage.stage.name}")
        yield from _stage_parts(stage)


def _stage_parts(report: StageReport) -> Iterator[Html]:
    stage = report.stage
    names = {file.word: file.name for file in stage.files}
    words = [_plain(word, names) for word in (*stage.source, *stage.words)]
    yield tag("pre", shlex.join(["chunkflow", *words]))
    yield facts([
        ("hash of the stage", stage.hash),
        ("hash of the stage before", stage.previous),
        ("taken over from", report.taken_from or ""),
        ("tasks", f"{stage.tasks:,}: {_plan_words(stage.plan)}"),
        ("workers", "all with one numerical profile" if stage.device_class == "same"
         else "mixed: bytes may differ within a tolerance"),
        ("code that is not built in", "; ".join(stage.code)),
        *((f"{place.role} ({place.operator})", f"{place.address} at mip {place.mip}")
          for place in report.volumes),
        *(("also", words) for words in report.others),
    ])  # fmt: skip
    head = ["file", "is", "SHA-256"]
    yield table(head, ([f.name, f.role, tag("code", f.sha256)] for f in stage.files))
    if report.profile:
        yield tag("h4", "Numerical profile")
        yield facts(sorted(report.profile.items()))
    profiles = [(p, n) for p, n in report.facts.profiles.most_common() if p]
    if len(profiles) > 1:
        rows = ((profile, f"{count:,}") for profile, count in profiles[:_SHOWN_PROFILES])
        yield table(["profile of workers", "tasks"], rows)
    options = [
        (operator, f"--{name.replace('_', '-')}", _said(value, names))
        for operator, said in stage.options
        for name, value in said.items()
        if name not in ("reads", "writes")
    ]
    inside = table(["command", "option", "value"], options)
    yield tag("details", tag("summary", f"All {len(options)} options, defaults included"), inside)


def _plan_words(plan: dict[str, Any]) -> str:
    if plan["kind"] != "grid":
        return "a list of boxes"
    words = f"boxes of {_zyx(plan['size'])} from {_zyx(plan['start'])} (zyx, voxels)"
    if plan["stride"] != plan["size"]:
        words += f" at a stride of {_zyx(plan['stride'])}"
    return words + (f", {plan['times']} time points" if plan["times"] else "")


def _zyx(three: list[int]) -> str:
    return ", ".join(map(str, three))


def _plain(word: str, names: dict[str, str]) -> str:
    """Return a word of the line, with the name of a file of the run for what stands for it."""
    for mark, name in names.items():
        if mark in word:
            return word.replace(mark, name)
    return word


def _said(value: Any, names: dict[str, str]) -> str:
    if isinstance(value, str):
        return _plain(value, names) if value.startswith(FILE_MARK) else value
    return json.dumps(value)
