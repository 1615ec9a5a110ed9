"""Open buckets of S3 and compatible services, with the settings that other AWS tools use."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from chunkflow_py.errors import VolumeError, needs_extra
from chunkflow_py.store.cloud_service import Service, no_token
from chunkflow_py.store.cloudvolume_secrets import FOLDER, aws_session
from chunkflow_py.store.store_address import check_host

if TYPE_CHECKING:
    from collections.abc import Callable

    from obstore.store import ObjectStore

    from chunkflow_py.store.store_protocol import Access

# Remaining lifetime that is reported to obstore, which asks for new credentials when less than five
# minutes remain. The credentials that botocore returns never expire in less than ten minutes.
_CREDENTIALS_LAST = timedelta(minutes=10)
_REGION_S = 5


def _endpoint() -> str | None:
    """Return the endpoint in boto3's environment variables; ``None`` for the endpoint of AWS."""
    for variable in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        if named := os.environ.get(variable):
            return check_host(named, variable).rstrip("/")
    return None


def s3_bucket(bucket: str, access: Access) -> Service:
    """Return the `Service` for requests to an S3 bucket.

    Raises:
        VolumeError: *access* is not anonymous, but no credentials are found; or the endpoint is
            not the address of a server.
        MissingExtraError: boto3 is not installed.
    """
    root = f"s3://{bucket}"
    endpoint, region = _endpoint(), _named_region()
    provider: Callable[[], Any] = no_token
    if not access.anonymous:
        provider, profile_region = _aws_credentials(root, bucket)
        region = region or profile_region
    if endpoint is None:
        region = bucket_region(f"https://s3.amazonaws.com/{quote(bucket)}") or region
    config: dict[str, Any] = {
        "region": region or "us-east-1",
        "skip_signature": access.anonymous,
        "request_payer": access.requester_pays,
        "conditional_put": "etag",
        "disable_bulk_delete": True,
        # The certificate does not cover the name of a bucket with dots.
        "virtual_hosted_style_request": endpoint is None and "." not in bucket,
    }
    if endpoint is not None:
        config["endpoint"] = endpoint

    def make(options: dict[str, Any], retries: dict[str, Any]) -> ObjectStore:
        from obstore.store import S3Store

        return S3Store(
            bucket,
            config=config,  # type: ignore[arg-type]
            client_options=options,  # type: ignore[arg-type]
            retry_config=retries,  # type: ignore[arg-type]
            credential_provider=provider,
        )

    return Service(
        "s3", bucket, "", root, root, access.anonymous, make=make, headers={}, endpoint=endpoint
    )


def _named_region() -> str | None:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None


def _aws_credentials(url: str, bucket: str) -> tuple[Callable[[], Any], str | None]:
    """Return the credential provider for obstore, and the region of the AWS profile."""
    with needs_extra("cloud", "s3://"):
        from botocore.credentials import RefreshableCredentials
        from botocore.exceptions import BotoCoreError
    try:
        session = aws_session("s3://", bucket)
        credentials = session.get_credentials()
    except BotoCoreError as error:  # such as a profile that does not exist
        msg = f"cannot open {url}: {error}"
        raise VolumeError(msg) from None
    if credentials is None:
        msg = (
            f"cannot open {url}: no AWS credentials were found in the environment, in ~/.aws, in "
            f"{FOLDER}, or at the metadata service of this machine; set AWS_PROFILE, or set both "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; to read public data, add --use-https"
        )
        raise VolumeError(msg)

    def provide() -> dict[str, Any]:
        current = credentials
        if not isinstance(current, RefreshableCredentials):
            # Credentials in a file or in the environment may have been replaced.
            current = aws_session("s3://", bucket).get_credentials() or credentials
        frozen = current.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token or None,
            "expires_at": datetime.now(UTC) + _CREDENTIALS_LAST,
        }

    return provide, session.region_name


@cache
def bucket_region(address: str) -> str | None:
    """Return the AWS region of a bucket, or ``None`` if S3 does not report the region.

    S3 reports the region even to requests without credentials. The region is needed because S3
    rejects requests that are sent to the server of another region.

    Args:
        address: ``https://`` address of the bucket.
    """
    request = urllib.request.Request(address, method="HEAD")  # noqa: S310 https, see above
    try:
        with urllib.request.urlopen(request, timeout=_REGION_S) as answer:  # noqa: S310
            headers = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
        error.close()
    except OSError:
        return None
    region = headers.get("x-amz-bucket-region")
    return str(region) if region else None
