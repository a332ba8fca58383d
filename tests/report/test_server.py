"""The live page: who may read it, what is in it, and that nobody else's words become part of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from pdplugins.errors import ConfigError, HostError
from pdplugins.report.address import Address
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


def test_connections_are_bounded_and_new_ones_fit_again() -> None:
    async def crowd() -> None:
        async with served(filled()) as (dashboard, session):
            port = int(dashboard.url.rpartition(":")[2])
            crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST_CONNECTIONS + 20)]
            with pytest.raises(aiohttp.ClientError):
                await session.get(dashboard.url)
            for _, writer in crowd:
                writer.close()
            async with asyncio.timeout(30):
                while True:
                    try:
                        async with session.get(dashboard.url) as answer:
                            assert answer.status == 200
                            return
                    except aiohttp.ClientError:
                        await asyncio.sleep(0.05)

    asyncio.run(crowd())


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
