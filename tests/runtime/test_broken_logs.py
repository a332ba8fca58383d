"""`pdplugins explain` of a broken decision log tells it well, or says in one line what is wrong with it."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdplugins.errors import ConfigError, PdpluginsError
from pdplugins.runtime import explain as explaining
from pdplugins.runtime.decision_reader import read
from tests.refusals import refusal
from tests.runtime.decision_logs import invoked

MODES = ((), ("--all",), ("--json", "--all"), ("--verify",), ("--request", "r7"), ("--kind", "router"))
JUNK = (None, True, -1, 1e999, math.nan, 10**40, "", "x\n\x1b[31m\ud800", [], [[]], {}, {"a": 1}, [1, "a", None])


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def told_well(path: Path, changed: int | None = None, modes: Sequence[tuple[str, ...]] = MODES) -> None:
    """Every way to show a log ends well, or with one line of error, which names no other line than the changed one."""
    for mode in modes:
        done = invoked(str(path), *mode)
        error = done.exception
        if error is None or isinstance(error, SystemExit):
            assert done.exit_code in (0, 1), (mode, done.output)
            assert done.output.replace("\n", "").isprintable(), mode
            continue
        assert isinstance(error, PdpluginsError), (mode, error)
        said = str(error).removeprefix(str(path))
        assert said.isprintable(), mode
        assert len(said) < 400, mode
        assert changed is None or re.match(r":\d+: ", said) is None or said.startswith(f":{changed}: "), (mode, said)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.moderate
@pytest.mark.parametrize(
    "raw",
    [
        b"\x00" * 100,
        b"\x1f\x8b\x08\x00junk",
        b"\xff\xfe{\x00}\x00",
        b"null\n1\n[]\n",
        b'{"schema": true}\n',
        b'{"schema": 2.0}\n',
        b'{"schema": [2]}\n',
        b'{"schema": "2"}\n',
        b'{"schema": 2}\n',
        b'{"schema": 2, "initial": 5, "config": [], "deployment": null, "at": 3, "pdplugins": {}}\n',
        b'{"schema": 2, "initial": null}\n{"kind": "planner"}\n',
        b'{"schema": 2, "initial": null}\n{"kind": ["planner"]}\n',
        b'{"schema": 2, "initial": null}\n{"view": 5, "fault": null, "plan": {}}\n',
        b'{"schema": ' + b"9" * 5000 + b"}\n",
        b"[" * 100_000,
        b'{"schema": 2, "initial": ' + b'{"a":' * 900 + b"1" + b"}" * 901 + b"\n",
    ],
    ids=lambda raw: repr(raw[:20]),
)
def test_what_is_no_log_is_one_line(tmp_path: Path, raw: bytes) -> None:
    (path := tmp_path / "broken").write_bytes(raw)
    with pytest.raises(ConfigError):
        list(explaining.explain(path))
    told_well(path)


def test_a_line_without_end_is_one_line() -> None:
    with pytest.raises(ConfigError, match="/dev/zero:1: longer than any line of a decision log"):
        read(Path("/dev/zero"))


@pytest.mark.parametrize("name", [".", "/", ".."])
def test_a_folder_is_no_log(name: str) -> None:
    with pytest.raises(ConfigError, match="is a folder; name a decision log in it"):
        read(Path(name))


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="from Python 3.12 on it can be shown")
def test_a_decision_that_is_nested_too_deeply_to_be_shown_is_named(mixed: Path) -> None:
    rows = lines_of(mixed)
    place = next(n for n, row in enumerate(rows) if row.get("kind") == "router")
    rows[place]["seen"]["now_s"] = nested(900)
    mixed.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ConfigError, match=f"{mixed}:{place + 1}: not a line of a decision log"):
        explaining.as_data(mixed, explaining.Choose(every=True))
    told_well(mixed, place + 1)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside of `value`."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


@pytest.mark.moderate
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_log_with_any_one_value_changed_is_told_or_named(mixed: Path, data: st.DataObject) -> None:
    whole = mixed.with_name("whole")
    if not whole.exists():
        mixed.rename(whole)
    rows = lines_of(whole)
    line = data.draw(st.integers(0, len(rows) - 1))
    *way, last = data.draw(st.sampled_from(list(places(rows[line]))))
    inside = rows[line]
    for key in way:
        inside = inside[key]
    if data.draw(st.booleans()):
        inside[last] = data.draw(st.sampled_from(JUNK) | st.text(max_size=3))
    else:
        del inside[last]
    mixed.write_text("\n".join(map(json.dumps, rows)))
    told_well(mixed, line + 1, [data.draw(st.sampled_from(MODES))])


@pytest.mark.moderate
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_log_with_any_bytes_changed_is_told_or_an_error_in_one_line(mixed: Path, data: st.DataObject) -> None:
    whole = mixed.with_name("whole")
    if not whole.exists():
        mixed.rename(whole)
    raw = whole.read_bytes()
    begin = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(begin, min(begin + 200, len(raw))))
    mixed.write_bytes(raw[:begin] + data.draw(st.binary(max_size=8)) + raw[end:])
    assert "\n" not in refusal(lambda: explaining.as_data(mixed, explaining.Choose(every=True)))
