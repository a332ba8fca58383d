"""What a planner has learned is kept for its next run; whatever is wrong with the file, the run begins anew."""

from __future__ import annotations

import json
import logging
import math
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdplugins import config as configs
from pdplugins.errors import ConfigError
from pdplugins.runtime.planner import SafePlanner, build_safe_planner
from pdplugins.runtime.state import EVERY_S, MOST_BYTES, OLDEST_S, StateFile
from pdplugins.types import PlannerView, Pool, ScalePlan, Traffic
from tests.runtime.hostile import Panic, UnshowableError

Built = Callable[..., SafePlanner]
NOTHING = PlannerView(0.0, None, Pool(1), Pool(1))


@pytest.fixture
def build(tmp_path: Path, config_data: dict[str, Any]) -> Built:
    """Build DOPD's planner with a state file."""

    def built(path: Path | None = tmp_path / "state.json", **changed: Any) -> SafePlanner:
        return build_safe_planner(configs.parse(config_data | {"planner": {"name": "dopd"} | changed}), state=path)

    return built


def busy(planner: SafePlanner, rate: float = 6.0) -> ScalePlan:
    for tick in range(1, 40):
        pools = planner.last
        plan = planner.plan(
            PlannerView(5.0 * tick, Traffic(5.0, 5 * rate, 900, 150), Pool(pools.prefill), Pool(pools.decode))
        )
    return plan


def test_the_next_run_begins_where_the_last_one_ended(build: Built, tmp_path: Path) -> None:
    first = build()
    last = busy(first)
    first.close()
    second = build()
    assert second.wait_s(NOTHING) == 0.0, "it need not wait for traffic"
    nobody_yet = replace(NOTHING, now_s=0.2, traffic=Traffic(0.2, 0))
    assert build().plan(nobody_yet).prefill == last.prefill, "also where the host has seen that nobody came yet"
    plan = second.plan(NOTHING)
    assert (plan.prefill, plan.decode) == (last.prefill, last.decode) != (1, 1)
    assert "as in the last run" in plan.reason
    assert build(None).wait_s(NOTHING) == 0.5, "without the file it waits"
    assert stat.S_IMODE((tmp_path / "state.json").stat().st_mode) == 0o600


def test_what_was_learned_reads_back_the_same(build: Built) -> None:
    first: Any = build()
    busy(first)
    first.close()
    again: Any = build()
    for name in ("rate", "lengths", "bursts"):
        assert again.policy.state()[name] == first.policy.state()[name]


def good(build: Built) -> dict[str, Any]:
    planner = build()
    busy(planner)
    planner.close()
    data: dict[str, Any] = json.loads(planner._state._path.read_text())  # type: ignore[union-attr]
    return data


def with_state(data: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {**data, "state": {**data["state"], **changed}}


SPOILED: dict[str, Callable[[dict[str, Any]], object]] = {
    "torn": lambda data: json.dumps(data)[:200],
    "empty": lambda data: "",
    "deep": lambda data: json.dumps(data)[:40] + "[" * 30_000,
    "binary": lambda data: json.dumps(data)[:40] + "\x00\x01",
    "too large": lambda data: json.dumps(data) + " " * MOST_BYTES,
    "schema": lambda data: {**data, "schema": 9},
    "another planner": lambda data: {**data, "planner": "static"},
    "old": lambda data: {**data, "at_s": data["at_s"] - OLDEST_S - 60},
    "of the future": lambda data: {**data, "at_s": data["at_s"] + 3600},
    "no time": lambda data: {**data, "at_s": "yesterday"},
    "no state": lambda data: {**data, "state": None},
    "not a number": lambda data: json.dumps(with_state(data, levels={"ISL": float("nan")})),
    "negative": lambda data: with_state(data, levels={"load": -1.0}),
    "absurd": lambda data: with_state(data, levels={"load": 1e30}),
    "too many": lambda data: with_state(data, levels={str(n): 1.0 for n in range(100)}),
    "lengths of no request": lambda data: with_state(data, lengths={"requests": 0, "variance": 5e7, "square": 2e8}),
    "lengths that nothing holds": lambda data: with_state(
        data, lengths={"requests": 900, "variance": 1e18, "square": 2e8}
    ),
    "unknown key": lambda data: with_state(data, more=1),
    "another deployment": lambda data: with_state(data, made={**data["state"]["made"], "startup_s": 999.0}),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_file_that_is_wrong_is_a_cold_start_with_one_line(
    build: Built, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    spoiled = SPOILED[how](good(build))
    (tmp_path / "state.json").write_text(spoiled if isinstance(spoiled, str) else json.dumps(spoiled))
    with caplog.at_level(logging.WARNING):
        planner = build()
    (record,) = caplog.records
    assert "state.json: not used, the planner begins anew" in record.getMessage()
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 400
    assert planner.wait_s(NOTHING) == 0.5
    planner.close()


@pytest.mark.parametrize(
    "changed", [{"deployment": {"decode": {"tp": 1}}}, {"slo": {"tpot_s": 0.02}}, {"planner": {"paper_literal": True}}]
)
def test_what_was_learned_in_other_units_is_not_used(
    tmp_path: Path, config_data: dict[str, Any], changed: dict[str, Any]
) -> None:
    """Of decode workers of another size, of other objectives, and of requests in flight in place of a rate."""

    def built(**parts: dict[str, Any]) -> SafePlanner:
        data = {**config_data, "planner": {"name": "dopd"}}
        merged = {key: {**data.get(key, {}), **part} for key, part in parts.items()}
        return build_safe_planner(configs.parse(data | merged), state=tmp_path / "state.json")

    first = built()
    busy(first)
    first.close()
    assert built().wait_s(NOTHING) == 0.0
    assert built(**changed).wait_s(NOTHING) != 0.0


def test_a_run_that_saw_nothing_makes_the_file_no_younger(build: Built, tmp_path: Path) -> None:
    """Else a crash loop keeps the rate of last evening."""
    path = tmp_path / "state.json"
    data = good(build)
    path.write_text(json.dumps({**data, "at_s": data["at_s"] - 3000}))
    again = build()
    assert again.wait_s(NOTHING) == 0.0
    again.plan(NOTHING)
    again.close()
    assert json.loads(path.read_text())["at_s"] == data["at_s"] - 3000


def test_a_rate_of_hours_ago_says_nothing_of_now(build: Built, tmp_path: Path) -> None:
    data = good(build)
    (tmp_path / "state.json").write_text(json.dumps({**data, "at_s": data["at_s"] - 7200}))
    planner: Any = build()
    assert planner.wait_s(NOTHING) == 0.5
    assert planner.policy.state()["bursts"] == data["state"]["bursts"]


def test_it_is_written_now_and_then_and_no_error_of_the_disk_reaches_the_host(
    build: Built, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = [0.0]
    policy: Any = build(None).policy
    (tmp_path / "d").mkdir()
    file = StateFile(tmp_path / "d" / "s.json", "dopd", policy, clock=lambda: now_s[0])
    file.beat()
    assert not (tmp_path / "d" / "s.json").exists()
    now_s[0] += EVERY_S
    file.beat()
    assert (tmp_path / "d" / "s.json").exists()
    (tmp_path / "d" / "s.json").unlink()
    (tmp_path / "d").rmdir()
    file.save()
    assert "not written" in caplog.text


def test_a_clock_that_is_set_back_stops_no_writing(build: Built, tmp_path: Path) -> None:
    """Else a kill would lose as much as the clock was set back by."""
    now_s = [10_000.0]
    policy: Any = build(None).policy
    file = StateFile(tmp_path / "s.json", "dopd", policy, clock=lambda: now_s[0])
    now_s[0] += EVERY_S
    file.beat()
    now_s[0] -= 3600
    (tmp_path / "s.json").unlink()
    file.beat()
    assert json.loads((tmp_path / "s.json").read_text())["at_s"] == now_s[0]


@pytest.mark.parametrize("state", [UnshowableError(), Panic(), {"x": "y" * MOST_BYTES}, {"x": {1, 2}}, {"x": math.inf}])
def test_what_cannot_be_kept_is_not_written_and_no_error_reaches_the_host(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, state: Any
) -> None:
    class Odd:
        def state(self) -> Any:
            if isinstance(state, BaseException):
                raise state
            return state

        def resume(self, state: Any, age_s: float) -> None:
            """Nothing was kept."""

    StateFile(tmp_path / "state.json", "odd", Odd()).save()
    assert not (tmp_path / "state.json").exists()
    assert "not written" in caplog.text


def test_a_planner_that_panics_begins_anew_and_what_ends_the_process_goes_through(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd:
        raises: BaseException = Panic()

        def state(self) -> Any:
            return {}

        def resume(self, state: Any, age_s: float) -> None:
            raise self.raises

    path, odd = tmp_path / "state.json", Odd()
    StateFile(path, "odd", odd).save()
    StateFile(path, "odd", odd)
    assert "the planner begins anew" in caplog.text
    odd.raises = SystemExit()
    with pytest.raises(SystemExit):
        StateFile(path, "odd", odd)


def test_a_planner_that_remembers_nothing_says_so(
    config_data: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    planner = build_safe_planner(configs.parse(config_data), state=tmp_path / "state.json")
    planner.close()
    assert "keeps nothing from one run to the next" in caplog.text
    assert not (tmp_path / "state.json").exists()


def test_a_file_that_cannot_be_written_is_said_before_the_run(build: Built, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        build(tmp_path / "none" / "state.json")


LOG = '{"schema": 2, "pdplugins": "0.1.0", "planner": null}'


@pytest.mark.parametrize("text", ["[1, 2]", "\x00\x01", "[" * 30_000, "planner: dopd", LOG, " "])
def test_a_file_that_is_no_state_file_is_refused_and_kept(build: Built, tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(ConfigError, match=r"is no state file of a planner; name one that is, or a new file$"):
        build()
    assert (tmp_path / "state.json").read_text() == text


def test_a_pipe_is_no_file(build: Built, tmp_path: Path) -> None:
    """To open one would wait for its writer."""
    os.mkfifo(tmp_path / "state.json")
    with pytest.raises(ConfigError, match="no regular file"):
        build()
