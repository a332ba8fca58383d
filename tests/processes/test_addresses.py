"""Addresses: a wrong one is refused in one line, before anybody listens or connects."""

from __future__ import annotations

import pytest

from pdplugins.errors import ConfigError
from pdplugins.processes.addresses import check_url, host_and_port, is_loopback, without_proxy


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("localhost:9099", ("localhost", 9099)),
        ("[::1]:65535", ("::1", 65535)),
        ("0.0.0.0:9099", ("0.0.0.0", 9099)),  # noqa: S104 - only read
    ],
)
def test_an_address_has_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert host_and_port(text, "--listen") == address


@pytest.mark.parametrize(
    "text",
    [
        *("", ":99999", "127.0.0.1:99999", ":9099", "127.0.0.1", "127.0.0.1:", "127.0.0.1:-1", "127.0.0.1:x"),
        *("::1:9099", "[]:9", "[127.0.0.1]:9", "a:٣", "x:" + "9" * 5000),
    ],
)
def test_what_is_no_address_is_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--listen: .* is no HOST:PORT; write") as caught:
        host_and_port(text, "--listen")
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("url", ["http://127.0.0.1:30000", "https://worker.example/base", "http://[::1]:8000/"])
def test_a_url_may_be_plain_or_have_a_path(url: str) -> None:
    assert check_url(url, "--worker").hostname in url


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://[::1", "is no URL"),
        ("http://127.0.0.1:99999", "is no URL .*Port out of range"),
        ("http://127.0.0.1:x", "is no URL"),
        ("http://127.0.0.1:0", "is no URL"),
        ("ftp://127.0.0.1", "is no URL"),
        ("127.0.0.1:8000", "is no URL"),
        ("http://", "is no URL"),
        ("http://a b", "is no URL"),
        ("http://a\r\nX: y", "is no URL"),
        ("http://a?b=c", "ends before a"),
        ("http://user:hunter2@host", r"leave user and password out of 'http://\*\*\*@host'"),
        ("http://hunter2@host", "leave user and password out"),
        ("http://user:hunter2@[::1", "is no URL"),
        ("http://user:hunter2@host:99999", "is no URL"),
    ],
)
def test_what_is_no_url_is_one_line_without_the_password(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^--worker: .*{message}") as caught:
        check_url(url, "--worker")
    assert "hunter2" not in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_only_this_machine_reaches_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "127.0.0.1.example.org", ""])  # noqa: S104
def test_others_may_reach_what_is_no_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_this_machine_is_reached_without_a_proxy() -> None:
    assert without_proxy({"http_proxy": "http://p", "no_proxy": "corp"}) == {
        "http_proxy": "http://p",
        "no_proxy": "corp,localhost,127.0.0.1,::1",
        "NO_PROXY": "localhost,127.0.0.1,::1",
    }
