"""An SQS server on loopback."""

import socket

import pytest


@pytest.fixture(scope="session")
def sqs_endpoint():
    """Address of a moto server that lives as long as the session."""
    from moto.server import ThreadedMotoServer

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture
def aws_environment(monkeypatch, tmp_path):
    """Credentials and region of nobody; no file of the machine is read."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_SQS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def sqs(sqs_endpoint, aws_environment, monkeypatch):
    """A client of the server, to which AWS_ENDPOINT_URL points as well."""
    import boto3

    monkeypatch.setenv("AWS_ENDPOINT_URL", sqs_endpoint)
    client = boto3.client("sqs")
    yield client
    for url in client.list_queues().get("QueueUrls", []):
        client.delete_queue(QueueUrl=url)
    client.close()
