"""Credentials in the files of CloudVolume, which deployments of chunkflow 1.x mount.

| file                                                  | credentials of                         |
|-------------------------------------------------------|----------------------------------------|
| ``aws-secret.json``                                   | S3, SQS, CloudWatch                    |
| ``BUCKET-aws-secret.json``                            | one S3 bucket; takes precedence        |
| ``google-secret.json``, ``BUCKET-google-secret.json`` | Google: the key of a service account   |

The folders are ``secrets`` in ``~/.cloudvolume`` (or ``$CLOUD_VOLUME_DIR``), ``~/.cloudfiles`` (or
``$CLOUD_FILES_DIR``), ``~/.neuroglancer`` and ``/``, as cloud-files 6.4 and cloud-volume 12.15 have
them. Credentials that the cloud's own tools find in the environment or in their files take
precedence over these files, and these files over the roles of the machine.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import needs_extra

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = "~/.cloudvolume/secrets"
_METHOD = "cloudvolume-secrets"
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def _folders() -> Iterator[Path]:
    for variable, default in (
        ("CLOUD_VOLUME_DIR", "~/.cloudvolume"),
        ("CLOUD_FILES_DIR", "~/.cloudfiles"),
        ("", "~/.neuroglancer"),
        ("", "/"),
    ):
        yield Path(os.environ.get(variable) or default).expanduser() / "secrets"


def secret_file(service: str, bucket: str = "") -> Path | None:
    """Return the file with the credentials of a service; one for *bucket* takes precedence.

    Args:
        service: ``aws`` or ``google``.
        bucket: bucket that the credentials are for, if any.
    """
    names = [f"{bucket}-{service}-secret.json"] if bucket else []
    files = (folder / name for name in (*names, f"{service}-secret.json") for folder in _folders())
    return next((file for file in files if file.is_file()), None)


def aws_session(what: str, bucket: str = "", extra: str = "cloud") -> Any:
    """Return a new boto3 session that also uses the credentials and region in `secret_file`.

    Args:
        what: feature that needs boto3, for messages, such as ``s3://``.
        bucket: S3 bucket that the session is for, if any.
        extra: extra of this package that installs boto3.

    Raises:
        BotoCoreError: a profile does not exist, or the file is not valid.
        MissingExtraError: boto3 is not installed.
    """
    with needs_extra(extra, what):
        import boto3
        import botocore.session
        from botocore.credentials import CredentialProvider, Credentials

    class Secrets(CredentialProvider):  # type: ignore[misc]
        METHOD = CANONICAL_NAME = _METHOD

        def load(self) -> Credentials | None:
            if (file := secret_file("aws", bucket)) is None:
                return None
            found = _read(file)
            token = found.get("AWS_SESSION_TOKEN") or None
            return Credentials(*(found[key] for key in _KEYS), token, method=_METHOD)

    session = botocore.session.get_session()
    # It takes precedence over the roles of the container and of the machine.
    session.get_component("credential_provider").insert_before("container-role", Secrets())
    if session.get_config_variable("region") is None:
        file = secret_file("aws", bucket)
        region = _read(file).get("AWS_DEFAULT_REGION") if file is not None else None
        session.set_config_variable("region", region or None)
    return boto3.Session(botocore_session=session)


def _read(file: Path) -> dict[str, Any]:
    """Return the content of the file, which must never appear in messages."""
    from botocore.exceptions import CredentialRetrievalError

    try:
        found = json.loads(file.read_bytes())
    except OSError as error:
        why = f"{file} cannot be read ({error.strerror})"
        raise CredentialRetrievalError(provider=_METHOD, error_msg=why) from None
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(found.get(k), str) for k in _KEYS):
        why = f'{file} is not JSON such as {{"{_KEYS[0]}": "…", "{_KEYS[1]}": "…"}}'
        raise CredentialRetrievalError(provider=_METHOD, error_msg=why) from None
    return found
