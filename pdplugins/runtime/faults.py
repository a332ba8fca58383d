"""What every safe policy does when its policy fails: count the fault, log it once in a while, tell the journal."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns
from traceback import format_exception
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from pdplugins import errors
from pdplugins.contracts.kinds import Kind
from pdplugins.errors import PluginError
from pdplugins.runtime.decision import Fault, Journal

STOPS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What ends the process, or the generator, that asks. Whatever else a policy raises is its fault: a panic of an
extension in Rust is no `Exception`."""
LOG_EVERY = 100
"""After the first fault of a kind, one in this many is logged."""
SHORTEST_S, LONGEST_S = 1e-3, 1e9
"""Of the interval of a policy."""
MOST_TRACE = 50_000
"""Most characters of a traceback with what the errors in it say."""
MOST_TEXT = 300
"""Most characters of what a policy says that a log shows."""


class Tally:
    """Calls, time and faults of the policies of one kind.

    Safe policies may share one: a host with a batch scheduler for each engine wants one count, and one line in its log.
    """

    __slots__ = ("_journal", "_log", "calls", "faults", "kind", "ns")

    def __init__(self, kind: Kind, journal: Journal | None = None) -> None:
        self.kind = kind
        self.calls = 0
        """Decisions that the policies were asked for."""
        self.ns = 0
        """Nanoseconds that the policies took."""
        self.faults: Counter[Fault] = Counter()
        self._journal = journal
        self._log = logging.getLogger(f"pdplugins.{kind}")

    def fault(self, fault: Fault, why: str, error: BaseException | None = None) -> None:
        """Count `fault`; log the first of its kind with its traceback, then every `LOG_EVERY`-th without."""
        self.faults[fault] += 1
        seen = self.faults[fault]
        if self._journal is not None:
            self._journal.fault(self.kind, fault, why, error)
        if seen == 1 or seen % LOG_EVERY == 0:
            trace = _trace(error, why) if error is not None and seen == 1 else None
            self._log.warning("%s (%d so far): %s", fault, seen, why, exc_info=trace)


class HasInterval(Protocol):
    """A planner or power controller: it is asked on a tick."""

    @property
    def interval_s(self) -> float: ...  # noqa: D102 - see Planner


class Guard:
    """``with guard:`` lets no exception of a policy out: it is counted, and what is left of the block is not done."""

    __slots__ = ("_policy", "_tally")

    def __init__(self, policy: object, tally: Tally) -> None:
        self._policy = policy
        self._tally = tally

    def __enter__(self) -> None:
        """Begin what may raise."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or isinstance(error, STOPS):
            return False
        self._tally.fault(Fault.POLICY_ERROR, raised(self._policy, error), error)
        return True


P = TypeVar("P")


class SafePolicy(Generic[P]):
    """What the safe wrappers of all kinds of policy have in common: a policy that fails must not stop serving.

    :param tally: counts; its own when None.
    :param clock: measures how long the policy takes, in nanoseconds. Decisions never depend on it.
    """

    __slots__ = ("_clock", "_guarded", "_journal", "policy", "tally")

    def __init__(
        self,
        kind: Kind,
        policy: P,
        journal: Journal | None,
        tally: Tally | None,
        clock: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self.policy = policy
        self.tally = tally or Tally(kind, journal)
        self._guarded = Guard(policy, self.tally)
        self._journal = journal
        self._clock = clock

    @property
    def faults(self) -> Counter[Fault]:
        """How often the policy failed, by kind of fault."""
        return self.tally.faults

    @property
    def calls(self) -> int:
        """Decisions that the policy was asked for."""
        return self.tally.calls

    @property
    def ns(self) -> int:
        """Nanoseconds that the policy took."""
        return self.tally.ns

    def _asked(self, decide: Callable[[], object]) -> tuple[object, Fault | None, int]:
        """Ask the policy for a decision: return its answer, the fault where it raised, and the nanoseconds it took."""
        answer, fault = None, None
        clock, tally = self._clock, self.tally
        began = clock()
        try:
            answer = decide()
        except BaseException as error:
            fault = self._failed(error)
        took = clock() - began
        tally.calls += 1
        tally.ns += took
        return answer, fault, took

    def _told(self, hear: Callable[[], None]) -> bool:
        """Tell the policy something; return whether it took that in."""
        clock = self._clock
        began = clock()
        try:
            hear()
        except BaseException as error:
            self._failed(error)
            return False
        finally:
            self.tally.ns += clock() - began
        return True

    def _failed(self, error: BaseException) -> Fault:
        """Count what the policy has just raised. What stops the process goes on."""
        if isinstance(error, STOPS):
            raise error
        self.tally.fault(Fault.POLICY_ERROR, raised(self.policy, error), error)
        return Fault.POLICY_ERROR

    def _unsafe(self, why: str) -> Fault:
        self.tally.fault(Fault.UNSAFE_ANSWER, why)
        return Fault.UNSAFE_ANSWER


def _trace(
    error: BaseException, why: str
) -> BaseException | tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return what a log shows as the traceback: with `why` in place of the error where its text does not fit there."""
    with suppress(Exception):  # it is of a policy
        text = "".join(format_exception(error))
        if len(text) <= MOST_TRACE and text.replace("\n", "").isprintable():
            return error
    return PluginError, PluginError(why), error.__traceback__


def raised(policy: object, error: BaseException) -> str:
    """Say in one line that `policy` raised `error`. Never raises."""
    return f"{type(policy).__name__} raised {type(error).__name__}: {one_line(error)}"


def one_line(value: object, most: int = MOST_TEXT) -> str:
    """Return `value` as a printable text of one line, cut to `most`. Never raises, whatever its ``__str__`` does."""
    try:
        return errors.one_line(value, most)
    except Exception:  # an object of a policy
        return f"a {type(value).__name__} that cannot be shown"


def interval_of(policy: HasInterval) -> float:
    """Return the seconds between two calls of `policy`. Raises PluginError when no host can keep them."""
    interval_s = policy.interval_s
    if not (isinstance(interval_s, float | int) and SHORTEST_S <= interval_s <= LONGEST_S):
        raise PluginError(
            f"{type(policy).__name__}: interval_s is {one_line(interval_s)}; "
            f"let it be a number of seconds from {SHORTEST_S:g} to {LONGEST_S:g}"
        )
    return interval_s


def implements(policy: object, protocol: type) -> bool:
    """Tell whether `policy` has the methods of a runtime-checkable `protocol`. A property that raises is none."""
    try:
        return isinstance(policy, protocol)
    except Exception:  # isinstance reads the properties of a protocol (Python 3.11)
        return False


def fallback_of(policy: object, protocol: type, method: str) -> Any:
    """Return the simpler policy that `policy` has in place of itself; None where it has none with that `method`."""
    if not implements(policy, protocol):
        return None
    fallback = getattr(policy, "fallback", None)
    return fallback if callable(getattr(fallback, method, None)) else None
