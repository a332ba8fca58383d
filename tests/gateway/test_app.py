"""The rest of the gateway's API, and its command line."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest
from aiohttp import web

from pdplugins.errors import ConfigError, HostError
from pdplugins.gateway.app import Gateway
from pdplugins.gateway.backends import Backends, WorkerOption
from pdplugins.gateway.engine import ServerKind
from pdplugins.gateway.engines.sglang.protocol import loads, splice
from pdplugins.gateway.replies import LONGEST_REFUSAL, SHOWN_OF_REFUSAL
from pdplugins.types import Role
from tests.gateway.fake import FakeWorker, Rooms, answer_of
from tests.gateway.rig import FAST, PROMPT, Fixed, ask, config, fast, over, stand


def test_models_tokenizer_workers_health_and_metrics() -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            it.route(Fixed())
            await it.post("/generate", ask())
            async with it.client.get(it.gateway.url + "/v1/models") as answer:
                assert (await answer.json())["data"][0]["id"] == "fake"
            assert (await it.post("/v1/tokenize", {"prompt": "ab"}))[1]["tokens"] == [97, 98]
            async with it.client.get(it.gateway.url + "/health") as answer:
                assert answer.status == 200
            async with it.client.get(it.gateway.admin_url + "/workers") as answer:
                shown = await answer.json()
            assert [(worker["kind"], worker["role"], worker["alive"]) for worker in shown] == [
                ("dual", "prefill", True),
                ("dual", "decode", True),
            ]
            async with it.client.get(it.gateway.admin_url + "/metrics") as answer:
                text = await answer.text()
            assert 'pdplugins_gateway_requests_total{outcome="ok"} 1.0' in text
            assert f'pdplugins_gateway_load{{of="alive",worker="{it.workers[0].id}"}} 1.0' in text
            assert "pdplugins_gateway_requests_in_flight 0.0" in text

    asyncio.run(run())


@pytest.mark.parametrize("status", [302, 429, 500, 503])
def test_a_question_goes_on_to_a_worker_that_can_answer_it(status: int) -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            it.workers[0].says["/v1/models"] = b"<html>"
            it.workers[0].said_status["/v1/models"] = status
            async with it.client.get(it.gateway.url + "/v1/models", allow_redirects=False) as answer:
                assert (await answer.json())["data"][0]["id"] == "fake"
            it.workers[1].says["/v1/models"] = b"<html>"
            it.workers[1].said_status["/v1/models"] = status
            async with it.client.get(it.gateway.url + "/v1/models", allow_redirects=False) as answer:
                assert (answer.status, (await answer.json())["error"]["type"]) == (503, "gateway_error")

    asyncio.run(run())


def test_questions_have_the_time_of_a_request_and_begin_at_any_worker() -> None:
    """Each worker has `connect_s` of it, and there may be many that hang."""
    asked: list[int] = []

    class Hung(FakeWorker):
        async def _models(self, request: web.Request) -> web.Response:
            asked.append(self.port)
            await asyncio.sleep(60)
            raise AssertionError

    async def run() -> None:
        workers = [await Hung("unified", Rooms(), 9000 + index).start() for index in range(4)]
        async with over(workers, settings=fast(connect_s=0.1, timeout_s=0.05)) as it:
            for _ in range(12):
                async with it.client.get(it.gateway.url + "/v1/models") as answer:
                    assert answer.status == 503

    asyncio.run(run())
    assert len(asked) == 12
    assert len(set(asked)) > 1


def test_a_refused_question_is_told_without_secrets() -> None:
    async def run() -> None:
        async with stand("dual") as it:
            it.workers[0].says["/v1/models"] = b'{"error": "not with password=abc"}'
            it.workers[0].said_status["/v1/models"] = 404
            async with it.client.get(it.gateway.url + "/v1/models") as answer:
                assert (answer.status, await answer.json()) == (404, {"error": "not with password=***"})

    asyncio.run(run())


def test_of_a_long_refusal_the_beginning_is_told() -> None:
    async def run() -> None:
        async with stand("dual") as it:
            it.workers[0].says["/v1/models"] = b"not with password=abc" + b"-" * LONGEST_REFUSAL
            it.workers[0].said_status["/v1/models"] = 404
            async with it.client.get(it.gateway.url + "/v1/models") as answer:
                told = (await answer.json(content_type=None))["error"]
            assert answer.status == 404
            assert told["message"].startswith("not with password=***")
            assert len(told["message"]) <= SHOWN_OF_REFUSAL + 1
            assert told["type"] == "invalid_request_error"

    asyncio.run(run())


def test_decisions_of_router_and_flow_policy_are_logged_and_measured(tmp_path: Path) -> None:
    cfg = config("round-robin", flow="fcfs", decision_log={"sample": 1})

    async def run() -> None:
        async with stand("dual", "dual", cfg=cfg, decision_log=tmp_path / "log") as it:
            await it.post("/generate", ask())
            async with it.client.get(it.gateway.admin_url + "/metrics") as answer:
                text = await answer.text()
            assert "pdplugins_router_decisions_total 1.0" in text
            assert "pdplugins_flow_step_seconds_count" in text

    asyncio.run(run())
    _, *lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert {line["kind"] for line in lines} == {"router", "flow"}


@pytest.mark.moderate
def test_a_router_and_a_part_in_another_process_hear_each_other(tmp_path: Path) -> None:
    """The other process is one that tells, waits until it is answered, and says what it heard."""
    other = """
import sys, time
from collections.abc import Mapping
from pathlib import Path
from pdplugins.runtime.signals import SignalBoard
board, heard = SignalBoard(Path(sys.argv[1])), {}
while "queue" not in heard:
    board.tell("planner", {"forecast_rate": 7.0}, time.monotonic())
    heard = board.hear("planner", time.monotonic())
    time.sleep(0.05)
print(heard["queue"])
"""

    class Talks(Fixed):
        signals: ClassVar[dict[str, float]] = {"queue": 3.0}
        heard: Mapping[str, float] = {}

        def on_signals(self, heard: Mapping[str, float], now_s: float) -> None:
            self.heard = heard

    async def run() -> None:
        async with stand("dual", "dual", cfg=config(signals={"folder": str(tmp_path)})) as it:
            router = it.route(Talks())
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", other, str(tmp_path), stdout=asyncio.subprocess.PIPE
            )
            try:
                async with asyncio.timeout(60):
                    said, _ = await process.communicate()
                    while not router.heard:
                        await asyncio.sleep(0.05)
            finally:
                if process.returncode is None:
                    process.kill()
            assert said == b"3.0\n"
            assert router.heard == {"forecast_rate": 7.0}

    asyncio.run(run())
    assert not list(tmp_path.glob("router.*"))  # taken back at the end


def test_bootstrap_fields_of_a_client_mean_nothing() -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            it.route(Fixed()).first = 1
            body = ask(bootstrap_host="evil", bootstrap_port=1, bootstrap_room=2)
            assert (await it.post("/generate", body))[1]["output_ids"] == answer_of(PROMPT, 9)
            assert it.workers[1].served == {"local": 1}

    asyncio.run(run())


@pytest.mark.parametrize(
    ("body", "whole"), [(b"{}", b'{"a":1}'), (b' {"b": 2} \n', b' {"b": 2,"a":1}'), (b'{"b":"}"}', b'{"b":"}","a":1}')]
)
def test_fields_are_appended_to_the_bytes_of_a_body(body: bytes, whole: bytes) -> None:
    assert splice(body, {"a": 1}) == whole


def test_worker_options() -> None:
    option = WorkerOption.parse("http://h:1/,bootstrap_port=9,role=decode,kind=dual")
    assert option == WorkerOption("http://h:1", 9, Role.DECODE, ServerKind.DUAL)
    for bad in (
        "h:1",
        "http://h:1,port=3",
        "http://h:1,role=both",
        "http://h:1,bootstrap_port=x",
        "http://h:1,bootstrap_port=65536",
    ):
        with pytest.raises(ConfigError, match="--worker"):
            WorkerOption.parse(bad)
    with pytest.raises(ConfigError, match="same address"):
        Backends([WorkerOption("http://h:1"), WorkerOption("http://h:1")], prefill=1, settings=FAST)


def test_a_port_that_is_taken_is_said_in_one_line() -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            port = int(it.gateway.url.rsplit(":", 1)[1])
            other = Gateway(config(), [WorkerOption.parse(worker.url) for worker in it.workers])
            with pytest.raises(HostError, match="choose another port"):
                await other.start(port=port)

    asyncio.run(run())


def test_json_is_read_as_sglang_reads_it() -> None:
    """Also where it is laxer than the standard: the last of two keys, NaN, half of a surrogate pair."""
    assert loads(b'{"a": 1, "a": [2, 3]}') == {"a": [2, 3]}
    assert str(loads(b'{"a": NaN}')["a"]) == "nan"
    assert loads(rb'{"a": "\ud800"}') == {"a": "\ud800"}
    with pytest.raises(ValueError, match="Expecting"):
        loads(b"{")
