"""Open buckets of Google Cloud Storage, with the settings that other Google tools use."""

from __future__ import annotations

import os
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import VolumeError, needs_extra
from chunkflow_py.store.cloud_service import Service, no_token
from chunkflow_py.store.cloudvolume_secrets import FOLDER, secret_file
from chunkflow_py.store.store_address import check_host

if TYPE_CHECKING:
    from collections.abc import Callable

    from obstore.store import ObjectStore

    from chunkflow_py.store.store_protocol import Access

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


def _endpoint() -> str | None:
    named = os.environ.get("STORAGE_EMULATOR_HOST")
    if not named:
        return None
    address = named if "://" in named else f"http://{named}"
    return check_host(address, "STORAGE_EMULATOR_HOST").rstrip("/")


def gs_bucket(bucket: str, access: Access) -> Service:
    """Return the `Service` for requests to a Google Cloud Storage bucket.

    Raises:
        VolumeError: *access* is not anonymous, but no credentials are found; or *access* is
            requester-pays, but no project to bill is known.
        MissingExtraError: google-auth is not installed.
    """
    root = f"gs://{bucket}"
    endpoint = _endpoint()
    config: dict[str, Any] = {"skip_signature": access.anonymous}
    provider: Callable[[], Any] = no_token
    project = None
    if endpoint is not None:
        config["base_url"] = endpoint
    elif not access.anonymous:
        provider, project = _credentials(root, bucket)
    # Otherwise Google decodes objects with Content-Encoding: gzip, and their sizes are unknown.
    headers = {"Accept-Encoding": "gzip"}
    if access.requester_pays:
        project = os.environ.get("GOOGLE_CLOUD_PROJECT") or project
        if not project:
            msg = (
                f"cannot open {root}: --requester-pays needs a project to bill; "
                "set GOOGLE_CLOUD_PROJECT to the id of the project"
            )
            raise VolumeError(msg)
        headers["x-goog-user-project"] = project

    def make(options: dict[str, Any], retries: dict[str, Any]) -> ObjectStore:
        from obstore.store import GCSStore

        return GCSStore(
            bucket,
            config=config,  # type: ignore[arg-type]
            client_options=options,  # type: ignore[arg-type]
            retry_config=retries,  # type: ignore[arg-type]
            credential_provider=provider,
        )

    return Service(
        "gs", bucket, "", root, root, access.anonymous, make=make, headers=headers,
        endpoint=endpoint,
    )  # fmt: skip


def _credentials(url: str, bucket: str) -> tuple[Callable[[], Any], str | None]:
    """Return the token provider for obstore, and the Google Cloud project of the credentials."""
    with needs_extra("cloud", "gs://"):
        import google.auth
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request
    file = None if _are_named() else secret_file("google", bucket)
    try:
        if file is None:
            credentials, project = google.auth.default(scopes=[_SCOPE])
        else:
            credentials, project = _of_account(file)
    except GoogleAuthError:
        msg = (
            f"cannot open {url}: no Google credentials were found in "
            f"GOOGLE_APPLICATION_CREDENTIALS, in the settings of gcloud, in {FOLDER}, or at the "
            "metadata service of this machine; run gcloud auth application-default login; to read "
            "public data, add --use-https"
        )
        raise VolumeError(msg) from None

    def provide() -> dict[str, Any]:
        credentials.refresh(Request())  # type: ignore[no-untyped-call]
        expiry = credentials.expiry
        return {
            "token": credentials.token,
            "expires_at": expiry.replace(tzinfo=UTC) if expiry else None,
        }

    return provide, project


def _are_named() -> bool:
    if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return True
    folder = os.environ.get("CLOUDSDK_CONFIG") or "~/.config/gcloud"
    return (Path(folder).expanduser() / "application_default_credentials.json").is_file()


def _of_account(file: Path) -> tuple[Any, str | None]:
    """Read the key of a service account; return its credentials and the project of the account."""
    from google.oauth2 import service_account

    try:
        found = service_account.Credentials.from_service_account_file(str(file), scopes=[_SCOPE])  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TypeError, AttributeError):  # their texts may contain the secret
        msg = f"{file} is not the key of a Google service account; download the key as JSON"
        raise VolumeError(msg) from None
    return found, found.project_id
