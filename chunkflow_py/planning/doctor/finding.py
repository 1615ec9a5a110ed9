"""The outcome of a check: one line of the report, without secrets."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from typing import Literal

from chunkflow_py.errors import ChunkflowError

Level = Literal["ok", "note", "problem"]

# Environment variables whose values are hidden, also where a library puts them in a message.
_SECRET_NAMES = re.compile(
    r"SECRET|TOKEN|PASSW|CREDENTIAL|ACCESS_KEY|API_KEY|PRIVATE", re.IGNORECASE
)
_SHORTEST = 6  # a shorter value is not hidden: it may be part of ordinary text


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        check: what was looked at, one of `chunkflow_py.planning.doctor.examine.CHECKS`.
        level: ``ok``; ``note``: works, but know this; ``problem``: will not work.
        text: what was found.
        remedy: what to do; nothing if the text says it, or there is nothing to do.
    """

    check: str
    level: Level
    text: str
    remedy: str = ""

    def __post_init__(self) -> None:
        """Remove secrets and line breaks."""
        for name in ("text", "remedy"):
            shown = " ".join(hidden(str(getattr(self, name))).split())
            object.__setattr__(self, name, shown)

    def __str__(self) -> str:
        """Return the line."""
        return f"{self.level:7}  {self.check}: {'; '.join(filter(None, (self.text, self.remedy)))}"

    def to_json(self) -> dict[str, str]:
        """Return the attributes by their names."""
        return asdict(self)


def hidden(text: str) -> str:
    """Return *text* without passwords and signatures of addresses, and secrets of the environment.

    The value of a variable is kept if it is an existing path, such as that of a credentials file.
    """
    text = str(ChunkflowError(text))  # which cuts them out of addresses
    for name, value in os.environ.items():
        if _SECRET_NAMES.search(name) and len(value) >= _SHORTEST and not os.path.exists(value):  # noqa: PTH110
            text = text.replace(value, "***")
    return text
