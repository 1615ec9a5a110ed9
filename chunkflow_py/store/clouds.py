"""The clouds: their addresses, credentials and words, and how obstore is told of them.

| cloud | credentials                               | other address                |
|-------|-------------------------------------------|------------------------------|
| S3    | boto3's chain, asked again in time        | AWS_ENDPOINT_URL(_S3)        |
| GCS   | google-auth's chain (application default) | STORAGE_EMULATOR_HOST        |
| web   | none, or name and password in the address |                              |

The region of a bucket in AWS itself is asked for; at another address it is ``AWS_REGION``,
``AWS_DEFAULT_REGION`` or that of the profile.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from chunkflow_py.errors import VolumeError, VolumeNotFoundError, needs_extra

if TYPE_CHECKING:
    from collections.abc import Callable

    from obstore.store import ObjectStore

    from chunkflow_py.store.protocol import Access
    from chunkflow_py.store.retry import CallFailedError, Manners

# obstore asks for new ones when these have less than five minutes left; botocore hands out none
# with less than ten.
_CREDENTIALS_LAST = timedelta(minutes=10)
_GOOGLE_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_REGION_S = 5


@dataclass(frozen=True)
class Service:
    """A bucket or a web server, and what is asked of it.

    Attributes:
        kind: ``s3``, ``gs`` or ``https``.
        bucket: its name; nothing for a web server.
        prefix: of all keys, without slashes at its ends; nothing for a web server.
        url: of bucket and prefix, without credentials.
        root: of the bucket or host, without credentials.
        anonymous: whether no credentials are sent.
        make: makes an obstore client from its client options and retry options.
        headers: sent with every request.
    """

    kind: str
    bucket: str
    prefix: str
    url: str
    root: str
    anonymous: bool
    make: Callable[[dict[str, Any], dict[str, Any]], ObjectStore]
    headers: dict[str, str]

    def client(self, manners: Manners, *, is_upload: bool = False) -> ObjectStore:
        """Return a client.

        Args:
            manners: its deadlines.
            is_upload: for large uploads: an answer begins only when all has been sent, and parts
                are tried again one by one.
        """
        options: dict[str, Any] = {
            "allow_http": True,
            "connect_timeout": timedelta(seconds=manners.connect_s),
            "read_timeout": timedelta(seconds=manners.longest_s if is_upload else manners.stall_s),
            "timeout": timedelta(seconds=manners.longest_s),
            "user_agent": "chunkflow_py",
        }
        if self.headers:
            options["default_headers"] = self.headers
        retries = {
            "max_retries": 3 if is_upload else 0,
            "retry_timeout": timedelta(seconds=manners.budget_s),
        }
        return self.make(options, retries)

    def check_can(self, verb: str, url: str) -> None:
        """Refuse what the other side never allows.

        Args:
            verb: ``list`` or ``write``.
            url: for the message.

        Raises:
            VolumeError: it is a web server, or Google without credentials.
        """
        if self.kind == "https":
            msg = f"cannot {verb} {url}: web servers can only be read; use s3:// or gs://"
            raise VolumeError(msg)
        if self.kind == "gs" and self.anonymous and verb == "write":
            msg = f"cannot write {url} without credentials; leave out --use-https"
            raise VolumeError(msg)

    def error(self, what: str, failed: CallFailedError) -> VolumeError:
        """Return the sentence for a call that failed.

        Args:
            what: verb and URL.
            failed: why.
        """
        status, code = failed.failure.status, failed.failure.code
        kind = VolumeError
        if code == "NoSuchBucket" or (status == 404 and self.bucket):
            kind = VolumeNotFoundError
            remedy = f"check the name of the bucket {self.bucket!r}, or make it first"
        elif status in (401, 403) and self.kind == "https":
            remedy = "this server wants credentials; open it as s3:// or gs://"
        elif status in (401, 403) and self.anonymous:
            remedy = "it is not public: use credentials (--use-credential)"
        elif status in (401, 403):
            remedy = (
                f"check that your credentials may use the bucket {self.bucket!r} "
                "(--use-https reads public data without any, --requester-pays pays for requests)"
            )
        elif status == 301 or code in ("AuthorizationHeaderMalformed", "IllegalLocationConstraint"):
            remedy = f"set AWS_REGION to the region of the bucket {self.bucket!r}"
        elif failed.failure.is_unreachable:
            remedy = f"check the network and the address {self.address}"
        elif failed.failure.is_transient:
            remedy = "try again later, or with fewer workers"
        else:
            remedy = f"see what {self.root} says of it"
        return kind(f"cannot {what}: {failed}; {remedy}")

    @property
    def address(self) -> str:
        """What to check when nobody answers."""
        endpoint = {"s3": s3_endpoint, "gs": _google_endpoint}.get(self.kind, lambda: None)()
        return _without_password(endpoint) if endpoint else self.root


def open_service(scheme: str, path: str, access: Access) -> Service:
    """Return the service for ``scheme://path``.

    Raises:
        VolumeError: there is no bucket or host in the address, or there are no credentials.
        MissingExtraError: boto3 or google-auth is not installed.
    """
    if access.anonymous and access.requester_pays:
        msg = (
            f"cannot open {scheme}://…: requests without credentials cannot be paid for; "
            "use either --requester-pays or --use-https"
        )
        raise VolumeError(msg)
    if scheme in ("http", "https"):
        return _web(scheme, path)
    bucket, _, prefix = path.partition("/")
    prefix = prefix.strip("/")
    root = f"{scheme}://{bucket}"
    if not bucket:
        msg = f"{scheme}://{path} names no bucket; write {scheme}://bucket/prefix"
        raise VolumeError(msg)
    service = Service(
        kind=scheme,
        bucket=bucket,
        prefix=prefix,
        url=f"{root}/{prefix}".rstrip("/"),
        root=root,
        anonymous=access.anonymous,
        make=_no_client,
        headers={},
    )
    return _s3(service, access) if scheme == "s3" else _google(service, access)


def _no_client(options: dict[str, Any], retries: dict[str, Any]) -> ObjectStore:
    raise NotImplementedError


# S3


def s3_endpoint() -> str | None:
    """Return the address that stands for AWS, as boto3 finds it, or ``None``."""
    named = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return named.rstrip("/") if named else None


def _s3(service: Service, access: Access) -> Service:
    endpoint, region = s3_endpoint(), _named_region()
    provider: Callable[[], Any] = _no_token
    if not access.anonymous:
        provider, profile_region = _aws_credentials(service.url)
        region = region or profile_region
    if endpoint is None:
        region = bucket_region(f"https://s3.amazonaws.com/{quote(service.bucket)}") or region
    config: dict[str, Any] = {
        "region": region or "us-east-1",
        "skip_signature": access.anonymous,
        "request_payer": access.requester_pays,
        "conditional_put": "etag",
        "disable_bulk_delete": True,
        # The name of a bucket with dots is no name that a certificate covers.
        "virtual_hosted_style_request": endpoint is None and "." not in service.bucket,
    }
    if endpoint is not None:
        config["endpoint"] = endpoint

    def make(options: dict[str, Any], retries: dict[str, Any]) -> ObjectStore:
        from obstore.store import S3Store

        return S3Store(
            service.bucket,
            config=config,  # type: ignore[arg-type]
            client_options=options,  # type: ignore[arg-type]
            retry_config=retries,  # type: ignore[arg-type]
            credential_provider=provider,
        )

    return replace(service, make=make)


def _named_region() -> str | None:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None


def _aws_credentials(url: str) -> tuple[Callable[[], Any], str | None]:
    """Return what gives obstore credentials, and the region of the profile."""
    with needs_extra("cloud", "s3://"):
        import boto3
        from botocore.exceptions import BotoCoreError
    try:
        session = boto3.Session()
        credentials = session.get_credentials()
    except BotoCoreError as error:  # such as a profile that does not exist
        msg = f"cannot open {url}: {error}"
        raise VolumeError(msg) from None
    if credentials is None:
        msg = (
            f"cannot open {url}: there are no AWS credentials in the environment, in ~/.aws, or "
            "from the metadata service of this machine; set AWS_PROFILE or AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or read public data with --use-https"
        )
        raise VolumeError(msg)

    def provide() -> dict[str, Any]:
        frozen = credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token or None,
            "expires_at": datetime.now(UTC) + _CREDENTIALS_LAST,
        }

    return provide, session.region_name


@cache
def bucket_region(address: str) -> str | None:
    """Return the region in which S3 keeps a bucket, or ``None`` if it does not say.

    S3 tells it to anyone, and answers requests to another region by an error.

    Args:
        address: of the bucket, with ``https://``.
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


# Google


def _google_endpoint() -> str | None:
    named = os.environ.get("STORAGE_EMULATOR_HOST")
    if not named:
        return None
    return (named if "://" in named else f"http://{named}").rstrip("/")


def _google(service: Service, access: Access) -> Service:
    endpoint = _google_endpoint()
    config: dict[str, Any] = {"skip_signature": access.anonymous}
    provider: Callable[[], Any] = _no_token
    project = None
    if endpoint is not None:
        config["base_url"] = endpoint
    elif not access.anonymous:
        provider, project = _google_credentials(service.url)
    # Otherwise Google unpacks what was stored with Content-Encoding: gzip, and sizes are not known.
    headers = {"Accept-Encoding": "gzip"}
    if access.requester_pays:
        project = os.environ.get("GOOGLE_CLOUD_PROJECT") or project
        if not project:
            msg = (
                f"cannot open {service.url}: requests are to be paid for, but by which project is "
                "not known; set GOOGLE_CLOUD_PROJECT"
            )
            raise VolumeError(msg)
        headers["x-goog-user-project"] = project

    def make(options: dict[str, Any], retries: dict[str, Any]) -> ObjectStore:
        from obstore.store import GCSStore

        return GCSStore(
            service.bucket,
            config=config,  # type: ignore[arg-type]
            client_options=options,  # type: ignore[arg-type]
            retry_config=retries,  # type: ignore[arg-type]
            credential_provider=provider,
        )

    return replace(service, make=make, headers=headers)


def _no_token() -> dict[str, Any]:
    # Emulators take any. Without one, obstore would look for credentials of its own.
    return {"token": "none", "expires_at": None}


def _google_credentials(url: str) -> tuple[Callable[[], Any], str | None]:
    """Return what gives obstore a token, and the project of the credentials."""
    with needs_extra("cloud", "gs://"):
        import google.auth
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request
    try:
        credentials, project = google.auth.default(scopes=[_GOOGLE_SCOPE])
    except GoogleAuthError:
        msg = (
            f"cannot open {url}: there are no Google credentials in "
            "GOOGLE_APPLICATION_CREDENTIALS, from gcloud, or from the metadata service of this "
            "machine; run gcloud auth application-default login, or read public data with "
            "--use-https"
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


# Web servers


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _web(scheme: str, path: str) -> Service:
    address = f"{scheme}://{path}".rstrip("/")
    parts = urlsplit(address)
    url = _without_password(address).partition("?")[0]
    if not parts.hostname:
        msg = f"{url} names no host; write {scheme}://host/path"
        raise VolumeError(msg)
    if parts.query or parts.fragment:
        msg = f"cannot open {url} with what follows ? or # in its address; leave that out"
        raise VolumeError(msg)

    def make(options: dict[str, Any], retries: dict[str, Any]) -> ObjectStore:
        from obstore.store import HTTPStore

        return HTTPStore(
            address,
            client_options=options,  # type: ignore[arg-type]
            retry_config=retries,  # type: ignore[arg-type]
        )

    root = f"{scheme}://{parts.netloc.rpartition('@')[2]}"
    return Service(
        kind="https",
        bucket="",
        prefix="",
        url=url,
        root=root,
        anonymous=True,
        make=make,
        headers={},
    )
