"""Validate addresses, and remove credentials from text before it is shown.

Addresses are checked here, because some libraries respond to an invalid address with a message
about their internals, or with a panic that ``except Exception`` does not catch.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from chunkflow_py.core.plain_text import bounded, plain
from chunkflow_py.errors import VolumeError

CONTROL = re.compile(r"[\x00-\x1f\x7f]")  # characters that no key or prefix may contain

# User name and password before the host. The password may contain a slash that should have been
# %2F; the text in place of the port is then not a number.
_LOGIN = re.compile(
    r"(?<![\w+])((?:https?|s3|gs)://)(?:[^/?#]*|[^/?#:\[]+:(?![0-9]*(?:[/?#]|$)).*)@", re.DOTALL
)
# Query and fragment, such as a signature, up to Neuroglancer's | before the format.
_QUERY = re.compile(r"(?<![\w+])(https?://[^?#|]*)[?#][^|]*", re.DOTALL)
# Any name that S3 or Google has ever allowed; today's rules are stricter.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


def without_secrets(url: str) -> str:
    """Return an address without its user name, password and signature, for messages.

    Args:
        url: address as a user writes it, such as ``precomputed://https://me:secret@host/em``.
    """
    return _QUERY.sub(r"\1", _LOGIN.sub(r"\1", url))


def public(text: str) -> str:
    """Make *text* safe to show: printable (see `plain`), and without secrets in addresses."""
    text = plain(text)  # first, because it may replace characters of an address
    if "://" not in text:
        return text
    # Word by word, because the patterns take quadratic time for long text.
    return re.sub(r"\S+", lambda word: without_secrets(word[0]), text)


def public_line(text: str, most: int) -> str:
    """Make *text* safe to show as one line; an ellipsis replaces its end if it is too long.

    Args:
        text: text to show; secrets in addresses are removed, see `public`.
        most: maximum number of characters of the line.
    """
    if len(text) <= most and text.isprintable() and "://" not in text:
        return text  # the usual case
    return public(bounded(text, most).replace("\n", " ").replace("\t", " "))


def public_json(value: Any) -> Any:
    """Return a JSON value with `public` applied to all strings, including the keys of objects."""
    match value:
        case str():
            return public(value)
        case dict():
            return {public(str(key)): public_json(each) for key, each in value.items()}
        case list() | tuple():
            return [public_json(each) for each in value]
    return value


def check_host(url: str, what: str = "") -> str:
    """Check that *url* is the address of a web server, and return *url*.

    Args:
        url: address with ``http://`` or ``https://``.
        what: name of the environment variable that contains *url*, for the message; empty if *url*
            does not come from a variable.

    Raises:
        VolumeError: *url* has another scheme, no host, a space in the host, or a port outside of 1
            to 65535.
    """
    try:
        parts = urlsplit(url)
        port = parts.port  # raises a ValueError if not a number
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0
    except ValueError:
        is_good = False
    if is_good and not re.search(r"\s", parts.netloc):
        return url
    shown = re.sub(r"^(\w+://)?.*@", r"\1", without_secrets(url))
    if what:
        msg = f"{what} is {shown!r}, but must be the address of a server, such as http://host:9000"
    else:
        msg = (
            f"{shown!r} is not the address of a web server; write https://host/path; in a "
            "password, write %2F instead of /, %3A instead of :, and %40 instead of @"
        )
    raise VolumeError(msg)


def check_bucket(scheme: str, bucket: str) -> str:
    """Check that *bucket* is a valid name of a bucket, and return the name.

    Raises:
        VolumeError: the name is not valid, or contains a user name or password.
    """
    if _BUCKET.fullmatch(bucket):
        return bucket
    if "@" in bucket:
        msg = (
            f"{scheme}://…@… contains a user name or password, which is not supported; remove the "
            "part before @, and set AWS_PROFILE or GOOGLE_APPLICATION_CREDENTIALS"
        )
        raise VolumeError(msg)
    msg = (
        f"{bucket!r} in {scheme}://{bucket} cannot be the name of a bucket: only letters, digits, "
        f"dots, hyphens and underscores are allowed; write {scheme}://bucket/prefix"
    )
    raise VolumeError(msg)


def check_prefix(scheme: str, bucket: str, prefix: str) -> str:
    """Check that keys of objects may begin with *prefix*, and return *prefix*.

    Args:
        scheme: scheme of the address, for the message.
        bucket: name of the bucket, for the message.
        prefix: prefix without slashes at its ends; may be empty.

    Raises:
        VolumeError: a part of *prefix* is empty, ``.`` or ``..``, or has a control character.
    """
    parts = prefix.split("/") if prefix else []
    good = [part for part in parts if part not in ("", ".", "..")]
    if good == parts and not CONTROL.search(prefix):
        return prefix
    nearest = "/".join([f"{scheme}://{bucket}", *(CONTROL.sub("", part) for part in good)])
    msg = (
        f"{f'{scheme}://{bucket}/{prefix}'!r} is not valid, because a part between "
        "slashes is empty, is '.' or '..', or contains a control character; "
        f"the nearest valid address is {nearest}"
    )
    raise VolumeError(msg)


# --- keys and sizes of objects --------------------------------------------------------------------


def check_size(size: int, most: int | None, key: str, url: str) -> None:
    """Check that an object of *size* bytes is not larger than *most*; ``None`` sets no limit.

    Raises:
        VolumeError: *size* is larger than *most*.
    """
    if most is not None and size > most:
        msg = (
            f"{url.rstrip('/')}/{key} has {size} bytes, but must have at most {most} bytes; it is "
            "damaged, was replaced by something else, or is too large for its purpose; restore it "
            "from a copy; if it is the file of a network, download it, and give its local path"
        )
        raise VolumeError(msg)


def check_key(key: str, url: str) -> str:
    """Check that *key* is a valid key of an object in the store at *url*, and return the key.

    A key may come from untrusted metadata; for example, the key ``../../home`` is refused.

    Raises:
        VolumeError: a part of the key is empty, ``.`` or ``..``, or has a control character.
    """
    # The second test would suffice; the first one is faster, and accepts almost every key.
    if (
        not key.isprintable()
        or "/." in key
        or "//" in key
        or not key
        or key[0] in "./"
        or key[-1] == "/"
    ) and (any(part in ("", ".", "..") for part in key.split("/")) or CONTROL.search(key)):
        msg = (
            f"{key!r} cannot be the key of an object below {url}, because a part between slashes "
            "is empty, is '.' or '..', or contains a control character; use a key such as name/name"
        )
        raise VolumeError(msg)
    return key
