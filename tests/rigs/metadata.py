"""Metadata servers of AWS (IMDSv2) and Google on one free port of loopback.

`notices` says what is asked for: ``action``, ``rebalance`` (JSON) and ``preempted``; ``delay_s``
holds every answer back. `log` has the paths of all requests.
"""

import asyncio
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from secrets import token_hex

from aiohttp import web

PATHS = {
    "/latest/meta-data/spot/instance-action": "action",
    "/latest/meta-data/events/recommendations/rebalance": "rebalance",
}


@dataclass
class Metadata:
    """What the servers say."""

    host: str = ""
    notices: dict = field(default_factory=dict)
    delay_s: float = 0.0
    log: list = field(default_factory=list)
    tokens: set = field(default_factory=set)

    async def handle(self, request):
        """Answer one request as the clouds do, and close the connection."""
        answer = await self.answer(request)
        answer.force_close()
        return answer

    async def answer(self, request):
        """Return the answer to one request."""
        self.log.append(request.path)
        await asyncio.sleep(self.delay_s)
        if request.path == "/latest/api/token":
            if "X-aws-ec2-metadata-token-ttl-seconds" not in request.headers:
                return web.Response(status=400)
            token = token_hex(8)
            self.tokens.add(token)
            return web.Response(text=token)
        if name := PATHS.get(request.path):
            if request.headers.get("X-aws-ec2-metadata-token") not in self.tokens:
                return web.Response(status=401)
            notice = self.notices.get(name)
            return web.Response(status=404) if notice is None else web.json_response(notice)
        if request.path == "/computeMetadata/v1/instance/preempted":
            if request.headers.get("Metadata-Flavor") != "Google":
                return web.Response(status=403)
            return web.Response(text=json.dumps(bool(self.notices.get("preempted"))).upper())
        return web.Response(status=404)


@contextmanager
def metadata_server():
    """Serve until the block ends; yield what it says, whose `host` is its address."""
    metadata = Metadata()
    loop = asyncio.new_event_loop()

    async def start():
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", metadata.handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = site._server.sockets[0].getsockname()
        metadata.host = f"{host}:{port}"
        return runner

    async def stop():
        await runner.cleanup()
        # Connections that came while it closed are nobody's, and appear in one of the next turns.
        for _ in range(5):
            for transport in list(loop._transports.values()):
                transport.abort()
            await asyncio.sleep(0.02)

    runner = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield metadata
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
