"""Tables as CSV."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


def csv_of(columns: Mapping[str, NDArray[Any]]) -> bytes:
    """Return columns of equal length as CSV in UTF-8, with a header and one line per row.

    Floats are written with enough digits to be read back unchanged.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    return text.getvalue().encode()
