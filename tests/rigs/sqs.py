"""A queue of SQS for a test: on emulators, each behind a proxy that can inject faults."""

import secrets
from dataclasses import dataclass, field

import pytest

from rigs import servers
from rigs.s3 import environment


@dataclass(frozen=True)
class Sqs:
    """A server of SQS, to which the environment points, and a name that no queue has yet.

    Attributes:
        name: of a queue that nobody has made.
        faults: remote control of the proxy: ``with sqs.faults(rule, ...) as faults: ...``.
        environment: variables for other processes; set in this one already.
        server: ``ministack``, ``moto`` or ``fauxqs``.
    """

    name: str
    faults: servers.Faults
    environment: dict = field(repr=False)
    server: str

    @property
    def client(self):
        """A client of boto3 for the test itself, which goes through the proxy as well."""
        import boto3

        return boto3.session.Session().client("sqs")


@pytest.fixture(scope="session")
def fauxqs(tmp_path_factory):
    """The remote control of a proxy before fauxqs, for the whole session."""
    try:
        with (
            servers.fauxqs(tmp_path_factory.mktemp("fauxqs")) as address,
            servers.proxy(address) as faults,
        ):
            yield faults
    except servers.ServerMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.aws) for name in ("ministack", "moto")]
)
def sqs_server(request, monkeypatch, tmp_path_factory):
    """Yield an `Sqs` on each of the emulators.

    For others: ``@pytest.mark.parametrize("sqs_server", ["fauxqs"], indirect=True)``.
    """
    faults = request.getfixturevalue(request.param)
    variables = environment(faults.address, tmp_path_factory.getbasetemp())
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ENDPOINT_URL_SQS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    faults.set()
    yield Sqs(f"rig-{secrets.token_hex(6)}", faults, variables, request.param)
    faults.set()


@pytest.fixture
def sqs_queue(sqs_server):
    """Yield a new queue with its queue of dead letters; ``sqs_server`` is where it is."""
    from chunkflow_py.queue.queue_protocol import open_queue

    queue = open_queue(sqs_server.name, create=True)
    yield queue
    queue.close()
