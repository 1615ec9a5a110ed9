"""Signatures of specs: a pool runs the code of a run only if a trusted key has signed the spec.

```
<run>/spec.sig    Ed25519 signature of the SHA-256 of the spec, base64
```

Keys are PEM files, as ``openssl genpkey -algorithm ed25519`` and ``openssl pkey -pubout`` write
them. The signature covers the SHA-256 of every byte of the spec, which contains the checksums of
all model files and plugins. The signature does not cover the address of the run, so a copy of a
signed run at another address is trusted, too.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import OptionError, needs_extra

if TYPE_CHECKING:
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.store.store_protocol import Store

_KEY = "spec.sig"
_LONGEST = 1024  # bytes
_LONGEST_FILE = 65_536  # bytes
_MARK = "-----BEGIN PUBLIC KEY-----"


class SigningKey:
    """A private key, with which ``submit --sign-key`` signs specs.

    Args:
        path: PEM file with an Ed25519 private key, without a password.

    Raises:
        OptionError: the file contains no Ed25519 private key, or the key has a password.
    """

    def __init__(self, path: str) -> None:
        with needs_extra("sign", "a signature"):
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import load_pem_private_key
        try:
            self._key: Any = load_pem_private_key(_content(path), None)
        except (ValueError, TypeError) as error:
            raise _no_key(path, "private", "the file may have a password") from error
        if not isinstance(self._key, Ed25519PrivateKey):
            raise _no_key(path, "private", "the key in the file has another type")

    def sign(self, store: Store, digest: str) -> None:
        """Store the signature of a spec in the run directory.

        Args:
            store: store of the run directory.
            digest: SHA-256 of the spec, 64 hexadecimal digits.
        """
        store.put(_KEY, base64.b64encode(self._key.sign(_message(digest))))


class TrustedKeys:
    """Public keys of trusted submitters.

    A worker executes the code of a run only if one of these keys has signed the spec of the run.

    Args:
        path: PEM file with one or more Ed25519 public keys.

    Raises:
        OptionError: the file contains no Ed25519 public key, or contains a key of another type.
    """

    def __init__(self, path: str) -> None:
        with needs_extra("sign", "a signature"):
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
            from cryptography.hazmat.primitives.serialization import load_pem_public_key
        text = _content(path).decode(errors="replace")
        keys: list[Any] = []
        for part in text.split(_MARK)[1:]:
            try:
                keys.append(load_pem_public_key(f"{_MARK}{part}".encode()))
            except ValueError as error:
                raise _no_key(path, "public", "a part of the file cannot be read") from error
        if not keys or not all(isinstance(key, Ed25519PublicKey) for key in keys):
            problem = "a key has another type" if keys else f"the file has no line {_MARK}"
            raise _no_key(path, "public", problem)
        self._keys = keys

    def has_signed(self, run: RunDirectory) -> bool:
        """Return whether one of the keys has signed the spec of a run."""
        with needs_extra("sign", "a signature"):
            from cryptography.exceptions import InvalidSignature
        try:
            signature = base64.b64decode(run.store.get(_KEY, _LONGEST) or b"", validate=True)
        except ValueError:
            return False
        for key in self._keys:
            try:
                key.verify(signature, _message(run.spec.digest))
            except InvalidSignature:
                continue
            return True
        return False

    def check(self, run: RunDirectory) -> None:
        """Check that one of the keys has signed the spec of a run.

        The SHA-256 of this spec is stored in the attribute `digest` of *run*, so that no other spec
        is accepted later.

        Raises:
            OptionError: none of the keys has signed the spec.
        """
        if not self.has_signed(run):
            msg = (
                f"none of the keys of --trust-key has signed the spec of {run.shown}; submit the "
                "run with --sign-key, or leave --trust-key out"
            )
            raise OptionError(msg)
        run.digest = run.spec.digest


def _message(digest: str) -> bytes:
    # the fixed beginning: a signature made for another purpose is never valid for a spec
    return f"chunkflow_py spec sha256={digest}".encode()


def _content(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(_LONGEST_FILE)
    except OSError as error:
        msg = f"cannot read the key {path}: {error.strerror}"
        raise OptionError(msg) from error


def _no_key(path: str, kind: str, problem: object) -> OptionError:
    return OptionError(
        f"{path} contains no Ed25519 {kind} key in PEM format ({problem}); make a pair of keys "
        "with openssl genpkey -algorithm ed25519 -out private.pem, and openssl pkey -in "
        "private.pem -pubout -out public.pem"
    )
