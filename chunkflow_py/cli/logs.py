"""What is said on stderr: as lines for people, or as JSON lines for programs (``--log-json``).

All of it goes through `logging`. A record with an ``event`` says the same twice: a sentence, and
fields. Schema of the JSON lines: docs/progress.md.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
from typing import Any, TextIO

from chunkflow_py.cli.screen import above_view
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.terminal import echo

_OURS = "chunkflow_py"
_LEVELS = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
    logging.CRITICAL: "error",
}


class _StderrHandler(logging.Handler):
    """Handler that writes to the current sys.stderr, which tests and callers may replace.

    Attributes:
        level_before: of our loggers.
        propagated_before: whether other handlers received our messages.
        as_json: whether it writes JSON lines.
        said_by_all: fields of every JSON line, such as the run.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self.level_before = logging.NOTSET
        self.propagated_before = True
        self.as_json = as_json
        self.said_by_all: dict[str, Any] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, above a view of progress if there is one."""
        with above_view():
            stream = sys.stderr.stream if isinstance(sys.stderr, _Lines) else None
            echo(self.format(record), file=stream, err=True)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, or several lines for people."""
        if not self.as_json:
            return super().format(record)
        fields: dict[str, Any] = dict(getattr(record, "fields", {}))
        if message := record.getMessage():
            fields["message"] = message
        if not hasattr(record, "event"):
            fields["logger"] = record.name
        if record.exc_info:
            fields["traceback"] = logging.Formatter().formatException(record.exc_info)
        level = _LEVELS.get(record.levelno, "info")
        about = self.said_by_all | fields
        return _line(record.created, level, getattr(record, "event", "log"), about)


class _FileHandler(logging.FileHandler):
    """Writes our log lines to a file, too."""


class _Lines(io.TextIOBase):
    """Stands for stderr where that takes JSON lines: what anybody else prints becomes one.

    Attributes:
        stream: what it stands for.
    """

    encoding = "utf-8"

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._rest = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if message := line.rpartition("\r")[2].rstrip():
                print(_line(time.time(), "info", "log", {"message": message}), file=self.stream)
        return len(text)

    def flush(self) -> None:
        self.stream.flush()

    def fileno(self) -> int:
        return self.stream.fileno()


def configure_logging(
    *,
    verbose: bool,
    debug: bool,
    as_json: bool = False,
    level: str | None = None,
    log_file: str | None = None,
) -> None:
    """Send our log lines to stderr: warnings always, what is done when *verbose*.

    Args:
        verbose: say what is done.
        debug: say all.
        as_json: as JSON lines, also what other libraries log and warn of.
        level: lowest level to log, such as ``error``, instead of that of *verbose*.
        log_file: file to append the same lines to, with their time.

    Raises:
        OptionError: *log_file* cannot be written.
    """
    restore_logging()
    handler = _StderrHandler(as_json=as_json)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    ours = logging.getLogger(_OURS)
    handler.level_before, handler.propagated_before = ours.level, ours.propagate
    # Libraries add handlers to the root logger when they are imported; they would repeat each line.
    ours.propagate = False
    ours.addHandler(handler)
    usual = "info" if verbose else "warning"
    ours.setLevel("DEBUG" if debug else (level or usual).upper())
    if log_file:
        ours.addHandler(_file_handler(log_file))
    if as_json:
        others = _StderrHandler(as_json=True)
        others.said_by_all = handler.said_by_all
        logging.getLogger().addHandler(others)
        logging.captureWarnings(capture=True)
        sys.stderr = _Lines(sys.stderr)


def restore_logging() -> None:
    """Undo `configure_logging`, so that a program that calls us keeps its own logging."""
    ours, root = logging.getLogger(_OURS), logging.getLogger()
    if isinstance(sys.stderr, _Lines):
        sys.stderr = sys.stderr.stream
    for handler in _handlers():
        ours.removeHandler(handler)
        ours.setLevel(handler.level_before)
        ours.propagate = handler.propagated_before
        if handler.as_json:
            logging.captureWarnings(capture=False)
    for file in [each for each in ours.handlers if isinstance(each, _FileHandler)]:
        ours.removeHandler(file)
        file.close()
    for other in [each for each in root.handlers if isinstance(each, _StderrHandler)]:
        root.removeHandler(other)


def says_json() -> bool:
    """Return whether stderr receives JSON lines."""
    return any(handler.as_json for handler in _handlers())


def say_in_all(**fields: Any) -> None:
    """Add fields, such as the run and the worker, to every later JSON line."""
    for handler in _handlers():
        handler.said_by_all.update(fields)


def tell(logger: logging.Logger, level: int, event: str, message: str = "", **fields: Any) -> None:
    """Log an event.

    Args:
        logger: of the module.
        level: of `logging`.
        event: one of docs/progress.md.
        message: for people; without one, the event is logged as JSON only.
        fields: for programs; those that are ``None`` are left out.
    """
    if logger.isEnabledFor(level) and (message or says_json()):
        present = {name: value for name, value in fields.items() if value is not None}
        logger.log(level, "%s", message, extra={"event": event, "fields": present})


def exit_line(code: int, error: str | None) -> str:
    """Return the JSON line that is the last one of a process.

    Args:
        code: of its exit.
        error: why it is not 0, if a sentence says so.
    """
    level = "error" if error else "info"
    fields = {"code": code} | ({"error": error} if error else {})
    return _line(time.time(), level, "exit", fields)


def _file_handler(path: str) -> _FileHandler:
    try:
        handler = _FileHandler(path, encoding="utf-8")
    except OSError as error:
        msg = f"--log-file {path} cannot be written: {error.strerror}"
        raise OptionError(msg) from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s: %(message)s"))
    return handler


def _handlers() -> list[_StderrHandler]:
    ours = logging.getLogger(_OURS).handlers
    return [handler for handler in ours if isinstance(handler, _StderrHandler)]


def _line(when: float, level: str, event: str, fields: dict[str, Any]) -> str:
    import json  # only where it is asked for

    second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(when))
    head = {"time": f"{second}.{int(when % 1 * 1000):03d}Z", "level": level, "event": event}
    return json.dumps(head | _printable(fields), ensure_ascii=False)


def _printable(value: Any) -> Any:
    """Return *value* as JSON takes it: seconds in microseconds, all text safe to show."""
    match value:
        case str():
            from chunkflow_py.store.store_address import public

            return public(value)
        case float():
            return round(value, 6)
        case dict():
            return {_printable(str(key)): _printable(each) for key, each in value.items()}
        case list() | tuple():
            return [_printable(each) for each in value]
        case None | bool() | int():
            return value
    return _printable(str(value))
