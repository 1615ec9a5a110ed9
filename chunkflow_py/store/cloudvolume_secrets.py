"""Find cloud credentials in the secret files of CloudVolume.

Deployments of chunkflow 1.x mount these files.

| file                       | credentials for                                                   |
|----------------------------|-------------------------------------------------------------------|
| aws-secret.json            | S3, SQS and CloudWatch                                            |
| BUCKET-aws-secret.json     | the S3 bucket BUCKET, in preference to aws-secret.json            |
| google-secret.json         | Google Cloud: the key of a service account                        |
| BUCKET-google-secret.json  | the Google bucket BUCKET, in preference to google-secret.json     |

These folders are searched for the files, in the same order as in cloud-files 6.4 and cloud-volume
12.15: ``~/.cloudvolume/secrets``, ``~/.cloudfiles/secrets``, ``~/.neuroglancer/secrets`` and
``/secrets``. The environment variables ``CLOUD_VOLUME_DIR`` and ``CLOUD_FILES_DIR`` replace
``~/.cloudvolume`` and ``~/.cloudfiles``.

Credentials that the cloud's own tools find in the environment or in their own files take precedence
over these secret files. The secret files take precedence over the cloud role of the container or
machine.
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
    """Return the path of the file with credentials for *service*; ``None`` if there is no file.

    A file for *bucket* takes precedence over a file for all buckets.

    Args:
        service: ``aws`` or ``google``.
        bucket: bucket that will be accessed; empty for services other than buckets.
    """
    names = [f"{bucket}-{service}-secret.json"] if bucket else []
    files = (folder / name for name in (*names, f"{service}-secret.json") for folder in _folders())
    return next((file for file in files if file.is_file()), None)


def aws_session(what: str, bucket: str = "", extra: str = "cloud") -> Any:
    """Return a new boto3 session that also uses the credentials and region of a secret file.

    Args:
        what: feature that needs boto3, such as ``s3://``, for error messages.
        bucket: S3 bucket that will be accessed; empty for services other than S3.
        extra: name of the extra of this package that installs boto3.

    Raises:
        BotoCoreError: the AWS profile does not exist, or the secret file is not valid.
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
    # The file takes precedence over the roles of the container and of the machine.
    session.get_component("credential_provider").insert_before("container-role", Secrets())
    if session.get_config_variable("region") is None:
        file = secret_file("aws", bucket)
        region = _read(file).get("AWS_DEFAULT_REGION") if file is not None else None
        session.set_config_variable("region", region or None)
    return boto3.Session(botocore_session=session)


def _read(file: Path) -> dict[str, Any]:
    """Return the content of a secret file; the content must never appear in messages."""
    from botocore.exceptions import CredentialRetrievalError

    try:
        found = json.loads(file.read_bytes())
    except OSError as error:
        why = f"{file} cannot be read ({error.strerror})"
        raise CredentialRetrievalError(provider=_METHOD, error_msg=why) from None
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(found.get(k), str) for k in _KEYS):
        why = f'{file} must contain JSON such as {{"{_KEYS[0]}": "…", "{_KEYS[1]}": "…"}}'
        raise CredentialRetrievalError(provider=_METHOD, error_msg=why) from None
    return found
