"""A proxy before a server, which injects faults by rules: `python proxy.py http://127.0.0.1:1234`.

It listens on a free port of loopback, prints its address, and ends when its standard input does.
`POST /_fault` with `{"rules": [...], "seed": 0}` replaces the rules and empties the log of requests
that `GET /_fault` returns. The first rule that matches a request is applied:

| type        | fault                                                             | settings     |
|-------------|-------------------------------------------------------------------|--------------|
| latency     | wait, then go on to the next rules                                | s            |
| skew        | say another Date in the answer; go on                             | s            |
| without     | keep a header from the server; go on                              | header       |
| status      | answer instead of the server                                      | code, body   |
| status_late | the server acts, the answer is another                            | code, body   |
| reset       | drop the connection before the server hears of the request        |              |
| reset_after | the server acts, its answer is lost                               |              |
| truncate    | send the head of the answer and half of its body, then drop       |              |
| stall       | the server acts, its answer never comes                           |              |
| drip        | the server acts, its answer comes byte by byte, one in s seconds  | s            |
| late        | the server acts, its answer comes s seconds later                 | s            |
| refuse      | entries of a batch of SQS, each with probability `share`, are not | share, code, |
|             | sent on and stand under Failed in the answer                      | sender       |

Every rule may be narrowed by `method`, `path` and `target` (regular expressions; the second is
searched for in path and query, the third in the header X-Amz-Target, which names an action of
SQS), `p` (a probability), and `count` (how often it is applied in all).

With `--google` it takes requests to Google Cloud Storage to an S3 server. The XML interface of the
former is that of the latter but for the names of a few headers. This is a rig for our side of the
talk; it proves nothing about Google's.
"""

import asyncio
import json
import random
import re
import socket
import struct
import sys
import time
from contextlib import suppress
from email.utils import formatdate

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

SLOW_DOWN = (
    "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
# These say how one connection carries the message, not what the message is.
HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding")


class FaultProxy:
    """Forwards every request to one server, but for what the rules say."""

    def __init__(self, upstream):
        self.upstream = upstream
        self.set({"rules": []})

    def set(self, wanted):
        """Replace the rules and start the log anew."""
        self.rules = [dict(rule) for rule in wanted["rules"]]
        self.random = random.Random(wanted.get("seed", 0))
        self.log = []
        self.under_way = []

    def applies(self, rule, request):
        """Tell whether a rule is to be applied, and count it."""
        if not re.fullmatch(rule.get("method", ".*"), request.method):
            return False
        if not re.search(rule.get("path", ""), request.raw_path):
            return False
        if not re.search(rule.get("target", ""), request.headers.get("X-Amz-Target", "")):
            return False
        if rule.get("count") == 0 or self.random.random() >= rule.get("p", 1):
            return False
        if rule.get("count") is not None:
            rule["count"] -= 1
        return True

    async def control(self, request):
        """Set the rules, or return the log."""
        if request.method == "POST":
            self.set(await request.json())
        return web.json_response(self.log)

    async def handle(self, request):
        """Answer one request."""
        # Both are of the time when it came: it may sleep until the next test.
        log, under_way = self.log, self.under_way
        under_way.append(request)
        try:
            return await self.answer(request, log)
        finally:
            under_way.remove(request)

    async def answer(self, request, log):
        """Answer one request, or not."""
        body = await request.read()
        fault, skew_s, without = None, 0.0, set()
        for rule in self.rules:
            if not self.applies(rule, request):
                continue
            if rule["type"] == "latency":
                await asyncio.sleep(rule["s"])
            elif rule["type"] == "skew":
                skew_s += rule["s"]
            elif rule["type"] == "without":
                without.add(rule["header"].lower())
            else:
                fault = rule
                break
        kind = fault["type"] if fault else "none"
        record = {"method": request.method, "path": request.raw_path, "fault": kind}
        record["headers"] = dict(request.headers)
        record["at"] = time.monotonic()
        record["under_way"] = len(self.under_way)
        log.append(record)
        refused = []
        if kind == "refuse":
            body, refused = self.refuse(fault, body)
            record["refused"] = len(refused)
        if kind == "status":
            return self.other(fault)
        if kind == "reset":
            return self.reset(request)
        own = (*HOP_BY_HOP, "content-length") if refused else HOP_BY_HOP
        async with self.session.request(
            request.method,
            self.upstream + request.raw_path,
            headers=self.to_server(
                {k: v for k, v in request.headers.items() if k.lower() not in {*own, *without}}
            ),
            data=body,
            allow_redirects=False,
        ) as answer:
            content = await answer.read()
            headers = self.to_client(answer.headers.copy())
        if skew_s:
            headers["Date"] = formatdate(time.time() + skew_s, usegmt=True)
        record["status"] = answer.status
        for name in HOP_BY_HOP:
            headers.popall(name, None)
        if kind == "status_late":
            return self.other(fault)
        if kind == "reset_after":
            return self.reset(request)
        if kind == "truncate" and len(content) > 1:
            return await self.truncate(request, answer.status, headers, content)
        if kind == "stall":
            await asyncio.Event().wait()  # until the client goes
        if kind == "late":
            await asyncio.sleep(fault["s"])
        if kind == "drip":
            return await self.drip(request, answer.status, headers, content, fault["s"])
        if refused:
            said = json.loads(content)
            said["Failed"] = [*said.get("Failed", []), *refused]
            content = json.dumps(said).encode()
            for name in ("Content-Length", "x-amz-crc32"):
                headers.popall(name, None)
        return web.Response(status=answer.status, headers=headers, body=content)

    def other(self, rule):
        """Return an answer that is not the server's."""
        text = rule.get("body", SLOW_DOWN)
        return web.Response(status=rule.get("code", 503), text=text, content_type="application/xml")

    def refuse(self, rule, body):
        """Take entries out of a batch; return it without them, and what the answer says of them.

        One is always left, for a batch of none is an error of another kind.
        """
        said = json.loads(body)
        entries = said["Entries"]
        chosen = [each for each in entries if self.random.random() < rule.get("share", 1)]
        chosen = chosen[: len(entries) - 1]
        said["Entries"] = [each for each in entries if each not in chosen]
        failed = {
            "Code": rule.get("code", "InternalError"),
            "SenderFault": rule.get("sender", False),
            "Message": "refused by the rig",
        }
        refused = [{"Id": each["Id"], **failed} for each in chosen]
        return json.dumps(said).encode(), refused

    def to_server(self, headers):
        """Return the headers of a request as the server is to have them."""
        return headers

    def to_client(self, headers):
        """Return the headers of an answer as the client is to have them."""
        return headers

    def reset(self, request):
        """Close the connection by RST, as a server that dies."""
        if request.transport is not None:
            peer = request.transport.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            request.transport.abort()
        return web.Response()

    async def truncate(self, request, status, headers, content):
        """Send half of what the head of the answer promises."""
        headers["Content-Length"] = str(len(content))
        response = web.StreamResponse(status=status, headers=headers)
        with suppress(ConnectionError):
            await response.prepare(request)
            await response.write(content[: len(content) // 2])
        if request.transport is not None:
            request.transport.close()
        return response

    async def drip(self, request, status, headers, content, seconds):
        """Send a byte now and then, so that no time-out between bytes ever ends it."""
        headers["Content-Length"] = str(len(content))
        response = web.StreamResponse(status=status, headers=headers)
        with suppress(ConnectionError):
            await response.prepare(request)
            for byte in content:
                await response.write(bytes([byte]))
                await asyncio.sleep(seconds)
        return response

    async def run(self):
        """Serve until standard input ends."""
        application = web.Application(client_max_size=1 << 40)
        application.router.add_route("*", "/_fault", self.control)
        application.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(application, access_log=None, auto_decompress=False)
        # The server may close a connection that it kept; each request gets a new one, so that no
        # fault happens but those asked for.
        connector = TCPConnector(limit=0, force_close=True)
        timeout = ClientTimeout(total=None)
        async with ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False, requote_redirect_url=False
        ) as self.session:
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = site._server.sockets[0].getsockname()
            print(f"http://{host}:{port}", flush=True)  # noqa: T201 what the caller waits for
            await asyncio.to_thread(sys.stdin.read)


class GoogleProxy(FaultProxy):
    """Translates between the headers of Google Cloud Storage and those of S3."""

    def to_server(self, headers):
        """A generation stands for a version; none is 0; tokens are not checked."""
        translated = {}
        for name, value in headers.items():
            lower = name.lower()
            if lower == "x-goog-if-generation-match" and value == "0":
                translated["If-None-Match"] = "*"
            elif lower == "x-goog-if-generation-match":
                translated["If-Match"] = f'"{int(value):032x}"'
            elif lower != "authorization":
                translated[re.sub("(?i)^x-goog-", "x-amz-", name)] = value
        return translated

    def to_client(self, headers):
        """The version of an object becomes a number."""
        for name in [name for name in headers if name.lower().startswith("x-amz-")]:
            headers[re.sub("(?i)^x-amz-", "x-goog-", name)] = headers.pop(name)
        etag = headers.get("ETag", "").strip('"')
        if re.fullmatch("[0-9a-f]{32}", etag):
            headers["x-goog-generation"] = str(int(etag, 16))
        return headers


if __name__ == "__main__":
    proxy_class = GoogleProxy if "--google" in sys.argv[2:] else FaultProxy
    asyncio.run(proxy_class(sys.argv[1]).run())
