"""Find what of a run is missing, damaged or given up, and send it again."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from chunkflow_py.errors import OptionError
from chunkflow_py.queue.body import body_text
from chunkflow_py.queue.protocol import open_queue
from chunkflow_py.run.verify import Damage, repair, retry_failed, verify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.queue.protocol import Queue
    from chunkflow_py.run.home import RunHome
    from chunkflow_py.run.spec import Stage


def damages_of(home: RunHome) -> Iterator[tuple[str, Damage]]:
    """Yield what is wrong in all stages, with the name of the stage."""
    begun = {stage.name for stage in _begun(home)}
    for stage in home.spec.stages:
        if stage.name in begun:
            for damage in _found(home, stage):
                yield stage.name, damage
        else:
            reason = f"none of its {stage.tasks} tasks: the stage has not begun"
            yield stage.name, Damage(None, "", "not recorded", reason)


def repair_run(home: RunHome) -> tuple[int, list[str]]:
    """Restore metadata of outputs, and send tasks again that are not recorded or not sound.

    The queue is made if there is none any more.

    Returns:
        How many tasks were sent, and the addresses of the metadata that was restored.

    Raises:
        OptionError: they are of a stage that was taken over from another run, whose workers alone
            do its tasks.
    """
    home.spec.check_current()
    count, mended = 0, list[str]()
    # A queue that was lost is made again: what it held has no record, and is sent below.
    with closing(_queue_of(home, create=True)) as queue:
        for stage in _begun(home):
            mended += home.coverage(stage.name).restore()
            found = [each for each in _found(home, stage) if each.can_be_repaired]
            if found and (owner := home.spec.reused.get(stage.name)):
                msg = (
                    f"stage {stage.name} of {home.url} is taken over from {owner}, where "
                    f"{len(found)} things are missing or damaged; mend them there: chunkflow "
                    f"repair {owner}, and chunkflow work {owner}"
                )
                raise OptionError(msg)
            if found:
                home.reopen(stage.name)
                count += repair(
                    home.ledger(stage.name), home.plan(stage.name), queue, found,
                    partial(_body, home, stage),
                )  # fmt: skip
                break  # what comes after reads what is mended first
    return count, mended


def retry_run(home: RunHome) -> int:
    """Send tasks again that were given up; return how many."""
    home.spec.check_current()
    count = 0
    with closing(_queue_of(home)) as queue:
        for stage in _begun(home):
            count += retry_failed(
                home.ledger(stage.name), home.plan(stage.name), queue, partial(_body, home, stage)
            )
    return count


def _queue_of(home: RunHome, *, create: bool = False) -> Queue:
    """Return the queue of a run; of one on Dask, which has none, a place for what nobody reads.

    There tasks without a record are handed out anew by whoever carries the run out.
    """
    return open_queue(home.spec.queue or "memory://none", create=create or not home.spec.queue)


def _begun(home: RunHome) -> Iterator[Stage]:
    """Yield the stages whose tasks were sent, or taken over from another run, and the first one.

    Those of a run on Dask are not sent: there a stage has begun when the one before it is closed.
    """
    is_next = True
    for stage in home.spec.stages:
        if is_next or home.is_sent(stage.name) or home.is_closed(stage.name):
            yield stage
        is_next = home.is_closed(stage.name)


def _found(home: RunHome, stage: Stage) -> Iterator[Damage]:
    mixed = stage.device_class == "any"
    if home.spec.is_older:
        return verify(home.ledger(stage.name), home.plan(stage.name), mixed=mixed)
    return verify(
        home.ledger(stage.name),
        home.plan(stage.name),
        spec=stage.hash,
        coverage=home.coverage(stage.name),
        mixed=mixed,
    )


def _body(home: RunHome, stage: Stage, number: int) -> str:
    return body_text(home.plan(stage.name).text(number), stage.hash, stage.name)
