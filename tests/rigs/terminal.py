"""A terminal that remembers what stands on it, and processes that run on one."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading

_SEQUENCE = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])|([\r\n\b])|([^\x1b\r\n\b]+)", re.DOTALL)


class Terminal(io.StringIO):
    """A stream that is a terminal; lines that end with a newline only are as a driver sends them.

    Attributes:
        rows: all lines, those that have scrolled away too.
        modes: private modes that were set, such as ``?25``, and whether they are on.
    """

    def __init__(self, columns=80, lines=24):
        super().__init__()
        self.columns, self.lines = columns, lines
        self.rows, self.row, self.column, self.top = [""], 0, 0, 0
        self.modes, self.styles = {}, set()
        self.lock = threading.RLock()

    def isatty(self):
        return True

    def write(self, text):
        with self.lock:
            super().write(text)
            self.feed(text.replace("\n", "\r\n"))
        return len(text)

    @property
    def text(self):
        """What stands on it, without spaces at the ends of lines and without empty ones there."""
        with self.lock:
            return "\n".join(row.rstrip() for row in self.rows).rstrip("\n")

    def resize(self, columns):
        """Fold lines that are too long now, as most terminals do; the cursor stays in its line."""
        with self.lock:
            before = self.rows[: self.row]
            self.columns = columns
            self.row = sum(len(self._folded(each)) for each in before)
            self.rows = [part for each in self.rows for part in self._folded(each)]
            self.top = max(0, len(self.rows) - self.lines)

    def _folded(self, row):
        starts = range(0, max(1, len(row.rstrip())), self.columns)
        return [row[start : start + self.columns] for start in starts]

    def feed(self, text):
        """Show what was written."""
        position = 0
        while position < len(text):
            match = _SEQUENCE.match(text, position)
            assert match, f"no sequence that is known: {text[position : position + 20]!r}"
            position = match.end()
            private, numbers, kind, control, plain = match.groups()
            if plain:
                self._print(plain)
            elif control == "\r":
                self.column = 0
            elif control == "\n":
                self._down()
            elif kind in "hl" and private:
                self.modes[f"?{numbers}"] = kind == "h"
            elif kind == "m":
                self.styles.add(numbers)
            elif kind == "A":
                self.row = max(self.top, self.row - int(numbers or 1))
            elif kind == "K":
                self.rows[self.row] = self.rows[self.row][: self.column]
            elif kind == "J":
                self.rows[self.row :] = [self.rows[self.row][: self.column]]
            else:
                raise AssertionError(match[0])

    def _down(self):
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append("")
        self.top = max(self.top, self.row - self.lines + 1)

    def _print(self, text):
        for each in text:
            if self.column >= self.columns:
                if self.modes.get("?7") is False:
                    self.column = self.columns - 1
                else:
                    self.column = 0
                    self._down()
            row = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = row[: self.column] + each + row[self.column + 1 :]
            self.column += 1


def on_terminal(args, *, columns=100, watch=None, stdout=None, **variables):
    """Run a command line on a terminal; return the exit code, the terminal and what was written.

    Args:
        args: of the command line.
        columns: of the terminal.
        watch: called with the terminal, and a function that changes its width, after each read.
        stdout: where that goes instead.
        variables: of the environment.
    """
    ours, theirs = pty.openpty()
    screen, written = Terminal(columns), []

    def resize(width):
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        if width != screen.columns:
            screen.resize(width)

    resize(columns)
    process = subprocess.Popen(
        [sys.executable, "-m", "chunkflow_py", *args],
        stdin=subprocess.DEVNULL, stdout=stdout or theirs, stderr=theirs,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TERM": "xterm"} | variables,
    )  # fmt: skip
    os.close(theirs)

    def read():
        rest = b""
        while True:
            try:
                found = os.read(ours, 4096)
            except OSError:  # nobody has it open any more
                return
            whole, rest = _whole(rest + found)
            written.append(whole)
            screen.feed(whole)
            if watch:
                watch(screen, resize)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        code = process.wait(60)
    finally:
        process.kill()
        reader.join(10)
        os.close(ours)
    return code, screen, "".join(written)


def _whole(found):
    """Return what can be shown, and the beginning of a sequence or a character that may follow."""
    cut = found.rfind(b"\x1b", max(0, len(found) - 12))
    if cut >= 0 and not re.match(rb"\x1b\[\??[\d;]*[A-Za-z]", found[cut:]):
        return found[:cut].decode(), found[cut:]
    for size in range(1, 4):
        try:
            return found.decode(), b""
        except UnicodeDecodeError:
            if len(found) >= size and found[-size] >= 0xC0:
                return found[:-size].decode(), found[-size:]
    return found.decode(), b""
