"""What requests ask for themselves: by header or body, within what the operator allows, and no more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.config import parse
from pdplugins.errors import ConfigError
from pdplugins.gateway.engines.sglang.protocol import without
from pdplugins.gateway.errors import GatewayError
from pdplugins.gateway.terms import FIELD, Asking, carried, carried_by
from pdplugins.limits import TermsConfig
from pdplugins.types import FlowDecision, Go, Hold, Outcome, Request, Terms, Waiting, WorkerView
from tests.gateway.fake import settled
from tests.gateway.rig import PROMPT, ask, config, stand

ALLOWED = {"most_priority": 2, "most_weight": 4.0, "ttft_s": (0.5, 10.0), "tpot_s": (0.02, 0.2)}


def asked(headers: dict[str, str], body: dict[str, Any], **allowed: Any) -> Terms | None:
    return Asking(TermsConfig(**allowed)).terms(headers, body)


def test_as_shipped_nobody_gets_anything() -> None:
    assert asked({"x-pdplugins-priority": "9", "x-tenant": "me"}, {"priority": 9}) is None


def test_a_header_wins_over_the_body_and_ours_over_the_engines_field() -> None:
    body = {"priority": 1, "pdplugins": {"priority": 2, "weight": 2, "ttft_ms": 700}}
    assert asked({}, body, **ALLOWED) == Terms(2, 2.0, 0.7)
    assert asked({"x-pdplugins-priority": "-1"}, body, **ALLOWED) == Terms(-1, 2.0, 0.7)
    assert asked({}, {"priority": 1}, **ALLOWED) == Terms(1)
    assert asked({}, {}, **ALLOWED) is None


def test_what_is_beyond_the_bounds_is_clamped() -> None:
    headers = {f"x-pdplugins-{name}": "1e9" for name in ("priority", "weight", "ttft-ms", "tpot-ms")}
    assert asked(headers, {}, **ALLOWED) == Terms(2, 4.0, 10.0, 0.2)
    assert asked(dict.fromkeys(headers, "-1e9"), {}, **ALLOWED) == Terms(-2, 0.25, 0.5, 0.02)
    assert asked(headers, {}, most_priority=1) == Terms(1), "only what the operator names may be asked for"


@pytest.mark.parametrize("value", ["soon", "nan", "inf", "", "1e999"])
def test_what_is_no_number_is_a_mistake_of_the_client(value: str) -> None:
    with pytest.raises(GatewayError, match="no number"):
        asked({"x-pdplugins-ttft-ms": value}, {}, **ALLOWED)
    with pytest.raises(GatewayError, match="no number"):
        asked({}, {"pdplugins": {"weight": [value]}}, **ALLOWED)


@pytest.mark.parametrize("odd", [b"NaN", b"-Infinity", b'"\\ud800"', b"1", b'{"pdplugins": 2}'])
def test_workers_get_the_rest_of_a_body_as_it_came(odd: bytes) -> None:
    """SGLang takes more than JSON allows, so a body that asks for terms may hold it too."""
    assert without(b'{"a": ' + odd + b', "pdplugins": {"priority": 3}}', FIELD).replace(b" ", b"") == (
        b'{"a":' + odd.replace(b" ", b"") + b"}"
    )


def test_a_tenant_is_a_hash_with_a_share() -> None:
    allowed = {"tenant_header": "X-Tenant", "tenants": {"gold": 5.0}}
    gold = asked({"X-Tenant": "gold"}, {}, **allowed)
    other = asked({"X-Tenant": "x" * 100_000}, {}, **allowed)
    assert gold is not None
    assert other is not None
    assert (gold.tenant_weight, other.tenant_weight) == (5.0, 1.0)
    assert gold.tenant is not None
    assert other.tenant is not None
    assert gold.tenant != other.tenant
    assert len(gold.tenant) == len(other.tenant) == 32
    assert asked({}, {}, **allowed) is None


def test_bounds_the_wrong_way_round_are_a_mistake_of_the_operator() -> None:
    with pytest.raises(ConfigError, match="give the smaller one first"):
        parse({"terms": {"ttft_s": [2.0, 1.0]}})


@given(
    st.builds(
        Terms,
        priority=st.integers(-2, 2),
        weight=st.floats(0.25, 4),
        ttft_s=st.none() | st.floats(0.5, 10),
        tpot_s=st.none() | st.floats(0.02, 0.2),
    ),
    st.sampled_from(["", "_0", "_17"]),
)
def test_terms_go_with_the_name_of_a_request(terms: Terms, of_a_batch: str) -> None:
    config = TermsConfig(**ALLOWED)
    told = carried_by("ab12" + carried(terms, 0.0) + of_a_batch, config) or Terms()
    assert (told.priority, told.weight) == (terms.priority, pytest.approx(terms.weight))
    for mine, its in ((told.ttft_s, terms.ttft_s), (told.tpot_s, terms.tpot_s)):
        assert mine == (None if its is None else pytest.approx(its, abs=6e-4))


def test_what_a_name_asks_for_is_clamped_and_its_time_goes_by() -> None:
    config = TermsConfig(**ALLOWED)
    assert carried_by("x~9~100~999999~1", config) == Terms(2, 4.0, 10.0, 0.02)
    assert carried_by("x" + carried(Terms(ttft_s=2.0), 1.5), config) == Terms(ttft_s=0.5)
    assert carried_by("x" + carried(Terms(ttft_s=2.0), 99.0), config) == Terms(ttft_s=0.0)
    assert carried_by("x~9~100~999999~1", TermsConfig()) is None
    assert carried(None, 1.0) == ""


@given(st.text(alphabet="~-_.0123456789abc", max_size=40))
def test_any_other_name_asks_for_nothing_or_within_bounds(name: str) -> None:
    told = carried_by(name, TermsConfig(**ALLOWED)) or Terms()
    assert abs(told.priority) <= 2
    assert 0.25 <= told.weight <= 4
    assert told.ttft_s is None or 0 <= told.ttft_s <= 10


class Noting:
    """A flow policy that notes what comes, lets everything go on at once, and hears how it ends."""

    def __init__(self) -> None:
        self.came: list[Waiting] = []
        self.endings: list[Outcome] = []
        self._next: list[str] = []

    def on_arrival(self, waiting: Waiting, now_s: float) -> None:
        self.came.append(waiting)
        self._next.append(waiting.request.id)

    def next(self, workers: tuple[WorkerView, ...], now_s: float) -> FlowDecision:
        return Go(self._next.pop(0)) if self._next else Hold()

    def on_left(self, request_id: str) -> None:
        self._next.remove(request_id)

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        self.endings.append(outcome)


def test_policies_see_the_terms_and_workers_get_their_numbers_with_the_name() -> None:
    """The deadline is the request's own, and policies hear what its client saw of a stream."""
    cfg = config(dual=True).model_copy(update={"terms": TermsConfig(**ALLOWED, tenant_header="x-tenant")})

    async def run() -> None:
        flow = Noting()
        async with stand("dual", "dual", cfg=cfg, flow=flow, token_s=0.001) as it:
            body = {**ask(PROMPT, 5), "stream": True, "pdplugins": {"priority": 1, "ttft_ms": 900}}
            headers = {"x-pdplugins-weight": "3", "x-tenant": "me"}
            async with it.client.post(it.gateway.url + "/generate", json=body, headers=headers) as answer:
                assert answer.status == 200
                await answer.read()
            (waiting,) = flow.came
            terms = waiting.request.terms
            assert terms is not None
            assert (terms.priority, terms.weight, terms.ttft_s, terms.tpot_s) == (1, 3.0, 0.9, None)
            assert terms.tenant is not None
            assert waiting.due_s - waiting.request.arrival_s == pytest.approx(0.9)
            seen = [body for worker in it.workers for body in worker.seen]
            assert seen
            assert not any("pdplugins" in body for body in seen)
            for body in seen:
                told = carried_by(body["rid"], cfg.terms)
                assert told is not None
                assert (told.priority, told.weight, told.tpot_s) == (1, 3.0, None)
                assert told.ttft_s is not None
                assert 0 <= told.ttft_s <= 0.9, "what is left of it"
            assert await settled(lambda: bool(flow.endings))
            (outcome,) = flow.endings
            assert outcome.ttft_s is not None
            assert outcome.tpot_s is not None
            assert outcome.ttft_s > 0 < outcome.tpot_s

    asyncio.run(run())
