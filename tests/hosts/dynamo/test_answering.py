"""A frontend answers when it lists the model and has opened the routes; it opens them a moment later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from pdplugins.hosts.dynamo.answering import ROUTES, answers

LISTED = b'{"object":"list","data":[{"id":"tiny","object":"model"}]}'


@contextmanager
def frontend(statuses: Mapping[str, int], models: bytes = LISTED) -> Iterator[str]:
    """A server that lists models, and answers with these statuses else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            listing = self.path == "/v1/models"
            self.send_response(200 if listing else statuses[self.path])
            self.end_headers()
            self.wfile.write(models if listing else b"")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_it_answers_when_all_routes_are_open() -> None:
    with frontend(dict.fromkeys(ROUTES, 405)) as url:
        assert answers(url, "tiny")
        assert not answers(url, "another")


@pytest.mark.parametrize("late", ROUTES)
@pytest.mark.parametrize("status", [404, 503])
def test_a_listed_model_does_not_answer_before_its_routes_are_open(late: str, status: int) -> None:
    with frontend(dict.fromkeys(ROUTES, 405) | {late: status}) as url:
        assert not answers(url, "tiny")


def test_nobody_there_is_an_oserror() -> None:
    with frontend({}) as url:
        pass
    with pytest.raises(OSError, match=r"\S"):
        answers(url, "tiny")
