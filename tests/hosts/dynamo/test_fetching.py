"""A page is read within its time, or that it was not is an OSError, whatever the server does."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.errors import ConfigError
from pdplugins.hosts.dynamo import fetching
from pdplugins.hosts.dynamo.doors.frontend import FrontendMetrics
from pdplugins.hosts.dynamo.fetching import PageError, fetch, in_thread
from pdplugins.hosts.dynamo.local.pulse import Pulse, PulseTaker
from pdplugins.types import Slo
from tests.hosts.dynamo.hostile import HEAD, NONSENSE, SLOW, Talk, says, server

IDLE = "dynamo_frontend_disconnected_clients 0\n"
PAGE = b"dynamo_frontend_inflight_requests 3\n"
LACKED = 255
"""A family of addresses that no machine has."""


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
    assert took_s[1] < took_s[0] + 5, "it would go on for ever"


NAMES = st.sampled_from(
    [
        *("requests_started_total", "input_sequence_tokens_bucket", "input_sequence_tokens_sum", "inflight_requests"),
        *("time_to_first_token_seconds_bucket", "time_to_first_token_seconds_count", "x"),
    ]
)
LABELS = st.sampled_from(
    ["", "{}", '{le="1"}', '{le="+Inf"}', '{le="x"}', '{model="m"}', "{le=", '{a="b",', "{,}", '{le=""}']
)
VALUES = st.sampled_from(["0", "1", "-1", "NaN", "1e999", "-Inf", "", "x", "1 2 3", "0x1"])
LINES = st.builds("dynamo_frontend_{}{} {}".format, NAMES, LABELS, VALUES) | st.text(max_size=20)


@given(st.lists(st.lists(LINES, max_size=6).map("\n".join), min_size=2, max_size=3))
def test_any_page_is_traffic_or_an_oserror(pages: list[str]) -> None:
    """The window goes on to the next good page."""
    left = [*pages, *pages, IDLE]
    times = iter(range(100))
    metrics = FrontendMetrics("http://f", fetch=lambda url: left.pop(0), clock=lambda: float(next(times)))
    taker = PulseTaker("http://f", Slo(2.0, 0.08), fetch=lambda url: left[0])
    while left:
        with suppress(OSError):
            taker.take()
        with suppress(OSError):
            metrics.collect()
    left.extend([IDLE] * 3)
    assert isinstance(taker.take(), Pulse)
    metrics.collect()
    assert (traffic := metrics.collect()) is not None
    assert traffic.requests == 0


def test_nobody_there_is_an_oserror() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", "http://name.invalid"):
        with pytest.raises(OSError, match=r"\S"):
            fetch(url)


@contextmanager
def full() -> Iterator[tuple[str, int]]:
    """Yields the address of a listener that completes no connection: its backlog is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as waiting:
        for _ in range(3):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        yield listener.getsockname()


def finds(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[int, tuple[str, int]]) -> None:
    """Have every name lead to these addresses."""
    found = [(family, socket.SOCK_STREAM, 0, "", address) for family, address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", Mock(return_value=found))


def test_an_address_of_a_family_that_this_machine_lacks_leaves_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `::1 localhost` does in /etc/hosts where IPv6 is disabled."""
    with server(says(HEAD, b"\r\n", PAGE)) as url:
        there = "127.0.0.1", int(url.rpartition(":")[2])
        finds(monkeypatch, (LACKED, there), (socket.AF_INET, there))
        assert fetch(url) == PAGE.decode()
        finds(monkeypatch, (LACKED, there))
        with pytest.raises(OSError, match="not supported"):
            fetch(url)


def test_an_address_that_is_silent_leaves_the_next_one_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with full() as silent, server(says(HEAD, b"\r\n", PAGE)) as url:
        there = "127.0.0.1", int(url.rpartition(":")[2])
        finds(monkeypatch, (socket.AF_INET, silent), (socket.AF_INET, there))
        assert fetch(url, 6.0) == PAGE.decode()
        finds(monkeypatch, (socket.AF_INET, silent), (socket.AF_INET, silent))
        with pytest.raises(TimeoutError):
            fetch(url, 0.2)


def test_a_name_server_that_does_not_answer_costs_the_deadline_and_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    hang, asked = threading.Event(), list[object]()

    def never(*name: object, **more: object) -> list[object]:
        asked.append(name)
        hang.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", never)
    try:
        for _ in range(3):
            with pytest.raises(TimeoutError, match="no address of slow in time"):
                fetch("http://slow", 0.05)
        with pytest.raises(TimeoutError):
            FrontendMetrics("http://slow,http://slower", fetch=lambda url: fetch(url, 0.05)).collect()
        assert sorted(asked) == [("slow", 80), ("slower", 80)]
    finally:
        hang.set()


def test_a_name_is_looked_up_anew_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(says(HEAD, b"\r\n", PAGE)) as url:
        assert fetch(url) == fetch(url) == PAGE.decode()
        gone = socket.gaierror(socket.EAI_NONAME, "no such name")
        monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=gone))
        with pytest.raises(socket.gaierror, match="no such name"):
            fetch(url)


def test_no_thread_for_a_name_is_an_oserror_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(says(HEAD, b"\r\n", PAGE)) as url:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
            with pytest.raises(OSError, match="can't start new thread"):
                fetch(url)
            with pytest.raises(OSError, match="can't start new thread"):
                FrontendMetrics(f"{url},{url}").collect()
        assert fetch(url) == PAGE.decode()


@pytest.mark.parametrize("url", ["http://[::1", "frontend:8000", "http://u:p@frontend", "http://a:99999"])
def test_a_frontend_url_is_checked_when_it_is_given(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^frontend_url: "):
        FrontendMetrics(url)


@pytest.mark.moderate
@pytest.mark.parametrize("how", ["no HTTP", "too few bytes", "an error", "no UTF-8"])
def test_the_pulse_goes_on_whatever_the_frontend_answers(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its status shows dashes; what is wrong is logged once; nobody takes it for a frontend that hangs."""
    pulses: list[Pulse] = []

    async def story(url: str) -> None:
        watch = asyncio.create_task(PulseTaker(url, Slo(2.0, 0.08)).watch(pulses.append, every_s=0.01, silent_s=0.05))
        while len(pulses) < 20:
            assert not watch.done()
            await asyncio.sleep(0.01)
        watch.cancel()

    with server(NONSENSE[how]) as url:
        asyncio.run(story(url))
    assert set(pulses) == {Pulse()}
    assert len([line for line in caplog.messages if "further ones are not logged" in line]) == 1


def test_the_pulse_tells_of_a_frontend_that_hangs() -> None:
    pulses: list[Pulse] = []

    async def story(url: str) -> str:
        taker = PulseTaker(url, Slo(2.0, 0.08), fetch=lambda url: fetch(url, 0.05))
        return await taker.watch(pulses.append, every_s=0.01, silent_s=2.0)

    with server(SLOW["trickles headers"]) as url:
        said = asyncio.run(story(url))
    assert said.startswith("Dynamo's frontend has not answered for 2 s (")
    assert len(pulses) > 1


def test_a_call_in_a_thread_gives_its_result_or_raises() -> None:
    def fail() -> None:
        raise PageError("no page")

    async def story() -> None:
        assert await in_thread(lambda: 3) == 3
        with pytest.raises(PageError, match="no page"):
            await in_thread(fail)

    asyncio.run(story())


def test_a_machine_without_a_thread_left_is_an_oserror(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def story() -> None:
        monkeypatch.setattr(threading.Thread, "start", none_left)
        with pytest.raises(OSError, match="can't start new thread"):
            await in_thread(lambda: 3)

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
    assert left.wait(60)
