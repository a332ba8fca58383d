"""One vocabulary for the options of all commands: names of before, examples in each help, and completion of values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from typer import BadParameter

from pdplugins import config, extras
from pdplugins.files import DEVICE
from pdplugins.registry import default_registry
from pdplugins.report import address
from pdplugins.workloads import sources

RENAMED: dict[str, dict[str, str]] = {
    "replay": {"--gpu-budget": "--gpus", "--duration": "--clip-s"},
    "serve": {"--replay": "--trace", "--duration": "--clip-s", "--report": "--json"},
}
"""By command: options of before, which still work, and what they are called now."""
INITIAL = re.compile(r"(\d+)[pP](\d+)[dD]")
"""The pools of ``pdplugins replay --initial``, which are ``--prefill`` and ``--decode`` now."""
VALUES = {"--dashboard": address.DEFAULT}
"""Options that may stand alone, and what they mean then."""
EXAMPLES: dict[str, tuple[str, str]] = {
    "advise": (
        "pdplugins advise --trace azure-like --rate 10 --gpus 8",
        "pdplugins advise --isl 1200 --osl 200 --rate 8 --gpu h100 --model llama-3.1-70b-fp8 --save-dir advice",
    ),
    "backtest": (
        "pdplugins backtest --prometheus http://127.0.0.1:9090 --from -2h --to now --html backtest.html",
        "pdplugins backtest dopd arrow --access-log requests.jsonl --prefill 3 --decode 1 --ttft 1",
    ),
    "bench decisions": (
        "pdplugins bench decisions",
        "pdplugins bench decisions --workers 64 --calls 200 --json out.json",
    ),
    "bound": (
        "pdplugins bound --trace azure-like --rate 10 --gpus 8",
        "pdplugins bound dopd --trace trace.csv --ttft 1 --tpot 0.05 --json bound.json",
    ),
    "compare": (
        "pdplugins compare dopd fusion stock-colocated --trace demo --set deployment.startup_s=2 --html report.html",
        "pdplugins compare arrow my-config.yaml --trace trace.csv --rate 12 --gpus 16",
    ),
    "config": ("pdplugins config dopd", "pdplugins config --schema"),
    "doctor": ("pdplugins doctor", "pdplugins doctor --config my-config.yaml"),
    "explain": ("pdplugins explain log.jsonl", "pdplugins explain log.jsonl --request 17"),
    "gateway": (
        "pdplugins gateway --config arrow --launch MODEL",
        "pdplugins gateway --worker http://10.0.0.1:30000 --worker http://10.0.0.2:30000",
    ),
    "gateway-key": ("pdplugins gateway-key keys alice", "pdplugins gateway-key keys operator --admin"),
    "plan": (
        "pdplugins plan ampd --trace sessions --gpus 8",
        "pdplugins plan ampd --trace sessions --gpus 16 --rate 0.8 --write-config planned.yaml",
    ),
    "planner": (
        "pdplugins planner --config dopd --gateway grpc://127.0.0.1:9098",
        "pdplugins planner --config my-config.yaml --frontend-url http://frontend:8000 --metrics-port 9100",
    ),
    "plugins": ("pdplugins plugins", "pdplugins plugins --json"),
    "replay": (
        "pdplugins replay --planner dopd --trace azure-like --gpus 8",
        "pdplugins replay --planner static --trace trace.csv --prefill 3 --decode 1 --json out.json",
    ),
    "serve": (
        "dynamo serve --planner dopd --trace demo",
        "dynamo serve --config my-config.yaml --gpus 16 --ttft 1 --port 9000",
    ),
    "simulate": (
        "pdplugins simulate dopd --trace demo --set deployment.startup_s=2",
        "pdplugins simulate my-config.yaml --trace trace.csv --rate 12 --json - --records records.jsonl",
    ),
    "trace info": ("pdplugins trace info azure-like", "pdplugins trace info trace.csv --clip-s 600 --plot trace.svg"),
    "trace make": (
        "pdplugins trace make demo --out demo.jsonl",
        "pdplugins trace make azure-like:seed=7 --rate 12 --out busy.jsonl",
    ),
}
"""By command: two command lines that a help ends with."""


def modern(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a command line with the names of today and all values, and a hint for each name of before."""
    command = next((word for word in words if not word.startswith("-")), "")
    renamed, found, hints = RENAMED.get(command, {}), list[str](), list[str]()
    waiting = list(words)
    while waiting:
        option, equals, value = waiting.pop(0).partition("=")
        if option in renamed:
            hints.append(f"{option} is called {renamed[option]} now")
            option = renamed[option]
        elif command == "replay" and option == "--initial" and (equals or waiting):
            equals, value = "=", value if equals else waiting.pop(0)
            if (pools := INITIAL.fullmatch(value)) is not None:
                hints.append("--initial 3P1D is --prefill 3 --decode 1 now")
                found += ["--prefill", pools[1], "--decode", pools[2]]
                continue
        if option in VALUES and not equals and (not waiting or waiting[0].startswith("-")):
            equals, value = "=", VALUES[option]
        found.append(f"{option}{equals}{value}")
    return found, hints


def writes_to_stdout(words: Sequence[str]) -> bool:
    """Return whether an option of a command line sends a file to standard output, by either name."""
    names = ("-", str(DEVICE))
    options = ("--json", "--html", "--records", "--out", "--write-config")
    joined = any(word == f"{option}={name}" for word in words for option in options for name in names)
    return joined or any(before in options and word in names for before, word in pairwise(words))


def prepare(command: Any, path: str = "") -> None:
    """Give a click command, and all below it, their examples and the completion of values."""
    for name, below in getattr(command, "commands", {}).items():
        prepare(below, f"{path} {name}".strip())
    if path in EXAMPLES:
        command.epilog = "\n\n".join(("[bold]Examples[/bold]", *EXAMPLES[path]))
    for parameter in command.params:
        parameter.process_value = _finite(parameter.process_value, parameter)
        if (complete := COMPLETIONS.get(parameter.name)) is not None and not getattr(command, "commands", None):
            parameter._custom_shell_complete = _completer(complete)


def _finite(process: Callable[[Any, Any], Any], parameter: Any) -> Callable[[Any, Any], Any]:
    """Return what reads the value of an option, and refuses ``nan``, which is inside all bounds, and infinity."""

    def read(context: Any, text: Any) -> Any:
        value = process(context, text)
        if isinstance(value, float) and not math.isfinite(value):
            raise BadParameter(f"{text!r} is not a finite number.", ctx=context, param=parameter)
        return value

    return read


def _completer(values: Callable[[], list[str]]) -> Callable[[Any, Any, str], list[Any]]:
    def complete(_: Any, __: Any, begun: str) -> list[Any]:
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - the shell asks for it

        return [CompletionItem(value) for value in values() if value.startswith(begun)]

    return complete


def _configs() -> list[str]:
    return [*config.shipped(), *_others()]


def _others() -> Iterator[str]:
    """Yield the policies of other packages, which stand for a config."""
    for registration in default_registry().registrations():
        if registration.kind in config.CHOICES and registration.plugin.distribution not in extras.DISTRIBUTIONS:
            yield registration.name


COMPLETIONS: dict[str, Callable[[], list[str]]] = {
    "config": _configs,
    "configs": _configs,
    "profile": lambda: default_registry().names("profile"),
    "planner": lambda: default_registry().names("planner"),
    "trace": lambda: [*sources.shipped(), *default_registry().names("workload")],
    "replay": lambda: [*sources.shipped(), *default_registry().names("workload")],
}
"""By name of a parameter: what it may be."""
