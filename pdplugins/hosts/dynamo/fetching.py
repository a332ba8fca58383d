"""Reads a page over HTTP within a time, from a server that may be hung, wrong or hostile.

There is a deadline for all of it, and not for each read: a server that sends one byte a second would keep its reader
for ever. No proxy is used, whatever the environment says: the pages are those of servers on this machine or network.
"""

from __future__ import annotations

import asyncio
import errno
import io
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from http.client import HTTPResponse
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from pdplugins.errors import one_line

TIMEOUT_S = 2.0
MOST_BYTES = 2**24
"""Size of the largest page."""
MOST_READ = MOST_BYTES + 2**20
"""Bytes that are read of an answer: of the largest page, its head and the sizes of its chunks."""

T = TypeVar("T")

_LOCK = threading.Lock()
_LOOK_UPS: dict[tuple[str, int], Future[list[Any]]] = {}
"""The names that are being looked up."""


class PageError(OSError):
    """A page that cannot be read, though a server answered; `status` is that of an answer that is not 200."""

    def __init__(self, what: str, status: int | None = None) -> None:
        super().__init__(what)
        self.status = status


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Turn whatever goes wrong inside into an OSError: a server may answer anything."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {one_line(error, 100)}"
        raise PageError(f"{url} did not answer with a page of metrics ({why})") from error


def fetch(url: str, within_s: float = TIMEOUT_S) -> str:
    """Return a page. Raises OSError when that fails, or takes longer than `within_s`."""
    until_s = monotonic() + within_s
    with reading(url):
        parts = urlsplit(url)
        with _connected(parts, until_s) as connection:
            path = parts.path or "/"
            host = parts.netloc.rpartition("@")[2]
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode("ascii"))
            response = HTTPResponse(_Timed(connection, until_s), method="GET")  # type: ignore[arg-type]
            response.begin()
            if response.status != 200:
                raise PageError(f"{url} answered with status {response.status}", response.status)
            body = response.read(MOST_BYTES + 1)
        if response.length and len(body) <= MOST_BYTES:
            raise PageError(f"{url} broke off before the end of the page")
        if len(body) > MOST_BYTES:
            raise PageError(f"{url} answered with more than {MOST_BYTES // 2**20} MiB")
        return body.decode()


async def in_thread(call: Callable[[], T]) -> T:
    """Run `call` in a thread of its own, which does not keep this process from ending.

    `asyncio.to_thread` has its threads joined at the end, and a name server may take a minute not to answer. Raises
    OSError where this machine has no thread left, else what `call` raises.
    """
    loop, done = asyncio.get_running_loop(), asyncio.Future[T]()

    def tell(set_it: Callable[[], None]) -> None:
        if not done.done():  # whoever waited may have given up
            set_it()

    def work() -> None:
        try:
            result = call()
        except Exception as error:
            why = error
            _soon(loop, lambda: tell(lambda: done.set_exception(why)))
        else:
            _soon(loop, lambda: tell(lambda: done.set_result(result)))

    try:
        threading.Thread(target=work, daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, one_line(error)) from None
    return await done


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)


def _connected(parts: SplitResult, until_s: float) -> socket.socket:
    """Return a connection to the first address that has one in its share of the time. Raises what the last one did.

    Addresses share the time that is left: one that is silent leaves the next ones theirs.
    """
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    failed: OSError = PageError(f"{host} has no address")
    addresses = _addresses(host, port, until_s)
    for number, found in enumerate(addresses):
        try:
            share_s = _left_s(until_s) / (len(addresses) - number)
            return _connection(found, host if parts.scheme == "https" else None, monotonic() + share_s)
        except OSError as error:
            failed = error
    raise failed


def _connection(found: tuple[Any, ...], tls_host: str | None, until_s: float) -> socket.socket:
    """Return a connection to one of the addresses that were found, by TLS where a host is given for that."""
    family, kind, protocol, _, address = found
    connection = socket.socket(family, kind, protocol)
    try:
        connection.settimeout(_left_s(until_s))
        connection.connect(address)
        if tls_host is None:
            return connection
        connection.settimeout(_left_s(until_s))
        return ssl.create_default_context().wrap_socket(connection, server_hostname=tls_host)
    except Exception:
        connection.close()
        raise


def _addresses(host: str, port: int, until_s: float) -> list[Any]:
    """Return what `socket.getaddrinfo` does, in time. Raises OSError, or what that raises.

    Nothing ends the call itself. So it has a thread, and who asks for the same while it lasts waits for that one.
    """
    with _LOCK:
        if (found := _LOOK_UPS.get((host, port))) is None:
            found = _LOOK_UPS[host, port] = Future()
            try:
                threading.Thread(target=_look_up, args=[host, port, found], daemon=True).start()
            except RuntimeError as error:
                del _LOOK_UPS[host, port]
                raise OSError(errno.EAGAIN, one_line(error)) from None
    try:
        return found.result(_left_s(until_s))
    except TimeoutError:
        raise TimeoutError(f"no address of {one_line(host, 100)} in time") from None


def _look_up(host: str, port: int, found: Future[list[Any]]) -> None:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except Exception as error:
        _forget(host, port)
        found.set_exception(error)
    else:
        _forget(host, port)
        found.set_result(addresses)


def _forget(host: str, port: int) -> None:
    with _LOCK:
        del _LOOK_UPS[host, port]


def _left_s(until_s: float) -> float:
    if (left_s := until_s - monotonic()) <= 0:
        raise TimeoutError("no whole answer in time")
    return left_s


class _Timed(io.RawIOBase):
    """What `HTTPResponse` takes for a socket: reads end with the time for all, and with `MOST_READ` bytes.

    `HTTPResponse` keeps to no size of its own where the size of a chunk is odd.
    """

    def __init__(self, connection: socket.socket, until_s: float) -> None:
        self._connection = connection
        self._until_s = until_s
        self._left = MOST_READ

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return itself with a buffer."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read what has come."""
        self._connection.settimeout(_left_s(self._until_s))
        count = self._connection.recv_into(buffer)
        self._left -= count
        if self._left < 0:
            raise PageError(f"an answer of more than {MOST_READ // 2**20} MiB")
        return count
