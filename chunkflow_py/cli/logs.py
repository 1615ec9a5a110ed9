"""Write log lines to stderr: text for people, or JSON lines for programs (``--log-json``).

All messages go through `logging`. The log record of an event has a sentence for people and fields
for programs. docs/progress.md describes the fields of the JSON lines.
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
        level_before: level of the logger of this package before `configure_logging`.
        propagated_before: whether the logger of this package passed its messages to the root logger
            before `configure_logging`.
        as_json: whether the handler writes JSON lines.
        common_fields: fields that every JSON line contains, such as the address of the run.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self.level_before = logging.NOTSET
        self.propagated_before = True
        self.as_json = as_json
        self.common_fields: dict[str, Any] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record to stderr, above the progress view if one is shown."""
        with above_view():
            stream = sys.stderr.stream if isinstance(sys.stderr, _Lines) else None
            echo(self.format(record), file=stream, err=True)

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one JSON line, or as text of one or more lines."""
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
        about = self.common_fields | fields
        return _line(record.created, level, getattr(record, "event", "log"), about)


class _FileHandler(logging.FileHandler):
    # A class of its own, by which `restore_logging` recognises the handler.
    pass


class _Lines(io.TextIOBase):
    """Replacement for stderr; converts each line that other code prints into a JSON line.

    Attributes:
        stream: the original stderr, to which the JSON lines are written.
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
    """Send the log messages of this package to stderr.

    Args:
        verbose: whether to log messages of level info; if false, the lowest level is warning.
        debug: whether to log the messages of all levels; overrides *verbose* and *level*.
        as_json: whether to write JSON lines. If true, log messages and warnings of other libraries
            also become JSON lines.
        level: lowest level to log, such as ``error``; overrides *verbose*.
        log_file: file to which the log messages are also appended, with their time.

    Raises:
        OptionError: *log_file* cannot be written.
    """
    restore_logging()
    handler = _StderrHandler(as_json=as_json)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    ours = logging.getLogger(_OURS)
    handler.level_before, handler.propagated_before = ours.level, ours.propagate
    # Some libraries add a handler to the root logger on import, which would repeat each line.
    ours.propagate = False
    ours.addHandler(handler)
    default = "info" if verbose else "warning"
    ours.setLevel("DEBUG" if debug else (level or default).upper())
    if log_file:
        ours.addHandler(_file_handler(log_file))
    if as_json:
        others = _StderrHandler(as_json=True)
        others.common_fields = handler.common_fields
        logging.getLogger().addHandler(others)
        logging.captureWarnings(capture=True)
        sys.stderr = _Lines(sys.stderr)


def restore_logging() -> None:
    """Undo `configure_logging`, so that the logging of a calling program works as before."""
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


def writes_json() -> bool:
    """Return whether log messages are written to stderr as JSON lines."""
    return any(handler.as_json for handler in _handlers())


def add_json_fields(**fields: Any) -> None:
    """Add fields, such as the run and the worker, to every later JSON line."""
    for handler in _handlers():
        handler.common_fields.update(fields)


def log_event(
    logger: logging.Logger, level: int, event: str, message: str = "", **fields: Any
) -> None:
    """Log an event.

    Args:
        logger: logger of the calling module.
        level: level of the message, such as ``logging.INFO``.
        event: name of the event; docs/progress.md lists the names.
        message: sentence for people; if it is empty, the event is only logged in JSON lines.
        fields: fields of the JSON line; fields that are ``None`` are left out.
    """
    if logger.isEnabledFor(level) and (message or writes_json()):
        present = {name: value for name, value in fields.items() if value is not None}
        logger.log(level, "%s", message, extra={"event": event, "fields": present})


def exit_line(code: int, error: str | None) -> str:
    """Return the JSON line that a process writes at its end, with the exit code and the error.

    Args:
        code: exit code of the process.
        error: message of the error that ended the process; ``None`` after success.
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
    import json  # here, because --log-json is rare

    second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(when))
    head = {"time": f"{second}.{int(when % 1 * 1000):03d}Z", "level": level, "event": event}
    return json.dumps(head | _printable(fields), ensure_ascii=False)


def _printable(value: Any) -> Any:
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
