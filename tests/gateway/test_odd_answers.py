"""What a worker answers may be anything: it is the worker's fault, counted, and no other request's."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import ssl
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pdplugins.gateway.engines.sglang import protocol
from pdplugins.gateway.engines.sglang.calls import Call, parse
from pdplugins.gateway.engines.sglang.completions import CompletionsReply
from pdplugins.gateway.engines.sglang.upstream import Answer, Upstream, raise_error
from pdplugins.gateway.errors import RefusedError, WorkerFailedError
from pdplugins.gateway.reading import Room, content_type
from pdplugins.limits import MIB, GatewayConfig
from tests.gateway.fake import answer_of, settled, text_of, tokenize
from tests.gateway.rig import PROMPT, Fixed, ask, patient, stand
from tests.gateway.sockets import message, sockets

pytestmark = pytest.mark.moderate

ODD = [
    {"meta_info": 5},
    {"meta_info": [1]},
    {"meta_info": {"finish_reason": "stop"}},
    {"meta_info": {"completion_tokens": "9"}},
    {"meta_info": {"completion_tokens": 1e999}},
    {"meta_info": {"prompt_tokens": -1}},
    {"meta_info": {"weight_versions": 5}},
    {"meta_info": {"weight_versions": [5]}},
    {"meta_info": {"weight_versions": [{"start": 0, "end": "9"}]}},
    {"meta_info": {"weight_versions": [{"version": "w", "start": 0, "end": 1}] * 1001}},
    {"output_ids": 5, "meta_info": {}},
    {"text": [1], "meta_info": {}},
]


def sse(*events: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


@pytest.mark.parametrize("stream", [False, True])
def test_an_odd_answer_that_has_to_be_read_is_asked_for_elsewhere(stream: bool) -> None:
    """A split answer is read and put together; what cannot be read fails, and is begun anew."""

    async def run() -> None:
        async with stand("dual", "dual", settings=patient(rest_s=0.01)) as it:
            router = it.route(Fixed())
            for odd in ODD:
                assert await settled(lambda: len(it.gateway.backends.now_ready()) == 2)
                router.split = 63
                for worker in it.workers:
                    worker.says["/generate"] = sse(odd) if stream else json.dumps(odd).encode()
                    worker.faults.times = 1
                    worker.said_type = "text/event-stream" if stream else "application/json"
                failed = it.faults["worker_failed"]
                if stream:
                    async with it.client.post(it.gateway.url + "/generate", json=ask(stream=True)) as answer:
                        said = await answer.read()
                    status = answer.status
                else:
                    status, answer = await it.post("/generate", ask())
                    said = json.dumps(answer).encode()
                assert status in (200, 502), (odd, said)
                assert it.faults["worker_failed"] > failed, odd
                assert it.faults["gateway_error"] == 0
            assert await settled(it.idle)

    asyncio.run(run())


def test_an_odd_end_of_a_stream_that_breaks_off_is_a_fault_of_its_worker() -> None:
    async def run() -> None:
        async with stand("unified") as it:
            it.workers[0].says["/generate"] = b'data: {"meta_info":5}\n\n'
            it.workers[0].said_type = "text/event-stream"
            async with it.client.post(it.gateway.url + "/generate", json=ask(stream=True)) as answer:
                said = await answer.read()
            assert b'"code": 502' in said
            assert it.faults["gateway_error"] == 0
            assert it.faults["worker_failed"] >= 1

    asyncio.run(run())


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_in_the_form_that_was_not_asked_for_is_a_fault_of_its_worker(stream: bool) -> None:
    """What began as a stream cannot go on as a whole answer: a client would wait for its end for ever."""

    async def run() -> None:
        async with stand("unified", "unified") as it:
            router = it.route(Fixed())
            router.first = router.second = 0
            it.workers[0].faults.times = 1
            it.workers[0].said_type = "application/json" if stream else "text/event-stream"
            said = json.dumps({"output_ids": [1], "text": "a", "meta_info": {"finish_reason": None}}).encode()
            it.workers[0].says["/generate"] = said if stream else b"data: " + said + b"\n\n"
            async with asyncio.timeout(30):
                if stream:
                    last = (await it.stream("/generate", ask()))[-1]
                else:
                    status, last = await it.post("/generate", ask())
                    assert status == 200
            assert last["output_ids"] == answer_of(PROMPT, 9)
            assert it.faults["worker_failed"] == 1

    asyncio.run(run())


@pytest.mark.parametrize("endless", [b"x" * 2**16, b"data: " + b"x" * 2**16])
def test_an_event_that_does_not_end_is_not_kept_for_ever(endless: bytes) -> None:
    async def run() -> None:
        async with stand("unified", "unified", settings=patient(max_answer_mib=1, timeout_s=60)) as it:
            router = it.route(Fixed())
            router.first = router.second = 0
            it.workers[0].endless = endless
            assert (await it.stream("/generate", ask()))[-1]["output_ids"] == answer_of(PROMPT, 9)
            assert it.faults["worker_failed"] == 1
            it.workers[0].endless = None

    asyncio.run(run())


@pytest.mark.moderate
@pytest.mark.parametrize(("path", "ends"), [("/generate", True), ("/v1/completions", False)])
def test_no_more_of_a_stream_is_kept_than_a_whole_answer_may_have(path: str, ends: bool) -> None:
    """Each event holds new tokens only, so that they are kept in case that another worker has to go on."""

    async def run() -> None:
        async with stand("unified", incremental=True, settings=patient(max_answer_mib=1, retries=0)) as it:
            said = {"output_ids": [1], "text": "a", "meta_info": {"finish_reason": None}, "padding": "x" * 10_000}
            it.workers[0].endless = b"data: " + json.dumps(said).encode() + b"\n\n"
            body = ask(stream=True) | {"prompt": "x"}
            async with it.client.post(it.gateway.url + path, json=body) as answer:
                got = 0
                async for piece in answer.content.iter_any():
                    got += len(piece)
                    if got > 8 * 2**20:  # it goes on for as long as it likes: nothing of it is kept
                        break
            assert (got < 2 * 2**20) == ends
            assert it.faults["worker_failed"] == ends
            it.workers[0].endless = None
            assert await settled(it.idle)

    asyncio.run(run())


ERROR_500 = b'{"error":{"message":"no GPU","code":500}}'


@pytest.mark.parametrize(
    ("said", "headers"),
    [
        (b"<html>please log in</html>", {}),
        (b'{"text": "', {}),
        (b"\x1f\x8b\x08 compressed", {}),
        (ERROR_500, {}),
        (b'{"text":"x"}', {"Content-Encoding": "gzip"}),
    ],
)
def test_a_whole_answer_that_is_none_is_asked_for_elsewhere(said: bytes, headers: dict[str, str]) -> None:
    async def run() -> None:
        async with stand("unified", "unified") as it:
            router = it.route(Fixed())
            router.first = router.second = 0
            faults = it.workers[0].faults
            faults.times, faults.status, faults.body, faults.headers = 1, 200, said, headers
            status, answer = await it.post("/generate", ask())
            assert (status, answer["output_ids"]) == (200, answer_of(PROMPT, 9))
            assert it.faults["worker_failed"] == 1

    asyncio.run(run())


def test_a_question_for_any_worker_is_not_answered_with_what_is_no_json() -> None:
    async def run() -> None:
        async with stand("unified", "unified") as it:
            for worker in it.workers:
                worker.says["/v1/models"] = b"<html>please log in</html>"
            async with it.client.get(it.gateway.url + "/v1/models") as answer:
                assert answer.status == 503
            it.workers[0].says.clear()
            for _ in range(8):
                async with it.client.get(it.gateway.url + "/v1/models") as answer:
                    assert (await answer.json())["data"] == [{"id": "fake"}]

    asyncio.run(run())


def test_a_refusal_in_a_whole_answer_is_passed_on() -> None:
    async def run() -> None:
        async with stand("unified") as it:
            faults = it.workers[0].faults
            faults.times, faults.status = 1, 200
            faults.body = b'{"error":{"message":"too long","code":400}}'
            status, answer = await it.post("/generate", ask())
            assert (status, answer["error"]["message"]) == (400, "too long")
            assert it.faults["worker_failed"] == 0

    asyncio.run(run())


def test_a_refusal_that_is_compressed_is_asked_for_elsewhere() -> None:
    async def run() -> None:
        async with stand("unified", "unified") as it:
            router = it.route(Fixed())
            router.first = router.second = 0
            faults = it.workers[0].faults
            faults.times, faults.status, faults.headers = 1, 400, {"Content-Encoding": "gzip"}
            faults.body = gzip.compress(b'{"error":{"message":"too long","code":400}}')
            status, answer = await it.post("/generate", ask())
            assert (status, answer["output_ids"]) == (200, answer_of(PROMPT, 9))
            assert it.faults["worker_failed"] == 1

    asyncio.run(run())


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (b"", "a worker refused the request with status 404"),
        (b"<p>no\r\nsuch page,\npassword=abc </p>", "<p>no such page, password=*** </p>"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
@pytest.mark.parametrize("path", ["/generate", "/v1/models"])
def test_a_refusal_that_is_no_json_is_told_in_openais_form(path: str, said: bytes, message: str) -> None:
    async def run() -> None:
        async with stand("unified") as it:
            worker = it.workers[0]
            worker.faults.times, worker.said_status[path], worker.says[path] = 1, 404, said
            worker.said_types[path] = "text/html"
            if path == "/generate":
                request = it.client.post(it.gateway.url + path, json=ask())
            else:
                request = it.client.get(it.gateway.url + path)
            async with request as answer:
                assert (answer.status, answer.content_type) == (404, "application/json")
                error = (await answer.json())["error"]
            assert error == {"message": message, "type": "invalid_request_error", "param": None, "code": 404}

    asyncio.run(run())


def test_whole_answers_have_a_limit_together_and_give_their_room_back() -> None:
    """They take it until the client has taken them."""

    async def run() -> None:
        settings = patient(max_answers_mib=12, write_s=60)
        async with stand("unified", settings=settings) as it, sockets(it.gateway.url) as connect:
            room = it.gateway.engine.room
            it.workers[0].padding = "x" * 2**20
            reader, writer = await connect(4096)
            writer.write(message())
            assert await settled(lambda: room._left < 4 * MIB)
            status, answer = await it.post("/generate", ask())
            assert (status, answer["error"]["message"]) == (503, "the answers to all requests together are too long")
            assert it.gateway.metrics._overloads.labels("answers")._value.get() == 1
            while len(await reader.read(2**20)) and room._left < 12 * MIB:
                pass
            assert await settled(lambda: room._left == 12 * MIB)
            assert (await it.post("/generate", ask()))[0] == 200
            assert await settled(lambda: room._left == 12 * MIB)

    asyncio.run(run())


def test_the_answer_of_any_worker_has_room_and_time_as_every_whole_one() -> None:
    """Clients that read slowly held as many as they liked, for as long as they liked."""
    ask_models = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"

    async def run() -> None:
        settings = patient(max_answers_mib=12, write_s=60)
        async with stand("unified", settings=settings) as it, sockets(it.gateway.url) as connect:
            room, admission = it.gateway.engine.room, it.gateway.admission
            it.workers[0].says["/v1/models"] = b'{"x":"' + b"x" * 9 * MIB + b'"}'
            _, writer = await connect(4096)
            writer.write(ask_models)
            assert await settled(lambda: room._left < 4 * MIB)
            async with it.client.get(it.gateway.url + "/v1/models") as answer:
                assert answer.status == 503
                assert (await answer.json())["error"]["message"] == "the answers to all requests together are too long"
            assert it.gateway.metrics._overloads.labels("answers")._value.get() == 1
            assert admission.requests == 1
            admission.serving.expire()  # as at the end of its time
            assert await settled(lambda: room._left == 12 * MIB and not admission.requests)
            async with it.client.get(it.gateway.url + "/v1/models/x") as answer:
                assert answer.status == 404
            async with it.client.get(it.gateway.url + "/v1/models") as answer:
                assert len(await answer.read()) > 9 * MIB
            assert await settled(lambda: room._left == 12 * MIB and not admission.requests)

    asyncio.run(run())


def test_a_whole_answer_has_a_limit() -> None:
    async def run() -> None:
        async with stand("unified", "unified", settings=patient(max_answer_mib=1)) as it:
            router = it.route(Fixed())
            router.first = router.second = 0
            it.workers[0].padding = "x" * 200_000
            assert (await it.post("/generate", ask()))[1]["output_ids"] == answer_of(PROMPT, 9)
            assert it.faults["worker_failed"] == 1
            it.workers[0].padding = ""
            it.workers[0].says["/v1/models"] = it.workers[1].says["/v1/models"] = b" " * 2**21
            async with it.client.get(it.gateway.url + "/v1/models") as answer:
                assert answer.status == 503

    asyncio.run(run())


def test_a_type_that_no_head_can_hold_is_not_told() -> None:
    """With a control character in it the answer would have no head, and with a long one no client would read it."""
    long = "a/" + "b" * 198
    assert [
        content_type(said) for said in ("text/x; charset=utf-8", long, f"{long}b", "a/b\x01", "a\r\nX: y", "ä")
    ] == [
        "text/x; charset=utf-8",
        long,
        *["application/octet-stream"] * 4,
    ]


def test_events_may_come_in_any_pieces() -> None:
    """Also when the two line ends of an event come in different ones."""

    async def run() -> None:
        async with stand("unified", token_s=0.001) as it:
            it.workers[0].piece_bytes = 1
            body = {"prompt": "hello", "max_tokens": 5}
            events = await it.stream("/v1/completions", body)
            said = "".join(event["choices"][0]["text"] for event in events)
            assert said == text_of(answer_of(tokenize("hello"), 5))

    asyncio.run(run())


@pytest.mark.parametrize("said", [b"[]", b'{"tokens": 5}', b'{"tokens": ["a"]}', b"no", b"[" * 5_000])
def test_odd_token_ids_of_a_prompt_are_a_fault_of_the_worker(said: bytes) -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            it.route(Fixed()).split = 3
            for worker in it.workers:
                worker.says["/v1/tokenize"] = said
            text = "a prompt of text"
            assert (await it.post("/generate", ask(text)))[1]["output_ids"] == answer_of(tokenize(text), 9)
            assert it.faults["worker_failed"] >= 1
            assert it.faults["gateway_error"] == 0

    asyncio.run(run())


def test_what_went_wrong_at_a_worker_is_for_the_log_and_not_for_clients() -> None:
    """No address of a worker in any error."""

    async def run() -> None:
        async with stand("dual", "dual", settings=patient(first_token_s=0.3, timeout_s=2)) as it:
            it.route(Fixed())
            said = b""
            for fault in ("status", "error_event", "reset", "hang", "gone"):
                for worker in it.workers:
                    if fault == "gone":
                        await worker.stop()
                    else:
                        setattr(worker.faults, fault, 500 if fault == "status" else True)
                for stream in (False, True):
                    async with it.client.post(it.gateway.url + "/generate", json=ask(stream=stream)) as answer:
                        said += await answer.read()
                for worker in it.workers:
                    worker.faults.status = None
                    worker.faults.error_event = worker.faults.reset = worker.faults.hang = False
            assert said.count(b'"error"') >= 9
            for worker in it.workers:
                assert str(worker.port).encode() not in said
            assert b"127.0.0.1" not in said

    asyncio.run(run())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ERROR = st.fixed_dictionaries({}, optional={"message": JSON, "code": JSON})
REASON = st.fixed_dictionaries({}, optional={"type": st.sampled_from(["abort", "length"]) | JSON, "status_code": JSON})
META = st.fixed_dictionaries(
    {}, optional={"finish_reason": REASON | JSON, "completion_tokens": JSON, "prompt_tokens": JSON}
)
ANSWER = st.fixed_dictionaries({}, optional={"meta_info": META | JSON, "text": JSON, "output_ids": JSON})
FAILURE = st.fixed_dictionaries({"error": ERROR | JSON})


class Client:
    started = False

    def __init__(self) -> None:
        self.said: list[bytes] = []

    async def send(self, data: bytes, content_type: str) -> None:
        self.said.append(data)

    async def whole(self, body: bytes, content_type: str) -> None:
        self.said.append(body)


class Backend:
    id = "w"


@given(ANSWER | FAILURE | JSON)
@example({"error": {"message": [], "code": {}}})
def test_any_event_is_read_or_is_a_fault_of_its_worker(said: Any) -> None:
    event = protocol.dumps(said)
    try:
        raise_error(Backend(), b"data: " + event + b"\n\n")  # type: ignore[arg-type]
        protocol.generated(event)
    except (WorkerFailedError, protocol.OddAnswerError):
        return
    call = parse("/v1/completions", b'{"prompt": "x", "stream_options": {"include_usage": true}}', "rid")
    client = Client()
    reply = CompletionsReply(client, call, incremental=False)
    try:
        asyncio.run(reply.send(b"data: " + event + b"\n\ndata: [DONE]\n\n", ""))
        assert client.said[-1].endswith(b"data: [DONE]\n\n")
    except RefusedError:  # a stream that begins with an error is a refusal
        assert isinstance(said["error"], dict)
    asyncio.run(reply.whole(event, ""))


@pytest.mark.parametrize("data", [b"\n\n", b"\n\n\n\n", b": comment\n\n", b"data:\n\n"])
def test_a_completion_may_begin_with_events_that_say_nothing(data: bytes) -> None:
    call = parse("/v1/completions", b'{"prompt": "x"}', "rid")
    client = Client()
    asyncio.run(CompletionsReply(client, call, incremental=False).send(data, ""))
    assert b"".join(client.said) == (b"" if not data.strip() else data)


class Pieces:
    """A response that says these pieces."""

    content_type = "text/event-stream"
    ended = True

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = iter([*pieces, b""])

    async def readany(self) -> bytes:
        return next(self._pieces)

    def close(self) -> None:
        pass


LINES = st.sampled_from([b"data: {}", b"data: [DONE]", b"\n", b"\n\n", b"\r\n", b": x", b'{"a":1}', b"\xff", b"data:"])


@given(st.lists(LINES | st.binary(min_size=1, max_size=6), min_size=1, max_size=12), st.data())
def test_a_stream_in_any_pieces_comes_as_whole_events(lines: list[bytes], data: st.DataObject) -> None:
    """However it is cut: each piece ends with an event, and nothing is lost or changed."""
    said = b"".join(lines)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(len(said) - 1, 1)), max_size=6)))
    pieces = [piece for begin, end in pairwise([0, *cuts, len(said)]) if (piece := said[begin:end])]
    backend = SimpleNamespace(id="w", view=SimpleNamespace(load=SimpleNamespace(tokens=lambda *_: None)))
    answer = Answer(backend, Pieces(pieces), "rid", 1000)  # type: ignore[arg-type]

    async def read() -> list[bytes]:
        await answer.begin(Room(MIB))
        got = []
        with contextlib.suppress(WorkerFailedError):
            while piece := await answer.piece():
                got.append(piece)
        return got

    got = []
    with contextlib.suppress(WorkerFailedError):
        got = asyncio.run(read())
    assert all(piece.endswith(protocol.EVENT_END) for piece in got)
    assert said.startswith(b"".join(got))
    assert got or protocol.EVENT_END not in said or b"error" in said


def test_a_first_token_has_no_time_since_the_one_before_it() -> None:
    """Else the mean time between the tokens of short answers is too short, and a power controller believes it."""
    noted: list[tuple[int, float | None]] = []
    load = SimpleNamespace(tokens=lambda count, gap_s, now_s: noted.append((count, gap_s)))
    backend = SimpleNamespace(id="w", view=SimpleNamespace(load=load))
    answer = Answer(backend, Pieces([b"data: {}\n\n", b"data: {}\n\ndata: {}\n\n"]), "rid", 1000)  # type: ignore[arg-type]

    async def read() -> None:
        await answer.begin(Room(MIB))
        await answer.piece()
        await asyncio.sleep(0.1)
        await answer.piece()

    asyncio.run(read())
    (first, no_gap_s), (more, gap_s) = noted
    assert (first, no_gap_s, more) == (1, None, 2)
    assert gap_s is not None
    assert gap_s >= 0.05


@pytest.mark.parametrize("counted", [True, False])
def test_events_of_several_tokens_count_as_they_say(counted: bool) -> None:
    """As with speculation, or ``--stream-interval 8``: else policies see a TPOT that is several times too long."""
    noted: list[int] = []
    load = SimpleNamespace(tokens=lambda count, gap_s, now_s: noted.append(count))
    backend = SimpleNamespace(id="w", view=SimpleNamespace(load=load))
    text = r'"text": "\"completion_tokens\": 99"'
    said = [b'data: {%s, "meta_info": {"completion_tokens": %d}}\n\n' % (text.encode(), n) for n in (4, 8, 8, 7, 20)]
    answer = Answer(backend, Pieces([*said, b"data: [DONE]\n\n"]), "rid", 1000, counted=counted)  # type: ignore[arg-type]

    async def read() -> None:
        await answer.begin(Room(MIB))
        while await answer.piece():
            pass

    asyncio.run(read())
    assert noted == ([4, 4, 12] if counted else [1] * 5)
    assert answer.tokens == sum(noted)


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
def test_only_generate_says_how_many_tokens_there_are(path: str) -> None:
    """The usage of other answers comes at the end, and would make all tokens before it one moment."""
    call = Call(path, b"{}", {}, "rid", None, {}, stream=True)
    upstream = Upstream(GatewayConfig(), ssl.create_default_context())

    async def begun() -> Answer:
        return await upstream.begin(SimpleNamespace(id="w"), Pieces([b"data: {}\n\n"]), "rid", call)  # type: ignore[arg-type]

    assert asyncio.run(begun())._counted is (path == "/generate")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("status", "body"), [(200, b""), (204, b""), (302, b'{"moved": true}'), (206, b'{"part": 1}')])
def test_an_answer_that_is_none_is_asked_for_elsewhere(status: int, body: bytes, stream: bool) -> None:
    """A proxy before a worker may redirect, or have nothing to say; that is no answer to anyone's request."""

    async def run() -> None:
        async with stand("unified", settings=patient(rest_s=0.01, retries=1)) as it:
            (worker,) = it.workers
            worker.says["/generate"], worker.said_status["/generate"] = body, status
            worker.said_type = "text/event-stream" if stream else "application/json"
            for times, expected in ((1, 200), (2, 502)):
                worker.faults.times = times
                assert await settled(it.gateway.backends.now_ready)
                async with it.client.post(it.gateway.url + "/generate", json=ask(stream=stream)) as answer:
                    said = await answer.read()
                assert answer.status == expected, said
                assert b"Internal Server Error" not in said
            assert it.faults["gateway_error"] == 0
            assert it.faults["worker_failed"] == 3
            assert await settled(it.idle)

    asyncio.run(run())
