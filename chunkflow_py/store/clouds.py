"""Open buckets of S3 and Google Cloud: find their endpoint, region and credentials.

| cloud | tool that finds the credentials       | variable that sets another endpoint           |
|-------|---------------------------------------|-----------------------------------------------|
| S3    | boto3, which also renews credentials  | AWS_ENDPOINT_URL_S3, else AWS_ENDPOINT_URL    |
| GCS   | google-auth (application default)     | STORAGE_EMULATOR_HOST                         |

Credentials for both clouds are also searched for in the folders of CloudVolume; see
`chunkflow_py.store.cloudvolume_secrets`.

AWS reports the region of a bucket. If another endpoint is set, the region is ``AWS_REGION``,
``AWS_DEFAULT_REGION`` or the region of the AWS profile.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import VolumeError
from chunkflow_py.store.store_address import check_bucket, check_prefix

if TYPE_CHECKING:
    from chunkflow_py.store.cloud_service import Service
    from chunkflow_py.store.store_protocol import Access

# Environment variables that determine endpoint, credentials, certificates and proxy.
_VARIABLES = re.compile(r"(?i)(AWS|GOOGLE|GCE|CLOUD|CLOUDSDK|STORAGE|SSL)_|\w*PROXY|HOME$")


def open_service(scheme: str, path: str, access: Access) -> Service:
    """Return the `Service` for the bucket and prefix in ``scheme://path``.

    Raises:
        VolumeError: the bucket or the prefix is not a valid name, no credentials are found, or
            *access* is both anonymous and requester-pays.
        MissingExtraError: boto3 or google-auth is not installed.
    """
    if access.anonymous and access.requester_pays:
        msg = (
            f"cannot open {scheme}://…: requests without credentials cannot be billed; "
            "use either --requester-pays or --use-https"
        )
        raise VolumeError(msg)
    bucket, _, prefix = path.partition("/")
    prefix = prefix.strip("/")
    if not bucket:
        msg = f"{scheme}://{path} does not name a bucket; write {scheme}://bucket/prefix"
        raise VolumeError(msg)
    check_bucket(scheme, bucket)
    check_prefix(scheme, bucket, prefix)
    service = _open_bucket(scheme, bucket, access, _surroundings())
    return replace(service, prefix=prefix, url=f"{service.root}/{prefix}".rstrip("/"))


def _surroundings() -> tuple[Any, ...]:
    """Return the process id and the environment variables that a `Service` depends on."""
    names = sorted(name for name in os.environ if _VARIABLES.match(name))
    return os.getpid(), *((name, os.environ[name]) for name in names)


@lru_cache(maxsize=32)
def _open_bucket(
    scheme: str,
    bucket: str,
    access: Access,
    surroundings: tuple[Any, ...],  # noqa: ARG001 part of the cache key
) -> Service:
    """Return the `Service` of a bucket; all stores in the bucket share its connections."""
    if scheme == "s3":
        from chunkflow_py.store.amazon import s3_bucket

        return s3_bucket(bucket, access)
    from chunkflow_py.store.google_cloud import gs_bucket

    return gs_bucket(bucket, access)
