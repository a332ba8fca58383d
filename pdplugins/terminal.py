"""Terminal output of commands: progress bars, and the console for tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from pdplugins.errors import printable

PIPE_WIDTH = 200
"""Width in columns where the output is not a terminal."""


@contextmanager
def progress(names: Sequence[str]) -> Iterator[Callable[[Sequence[float]], None]]:
    """Show a bar with a time estimate for each run, on standard error if that is a terminal.

    Yields a function to call with the share of each run that is done.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda shares: None
        return
    shown = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*shown, TimeRemainingColumn(), console=console, transient=True) as bars:
        tasks = [bars.add_task(printable(name), total=1.0) for name in names]

        def update(shares: Sequence[float]) -> None:
            for task, share in zip(tasks, shares, strict=False):
                bars.update(task, completed=share)

        yield update


def shows(text: str) -> bool:
    """Tell whether standard output has all characters of `text`."""
    encoding = getattr(sys.stdout, "encoding", None)  # a program that starts without one has no standard output
    try:
        text.encode(encoding or "utf-8")
    except UnicodeError:
        return False
    return True


def plain(text: str) -> Text:
    """Return a text of others for a table: as it is, without markup and without characters that move the cursor."""
    return Text(printable(text))


def console() -> Console:
    """Return a console for results, wide enough for any table where the output is not a terminal."""
    found = Console()
    return found if found.is_terminal else Console(width=PIPE_WIDTH)
