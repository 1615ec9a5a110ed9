"""Findings of checks: lines of the report, without secrets."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from typing import Literal

from chunkflow_py.errors import ChunkflowError

Level = Literal["ok", "note", "problem"]

# environment variables whose values are hidden, also in messages of libraries
_SECRET_NAMES = re.compile(
    r"SECRET|TOKEN|PASSW|CREDENTIAL|ACCESS_KEY|API_KEY|PRIVATE", re.IGNORECASE
)
_SHORTEST = 6  # a shorter value is not hidden: it may be part of ordinary text


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        check: name of the check, one of `chunkflow_py.planning.doctor.examine.CHECKS`.
        level: ``ok``; ``note`` (works, with a limitation); or ``problem`` (does not work).
        text: result of the check.
        remedy: what the user can do; empty if nothing is needed.
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
        """Return the line of the report."""
        return f"{self.level:7}  {self.check}: {'; '.join(filter(None, (self.text, self.remedy)))}"

    def to_json(self) -> dict[str, str]:
        """Return the attributes by name."""
        return asdict(self)


def hidden(text: str) -> str:
    """Remove passwords and signatures in addresses, and secrets of the environment, from *text*.

    The value of a variable is kept if it is an existing path, such as a credentials file.
    """
    text = str(ChunkflowError(text))  # which removes them from addresses
    for name, value in os.environ.items():
        if _SECRET_NAMES.search(name) and len(value) >= _SHORTEST and not os.path.exists(value):  # noqa: PTH110
            text = text.replace(value, "***")
    return text
