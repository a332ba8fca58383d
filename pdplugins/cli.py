"""The command lines ``pdplugins`` and ``dynamo``. This module only collects the commands, which plugins define."""

from __future__ import annotations

import errno
import io
import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.table import Table
from typer.main import get_command

from pdplugins import __version__, extras, schema
from pdplugins.config import find, load, resolved
from pdplugins.errors import MOST_SHOWN, ConfigError, PdpluginsError, one_line, question_first, shown
from pdplugins.files import results_alone
from pdplugins.hosts.dynamo.local.commands import serve
from pdplugins.interrupt import INTERRUPTED, sigterm_as_ctrl_c
from pdplugins.registry import Registry, default_registry
from pdplugins.resources import data_dir
from pdplugins.terminal import console
from pdplugins.vocabulary import modern, prepare, writes_to_stdout

if TYPE_CHECKING:
    from pdplugins.config import Config
    from pdplugins.workloads.trace import TraceRequest

_SETTINGS: dict[str, Any] = {
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
app = typer.Typer(**_SETTINGS)
dynamo_app = typer.Typer(**_SETTINGS)
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What a file refuses to be written with. Files that commands open are told by their name; what has none is stdout."""
MOST_ERROR = 2000
"""Characters of an error. The message itself keeps short what users gave; this is for what slips through."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pdplugins {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
]


@app.callback()
def pdplugins(version: Version = False) -> None:
    """Routing, planning, batching and power policies for prefill/decode-disaggregated LLM serving.

    Start a scaled Dynamo stack on this machine with [bold]dynamo serve --planner dopd[/bold].
    """


@dynamo_app.callback()
def dynamo(context: typer.Context, version: Version = False) -> None:
    """Run NVIDIA Dynamo on this machine, scaled by a pdplugins planner."""
    extras.need("serve", "dynamo")
    context.obj = _hindsight


def _hindsight(config: Config, requests: Sequence[TraceRequest], gpus_held: float) -> list[str]:
    """Say how fixed pools would have done: hosts do not import the simulator."""
    from pdplugins.studies import hindsight  # noqa: PLC0415 - the simulator loads when it is needed

    return hindsight.lines(config, requests, gpus_held)


dynamo_app.command()(serve)


@app.command()
def plugins(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List what is installed: every plugin, what it registered, its hooks and its distribution."""
    rows = _plugin_rows(default_registry())
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    table = Table("kind", "name", "plugin", "distribution", "version", "hooks", box=None, header_style="bold")
    for row in rows:
        cells = (row[key] for key in ("kind", "name", "plugin", "distribution", "version"))
        table.add_row(*cells, ", ".join(row["hooks"]))
    console().print(table)


def _plugin_rows(registry: Registry) -> list[dict[str, Any]]:
    """Return a row for each registration, and one of kind ``command`` for each plugin that adds commands."""

    def row(kind: str, name: str, plugin: Any) -> dict[str, Any]:
        facts = {
            "distribution": plugin.distribution,
            "version": plugin.version,
            "hooks": registry.hooks(plugin),
        }
        return {"kind": kind, "name": name, "plugin": plugin.name, **facts}

    things = [row(r.kind, r.name, r.plugin) for r in registry.registrations()]
    commands = [p for p in registry.plugins() if "pd_register_commands" in registry.hooks(p)]
    return things + [row("command", plugin.name, plugin) for plugin in commands]


@app.command()
def config(
    name: Annotated[str, typer.Argument(help="A config file, or the name of a shipped config such as dopd.")] = "",
    as_schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of config files; of workload files with 'workload'.")
    ] = False,
) -> None:
    """Check a config file, and print it in full with all defaults."""
    if as_schema:
        typer.echo(schema.text(_schema(name or "config")(default_registry())), nl=False)
        return
    if not name:
        raise ConfigError("say which config: a file, or the name of a shipped one such as dopd")
    checked = load(find(name))
    typer.echo(yaml.safe_dump(resolved(checked), sort_keys=False, allow_unicode=True), nl=False)


def _schema(kind: str) -> Callable[[Registry], schema.Schema]:
    if (make := schema.SCHEMAS.get(kind)) is None:
        raise ConfigError(f"there is no schema of {shown(kind)}; choose from {', '.join(schema.SCHEMAS)}")
    return make


def main() -> None:
    """Run ``pdplugins``."""
    try:
        with results_alone():  # what a plugin prints while it loads is no part of a result
            default_registry().add_commands(app)
    except PdpluginsError as error:
        _fail("pdplugins", error)
    except KeyboardInterrupt:  # plugins take half a second to load
        sys.exit(INTERRUPTED)
    _run(app, "pdplugins")


def dynamo_main() -> None:
    """Run ``dynamo``."""
    _run(dynamo_app, "dynamo")


@sigterm_as_ctrl_c()
def _run(application: typer.Typer, name: str) -> None:
    words, hints = modern(sys.argv[1:])
    for hint in hints:
        sys.stderr.write(f"{name}: {hint}\n")
    try:
        _check_text(words)
        _show_everything()
        command = get_command(application)
        prepare(command)
        with results_alone() if writes_to_stdout(words) else nullcontext():
            code = command(args=words, prog_name=name, standalone_mode=False)
            sys.exit(code if type(code) is int else 0)  # the command of a plugin may return anything
    except PdpluginsError as error:
        _fail(name, error)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except (MemoryError, BrokenExecutor) as error:
        _fail(name, _too_little_memory(error))
    except ModuleNotFoundError as error:
        if (advice := extras.advice(error.name or "")) is None:
            raise
        _fail(name, advice)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_ERRORS and error.filename is None:
            _fail(name, f"standard output: {error.strerror}; send it to where there is room")
        if not hasattr(error, "format_message"):
            raise
        _misused(error, application, name, words)


def _too_little_memory(error: MemoryError | BrokenExecutor) -> str:
    shorter = "a shorter trace (--clip-s, --max-requests) needs less"
    if isinstance(error, MemoryError):
        return f"not enough memory for this; {shorter}"
    return f"a process of it was killed, perhaps for want of memory; fewer --jobs or {shorter}"


def _check_text(words: Sequence[str]) -> None:
    """Raise ConfigError for a word that is no text: results name the command line, and they are UTF-8."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            named = one_line(word, MOST_SHOWN)
            raise ConfigError(
                f"argument '{named}' is no UTF-8 text, as results are; rename the file or mend it"
            ) from None


def _show_everything() -> None:
    """Let standard output show what its encoding lacks as an escape, as standard error does."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _misused(error: Any, application: typer.Typer, name: str, words: Sequence[str]) -> None:
    """Say in one line what is wrong with a command line. Typer does not export the class of these errors."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        sys.exit(2)
    command = error.ctx.command_path if getattr(error, "ctx", None) is not None else _command(application, name, words)
    what = error.format_message().rstrip(".").replace("Value error, ", "")
    _fail(command, f"{what}; see {command} --help")


def _command(application: typer.Typer, name: str, words: Sequence[str]) -> str:
    """Return the command that a command line means, as far as it goes: not all errors know theirs."""
    found: Any = get_command(application)
    for word in words:
        if (found := getattr(found, "commands", {}).get(word)) is None:
            break
        name = f"{name} {word}"
    return name


def _fail(name: str, error: object) -> None:
    """Print an error that the user can fix, in one line, and exit with code 2."""
    message = one_line(error, MOST_ERROR).replace(f"{data_dir('configs')}/", "")  # users named a config, not its place
    sys.stderr.write(f"{name}: {question_first(message)}\n")
    sys.exit(2)
