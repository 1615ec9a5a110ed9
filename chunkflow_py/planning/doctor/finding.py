"""The finding of a check of `chunkflow doctor`: one line of the report, without secrets."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from typing import Literal

from chunkflow_py.errors import ChunkflowError

Level = Literal["ok", "note", "problem"]

# names of environment variables whose values are replaced by ***, even in messages of libraries
_SECRET_NAMES = re.compile(
    r"SECRET|TOKEN|PASSW|CREDENTIAL|ACCESS_KEY|API_KEY|PRIVATE", re.IGNORECASE
)
_SHORTEST = 6  # shorter values are not replaced, because they may occur in ordinary text


@dataclass(frozen=True)
class Finding:
    """Result of a check of `chunkflow doctor`, shown as one line of the report.

    Attributes:
        check: name of the check, one of `chunkflow_py.planning.doctor.examine.CHECKS`.
        level: ``ok`` if the checked thing works, ``note`` if it works with a limitation,
            ``problem`` if it does not work.
        text: result of the check, as a phrase or sentence.
        remedy: what the user can do about a note or problem; empty if nothing is needed.
    """

    check: str
    level: Level
    text: str
    remedy: str = ""

    def __post_init__(self) -> None:
        """Remove secrets and line breaks from *text* and *remedy*."""
        for name in ("text", "remedy"):
            shown = " ".join(hidden(str(getattr(self, name))).split())
            object.__setattr__(self, name, shown)

    def __str__(self) -> str:
        """Return the finding as a line that begins with ``ok``, ``note`` or ``problem``."""
        return f"{self.level:7}  {self.check}: {'; '.join(filter(None, (self.text, self.remedy)))}"

    def to_json(self) -> dict[str, str]:
        """Return the attributes of the finding as a JSON object."""
        return asdict(self)


def hidden(text: str) -> str:
    """Return *text* without passwords and signatures in addresses, and without secret values.

    The values of environment variables with names such as ``API_TOKEN`` are secret, and are
    replaced by ``***``. A value that is an existing path, such as the path of a credentials file,
    is not secret.
    """
    text = str(ChunkflowError(text))  # the error removes secrets from addresses
    for name, value in os.environ.items():
        if _SECRET_NAMES.search(name) and len(value) >= _SHORTEST and not os.path.exists(value):  # noqa: PTH110
            text = text.replace(value, "***")
    return text
