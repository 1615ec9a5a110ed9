"""Credentials where CloudVolume keeps them: S3, SQS and Google with HOME alone."""

from __future__ import annotations

import http.server
import json

import pytest
from rigs.s3 import SECRET

from chunkflow_py.errors import QueueError, VolumeError
from chunkflow_py.planning.doctor.store_checks import check_store
from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.store import open_store
from chunkflow_py.store.cloudvolume_secrets import aws_session, secret_file
from chunkflow_py.store.google_cloud import _credentials

pytest.importorskip("boto3")
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Return a function that writes a file of secrets; only HOME is set."""
    variables = (*KEYS, "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_CONFIG_FILE",
                 "AWS_SHARED_CREDENTIALS_FILE", "GOOGLE_APPLICATION_CREDENTIALS",
                 "CLOUDSDK_CONFIG", "CLOUD_VOLUME_DIR", "CLOUD_FILES_DIR")  # fmt: skip
    for name in variables:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))

    def write(name, content, folder=".cloudvolume/secrets"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        file = tmp_path / folder / name
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return file

    return write


def keys(name, **more):
    """Return what a file holds, in the name of somebody."""
    return dict(zip(KEYS, (name, SECRET), strict=False)) | more


@pytest.mark.parametrize("s3", ["ministack"], indirect=True)
def test_s3_with_home_alone(s3, home):
    """The file of the bucket before that of all; its region and its token count, too."""
    home("aws-secret.json", keys("of-all", AWS_DEFAULT_REGION="eu-west-3"))
    assert aws_session("s3://", s3.bucket).region_name == "eu-west-3"
    found = aws_session("s3://", s3.bucket).get_credentials()
    assert (found.access_key, found.method) == ("of-all", "cloudvolume-secrets")
    home(f"{s3.bucket}-aws-secret.json", keys("of-one", AWS_SESSION_TOKEN="of-the-session"))
    assert aws_session("s3://", "another").get_credentials().access_key == "of-all"
    with s3.faults() as faults:
        store = open_store(s3.url)
        store.put("key", b"x")
        assert store.get("key") == b"x"
        headers = faults.log()[0]["headers"]
    assert "of-one/" in headers["Authorization"]
    assert headers["x-amz-security-token"] == "of-the-session"
    (read, _) = check_store(s3.url)
    assert "credentials: cloudvolume-secrets" in read.text


@pytest.mark.parametrize("sqs_server", ["moto"], indirect=True)
def test_sqs_with_home_alone(sqs_server, home):
    """A queue is created and used with the credentials and the region of the file."""
    with pytest.raises(QueueError, match=r"region is set .* or in ~/.cloudvolume/secrets"):
        open_queue(f"sqs://{sqs_server.name}", create=True)
    home("aws-secret.json", keys("of-all", AWS_DEFAULT_REGION="us-east-1"))
    with sqs_server.faults() as faults:
        open_queue(f"sqs://{sqs_server.name}", create=True).close()
        authorization = faults.log()[0]["headers"]["Authorization"]
    assert "of-all/" in authorization
    assert "/us-east-1/sqs/" in authorization


def test_what_the_clouds_tools_find_goes_first(home, monkeypatch):
    """The environment, then ~/.aws, then the file."""
    home("aws-secret.json", keys("of-cloudvolume"))
    assert aws_session("s3://").get_credentials().access_key == "of-cloudvolume"
    home(
        "credentials",
        f"[default]\naws_access_key_id=of-aws\naws_secret_access_key={SECRET}",
        ".aws",
    )
    assert aws_session("s3://").get_credentials().access_key == "of-aws"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert aws_session("s3://").get_credentials().access_key == "of-environment"


def test_all_folders_of_cloudvolume(home, monkeypatch, tmp_path):
    """Newer folders take precedence; variables name other folders."""
    assert secret_file("aws") is None
    for folder in (".neuroglancer", ".cloudfiles", ".cloudvolume"):
        file = home("aws-secret.json", "{}", f"{folder}/secrets")
        assert secret_file("aws") == file
    monkeypatch.setenv("CLOUD_VOLUME_DIR", str(tmp_path / "elsewhere"))
    assert secret_file("aws", "b") == tmp_path / ".cloudfiles/secrets/aws-secret.json"
    file = home("b-aws-secret.json", "{}", "elsewhere/secrets")
    assert secret_file("aws", "b") == file


@pytest.mark.parametrize("content", [f"AWS_SECRET_ACCESS_KEY={SECRET}", f'["{SECRET}"]',
                                     f'{{"AWS_SECRET_ACCESS_KEY": "{SECRET}"}}'])  # fmt: skip
def test_a_file_that_is_wrong_is_named_and_not_shown(home, content):
    """For S3 and SQS, and that of Google; no message holds what is in it."""
    file = home("aws-secret.json", content)
    for error, use in (
        (VolumeError, lambda: open_store("s3://bucket/em")),
        (QueueError, lambda: open_queue("sqs://tasks")),
    ):
        with pytest.raises(error, match="aws-secret.json must contain JSON such as") as caught:
            use()
        assert str(file) in str(caught.value)
        assert SECRET not in str(caught.value)
    home("google-secret.json", content)
    with pytest.raises(VolumeError, match="google-secret.json is not the key of") as caught:
        open_store("gs://bucket/em")
    assert SECRET not in str(caught.value)


class Tokens(http.server.BaseHTTPRequestHandler):
    """Gives a token for the signed request of a service account, as Google does."""

    def do_POST(self):
        body = json.dumps({"access_token": "of-google", "expires_in": 3600}).encode()
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        """Say nothing."""


def test_google_with_home_alone(home, serve, monkeypatch, tmp_path):
    """The key of the bucket before that of all; application default credentials go first."""
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )

    def account(project):
        return {"type": "service_account", "project_id": project, "private_key": key.decode(),
                "client_email": "me@lab", "token_uri": serve(Tokens)}  # fmt: skip

    home("google-secret.json", account("lab"))
    home("b-google-secret.json", account("of-the-bucket"))
    provide, project = _credentials("gs://b", "b")
    assert (provide()["token"], project) == ("of-google", "of-the-bucket")
    assert _credentials("gs://another", "another")[1] == "lab"
    named = home("adc.json", account("of-the-environment"), ".")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(named))
    assert _credentials("gs://b", "b")[1] == "of-the-environment"
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    home("application_default_credentials.json", account("of-gcloud"), ".config/gcloud")
    assert _credentials("gs://b", "b")[1] == "of-gcloud"
