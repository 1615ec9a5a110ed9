"""The service of a bucket in S3 or Google Cloud, with its address and credentials.

| cloud | credentials                               | other address                |
|-------|-------------------------------------------|------------------------------|
| S3    | boto3's chain, asked again in time        | AWS_ENDPOINT_URL(_S3)        |
| GCS   | google-auth's chain (application default) | STORAGE_EMULATOR_HOST        |

Both also look into CloudVolume's folder, see `chunkflow_py.store.cloudvolume_secrets`.

The region of a bucket in AWS itself is asked for; at another address it is ``AWS_REGION``,
``AWS_DEFAULT_REGION`` or that of the profile.
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

# Variables that say where a cloud is, and who asks.
_VARIABLES = re.compile(r"(?i)(AWS|GOOGLE|GCE|CLOUD|CLOUDSDK|STORAGE|SSL)_|\w*PROXY|HOME$")


def open_service(scheme: str, path: str, access: Access) -> Service:
    """Return the service for ``scheme://path``.

    Raises:
        VolumeError: there is no bucket in the address, or no object can have it, or there are no
            credentials.
        MissingExtraError: boto3 or google-auth is not installed.
    """
    if access.anonymous and access.requester_pays:
        msg = (
            f"cannot open {scheme}://…: requests without credentials cannot be paid for; "
            "use either --requester-pays or --use-https"
        )
        raise VolumeError(msg)
    bucket, _, prefix = path.partition("/")
    prefix = prefix.strip("/")
    if not bucket:
        msg = f"{scheme}://{path} names no bucket; write {scheme}://bucket/prefix"
        raise VolumeError(msg)
    check_bucket(scheme, bucket)
    check_prefix(scheme, bucket, prefix)
    service = _open_bucket(scheme, bucket, access, _surroundings())
    return replace(service, prefix=prefix, url=f"{service.root}/{prefix}".rstrip("/"))


def _surroundings() -> tuple[Any, ...]:
    """Return the facts besides its address that a service depends on: process and environment."""
    names = sorted(name for name in os.environ if _VARIABLES.match(name))
    return os.getpid(), *((name, os.environ[name]) for name in names)


@lru_cache(maxsize=32)
def _open_bucket(
    scheme: str,
    bucket: str,
    access: Access,
    surroundings: tuple[Any, ...],  # noqa: ARG001 part of what is remembered
) -> Service:
    """Return the service for a bucket: one, whose connections and credentials all stores share."""
    if scheme == "s3":
        from chunkflow_py.store.amazon import s3_bucket

        return s3_bucket(bucket, access)
    from chunkflow_py.store.google_cloud import gs_bucket

    return gs_bucket(bucket, access)
