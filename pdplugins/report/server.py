"""Serves a live page to browsers of this machine: read-only, bounded, and with nothing from anywhere else in it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic

from aiohttp import web
from aiohttp.http import HttpProcessingError
from aiohttp.typedefs import Handler

from pdplugins.errors import cannot_listen, printable
from pdplugins.processes.addresses import is_loopback
from pdplugins.report.address import Address
from pdplugins.report.connections import Connections
from pdplugins.report.html import Html, element
from pdplugins.report.layout import STYLE, whole
from pdplugins.report.live import Live

HTTP_LOG = logging.getLogger("pdplugins.report.http")
"""What aiohttp says of requests that are no HTTP, and of a page that could not be made."""
SCRIPT = Path(__file__).with_name("live.js")
FRESH_S = 1.0
"""A page is made at most so often, however many look at it."""
MOST_CONNECTIONS = 64
IDLE_S = 15.0
LONGEST_LINE, MOST_HEADERS = 4096, 64
"""Bytes of a line of a request's head, and its headers."""
LOG_EVERY_S = 10.0
"""One line in so long says that somebody sends what is no HTTP."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "pdplugins",
}


class Seldom(logging.Filter):
    """Makes one line of what strangers cause, without what they sent, and lets it pass now and then."""

    def __init__(self) -> None:
        super().__init__()
        self._next_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether to log a record. One of an error of ours is left as it is."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        now_s = monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + LOG_EVERY_S
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg = f"the dashboard: {printable(record.getMessage())}: it is no HTTP ({type(error).__name__})"
        record.args, record.exc_info = (), None
        return True


HTTP_LOG.addFilter(Seldom())


class Dashboard:
    """The page of `live`, served at `url` from `start` to `stop`."""

    def __init__(self, live: Live, address: Address) -> None:
        self._live = live
        self._address = address
        self._made = ""
        self._made_s = -FRESH_S
        self._making = asyncio.Lock()
        self._connections = Connections(MOST_CONNECTIONS)
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen. Raises HostError when that cannot be."""
        app = web.Application(middlewares=[self._guarded], client_max_size=1)
        app.router.add_get("/", self._page)
        app.router.add_get("/live.js", self._file(SCRIPT, "text/javascript"))
        app.router.add_get("/style.css", self._file(STYLE, "text/css"))
        self._runner = runner = web.AppRunner(
            app,
            access_log=None,
            logger=HTTP_LOG,
            keepalive_timeout=IDLE_S,
            max_line_size=LONGEST_LINE,
            max_field_size=LONGEST_LINE,
            max_headers=MOST_HEADERS,
            shutdown_timeout=0.1,
        )
        await runner.setup()
        assert runner.server is not None  # noqa: S101 - it has just been set up
        self._connections.guard(runner.server)
        site = web.TCPSite(runner, self._address.host, self._address.port)
        try:
            await site.start()
        except (OSError, UnicodeError) as error:
            await runner.cleanup()
            raise cannot_listen("--dashboard", self._address.host, self._address.port, error) from None
        host, port = runner.addresses[0][:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def stop(self) -> None:
        """Close all connections, if it has been started."""
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer those who asked for this address: a page of another site has its own name for it."""
        self._connections.begins(request.protocol)
        try:
            response = await handler(request) if self._is_ours(request) else web.Response(status=403, text="not here")
        except web.HTTPException as error:
            response = web.Response(status=error.status, text=error.reason)
        finally:
            self._connections.ends(request.protocol)
        response.headers.update(HEADERS)
        return response

    def _is_ours(self, request: web.Request) -> bool:
        if not is_loopback(self._address.host):
            return True
        name = request.host.rpartition(":")[0] if not request.host.endswith("]") else request.host
        return is_loopback((name or request.host).removeprefix("[").removesuffix("]"))

    async def _page(self, request: web.Request) -> web.Response:
        async with self._making:
            if monotonic() - self._made_s >= FRESH_S:
                self._made = await asyncio.to_thread(document, self._live)
                self._made_s = monotonic()
        return web.Response(text=self._made, content_type="text/html")

    @staticmethod
    def _file(path: Path, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        text = path.read_text(encoding="utf-8")

        async def answer(request: web.Request) -> web.Response:
            return web.Response(text=text, content_type=kind)

        return answer


def document(live: Live) -> str:
    """Return the page of this moment, which looks again by itself."""
    head = (
        element("link", rel="stylesheet", href="/style.css"),
        element("script", Html(), src="/live.js", defer=True),
        element("noscript", element("meta", http_equiv="refresh", content="5")),
    )
    controls = element(
        "footer",
        element("button", "Pause", id="pause", type="button", hidden=True),
        element("span", id="state", role="status"),
    )
    return whole(live.page(), head, controls)
