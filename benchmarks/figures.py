"""Figures in the text of a page: each is marked with the result that it is taken from, and checked against it.

A mark is an HTML comment right behind the figure, which no reader sees:

    attained 93.5 %<!-- figure: planners-azure-code runs[label=dopd].metrics.slo_attainment .1% -->

It names a result file, a path in it and a Python format; `%` at the end multiplies by 100. A path has keys, `[0]`,
`[a key with spaces]`, `[label=dopd & group=x]` for the one row that has these values, `[?speedup]` for the rows that
have a key, and `[*]` for all rows. Between the path and the format the value can be changed: `* 1000`, `/ PATH`,
`- PATH`; and `max(...)`, `min(...)`, `sum(...)`, `len(...)` and `median(...)` take a path with `[*]`, or
to a mapping of numbers.

The lines of a table below its head are written from a template, for each row of a result (or of several, side by side):

    <!-- rows: decisions rows | {kind} | `{plugin}` | {workers:,d} | {p50_us:.1f} | -->
    | kind | plugin | workers | p50, us |
    |---|---|---|---|
    <!-- /rows -->

A field is a path as above, also with operators; `{stream?whole:parts}` is one of two words by a truth value, and
`{_key}` the key of a row where rows are a mapping.

An age mark writes the words from `at commit` on: the commit of a measured result, and whether its code has changed:

    measured at commit 815e090a1b2c, unchanged since<!-- age: gateway-fake -->

A figure that is not from a result file says where it is from: `7.1 %<!-- quoted: BLIS, Table 3 -->` covers every figure
before it on its line. `python benchmarks/results.py pages` writes all figures, rows and ages again.
"""

from __future__ import annotations

import operator
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import manifest
from manifest import ROOT

from pdplugins.errors import PdpluginsError

FIGURE = re.compile(r"(?P<old>\S+?(?: %)?)?<!-- figure: (?P<what>.*?) -->", re.DOTALL)
AGE = re.compile(r"at commit (?:(?!at commit )[^<>\n])*<!-- age: (?P<what>\S+) -->")
ROWS = re.compile(
    r"<!-- rows: (?P<results>\S+) (?P<path>\S+) (?P<row>\|.*?\|) -->\n(?P<head>\|.*\n\|[-:| ]*\n)(?P<body>(?:\|.*\n)*)"
    r"<!-- /rows -->"
)
FIELD = re.compile(r"\{(?P<path>[^{}:?]+)(?:\?(?P<yes>[^{}:]*):(?P<no>[^{}]*)|:(?P<form>[^{}]*))?\}")
GENERATED = re.compile(
    r"<!-- (?P<name>[\w-]+)(?:: begin\b.*?)? -->.*?<!-- (?:/(?P=name)|(?P=name): end) -->", re.DOTALL
)
"""Text that a script writes from results as a whole; other tests compare it."""
CODE = re.compile(r"^```.*?^```|^ {4,}\S.*?$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
NUMBER = r"[-+]?\d[\d,]*\.\d+"
LOOKS_MEASURED = re.compile(
    rf"(?<![\w.,/-]){NUMBER} ?(?:%|(?:times|ms|us|µs|GB|points|GPU-hours|requests/s)\b)|(?<=\| ){NUMBER}(?= \|)"
)
"""A number with a decimal point and the unit of something measured, or alone in the cell of a table."""
SETTING = re.compile(r"\|  \| [\d.]+ \|")
"""A row of a table of settings: its name, which is code, and its default."""
WORD = re.compile(r"(?:\[[^\]]*\]|\S)+")
STEP = re.compile(r"\.?(?P<key>[A-Za-z_][\w-]*)|\[(?P<inside>[^\]]*)\]")
OPERATORS: dict[str, Callable[[float, float], float]] = {"*": operator.mul, "/": operator.truediv, "-": operator.sub}
OF_ALL: dict[str, Callable[[Any], Any]] = {
    "max": max, "min": min, "sum": sum, "len": len, "median": statistics.median,
}  # fmt: skip


def pages() -> list[Path]:
    """Return every page of the documentation."""
    return [
        ROOT / "README.md",
        *(path for folder in ("docs", "benchmarks") for path in sorted((ROOT / folder).rglob("*.md"))),
    ]


def refreshed(text: str) -> str:
    """Return the text of a page with each marked figure and age as the results have it now."""
    text = ROWS.sub(lambda mark: mark[0].replace(f"{mark['head']}{mark['body']}", mark["head"] + rows(mark)), text)
    text = AGE.sub(lambda mark: f"{age(mark['what'])}<!-- age: {mark['what']} -->", text)
    return FIGURE.sub(
        lambda mark: f"{_behind(mark['old'] or '', value(mark['what']))}<!-- figure: {mark['what']} -->", text
    )


def _behind(old: str, new: str) -> str:
    """Return what stands before a mark with its figure replaced: brackets and stars around it stay."""
    lead = re.match(r"[^\w+-]*", old)
    return (lead[0] if lead else "") + new


def wrong(text: str) -> Iterator[str]:
    """Yield each marked figure and age that is not what its result says."""
    for mark in FIGURE.finditer(text):
        want = value(mark["what"])
        if not re.search(rf"(?<![\w.,]){re.escape(want)}$", mark["old"] or ""):
            yield f"{mark['old'] or 'nothing'}: {mark['what']} is {want}"
    for mark in ROWS.finditer(text):
        if mark["body"] != rows(mark):
            yield f"the table of {mark['results']} {mark['path']} is not that of the result"
    for mark in AGE.finditer(text):
        if not mark[0].startswith(f"{age(mark['what'])}<"):
            yield f"{mark[0]}: is {age(mark['what'])}"


def unmarked(text: str) -> Iterator[str]:
    """Yield what looks like a measured figure and has neither a mark nor a source on its line."""
    prose = CODE.sub("", GENERATED.sub("", ROWS.sub("", text)))
    for line in prose.splitlines():
        covered = line.rfind("<!-- quoted:")
        if SETTING.match(line):
            continue
        for found in LOOKS_MEASURED.finditer(re.sub(r"<!-- (?!quoted|figure).*?-->", "", line)):
            marked = re.match(r"(?: %)?<!-- figure:", line[found.end() :]) or line[found.end() :].startswith(
                "<!-- figure:"
            )
            if not marked and found.end() > covered:
                yield f"{found[0]} in: {line.strip()[:100]}"


def sources(text: str) -> tuple[set[str], set[str]]:
    """Return the results that a page marks figures of, and those of which it states the age."""
    return {WORD.findall(mark["what"])[0] for mark in FIGURE.finditer(text)}, {
        mark["what"] for mark in AGE.finditer(text)
    }


def rows(mark: re.Match[str]) -> str:
    """Return the lines of a table below its head. Rows of several results stand side by side in each cell."""
    of_each = [_rows(_at(manifest.read(name), mark["path"])) for name in mark["results"].split("+")]
    lines = [FIELD.sub(partial(_side_by_side, row), mark["row"]) for row in zip(*of_each, strict=True)]
    return "".join(f"{line}\n" for line in lines)


def _rows(found: Any) -> list[Any]:
    return [{"_key": key, **row} for key, row in found.items()] if isinstance(found, dict) else found


def _side_by_side(of_each: Sequence[Any], field: re.Match[str]) -> str:
    shown = []
    for row in of_each:
        found = _computed(row, WORD.findall(field["path"]))
        shown.append(
            (field["yes"] if found else field["no"]) if field["no"] is not None else _formatted(found, field["form"])
        )
    return shown[0] if field["path"] == "_key" else ", ".join(shown)


def _formatted(found: Any, form: str | None) -> str:
    if found is None:
        return ""
    return f"{100 * found:{form[:-1]}f} %" if form and form.endswith("%") else f"{found:{form or ''}}"


def age(result: str) -> str:
    """Say at which commit a result was made, and whether the code that it measures has changed since."""
    data = manifest.read(result)
    if "code" not in data:
        return f"at commit {data.get('commit', 'unknown')}, of which code is not recorded"
    parts = manifest.changed(manifest.experiment_of(result), data)
    since = f"since then changed: {', '.join(parts)}" if parts else "unchanged since"
    return f"at commit {data.get('commit', 'unknown')}{';' if parts else ','} {since}"


def value(mark: str) -> str:
    """Return a figure as its mark says: RESULT PATH [OPERATOR PATH-OR-NUMBER]... FORMAT. Raises PdpluginsError."""
    try:
        result, *words, form = WORD.findall(mark)
        return _formatted(_computed(manifest.read(result), words), form)
    except FileNotFoundError:
        raise PdpluginsError(f"figure: {mark}: there is no such result; benchmarks/results.py run makes it") from None
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise PdpluginsError(f"figure: {mark}: {error!r}; benchmarks/figures.py says how a mark is written") from error


def _computed(data: Any, words: Sequence[str]) -> Any:
    """Return what PATH [OPERATOR PATH-OR-NUMBER]... comes to."""
    found = _operand(data, words[0])
    for sign, operand in zip(words[1::2], words[2::2], strict=True):
        found = OPERATORS[sign](found, _operand(data, operand))
    return found


def _operand(data: Any, text: str) -> Any:
    if re.fullmatch(r"\d+(?:\.\d+)?", text):
        return float(text)
    if called := re.fullmatch(r"(\w+)\((.*)\)", text):
        all_of_it = _at(data, called[2])
        return OF_ALL[called[1]](all_of_it.values() if isinstance(all_of_it, dict) else all_of_it)
    return _at(data, text)


def _at(data: Any, path: str) -> Any:
    """Follow a path; `[*]` gives the list of what the rest of the path finds in each row."""
    while path:
        step = STEP.match(path)
        if step is None:
            raise KeyError(path)
        path = path[step.end() :]
        inside = step["inside"]
        if inside == "*":
            return [_at(row, path) for row in data]
        data = data[step["key"]] if inside is None else _inside(data, inside)
    return data


def _inside(data: Any, inside: str) -> Any:
    if not isinstance(data, list):
        return data[inside]
    if inside.startswith("?"):
        return [row for row in data if inside[1:] in row]
    if re.fullmatch(r"-?\d+", inside):
        return data[int(inside)]
    wanted = [part.split("=", 1) for part in inside.split(" & ")]
    (row,) = [row for row in data if all(str(row.get(key)) == is_ for key, is_ in wanted)]
    return row
