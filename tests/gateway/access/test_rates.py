"""How many requests the holder of a key may make."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pdplugins.errors import ConfigError
from pdplugins.gateway.access.access import Access
from pdplugins.gateway.access.api_keys import ApiKey, ApiKeys, new_key, read_keys
from pdplugins.gateway.access.rates import KeyRates
from pdplugins.gateway.errors import GatewayError
from tests.gateway.access.rig import bearer, status_of
from tests.gateway.rig import ask, patient, stand


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_bucket_fills_at_its_rate_up_to_the_burst() -> None:
    clock = Clock()
    rates = KeyRates(2.0, 3, clock)
    key = ApiKey("a", b"")
    for _ in range(3):
        rates.take(key)
    with pytest.raises(GatewayError) as error:
        rates.take(key)
    assert (error.value.status, error.value.headers) == (429, {"Retry-After": "1"})
    clock.now_s += 0.5
    rates.take(key)
    with pytest.raises(GatewayError):
        rates.take(key)
    clock.now_s += 1000
    for _ in range(3):
        rates.take(key)
    with pytest.raises(GatewayError):
        rates.take(key)


def test_a_key_may_have_a_rate_of_its_own_or_none() -> None:
    rates = KeyRates(0.0, 1, Clock())
    for _ in range(50):
        rates.take(ApiKey("any", b""))
    slow, free = ApiKey("slow", b"", rate=0.1), ApiKey("free", b"", rate=0.0)
    rates.take(slow)
    with pytest.raises(GatewayError) as error:
        rates.take(slow)
    assert error.value.headers == {"Retry-After": "10"}
    limited = KeyRates(1.0, 1, Clock())
    for _ in range(50):
        limited.take(free)


def test_a_key_has_its_rate_and_others_have_theirs(keys: Path) -> None:
    """The third request within a minute is one too many, whoever else asks."""
    alice, bob = (new_key(keys, name, admin=False) for name in ("alice", "bob"))
    settings = patient(key_rate=1 / 3600, key_burst=2)

    async def run() -> None:
        async with stand("unified", access=Access(api_keys=ApiKeys(keys)), settings=settings) as it:
            said = [await status_of(it, "POST", "/generate", bearer(alice), ask()) for _ in range(3)]
            assert said == [200, 200, 429]
            assert await status_of(it, "POST", "/generate", bearer(bob), ask()) == 200
            assert await status_of(it, "GET", "/health", bearer(alice)) == 200
            assert len(it.workers[0].seen) == 3
            overloads = it.gateway.metrics.registry.get_sample_value
            assert overloads("pdplugins_gateway_overloads_total", {"of": "key_rate"}) == 1
            headers = bearer(alice)
            async with it.client.post(it.gateway.url + "/generate", json=ask(), headers=headers) as answer:
                assert int(answer.headers["Retry-After"]) > 60
                assert "requests a second with this key" in (await answer.json())["error"]["message"]

    asyncio.run(run())


def test_a_line_of_the_file_may_say_a_rate(keys: Path) -> None:
    new_key(keys, "alice", admin=True)
    line = keys.read_text().rstrip()
    keys.write_text(f"{line} rate=2.5\n{line.replace('alice', 'bob').removesuffix(' admin')} rate=0\n")
    assert [(key.name, key.admin, key.rate) for key in read_keys(keys)] == [("alice", True, 2.5), ("bob", False, 0.0)]
    new_key(keys, "carol", admin=False)
    assert read_keys(keys)[0].rate == 2.5, "a new key leaves the others as they are"
    for bad in ("rate=fast", "rate=-1", "rate=", "rate=1e9"):
        keys.write_text(f"{line} {bad}\n")
        with pytest.raises(ConfigError, match="line 1"):
            read_keys(keys)
