"""What the client of Prometheus does where the server is none, or means ill."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pdplugins.errors import ConfigError, HostError
from pdplugins.studies.backtest import prometheus
from pdplugins.studies.backtest.prometheus import Prometheus, Span
from tests.gateway.certificates import Authority

SPAN = Span(1000.0, 1060.0, 30.0)
GOOD = {
    "status": "success",
    "data": {"resultType": "matrix", "result": [{"metric": {"a": "b"}, "values": [[1030, "2"], [1060, "NaN"]]}]},
}
TOKEN = "a-token-of-a-test"


class Handler(BaseHTTPRequestHandler):
    """Answers with what the test says, and keeps what it was asked."""

    answer: Callable[[Handler], None]
    asked: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization")))
        type(self).answer(self)

    def say(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serving(
    answer: Callable[[Handler], None], tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, type[Handler]]]:
    handler = type("Own", (Handler,), {"answer": answer, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}", handler
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def good(handler: Handler) -> None:
    handler.say(json.dumps(GOOD).encode())


def test_values_come_with_their_labels_and_what_is_no_number_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    shares: list[float] = []
    with serving(good) as (url, handler):
        found = Prometheus(url + "/").ask({"x": "sum(y)", "z": "w"}, SPAN, shares.append)
    assert found["x"][0].labels == {"a": "b"}
    assert found["x"][0].points == ((1030.0, 2.0),)
    assert shares == [0.5, 1.0]
    path, token = handler.asked[0]
    assert path.startswith("/api/v1/query_range?query=sum(y)&start=1030.000&end=1060.000&step=30.000")
    assert token is None


def endless(handler: Handler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(1000):
            handler.wfile.write(b" " * 2**16)
    except OSError:
        pass


def dripping(handler: Handler) -> None:
    """A byte now and then, so that no single read takes long."""
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(200):
            handler.wfile.write(b" ")
            time.sleep(0.05)
    except OSError:
        pass


BAD: dict[str, tuple[Callable[[Handler], None], str]] = {
    "elsewhere": (lambda h: h.say(b"", 302, Location="http://example.org/"), "redirects to http://example.org/"),
    "no JSON": (lambda h: h.say(b"<html>"), "answers as no Prometheus does"),
    "deep": (lambda h: h.say(b"[" * 100_000), "answers as no Prometheus does"),
    "not found": (lambda h: h.say(b"404", 404), r"as no Prometheus does \(status 404\)"),
    "a token": (lambda h: h.say(b"", 401), "status 401; give a token by --token-file"),
    "refusal": (
        lambda h: h.say(b'{"status": "error", "error": "parse\\nerror"}', 400),
        "refuses the query: parse error",
    ),
    "a vector": (
        lambda h: h.say(json.dumps({**GOOD, "data": {"resultType": "vector", "result": []}}).encode()),
        "vector",
    ),
    "nothing": (lambda h: h.say(b'{"status": "success"}'), "something else than series"),
    "odd": (
        lambda h: h.say(b'{"status": "success", "data": {"resultType": "matrix", "result": [{"metric": 1}]}}'),
        "something else than series|is not iterable",
    ),
    "a number too large": (
        lambda h: h.say(
            b'{"status": "success", "data": {"resultType": "matrix", "result": '
            b'[{"metric": {}, "values": [[1' + b"0" * 400 + b', "1"]]}]}}'
        ),
        "something else than series",
    ),
    "huge": (endless, "larger than 1 MiB"),
    "slow": (dripping, "no whole answer within 0.5 s"),
}


@pytest.mark.moderate
@pytest.mark.parametrize("name", BAD)
def test_a_server_that_is_none_or_means_ill_is_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "MOST_BYTES", 2**20)
    answer, why = BAD[name]
    with serving(answer) as (url, handler), pytest.raises(HostError, match=why) as failed:
        Prometheus(url, timeout_s=0.5 if name == "slow" else 30.0).ask({"x": "y"}, SPAN)
    assert "\n" not in str(failed.value)
    assert len(handler.asked) == 1


def test_no_server_is_one_line_too() -> None:
    with pytest.raises(HostError, match=r"--prometheus http://127\.0\.0\.1:9: "):
        Prometheus("http://127.0.0.1:9").ask({"x": "y"}, SPAN)


@pytest.mark.moderate
def test_a_token_comes_from_a_file_or_the_environment_and_goes_over_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority.make(tmp_path / "ca")
    certificate, key = authority.sign("prometheus")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    (tmp_path / "token").write_text(TOKEN + "\n")
    with serving(good, tls) as (url, handler):
        Prometheus(url, token_file=tmp_path / "token", authorities=authority.certificate).ask({"x": "y"}, SPAN)
        monkeypatch.setenv(prometheus.TOKEN_VARIABLE, "another-token")
        Prometheus(url, authorities=authority.certificate).ask({"x": "y"}, SPAN)
        assert [token for _, token in handler.asked] == [f"Bearer {TOKEN}", "Bearer another-token"]
        with pytest.raises(HostError, match="certificate"):
            Prometheus(url).ask({"x": "y"}, SPAN)
    with pytest.raises(ConfigError, match="a token is sent over https only"):
        Prometheus("http://prometheus.example:9090")
    with pytest.raises(ConfigError, match=r"--ca .*give certificates in PEM"):
        Prometheus("https://x", authorities=tmp_path / "token")
