"""The clouds: their addresses, credentials and words, and how obstore is told of them.

| cloud | credentials                               | other address                |
|-------|-------------------------------------------|------------------------------|
| S3    | boto3's chain, asked again in time        | AWS_ENDPOINT_URL(_S3)        |
| GCS   | google-auth's chain (application default) | STORAGE_EMULATOR_HOST        |

The region of a bucket in AWS itself is asked for; at another address it is ``AWS_REGION``,
``AWS_DEFAULT_REGION`` or that of the profile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkflow_py.errors import VolumeError
from chunkflow_py.store.address import check_bucket, check_prefix
from chunkflow_py.store.service import Service, no_client

if TYPE_CHECKING:
    from chunkflow_py.store.protocol import Access


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
    root = f"{scheme}://{bucket}"
    if not bucket:
        msg = f"{scheme}://{path} names no bucket; write {scheme}://bucket/prefix"
        raise VolumeError(msg)
    check_bucket(scheme, bucket)
    check_prefix(scheme, bucket, prefix)
    service = Service(
        kind=scheme,
        bucket=bucket,
        prefix=prefix,
        url=f"{root}/{prefix}".rstrip("/"),
        root=root,
        anonymous=access.anonymous,
        make=no_client,
        headers={},
    )
    if scheme == "s3":
        from chunkflow_py.store.amazon import s3_bucket

        return s3_bucket(service, access)
    from chunkflow_py.store.google_cloud import gs_bucket

    return gs_bucket(service, access)
