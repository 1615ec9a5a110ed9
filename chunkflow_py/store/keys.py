"""Keys of objects: paths below the URL of a store, which never lead out of it; and their sizes."""

from __future__ import annotations

import re

from chunkflow_py.errors import VolumeError

CONTROL = re.compile(r"[\x00-\x1f\x7f]")  # in no name that every cloud takes


def check_size(size: int, most: int | None, key: str, url: str) -> None:
    """Refuse an object that is larger than its content can be.

    Raises:
        VolumeError: *size* is more than *most* bytes.
    """
    if most is not None and size > most:
        msg = (
            f"{url.rstrip('/')}/{key} has {size} bytes, but may have {most} at most; it is damaged "
            "or not what it should be: restore it from a copy"
        )
        raise VolumeError(msg)


def check_key(key: str, url: str) -> str:
    """Return *key* if it names something below the store.

    Keys come from metadata that others wrote, so that ``../../home`` has to be refused.

    Raises:
        VolumeError: it has a part that is empty, ``.`` or ``..``, or holds a control character.
    """
    # The second test alone would do; the first is enough for almost every key.
    if (
        not key.isprintable()
        or "/." in key
        or "//" in key
        or not key
        or key[0] in "./"
        or key[-1] == "/"
    ) and (any(part in ("", ".", "..") for part in key.split("/")) or CONTROL.search(key)):
        msg = f"{key!r} cannot be the key of an object below {url}; write it as name/name"
        raise VolumeError(msg)
    return key
