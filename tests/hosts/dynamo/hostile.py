"""Servers that do to a reader of pages whatever a server can do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Talk = Callable[[socket.socket, threading.Event], None]
HEAD = b"HTTP/1.1 200 OK\r\n"


def says(*parts: bytes) -> Talk:
    """Say something, then close."""
    return lambda connection, stop: connection.sendall(b"".join(parts))


def trickles(*, head: bytes = b"", piece: bytes = b"a", every_s: float = 0.05) -> Talk:
    """Say one piece after another, for ever."""

    def talk(connection: socket.socket, stop: threading.Event) -> None:
        connection.sendall(head)
        while not stop.wait(every_s):
            connection.sendall(piece)

    return talk


def silent(connection: socket.socket, stop: threading.Event) -> None:
    """Say nothing."""
    stop.wait()


NONSENSE: dict[str, Talk] = {
    "closes at once": says(),
    "no HTTP": says(b"\x00\xff\xfe garbage\r\n\r\n"),
    "no status": says(b"HTTP/1.1 \r\n\r\n"),
    "a status of words": says(b"HTTP/1.1 fine OK\r\n\r\n"),
    "too few bytes": says(HEAD, b"Content-Length: 100\r\n\r\nshort"),
    "a length of words": says(HEAD, b"Content-Length: many\r\n\r\nx"),
    "a negative length": says(HEAD, b"Content-Length: -5\r\n\r\nx"),
    "a broken chunk": says(HEAD, b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n"),
    "a chunk of less than nothing": trickles(
        head=HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", piece=b"x" * 2**20, every_s=0.0001
    ),
    "no UTF-8": says(HEAD, b"Content-Length: 4\r\n\r\n\xff\xfe\xfd\xfc"),
    "a long line": says(HEAD, b"X: " + b"a" * 100_000 + b"\r\n\r\n"),
    "many headers": says(HEAD, b"".join(b"X-%d: y\r\n" % n for n in range(500)), b"\r\n"),
    "an error": says(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"),
    "a redirect": says(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"),
    "no numbers": says(HEAD, b"\r\ndynamo_frontend_requests_started_total lots\n"),
    "an open label": says(HEAD, b'\r\ndynamo_frontend_requests_started_total{model="\n'),
    "a bucket without a bound": says(HEAD, b"\r\ndynamo_frontend_input_sequence_tokens_bucket 1\n"),
    "more and more": trickles(head=HEAD + b"\r\n", piece=b"x" * 2**20, every_s=0.0001),
}
SLOW: dict[str, Talk] = {
    "says nothing": silent,
    "trickles a status": trickles(),
    "trickles headers": trickles(head=HEAD, piece=b"X: y\r\n"),
    "trickles a body": trickles(head=HEAD + b"Content-Length: 1000000\r\n\r\n"),
    "trickles chunks": trickles(head=HEAD + b"Transfer-Encoding: chunked\r\n\r\n", piece=b"1\r\na\r\n"),
    "goes on and on": trickles(head=b"", piece=b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@contextmanager
def server(talk: Talk) -> Iterator[str]:
    """Serve on this machine until the block ends; yields the URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def serve(connection: socket.socket) -> None:
        try:
            with connection:
                connection.recv(65536)
                talk(connection, stop)
        except OSError:
            pass  # the reader has left

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=[connection], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
