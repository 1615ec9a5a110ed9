"""Convert errors that end the program into a one-sentence message and an exit code."""

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
    """Return an exception of type *kind* that makes click print the message of *error*.

    Args:
        error: error that ended the program.
        debug: whether --debug is set; if not, the message of an unexpected error ends with the
            advice to add --debug.
        kind: type of the exception, which determines the exit code.
    """
    text = named(error)
    if not isinstance(error, ChunkflowError) and not debug:
        text += "; add --debug to see the traceback"
    return kind(text)


@contextmanager
def worker_fails_in_order() -> Iterator[None]:
    """Return a context that converts the errors of a worker into exit codes.

    - 2: the pipeline, address, queue or machine cannot be used; starting the worker again would not
      help.
    - 75: a temporary error or a request to stop ended the worker; start it again later.
    - 70: an unexpected error ended the worker, for example because worker processes die before they
      are ready; the worker may succeed on another machine.

    An error never leads to exit code 1, because exit code 1 means that the run is complete except
    for failed tasks.
    """
    from chunkflow_py.run.worker.worker_interruption import StopRequested, stops_on_signals

    try:
        with stops_on_signals(_TryAgain.exit_code):
            yield
    except StopRequested as request:
        msg = f"stopped: got {request}"
        raise _TryAgain(msg) from request
    except (click.ClickException, click.Abort, Exit, OptionError, Interrupted):
        raise
    except BaseException as error:
        logger.debug("traceback of the error", exc_info=True)
        kind: type[click.ClickException] = _UsageFailed
        if isinstance(error, TransientError):
            kind = _TryAgain
        elif not isinstance(error, ChunkflowError) or type(error) is ChunkflowError:
            kind = _Unexpected
        debug = click.get_current_context().find_root().params["debug"]
        raise failed(error, debug=debug, kind=kind) from error
