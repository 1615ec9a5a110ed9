"""A bucket of S3 for a test: on two emulators, each behind a proxy that can inject faults."""

import contextlib
import functools
import secrets
from dataclasses import dataclass, field

import pytest

from rigs import servers

SECRET = "secret-of-the-rig-5f1c"  # no message may hold it
# What S3 may send with 200, as it has begun its answer before it is done.
ERROR = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>InternalError</Code>'
    "<Message>We encountered an internal error. Please try again.</Message></Error>"
)
SEVERAL_FAULTS = [
    {"type": "status", "code": 200, "body": ERROR, "p": 0.05, "method": "PUT"},
    {"type": "status_late", "code": 200, "body": ERROR, "p": 0.05, "method": "PUT"},
    {"type": "status", "code": 503, "p": 0.1},
    {"type": "reset", "p": 0.1},
    {"type": "reset_after", "p": 0.05},
    {"type": "truncate", "p": 0.1, "method": "GET"},
]


@dataclass(frozen=True)
class S3:
    """A new bucket, and how to reach it.

    Attributes:
        url: ``s3://bucket/prefix``, where nothing is yet.
        bucket: its name.
        endpoint: address of the proxy, which is what the environment names.
        faults: remote control of the proxy: ``with s3.faults(rule, ...) as faults: ...``.
        environment: variables for other processes; set in this one already.
        server: ``ministack`` or ``moto``.
    """

    url: str
    bucket: str
    endpoint: str
    faults: servers.Faults
    environment: dict = field(repr=False)
    server: str


def environment(endpoint, folder):
    """Return the variables that send every S3 client to an endpoint with a rig's credentials.

    Args:
        endpoint: address of the server.
        folder: an empty folder, where no configuration of the machine is found.
    """
    parse_models_once()
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "rig",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": "",  # cloud-files wants it set
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": f"{folder}/no-config",
        "AWS_SHARED_CREDENTIALS_FILE": f"{folder}/no-credentials",
        "NO_PROXY": "127.0.0.1,localhost",
    }


@functools.cache
def parse_models_once():
    """Let all sessions of boto3 in this process share the descriptions of the services.

    Each test has sessions of its own, and to parse the descriptions takes most of a short test.
    """
    with contextlib.suppress(ImportError):
        from botocore.loaders import JSONFileLoader

        load = functools.cache(functools.partial(JSONFileLoader.load_file, JSONFileLoader()))
        JSONFileLoader.load_file = lambda _, path: load(path)


def make_bucket(endpoint):
    """Make a bucket of a new name; return the name."""
    bucket = f"rig-{secrets.token_hex(6)}"
    servers.call(f"{endpoint}/{bucket}", b"", method="PUT")
    return bucket


@pytest.fixture(scope="session")
def ministack_address(tmp_path_factory):
    """Address of ministack, without a proxy."""
    try:
        with servers.ministack(tmp_path_factory.mktemp("ministack") / "log") as address:
            yield address
    except servers.ServerMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def ministack(ministack_address):
    """The remote control of a proxy before ministack, for the whole session."""
    with servers.proxy(ministack_address) as faults:
        yield faults


@pytest.fixture(scope="session")
def google(ministack_address):
    """The remote control of a proxy that speaks as Google does, before ministack."""
    with servers.proxy(ministack_address, "--google") as faults:
        yield faults


@pytest.fixture(scope="session")
def moto(tmp_path_factory):
    """The remote control of a proxy before moto's server, for the whole session."""
    with (
        servers.moto(tmp_path_factory.mktemp("moto") / "log") as address,
        servers.proxy(address) as faults,
    ):
        yield faults


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.aws) for name in ("ministack", "moto")]
)
def s3(request, monkeypatch, tmp_path_factory):
    """A new bucket on each of the emulators, to which the environment points.

    For one emulator only: ``@pytest.mark.parametrize("s3", ["ministack"], indirect=True)``.
    """
    faults = request.getfixturevalue(request.param)
    variables = environment(faults.address, tmp_path_factory.getbasetemp())
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    faults.set()
    bucket = make_bucket(faults.address)
    yield S3(f"s3://{bucket}/volume", bucket, faults.address, faults, variables, request.param)
    faults.set()


@pytest.fixture
def gs(google, ministack_address, monkeypatch):
    """A ``gs://`` URL in a new bucket of a server that speaks as Google does, and its faults.

    Our side of the talk is real, the other is S3 in disguise (see `rigs.proxy`).
    """
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", google.address)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    google.set()
    yield f"gs://{make_bucket(ministack_address)}/volume", google
    google.set()
