"""Work for a pool of forked processes, done so that no signal leaves a process or a lock behind."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import contextmanager
from typing import TypeVar

from pdplugins.interrupt import STOPPING, ctrl_c

BEAT_S = 0.2
"""Longest time between two looks at the signals that stop a command."""

Made = TypeVar("Made")


def finished(
    pool: Executor,
    work: Callable[..., Made],
    calls: Iterable[tuple[object, ...]],
    beat: Callable[[int], object] = lambda _: None,
) -> tuple[list[Future[Made]], bool]:
    """Do `work` with the arguments of each call. Return the futures, and whether Ctrl-C or SIGTERM came before the end.

    :param beat: is called now and then, and at the end, with the number of calls that are not done.

    A signal is told and not raised. An exception while a process is forked would leave one that nobody ends, and one
    while `wait` takes its locks would leave them taken. There are fewer futures where the signal, sent to the whole
    group, has ended a process: its pool takes no more work.
    """
    futures: list[Future[Made]] = []
    with ctrl_c(again=False) as pressed:
        try:
            with _held_back():
                for call in calls:
                    futures.append(pool.submit(work, *call))
        except BrokenExecutor:
            if not pressed():
                raise
        waiting = set(futures)
        while waiting and not pressed():
            beat(len(waiting))
            waiting = wait(waiting, BEAT_S, FIRST_COMPLETED).not_done
        beat(len(waiting))
    return futures, pressed()


@contextmanager
def _held_back() -> Iterator[None]:
    """Hold back the signals that stop a command: this process gets them after the block, a forked one in `stay_with`.

    A forked process would run the handler of its parent before that. Nothing would end it then.
    """
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)
