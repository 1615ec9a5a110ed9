"""Report of an error that ends the command line: one sentence and an exit code."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from chunkflow_py.core.interrupts import Interrupted
from chunkflow_py.errors import ChunkflowError, OptionError, TransientError, named

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)


class _UsageFailed(click.ClickException):
    exit_code = 2


class _Unexpected(click.ClickException):
    exit_code = 70  # EX_SOFTWARE


class _TryAgain(click.ClickException):
    exit_code = 75  # EX_TEMPFAIL


def failed(
    error: BaseException, *, debug: bool, kind: type[click.ClickException] = click.ClickException
) -> click.ClickException:
    """Return what prints *error* as one sentence, and ends the process with the code of *kind*."""
    text = named(error)
    if not isinstance(error, ChunkflowError) and not debug:
        text += "; run it with --debug to see where this comes from"
    return kind(text)


@contextmanager
def worker_fails_in_order() -> Iterator[None]:
    """Give errors of workers codes of their own: 1 says that a run is complete but for failures.

    2 if the pipeline, the address, the queue or the machine is refused: so will be the next worker
    like it. 75 if it may work later, or was asked to stop. 70 for all that nobody foresaw, such as
    worker processes that die before they begin: another machine may do better.
    """
    from chunkflow_py.run.worker.worker_interruption import StopRequested, stops_on_signals

    try:
        with stops_on_signals(_TryAgain.exit_code):
            yield
    except StopRequested as asked:
        msg = f"stopped: got {asked}"
        raise _TryAgain(msg) from asked
    except (click.ClickException, click.Abort, Exit, OptionError, Interrupted):
        raise
    except BaseException as error:
        logger.debug("the error came from here", exc_info=True)
        kind: type[click.ClickException] = _UsageFailed
        if isinstance(error, TransientError):
            kind = _TryAgain
        elif not isinstance(error, ChunkflowError) or type(error) is ChunkflowError:
            kind = _Unexpected
        debug = click.get_current_context().find_root().params["debug"]
        raise failed(error, debug=debug, kind=kind) from error
