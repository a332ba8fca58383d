"""The live page: who may read it, what is in it, and that nobody else's words become part of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import aiohttp
import pytest

from pdplugins.errors import ConfigError, HostError
from pdplugins.report import server
from pdplugins.report.address import Address
from pdplugins.report.connections import Connections
from pdplugins.report.live import LONGEST, MOST_DECISIONS, MOST_MOMENTS, Gauge, Live, Now, by_role
from pdplugins.report.server import MOST_CONNECTIONS, Dashboard
from tests.report import browser

pytestmark = pytest.mark.timeout(600)

EVIL = '</title></style><script>alert(1)</script><img src=x onerror=alert(1)>" onload="alert(1)\u202e' + "x" * 5000


def now(text: str = "as it is", share: float = 99.0) -> Now:
    return Now(
        f"{text}: {share:g} %",
        lines=[text],
        facts={"requests/s": 3.5, text[:50]: text},
        gauges=[
            Gauge("Inside both SLOs", "% of requests", {"": share}, share=True),
            Gauge("Requests that wait", "requests", by_role(3, None)),
            Gauge("Time to first token", "s", {"P50": 0.2, text[:60]: 0.9}, objective=2.0, step=False),
        ],
        workers=[(text, "prefill", text), ("w2", "decode", "ready")],
        worker_titles=("worker", "role", "state"),
        settings={"model": text, "command": f"serve --api-key {'s3cret' * 4}"},
    )


def filled(text: str = "as it is") -> Live:
    live = Live()
    for second in range(30):
        live.show(float(second), now(text))
    live.decided(3.0, f"3P1D {text}", f"because {text}")
    return live


@asynccontextmanager
async def served(live: Live, host: str = "127.0.0.1") -> AsyncIterator[tuple[Dashboard, aiohttp.ClientSession]]:
    dashboard = Dashboard(live, Address(host, 0))
    await dashboard.start()
    async with aiohttp.ClientSession() as session:
        yield dashboard, session
    await dashboard.stop()


def test_an_address_of_another_machine_is_one_line() -> None:
    said = r"^--dashboard: cannot listen on 192\.0\.2\.1:0 \(.*\); 192\.0\.2\.1 is no address of this machine"
    with pytest.raises(HostError, match=said):
        asyncio.run(Dashboard(Live(), Address("192.0.2.1", 0)).start())


@pytest.mark.parametrize(
    ("text", "public", "address"),
    [
        (None, False, None),
        ("9000", False, Address("127.0.0.1", 9000)),
        ("127.0.0.5:9000", False, Address("127.0.0.5", 9000)),
        ("[::1]:9000", False, Address("::1", 9000)),
        ("localhost:9000", False, Address("localhost", 9000)),
        ("0.0.0.0:9000", True, Address("0.0.0.0", 9000)),  # noqa: S104 - asked for
    ],
)
def test_an_address_is_of_this_machine_unless_asked_plainly(
    text: str | None, public: bool, address: Address | None
) -> None:
    assert Address.read(text, public=public) == address


@pytest.mark.parametrize(
    ("text", "public", "why"),
    [
        ("0.0.0.0:9000", False, "others could read it there, and it asks for no key; .* say --dashboard-public"),
        ("[::]:9000", False, "--dashboard-public"),
        ("10.0.0.3:9000", False, "--dashboard-public"),
        ("some-name:9000", False, "--dashboard-public"),
        ("99999", False, "no HOST:PORT"),
        ("::1:9000", False, "no HOST:PORT"),
        (None, True, "add --dashboard"),
    ],
)
def test_another_address_is_refused(text: str | None, public: bool, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Address.read(text, public=public)


def test_it_is_read_only_and_says_so_to_browsers() -> None:
    async def ask() -> None:
        async with served(filled()) as (dashboard, session):
            async with session.get(dashboard.url) as answer:
                text = await answer.text()
                assert answer.status == 200
                assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
                assert answer.headers["Server"] == "pdplugins"
            assert text.index("as it is: 99 %") < text.index("Inside both SLOs") < text.index("Requests that wait")
            assert "because as it is" in text
            assert "s3cret" not in text
            for method, path, status in (
                ("POST", "/", 405),
                ("DELETE", "/", 405),
                ("GET", "/workers", 404),
                ("GET", "/../pdplugins/report/live.py", 404),
                ("GET", "/live.js", 200),
                ("GET", "/style.css", 200),
            ):
                async with session.request(method, f"{dashboard.url}{path}") as answer:
                    assert answer.status == status
                    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1", 200), ("localhost:8090", 200), ("[::1]:3", 200), ("evil.example", 403), ("evil.example:8090", 403)],
)
def test_a_name_that_leads_here_is_not_enough(host: str, status: int) -> None:
    """A page of another site can have its own name lead to this machine; the browser says which name it used."""

    async def ask() -> None:
        async with (
            served(filled()) as (dashboard, session),
            session.get(dashboard.url, headers={"Host": host}) as answer,
        ):
            assert answer.status == status
            assert ("as it is" in await answer.text()) == (status == 200)

    asyncio.run(ask())


def test_a_taken_port_is_one_line() -> None:
    async def start() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(HostError, match="choose another port"):
            await Dashboard(Live(), Address("127.0.0.1", taken.getsockname()[1])).start()

    asyncio.run(start())


class Crowd:
    """Connections of a stranger, who reads whatever comes."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])
        self._writers: list[asyncio.StreamWriter] = []
        self._ends: list[asyncio.Task[bytes]] = []

    async def grow(self, count: int, say: bytes = b"") -> None:
        """Open more, and say something on each."""
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(say)
            self._writers.append(writer)
            self._ends.append(asyncio.create_task(reader.read()))

    async def left(self, most: int) -> int:
        """Wait until no more than so many are open. Return how many are."""
        async with asyncio.timeout(30):
            while (count := sum(not end.done() for end in self._ends)) > most:
                await asyncio.sleep(0.01)
        return count

    async def leave(self) -> None:
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*self._ends, return_exceptions=True)


@pytest.mark.parametrize(
    "say",
    [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"GET /style.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"],
    ids=["silent", "half a request", "idle behind an answer"],
)
def test_connections_that_wait_keep_nobody_out(say: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def crowded() -> None:
        async with served(filled()) as (dashboard, session):
            crowd = Crowd(dashboard.url)
            await crowd.grow(MOST_CONNECTIONS + 20, say)
            for _ in range(3):
                async with session.get(dashboard.url) as answer:
                    assert answer.status == 200
            assert await crowd.left(MOST_CONNECTIONS) >= MOST_CONNECTIONS - 1, "no more make room than is needed"
            await crowd.leave()

    asyncio.run(crowded())
    assert caplog.text == ""


def test_a_connection_whose_request_is_answered_keeps_its_place() -> None:
    """A new one then has none, and what ended late leaves none behind."""

    async def crowded() -> list[str]:
        connections, server = Connections(2), SimpleNamespace(connection_made=Mock(), connection_lost=Mock())
        connections.guard(cast(Any, server))
        ours = {name: Mock() for name in ("first", "second", "third", "fourth")}
        for name in ("first", "second"):
            server.connection_made(name, ours[name])
            connections.begins(cast(Any, name))
        server.connection_made("third", ours["third"])
        server.connection_lost("second")
        connections.ends(cast(Any, "second"))
        server.connection_made("fourth", ours["fourth"])
        await asyncio.sleep(0)
        return [name for name, transport in ours.items() if transport.abort.called]

    assert asyncio.run(crowded()) == ["third"]


def test_a_connection_that_has_no_place_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 0)

    async def refused() -> None:
        async with served(filled()) as (dashboard, _):
            crowd = Crowd(dashboard.url)
            await crowd.grow(3)
            assert await crowd.left(0) == 0
            await crowd.leave()

    asyncio.run(refused())
    assert caplog.text == ""


def test_what_is_no_http_fills_no_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(server.HTTP_LOG, "filters", [server.Seldom()])

    async def ask() -> None:
        async with served(filled()) as (dashboard, _):
            for _ in range(20):
                crowd = Crowd(dashboard.url)
                await crowd.grow(1, b"GET / HTTP/1.1\r\nHost: a\x1b[2J\r\nHost: b\r\n\r\n")
                assert await crowd.left(0) == 0
                await crowd.leave()

    asyncio.run(ask())
    assert len(caplog.text.splitlines()) == 1, caplog.text
    assert "\x1b" not in caplog.text
    assert "no HTTP" in caplog.text


def test_what_it_remembers_and_shows_is_bounded() -> None:
    live = filled(EVIL)
    for second in range(3 * MOST_MOMENTS):
        live.show(float(second), now(EVIL))
        live.decided(float(second), f"no. {second}", EVIL)
    page = live.page()
    text = str(page.sections)
    assert len(text) < 300_000
    assert f"no. {3 * MOST_MOMENTS - MOST_DECISIONS}<" in text
    assert f"no. {3 * MOST_MOMENTS - MOST_DECISIONS - 1}<" not in text
    assert "x" * (LONGEST + 1) not in text
    assert "<script" not in text
    assert "<img" not in text
    assert 'onload="' not in text


@pytest.mark.moderate
def test_the_page_renews_itself_in_a_browser_whatever_strangers_write() -> None:
    browser.needs()

    async def look() -> None:
        live = filled(EVIL)
        async with served(live) as (dashboard, _), browser.chromium() as tab:
            for width in browser.WIDTHS:
                await tab.open(dashboard.url, width, dark=width == browser.WIDTHS[0])
                assert await tab.overflow() == []
                assert await tab.violations() == []
            await tab.value("document.querySelectorAll('summary')[1].focus(), document.activeElement.click()")
            live.show(40.0, now("renewed"))
            await tab.until("document.querySelector('h1').textContent.startsWith('renewed')")
            assert await tab.value("document.activeElement.tagName") == "SUMMARY"
            assert await tab.value("document.activeElement.parentElement.open")
            assert await tab.value("document.title") == "renewed: 99 % · pdplugins"
            await tab.value("document.getElementById('pause').click()")
            assert "Paused" in await tab.value("document.getElementById('state').textContent")
            assert await tab.value("document.querySelectorAll('script').length") == 1
            allowed = {f"{dashboard.url}{path}" for path in ("/", "/live.js", "/style.css", "/favicon.ico")}
            assert set(tab.requested) <= allowed
            assert tab.complaints == []

    asyncio.run(look())


@pytest.mark.moderate
def test_a_browser_says_so_when_the_process_is_gone() -> None:
    browser.needs()

    async def look() -> None:
        async with browser.chromium() as tab:
            async with served(filled()) as (dashboard, _):
                await tab.open(dashboard.url, browser.WIDTHS[1])
            await tab.until("document.getElementById('state').textContent.startsWith('No answer since')")

    asyncio.run(look())
