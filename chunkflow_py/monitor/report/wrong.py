"""What went wrong: what failed, was skipped or was missing, and what verify says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkflow_py.monitor.report.markup import Html, table, tag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.monitor.report.measured import RunReport, StageReport
    from chunkflow_py.run.ledger.record import Failure

_REASONS = 20


def wrong_parts(report: RunReport) -> Iterator[Html]:
    """Yield what failed, was skipped, or was read where nothing is stored."""
    parts = [part for stage in report.stages for part in _stage_parts(stage)]
    yield from parts or [tag("p", "Nothing failed, was skipped, or was missing.")]


def _stage_parts(report: StageReport) -> Iterator[Html]:
    name, found = report.stage.name, report.facts
    if found.dead:
        yield tag("h3", f"Stage {name}: {found.dead:,} failed tasks")
        if found.dead > len(found.failed):
            yield tag("p", f"Shown are the first {len(found.failed)}.", class_="note")
        for task in found.failed:
            title = f"{task.box}: {task.reason or 'no reason given'}"
            tried = (_attempt(n, each) for n, each in enumerate(task.attempts, 1))
            yield tag("details", tag("summary", title), *tried)
    if found.failures:
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in sorted(found.errors.kinds().items()))
        yield tag("h3", f"Stage {name}: {found.failures:,} failed attempts ({kinds})")
        for group in found.errors.ranked()[:_REASONS]:
            example = _attempt(None, group.examples[0])
            yield tag("details", tag("summary", f"{group.count:,} x {group.reason}"), example)
    if found.skipped:
        yield tag("h3", f"Stage {name}: {found.skipped:,} skipped tasks")
        ranked = sorted(found.skip_reasons.items(), key=lambda item: (-item[1], item[0]))
        yield table(["tasks", "reason"], ((f"{n:,}", why) for why, n in ranked[:_REASONS]))
    if found.missing_blocks:
        yield tag("h3", f"Stage {name}: {found.missing_blocks:,} blocks read as the fill value")
        words = (
            f"{found.missing_tasks:,} tasks have read blocks that are not stored, among them "
            f"{', '.join(found.missing_boxes)}."
        )
        yield tag("p", words)


def _attempt(number: int | None, failure: Failure) -> Html:
    which = f"such as that of task {failure.box}" if number is None else f"attempt {number}"
    title = tag("p", f"{which}: {failure.kind}, worker {failure.worker}: {failure.reason}")
    said = (tag("pre", failure.traceback),) if failure.traceback else ()
    return tag("div", title, *said)


def verify_parts(report: RunReport) -> Iterator[Html]:
    """Yield whether what is stored was compared with the records."""
    if report.damages is None:
        words = (
            "What is stored was not compared with the records for this report: chunkflow report "
            "--verify, or chunkflow verify, reads all of it."
        )
        yield tag("p", words)
    elif not report.damages:
        words = (
            "Every recorded object was read again for this report: all are present and match "
            "their checksums."
        )
        yield tag("p", words, class_="state")
    else:
        total = sum(report.damage_kinds.values())
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in sorted(report.damage_kinds.items()))
        yield tag("p", f"{total:,} findings: {kinds}.", class_="state damaged")
        yield table(["stage", "what"], ((name, str(damage)) for name, damage in report.damages))
        if total > len(report.damages):
            yield tag("p", f"Shown are the first {len(report.damages)}.", class_="note")
