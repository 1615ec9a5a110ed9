"""doctor finds faults of stores, queues and clocks, leaves nothing behind, and tells no secret."""

import json

import pytest
from click.testing import CliRunner
from rigs.s3 import SECRET

from chunkflow_py.cli.main import cli
from chunkflow_py.planning.doctor.finding import Finding

pytestmark = pytest.mark.aws
on_moto = pytest.mark.parametrize("s3", ["moto"], indirect=True)
on_sqs = pytest.mark.parametrize("sqs_server", ["moto"], indirect=True)


def doctor(*args):
    """Return the findings of ``doctor --json`` by this process, and the exit code."""
    result = CliRunner().invoke(cli, ["doctor", "--json", "--only", "store,queue,clock", *args])
    assert SECRET not in result.output
    return json.loads(result.stdout)["findings"], result.exit_code


def problems(*args):
    """Return text and remedy of the problems."""
    findings, code = doctor(*args)
    found = [
        f"{e['check']}: {e['text']}; {e['remedy']}" for e in findings if e["level"] == "problem"
    ]
    assert code == int(bool(found))
    return found


@on_moto
def test_good_store_is_tried_and_left_as_it_was(s3):
    """Reading, writing, conditional writing and deleting work, and nothing stays."""
    from chunkflow_py.store import open_store

    with s3.faults() as faults:
        findings, code = doctor("--store", s3.url)
        assert {each["method"] for each in faults.log()} == {"GET", "HEAD"}
    assert code == 0
    assert [each["level"] for each in findings] == ["ok", "note", "ok"]
    findings, code = doctor("--store", s3.url, "--write")
    assert code == 0, findings
    assert "written conditionally, and deleted" in findings[1]["text"]
    assert list(open_store(s3.url).list()) == []


def test_folder_is_left_as_it_was(tmp_path):
    """A folder that was made to try it is removed."""
    folder = tmp_path / "new" / "out"
    assert problems("--store", str(folder), "--write") == []
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    (found,) = problems("--store", str(tmp_path / "file" / "out"))
    assert f"{tmp_path}/file is not a folder" in found


@on_moto
def test_fault_missing_bucket(s3):
    """A bucket that does not exist is named."""
    (found,) = problems("--store", "s3://no-such-bucket-here/em")
    assert "'no-such-bucket-here'" in found


@on_moto
@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "AccessDenied"])
def test_fault_refused_credentials(code, s3):
    """Credentials that are refused are a problem at once, and told apart from a missing bucket."""
    body = f"<Error><Code>{code}</Code><Message>{SECRET}</Message></Error>"
    with s3.faults({"type": "status", "code": 403, "body": body}):
        (found,) = problems("--store", s3.url)
    assert "check that your credentials may use the bucket" in found


@on_moto
def test_fault_no_credentials(s3, monkeypatch):
    """Where there are no credentials at all, it is said where they are looked for."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    (found,) = problems("--store", s3.url)
    assert "no AWS credentials were found" in found


@on_moto
def test_fault_read_only_credentials(s3):
    """A store that may be read and not written is found if writing is tried."""
    body = "<Error><Code>AccessDenied</Code></Error>"
    with s3.faults({"type": "status", "code": 403, "body": body, "method": "PUT"}):
        assert problems("--store", s3.url) == []
        (found,) = problems("--store", s3.url, "--write")
    assert "cannot write" in found


@on_moto
def test_fault_store_without_put_if_absent(s3):
    """A store that ignores If-None-Match cannot store a run."""
    with s3.faults({"type": "without", "header": "If-None-Match"}):
        (found,) = problems("--store", s3.url, "--write")
    assert "cannot store a run" in found


@on_moto
@pytest.mark.parametrize(("seconds", "way"), [(400, "behind"), (-400, "ahead of")])
def test_fault_clock(seconds, way, s3):
    """A clock that is minutes off is a problem that says how far, and which way."""
    with s3.faults({"type": "skew", "s": seconds}):
        (found,) = problems("--store", s3.url)
    assert found.startswith("clock: the clock of this machine is ")
    assert f" s {way} the clock of http://127.0.0.1" in found
    assert 390 < int(found.split()[7]) < 410


@on_sqs
def test_fault_missing_queue(sqs_server):
    """A queue that does not exist is named."""
    (found,) = problems("--queue", sqs_server.name)
    assert f"queue '{sqs_server.name}' does not exist" in found


@on_sqs
def test_fault_queue_without_dead_letters(sqs_server):
    """A queue without a place for what crashes workers is a problem; other settings are notes."""
    client = sqs_server.client
    client.create_queue(QueueName=sqs_server.name, Attributes={"MessageRetentionPeriod": "3600"})
    client.close()
    findings, code = doctor("--queue", f"sqs://{sqs_server.name}")
    assert code == 1
    said = {each["level"]: each["text"] for each in findings}
    assert "has no dead-letter queue" in said["problem"]
    assert "deletes messages after 0.0 days" in said["note"]


@on_sqs
def test_good_queue_is_left_as_it_was(sqs_server, sqs_queue):
    """Nothing is received from a queue that is looked at, and a queue of its own is removed."""
    sqs_queue.send(["task"])
    name = sqs_server.name
    with sqs_server.faults() as faults:
        assert problems("--queue", name) == []
        assert not any("Receive" in str(each["headers"]) for each in faults.log())
    findings, code = doctor("--queue", name, "--write")
    assert code == 0, findings
    assert any("was sent and received" in each["text"] for each in findings)
    client = sqs_server.client
    names = [url.rpartition("/")[2] for url in client.list_queues()["QueueUrls"]]
    client.close()
    assert not [each for each in names if "doctor" in each]
    assert [each.receives for each in sqs_queue.receive(1, 60)] == [1]


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_queue_without_server_is_left_as_it_was(scheme, tmp_path):
    """So is a queue in a file or folder; one that does not exist is a problem, and not made."""
    from chunkflow_py.queue.queue_protocol import open_queue

    url = f"{scheme}://{tmp_path}/queue"
    (found,) = problems("--queue", url)
    assert "does not exist" in found
    assert list(tmp_path.iterdir()) == []
    queue = open_queue(url, create=True)
    queue.send(["task"])
    before = sorted(tmp_path.iterdir())
    findings, code = doctor("--queue", url, "--write")
    assert code == 0
    assert "1 tasks waiting, 0 leased" in findings[0]["text"]
    assert sorted(tmp_path.iterdir()) == before
    queue.close()


def test_a_finding_holds_no_secret(monkeypatch):
    """Whatever a library says, secrets of the environment and of addresses are cut out of it."""
    monkeypatch.setenv("HF_TOKEN", "planted-token-3")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/tmp")
    said = "planted-token-3 of http://me:planted@host/a?Signature=planted in /tmp/a"
    found = Finding("store", "problem", said, said)
    assert found.text == found.remedy == "*** of http://host/a in /tmp/a"
    assert "planted" not in str(found)


@on_moto
def test_no_secret_is_printed(s3, monkeypatch, tmp_path):
    """Secrets of the environment, of files and of addresses are in no output, whatever fails."""
    planted = {
        "AWS_SECRET_ACCESS_KEY": "planted-secret-key-1",
        "AWS_SESSION_TOKEN": "planted-token-2",
        "HF_TOKEN": "planted-token-3",
        "MY_PASSWORD": "planted-password-4",
    }
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    credentials = tmp_path / "credentials"
    credentials.write_text("[other]\naws_access_key_id = x\naws_secret_access_key = planted-5\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    google = tmp_path / "google.json"
    google.write_text(json.dumps({"type": "service_account", "private_key": "planted-6"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(google))
    body = (
        f"<Error><Code>AccessDenied</Code><Message>{' '.join(planted.values())}</Message></Error>"
    )
    host = s3.endpoint.removeprefix("http://")
    places = [
        "--store", s3.url, "--store", "gs://bucket/em", "--store", f"http://me:planted-7@{host}/em",
        "--store", "s3://me:planted-8@bucket/em", "--queue", f"sqs://http://me:planted-9@{host}/1/q",
        "--queue", "sqs://q", "--write",
    ]  # fmt: skip
    with s3.faults({"type": "status", "code": 403, "body": body}):
        for options in ([], ["--json"]):
            for profile in (None, "other", "none-such"):
                if profile:
                    monkeypatch.setenv("AWS_PROFILE", profile)
                line = ["--debug", "doctor", *options, *places, "--only", "store,queue,clock"]
                result = CliRunner().invoke(cli, line)
                assert result.exit_code == 1, result.output
                assert "planted" not in result.output
