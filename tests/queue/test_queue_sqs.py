"""Queues of Amazon SQS, on a real server and on one that refuses."""

import json
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.errors import QueueError
from chunkflow_py.queue import sqs_queue as module
from chunkflow_py.queue.queue_protocol import open_queue


def received(client, url):
    """Return the bodies in a queue, with how often each is there."""
    bodies = Counter()
    while messages := client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        bodies.update(message["Body"] for message in messages)
        for message in messages:
            client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return bodies


@pytest.mark.parametrize("url", ["{}", "sqs://{}"])
def test_every_message_arrives_once(sqs, url):
    """What is sent arrives, each message once, the last batch being short."""
    address = sqs.create_queue(QueueName="affinity")["QueueUrl"]
    bodies = [f"0-1_0-1_{n}-{n + 1}" for n in range(43)]
    assert open_queue(url.format("affinity")).send(iter(bodies)) == 43
    assert received(sqs, address) == Counter(bodies)


def test_generate_tasks_makes_the_queue_and_sends_its_boxes(sqs):
    """Unless it exists, --queue-name makes the queue, and that of its dead letters, and says so.

    All boxes are sent once and the line gets none. Workers that set no visibility timeout, as those
    of chunkflow 1.x, keep a task for an hour.
    """
    line = "generate-tasks -z 3 4 5 -c 1 2 2 -q boxes create-chunk -s 1 1 1"
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == 0, result.output
    assert "created the queue boxes, and boxes-dead" in result.stderr
    assert "sent 18 tasks to queue boxes" in result.stderr
    address = sqs.get_queue_url(QueueName="boxes")["QueueUrl"]
    made = sqs.get_queue_attributes(QueueUrl=address, AttributeNames=["All"])["Attributes"]
    assert made["VisibilityTimeout"] == "3600"
    assert "boxes-dead" in made["RedrivePolicy"]
    bodies = received(sqs, address)
    assert len(bodies) == 18
    assert set(bodies.values()) == {1}
    assert "2-3_2-4_4-6" in bodies
    again = CliRunner().invoke(cli, line.split())
    assert again.exit_code == 0, again.output
    assert "created the queue" not in again.stderr


def test_a_dry_run_sends_nothing(sqs):
    """With --dry-run the queue stays empty."""
    address = sqs.create_queue(QueueName="boxes")["QueueUrl"]
    result = CliRunner().invoke(
        cli, ["--dry-run", *["generate-tasks", "-c", "1", "1", "1", "-q", "boxes"]]
    )
    assert result.exit_code == 0
    assert not received(sqs, address)


def test_a_missing_queue_names_the_nearest(sqs):
    """A mistyped queue is an error that names the one that was meant."""
    sqs.create_queue(QueueName="affinities")
    sqs.create_queue(QueueName="zebra")
    result = CliRunner().invoke(
        cli, ["generate-tasks", "-c", "1", "1", "1", "-q", "affinity", "--no-create-queue"]
    )
    assert result.exit_code == 1
    assert "'affinity' does not exist in us-east-1 (nearest name: 'affinities')" in result.output


def test_without_any_queue_the_error_says_so(sqs):
    """An account without queues is an error too, not a failing search for the nearest."""
    with pytest.raises(QueueError, match="there are no queues at all"):
        open_queue("affinity")


def test_without_region_or_credentials_the_error_names_the_variable(sqs, monkeypatch):
    """What is missing from the environment is named."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(QueueError, match="AWS_ACCESS_KEY_ID"):
        open_queue("affinity")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(QueueError, match="AWS_DEFAULT_REGION"):
        open_queue("affinity")


class Refusing(ThreadingHTTPServer):
    """Speaks SQS's JSON protocol and refuses messages by a rule, noting what it accepted."""

    daemon_threads = True

    def __init__(self, refuse):
        super().__init__(("127.0.0.1", 0), Answer)
        self.refuse, self.accepted, self.requests = refuse, [], []

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = {"Successful": [], "Failed": []}
        if self.headers["X-Amz-Target"].endswith("GetQueueUrl"):
            answer = {"QueueUrl": f"{self.server.address}/1/boxes"}
        else:
            bodies = [entry["MessageBody"] for entry in request["Entries"]]
            self.server.requests.append(bodies)
            for entry in request["Entries"]:
                if failed := self.server.refuse(self.server, entry["MessageBody"]):
                    answer["Failed"].append({"Id": entry["Id"], **failed})
                else:
                    self.server.accepted.append(entry["MessageBody"])
                    answer["Successful"].append({"Id": entry["Id"], "MessageId": "m"})
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def refusing(aws_environment, monkeypatch):
    """Start a server that refuses by the given rule."""
    servers = []

    def start(refuse):
        server = Refusing(refuse)
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.address)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


BUSY = {"Code": "InternalError", "Message": "try again", "SenderFault": False}


def test_refused_entries_are_sent_again_and_only_those(refusing):
    """Of a batch with failures only the failed messages are sent again, until all are there."""
    server = refusing(lambda s, body: BUSY if body in "bd" and len(s.requests) < 3 else None)
    assert open_queue("boxes").send("abcde") == 5
    assert sorted(server.accepted) == list("abcde")
    assert server.requests == [list("abcde"), list("bd"), list("bd")]


def test_a_message_refused_for_ever_is_an_error(refusing, monkeypatch):
    """After the last try the error names the message, the reason, and how many were sent."""
    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.001)
    server = refusing(lambda _, body: BUSY if body == "12" else None)
    with pytest.raises(QueueError, match=r"refused message '12'.*try again.*10 messages were sent"):
        open_queue("boxes").send(str(n) for n in range(15))
    assert sum("12" in bodies for bodies in server.requests) == module.TRIES


def test_a_message_that_is_itself_wrong_is_not_sent_again(refusing):
    """Where the fault is the sender's, trying again is no use."""
    wrong = {"Code": "InvalidMessageContents", "Message": "no", "SenderFault": True}
    server = refusing(lambda _s, _b: wrong)
    with pytest.raises(QueueError, match="InvalidMessageContents"):
        open_queue("boxes").send(["a"])
    assert server.requests == [["a"]]


@pytest.mark.parametrize(
    ("url", "words"), [("sqx://a", "did you mean sqs://a"), ("sqs://", "write sqs://NAME")]
)
def test_unknown_schemes_suggest_a_known_one(url, words):
    """A queue of an unknown kind is refused with the nearest that is known."""
    with pytest.raises(QueueError, match=words):
        open_queue(url)
