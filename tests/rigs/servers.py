"""Start and end servers on loopback, each a process of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

from rigs.build import node, server

START_S = 60  # a shared machine under load; the servers take about a second


class ServerMissingError(Exception):
    """A server is not installed; says how to install it."""


def call(url, data=None, method=None):
    """Return the body of what a server on loopback answers."""
    request = urllib.request.Request(url, data, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as answer:
        return answer.read()


def clean_environment():
    """Return the environment without what would send a server to another server."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "PYTEST_", "COV_"))}


@contextmanager
def ended(process):
    """End a process when the block ends."""
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def _listening(command, port, log, environment=None):
    """Start a server and yield its address when it answers."""
    with Path(log).open("wb") as output:
        process = subprocess.Popen(
            command,
            env=clean_environment() | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    address = f"http://127.0.0.1:{port}"
    with ended(process):
        deadline = time.monotonic() + START_S
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                msg = f"{command[0]} did not start: {Path(log).read_text()[-2000:]}"
                raise RuntimeError(msg)
            try:
                call(address)
            except urllib.error.HTTPError:
                break  # it answers
            except OSError:
                time.sleep(0.05)
            else:
                break
        yield address


@contextmanager
def ministack(log):
    """Start ministack, an emulator of S3 and more; yield its address.

    Raises:
        ServerMissingError: it is not installed.
    """
    program = server("ministack", "CHUNKFLOW_TEST_MINISTACK")
    if program is None:
        msg = "ministack is not installed; run python tests/rigs/build.py"
        raise ServerMissingError(msg)
    port = _free_port()
    environment = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port)}
    with _listening([str(program)], port, log, environment) as address:
        yield address


# It checks If-Match and If-None-Match, then stores the object, without a lock. S3 does both in one
# step.
MOTO = """
from threading import Lock
from moto.s3.responses import S3Response
from moto.server import main

put_object, lock = S3Response.put_object, Lock()

def one_at_a_time(self):
    with lock:
        return put_object(self)

S3Response.put_object = one_at_a_time
main()
"""


@contextmanager
def moto(log):
    """Start moto's server, another emulator of S3; yield its address."""
    port = _free_port()
    command = [sys.executable, "-c", MOTO, "-H", "127.0.0.1", "-p", str(port)]
    with _listening(command, port, log) as address:
        yield address


# Its own program would listen on every interface of the machine.
FAUXQS = """
import { buildApp } from "fauxqs";
const app = buildApp({ logger: false, host: "127.0.0.1" });
await app.listen({ host: "127.0.0.1", port: Number(process.argv[2]) });
"""


@contextmanager
def fauxqs(folder):
    """Start fauxqs, an emulator of SQS that is quick and true to stale handles; yield its address.

    While several long polls wait, the first message wakes all of them: most return nothing.

    Args:
        folder: an empty one, for its log and what starts it.

    Raises:
        ServerMissingError: it is not installed.
    """
    found = node()
    if found is None:
        msg = "fauxqs is not installed; run python tests/rigs/build.py"
        raise ServerMissingError(msg)
    program, packages = found
    folder = Path(folder)
    script = folder / "fauxqs.mjs"
    script.write_text(FAUXQS)
    (folder / "node_modules").symlink_to(packages)  # where imports of the script are looked up
    port = _free_port()
    with _listening([str(program), str(script), str(port)], port, folder / "log") as address:
        yield address


class Faults:
    """The remote control of a fault proxy; works from any process that knows its address.

    Args:
        address: of the proxy.
        process: that is the proxy, in the process that has started it.
    """

    def __init__(self, address, process=None):
        self.address, self.process = address, process

    def set(self, *rules, seed=0):
        """Replace the rules, see `rigs.proxy`, and start the log of requests anew."""
        call(f"{self.address}/_fault", json.dumps({"rules": rules, "seed": seed}).encode())

    def log(self):
        """Return the requests since the rules were set.

        Each has method, path, headers, at (seconds of the monotonic clock), fault, status.
        """
        return json.loads(call(f"{self.address}/_fault"))

    @contextmanager
    def silent(self):
        """Let the proxy sleep: its connections stay open, new ones are made, nothing answers."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    @contextmanager
    def __call__(self, *rules, seed=0):
        """Inject faults inside the block; yields this object, whose log may be asked for."""
        self.set(*rules, seed=seed)
        try:
            yield self
        finally:
            self.set()


@contextmanager
def proxy(upstream, *options):
    """Start a fault proxy before a server; yield its `Faults`.

    Args:
        upstream: address of the server.
        options: of `rigs.proxy`, such as ``--google``.
    """
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("proxy.py")), upstream, *options],
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with ended(process), suppress(BrokenPipeError), process.stdin, process.stdout:
        address = process.stdout.readline().strip()
        if not address:
            msg = "the fault proxy did not start"
            raise RuntimeError(msg)
        yield Faults(address, process)
