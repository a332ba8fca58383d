"""A page is read within its time, or that it was not is an OSError, whatever the server does."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest

from pdplugins.errors import ConfigError
from pdplugins.hosts.dynamo import fetching
from pdplugins.hosts.dynamo.doors.frontend import FrontendMetrics
from pdplugins.hosts.dynamo.fetching import PageError, fetch, in_thread
from pdplugins.hosts.dynamo.local.pulse import PulseTaker
from pdplugins.types import Slo
from tests.hosts.dynamo.hostile import HEAD, NONSENSE, SLOW, Talk, says, server

PAGE = b"dynamo_frontend_inflight_requests 3\n"


@pytest.fixture(autouse=True)
def proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that does not answer is of no concern."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


@pytest.mark.parametrize(
    "talk",
    [
        says(HEAD, b"Content-Length: 36\r\n\r\n", PAGE),
        says(HEAD, b"\r\n", PAGE),
        says(HEAD, b"Transfer-Encoding: chunked\r\n\r\n24\r\n", PAGE, b"\r\n0\r\n\r\n"),
        says(b"HTTP/1.1 100 Continue\r\n\r\n", HEAD, b"\r\n", PAGE),
    ],
)
def test_a_page_is_read_however_it_is_sent(talk: Talk) -> None:
    with server(talk) as url:
        assert fetch(f"{url}/metrics") == PAGE.decode()


@pytest.mark.parametrize("how", NONSENSE)
def test_nonsense_is_an_oserror_for_everyone_who_reads(how: str) -> None:
    with server(NONSENSE[how]) as url:
        with pytest.raises(OSError, match=r"\S"):
            FrontendMetrics(url).collect()
        if "requests_started" in how or "bucket" in how or "number" in how or "label" in how:
            return  # the pulse has no use for that line
        with pytest.raises(OSError, match=r"\S"):
            PulseTaker(url, Slo(2.0, 0.08)).take()


@pytest.mark.moderate
@pytest.mark.parametrize("how", SLOW)
def test_a_slow_server_costs_the_deadline_and_no_more(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a control: the same deadline with a server that says nothing at all."""
    with server(SLOW[how]) as url, server(SLOW["says nothing"]) as control:
        took_s = []
        for one in (control, url):
            began_s = time.monotonic()
            with pytest.raises(TimeoutError):
                fetch(one, 0.5)
            took_s.append(time.monotonic() - began_s)
    assert took_s[1] < took_s[0] + 1.0


def test_nobody_there_is_an_oserror() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", "http://name.invalid"):
        with pytest.raises(OSError, match=r"\S"):
            fetch(url)


@pytest.mark.parametrize("url", ["http://[::1", "frontend:8000", "http://u:p@frontend", "http://a:99999"])
def test_a_frontend_url_is_checked_when_it_is_given(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^frontend_url: "):
        FrontendMetrics(url)


def test_a_call_in_a_thread_gives_its_result_or_raises() -> None:
    def fail() -> None:
        raise PageError("no page")

    async def story() -> None:
        assert await in_thread(lambda: 3) == 3
        with pytest.raises(PageError, match="no page"):
            await in_thread(fail)

    asyncio.run(story())


def test_a_call_that_hangs_keeps_nobody_from_ending() -> None:
    """`asyncio.run` returns while it hangs; its late result is dropped."""
    hang, left = threading.Event(), threading.Event()

    def call() -> None:
        hang.wait()
        left.set()

    async def story() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(fetching.in_thread(call), 0.05)

    asyncio.run(story())
    hang.set()
    assert left.wait(5)
