"""Validation of addresses, and removal of credentials from text that is shown.

Addresses are checked here because the libraries that take them answer an invalid one by a panic,
which cannot be caught as an error, or by a message about their internals.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from chunkflow_py.core.plain_text import bounded, plain
from chunkflow_py.errors import VolumeError

CONTROL = re.compile(r"[\x00-\x1f\x7f]")  # characters that no key or prefix may contain
# A name and a password before the host, also a password with a slash that should have been %2F:
# what then stands where the port should be is no number.
_LOGIN = re.compile(
    r"(?<![\w+])((?:https?|s3|gs)://)(?:[^/?#]*|[^/?#:\[]+:(?![0-9]*(?:[/?#]|$)).*)@", re.DOTALL
)
# What follows ? or #, such as a signature, up to Neuroglancer's | before the format.
_QUERY = re.compile(r"(?<![\w+])(https?://[^?#|]*)[?#][^|]*", re.DOTALL)
# All that S3 and Google have ever allowed; today's rules are stricter.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


def without_secrets(url: str) -> str:
    """Return an address without user name, password and signature, for messages.

    Args:
        url: as a person writes it, such as ``precomputed://https://me:secret@host/em``.
    """
    return _QUERY.sub(r"\1", _LOGIN.sub(r"\1", url))


def public(text: str) -> str:
    """Return *text* safe to show: without secrets of the addresses in it, see also `plain`."""
    text = plain(text)  # first: what it replaces could stand inside of an address
    if "://" not in text:
        return text
    # Word by word: a pattern with :// inside would look for it from each letter of a long word.
    return re.sub(r"\S+", lambda word: without_secrets(word[0]), text)


def public_line(text: str, most: int) -> str:
    """Return *text* like `public`, as one line of at most *most* characters and an ellipsis."""
    if len(text) <= most and text.isprintable() and "://" not in text:
        return text  # as almost every one
    return public(bounded(text, most).replace("\n", " ").replace("\t", " "))


def public_json(value: Any) -> Any:
    """Return a value of JSON in which all text is `public`, names too."""
    match value:
        case str():
            return public(value)
        case dict():
            return {public(str(key)): public_json(each) for key, each in value.items()}
        case list() | tuple():
            return [public_json(each) for each in value]
    return value


def check_host(url: str, what: str = "") -> str:
    """Return *url* if it is the address of a web server.

    Args:
        url: with ``http://`` or ``https://``.
        what: the variable that holds it, if one does; for the error.

    Raises:
        VolumeError: it has another scheme, no host, a space, or a port that is not 1 to 65535.
    """
    try:
        parts = urlsplit(url)
        port = parts.port  # raises for no number
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0
    except ValueError:
        is_good = False
    if is_good and not re.search(r"\s", parts.netloc):
        return url
    shown = re.sub(r"^(\w+://)?.*@", r"\1", without_secrets(url))
    if what:
        msg = f"{what} is {shown!r}, which is not the address of a server; write http://host:9000"
    else:
        msg = (
            f"{shown!r} names no host and port; write https://host/path, and / : @ of a password "
            "as %2F %3A %40"
        )
    raise VolumeError(msg)


def check_bucket(scheme: str, bucket: str) -> str:
    """Return *bucket* if a bucket may have that name.

    Raises:
        VolumeError: it may not.
    """
    if _BUCKET.fullmatch(bucket):
        return bucket
    if "@" in bucket:
        msg = (
            f"{scheme}://…@… holds a name or password, which is not looked for there; leave it out "
            "and set AWS_PROFILE, or GOOGLE_APPLICATION_CREDENTIALS"
        )
        raise VolumeError(msg)
    msg = (
        f"{bucket!r} in {scheme}://{bucket} cannot be the name of a bucket, which has letters, "
        f"digits, dots, hyphens and underscores; write {scheme}://bucket/prefix"
    )
    raise VolumeError(msg)


def check_prefix(scheme: str, bucket: str, prefix: str) -> str:
    """Return *prefix* if keys may begin with it.

    Args:
        scheme: of the address.
        bucket: its name.
        prefix: without slashes at its ends; may be empty.

    Raises:
        VolumeError: it has a part that is empty, ``.`` or ``..``, or holds a control character.
    """
    parts = prefix.split("/") if prefix else []
    good = [part for part in parts if part not in ("", ".", "..")]
    if good == parts and not CONTROL.search(prefix):
        return prefix
    nearest = "/".join([f"{scheme}://{bucket}", *(CONTROL.sub("", part) for part in good)])
    msg = (
        f"{f'{scheme}://{bucket}/{prefix}'!r} has a part that is empty, . or .., or a control "
        f"character, and no object has such a name; nearest is {nearest}"
    )
    raise VolumeError(msg)


# --- keys and sizes of objects --------------------------------------------------------------------


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
