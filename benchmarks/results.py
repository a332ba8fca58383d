"""Makes every result again, or says which ones are out of date.

    python benchmarks/results.py status                    which results are older than the code they measure
    python benchmarks/results.py run --traces DIR          make those again that are: `make results TRACES=DIR`
    python benchmarks/results.py verify --only 'arrow*'    show results equal after a change that should not matter
    python benchmarks/results.py pages                     write all figures and tables of pages from the results

`run` may be stopped and called again: what is up to date is skipped, and each experiment writes only when it has ended.
`verify` runs the cell that an experiment declares (``cell()`` of its script: rows of the table, computed again) and
compares it with the row that is published; a result without a cell is made again by `run`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import equality
import figures
import manifest
from manifest import HERE, RESULTS, ROOT, Data, Experiment
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pdplugins.errors import PdpluginsError
from pdplugins.provenance import commit, record

console = Console(stderr=True, width=None if sys.stderr.isatty() else 160)


# --- what is out of date ----------------------------------------------------------------------------------------------


def state(experiment: Experiment, result: str) -> tuple[str, str]:
    """Return whether a result is ``fresh``, ``equal``, ``aged``, ``stale`` or ``missing``, and why."""
    if not (RESULTS / f"{result}.json").exists():
        return "missing", "was never made"
    data = manifest.read(result)
    if found := manifest.flaws(data):
        return "stale", "; ".join(found)
    if parts := manifest.changed(experiment, data):
        return ("aged" if measured(data) else "stale"), f"changed since commit {data['commit']}: {', '.join(parts)}"
    if experiment.code() == data["code"]:
        return "fresh", ""
    return "equal", manifest.equality(data)


def measured(data: Data) -> bool:
    """Tell whether figures were measured: those that are older than the code stay, and their page states the age."""
    return bool(data["kind"] == "measured")


def outdated(experiment: Experiment) -> dict[str, str]:
    """Return the results of an experiment that are to be made again, each with the reason."""
    states = {result: state(experiment, result) for result in experiment.results}
    return {result: why for result, (how, why) in states.items() if how not in ("fresh", "equal")}


def stale() -> dict[str, str]:
    """Return every result that no page may quote as it is, each with what changed and the command that mends it."""
    found = {}
    for experiment in manifest.experiments():
        for result in experiment.results:
            how, why = state(experiment, result)
            if how in ("stale", "missing"):
                mend = (
                    experiment.run if experiment.needs else f"python benchmarks/results.py run --only {experiment.name}"
                )
                found[result] = f"results/{result}.json: {why}; {mend}"
    return found


def status(options: argparse.Namespace) -> None:
    """Print the state of every result."""
    for experiment in chosen(options.only):
        for result in experiment.results:
            how, why = state(experiment, result)
            print(f"{how:8s} {result:45s} {why}")
        if outdated(experiment) and not options.short:
            print(f"         make it again: {experiment.run}")


def chosen(patterns: Sequence[str]) -> list[Experiment]:
    """Return the experiments of which a result is called like one of `patterns`; all of them without any."""
    found = [
        it for it in manifest.experiments() if any(fnmatch(name, p) for name in it.results for p in patterns or "*")
    ]
    if not found:
        raise PdpluginsError(f"--only {' '.join(patterns)}: no result is called so; results.py status lists them")
    return found


# --- run --------------------------------------------------------------------------------------------------------------


def command(experiment: Experiment, traces: Path | None, out: Path) -> list[str]:
    """Return the words that start an experiment on this machine."""
    places = {name: str(manifest.place(name, traces)) for name in experiment.traces} | {
        "DIR": str(traces),
        "OUT": str(out),
    }
    words = [places.get(word, word) for word in shlex.split(experiment.run)]
    programs = {"python": [sys.executable], "pdplugins": [str(Path(sys.executable).with_name("pdplugins"))]}
    return [*programs[words[0]], *words[1:]]


def skipped(experiment: Experiment, traces: Path | None) -> str | None:
    """Return why an experiment cannot run here, or need not; None when it is to run."""
    if experiment.needs:
        return f"needs {experiment.needs}: {experiment.run}"
    gone = [name for name in experiment.traces if manifest.place(name, traces) is None]
    if gone:
        return f"{', '.join(gone)} not there: name the folder with --traces DIR (make results TRACES=DIR)"
    return None


class Runner:
    """Runs experiments, each in a process of its own, several at once if wanted."""

    def __init__(self, traces: Path | None, logs: Path) -> None:
        self._traces = traces
        self._logs = logs
        self._running: set[subprocess.Popen[bytes]] = set()

    def __call__(self, experiment: Experiment) -> str | None:
        """Run one; return what went wrong, or None."""
        paths = [str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        log = self._logs / f"{experiment.name}.log"
        out = self._logs / f"{experiment.name}.json"
        words = command(experiment, self._traces, out)
        with log.open("wb") as stream:
            child = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=stream, stderr=subprocess.STDOUT)
            self._running.add(child)
            code = child.wait()
            self._running.discard(child)
        if code:
            tail = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            return f"exit code {code}: {tail[0]} ({log})"
        if out.exists():
            adopt(experiment, json.loads(out.read_text(encoding="utf-8")))
        left = outdated(experiment)
        return "; ".join(left.values()) or None

    def stop(self) -> None:
        """End what runs."""
        for child in set(self._running):
            child.terminate()


def adopt(experiment: Experiment, data: Mapping[str, Any]) -> None:
    """Write what a command of pdplugins wrote to ``OUT`` as the result of its experiment."""
    made = record(data["kind"], seed=data["seed"], command=experiment.run.replace("OUT", f"{experiment.name}.json"))
    manifest.write(experiment.name, {**made, **{key: data[key] for key in data if key not in manifest.ORIGIN}})


def run(options: argparse.Namespace) -> int:
    """Make every result again that is out of date; return the exit code."""
    todo, reasons = [], dict[str, str]()
    for experiment in chosen(options.only):
        why = skipped(experiment, options.traces)
        if why is None and not options.force and not outdated(experiment):
            why = "up to date"
        if why is None:
            todo.append(experiment)
        else:
            reasons[experiment.name] = why
    for name, why in reasons.items():
        console.print(f"skipped  {name}: {why}", markup=False)
    minutes = sum(it.minutes for it in todo) / options.jobs
    console.print(f"{len(todo)} experiments to run, about {minutes:.0f} minutes with --jobs {options.jobs}")
    if options.list or not todo:
        for experiment in todo:
            console.print(f"to run   {experiment.name}: {experiment.run} ({experiment.minutes:g} min)", markup=False)
        return 0
    check_clean()
    failed = _run_all(todo, options)
    for name, why in failed.items():
        console.print(f"failed   {name}: {why}", markup=False, style="red")
    try:
        refresh()
    except PdpluginsError as error:
        console.print(f"pages are not written again: {error}", markup=False)
    return 1 if failed else 0


def check_clean() -> None:
    """Raise PdpluginsError where the code is not that of a commit."""
    if commit().endswith("-dirty"):
        raise PdpluginsError("the code differs from the last commit; commit it first: a result names its commit")


def _run_all(todo: Sequence[Experiment], options: argparse.Namespace) -> dict[str, str]:
    failed = dict[str, str]()
    logs = Path(tempfile.mkdtemp(prefix="pdplugins-results-"))
    runner, total, began = Runner(options.traces, logs), sum(it.minutes for it in todo), time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar, ThreadPoolExecutor(options.jobs) as pool:
        task = bar.add_task("results", total=len(todo))
        open_: dict[Future[str | None], Experiment] = {pool.submit(runner, it): it for it in todo}
        done = 0.0
        try:
            while open_:
                for future in wait(open_, return_when=FIRST_COMPLETED).done:
                    experiment = open_.pop(future)
                    done += experiment.minutes
                    left_s = (time.monotonic() - began) * (total - done) / done
                    if why := future.result():
                        failed[experiment.name] = why
                    console.print(f"{'failed' if why else 'made':8s} {experiment.name}", markup=False)
                    bar.update(task, advance=1, description=f"about {left_s / 60:.0f} min left")
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            runner.stop()
            console.print("stopped; what had ended is kept: call it again to go on")
            raise
    if not failed:
        shutil.rmtree(logs)
    return failed


# --- shown equal, and pages -------------------------------------------------------------------------------------------


def verify(options: argparse.Namespace) -> int:
    """Run the declared cell of each outdated experiment; where it is equal, note that in the result."""
    check_clean()
    differ = 0
    for experiment in chosen(options.only):
        if not outdated(experiment) or skipped(experiment, options.traces):
            continue
        found = equality.differences(experiment, options.traces)
        differ += bool(found)
        if found is None:
            print(f"no cell  {experiment.name}: make it again with results.py run")
        else:
            print(f"{'differs' if found else 'equal':8s} {experiment.name} {'; '.join(found)}", flush=True)
    pages(options)
    return 1 if differ else 0


def pages(_: argparse.Namespace) -> None:
    """Write the figures and tables of all pages again from the result files."""
    for path in sorted(RESULTS.glob("*.json")):
        data = manifest.read(path.stem)
        if "experiment" in data:
            importlib.import_module("experiment").show(data)
    if any(RESULTS.glob("planners-*.json")):
        importlib.import_module("planners_report").write()
    refresh()


def refresh() -> None:
    """Write the marked figures of all pages again. Raises PdpluginsError for a mark that finds nothing."""
    for page in figures.pages():
        old = page.read_text(encoding="utf-8")
        if (new := figures.refreshed(old)) != old:
            page.write_text(new, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    added = {
        name: commands.add_parser(name, help=(does.__doc__ or "").splitlines()[0]) for name, does in COMMANDS.items()
    }
    for name in ("status", "run", "verify"):
        added[name].add_argument("--only", nargs="+", default=[], metavar="PATTERN", help="results called so: 'arrow*'")
    for name in ("run", "verify"):
        added[name].add_argument("--traces", type=Path, default=os.environ.get("TRACES") or None, metavar="DIR")
    added["status"].add_argument("--short", action="store_true", help="without the commands")
    added["run"].add_argument("--jobs", type=int, default=1, help="experiments at once")
    added["run"].add_argument("--list", action="store_true", help="say what would run, and run nothing")
    added["run"].add_argument("--force", action="store_true", help="also what is up to date")
    options = parser.parse_args()
    if getattr(options, "traces", None) is not None and not Path(options.traces).is_dir():
        parser.error(f"--traces {options.traces}: is no folder")
    if getattr(options, "traces", None) is not None:
        options.traces = Path(options.traces).resolve()
    try:
        return COMMANDS[options.command](options) or 0
    except PdpluginsError as error:
        print(f"results: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


COMMANDS: dict[str, Any] = {"status": status, "run": run, "verify": verify, "pages": pages}

if __name__ == "__main__":
    sys.exit(main())
