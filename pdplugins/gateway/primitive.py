"""What a placement comes to on real workers: one of five primitives.

A placement may ask for what the workers or the request do not allow; a stock decode server, for example, cannot
prefill. `resolve` then returns the nearest thing that works, and says why. It is a pure function of worker views and of
the request, so every host that places requests can use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from pdplugins.contracts.router import Placement
from pdplugins.contracts.workers import ANYTHING, Role, WorkerView


class Primitive(StrEnum):
    """What is done on the workers."""

    LOCAL = "local"
    """One worker serves all of it."""
    PAIR = "pair"
    """One worker prefills and sends the KV cache to the one that decodes."""
    PUSH = "push"
    """The split is in the prompt: the KV cache of its beginning is sent, and the second worker does the rest."""
    HEAD = "head"
    """The split is in the answer: the first worker gives its beginning, then the second one goes on."""
    WARM = "warm"
    """The first worker prefills; who decodes is decided afterwards."""


class Deviation(StrEnum):
    """Why something else is done than what the router said."""

    LOCAL = "local"
    ROLES = "roles"
    STOCK_SPLIT = "stock_split"
    SEVERAL_ANSWERS = "several_answers"
    KEPT_APART = "kept_apart"
    DECODE_SPLIT = "decode_split"
    OPEN_SECOND = "open_second"
    WHOLE = "whole"

    @property
    def why(self) -> str:
        """The reason, for a log."""
        return _WHY[self]


_WHY = {
    Deviation.LOCAL: "a stock prefill or decode server cannot serve alone",
    Deviation.ROLES: "the servers named cannot prefill or decode for each other",
    Deviation.STOCK_SPLIT: "a split needs dual-role servers",
    Deviation.SEVERAL_ANSWERS: "a request with several prompts or answers is not split",
    Deviation.KEPT_APART: "a prompt with a cache salt, or of a LoRA adapter in the model's name, is not split",
    Deviation.DECODE_SPLIT: "another worker can only go on with token ids and sampling that depends on tokens alone",
    Deviation.WHOLE: "one worker has to serve all of such a request, which cannot be split",
    Deviation.OPEN_SECOND: "a stock prefill server needs its decode server before it begins; the router is asked now",
}


@dataclass(slots=True)
class Execution:
    """What is done for one request, in this order."""

    first: str
    """Prefills, at least the beginning."""
    second: str | None
    """Goes on; the same worker when all of it is local, None while it is open."""
    split: int
    """Tokens of prompt and output on `first`."""
    prompt: int
    """Tokens of the prompt."""

    @property
    def primitive(self) -> Primitive:
        """What it comes to."""
        if self.second is None:
            return Primitive.WARM
        if self.first == self.second:
            return Primitive.LOCAL
        if self.split == self.prompt:
            return Primitive.PAIR
        return Primitive.PUSH if self.split < self.prompt else Primitive.HEAD

    @classmethod
    def local(cls, worker: str, prompt: int) -> Execution:
        """Let one worker do all of it."""
        return cls(worker, worker, prompt, prompt)


class Splittable(Protocol):
    """What decides where a request may be split."""

    @property
    def max_tokens(self) -> int | None:
        """Output tokens that the client allows; None when the model's context is the only limit."""
        ...

    @property
    def whole(self) -> str | None:
        """Why one worker has to serve all of it, with none of it on another one; None where it has not."""
        ...

    @property
    def one_answer(self) -> bool:
        """Whether it has one prompt and wants one answer."""
        ...

    @property
    def pushes(self) -> bool:
        """Whether KV cache that is computed ahead is where its prompt looks for it."""
        ...

    @property
    def splits_in_decode(self) -> bool:
        """Whether another worker can go on in the middle of its answer."""
        ...


class NobodyServesError(Exception):
    """The workers that are there cannot serve a request between them."""


def prefills(worker: WorkerView) -> bool:
    """Tell whether `worker` can prefill for another one."""
    return Role.PREFILL in (worker.capabilities or ANYTHING).phases


def decodes(worker: WorkerView) -> bool:
    """Tell whether `worker` can decode what another one has prefilled."""
    return Role.DECODE in (worker.capabilities or ANYTHING).phases


def alone(worker: WorkerView) -> bool:
    """Tell whether `worker` can serve a request by itself."""
    return (worker.capabilities or ANYTHING).alone


def can_serve(workers: Iterable[WorkerView]) -> bool:
    """Tell whether these workers can serve a request between them."""
    workers = tuple(workers)
    return any(map(alone, workers)) or (any(map(prefills, workers)) and any(map(decodes, workers)))


def resolve(
    placement: Placement,
    prompt: int,
    call: Splittable,
    workers: Mapping[str, WorkerView],
    ready: Sequence[WorkerView],
    *,
    late: bool = False,
) -> tuple[Execution, Deviation | None]:
    """Return what the workers and the request allow of `placement`, and why it differs, if it does.

    After `Deviation.OPEN_SECOND` the host asks the router for the second worker at once.

    :param prompt: tokens of the prompt.
    :param workers: all workers that `placement` may name, by id.
    :param ready: those that take new work; a placement that cannot be followed becomes one on these.
    :param late: whether every worker that prefills can do so before it is known who decodes; else only those that can
        serve alone.

    Raises NobodyServesError.
    """
    first = workers[placement.first]
    second = None if placement.second is None else workers[placement.second]
    if second is not None and placement.split <= 0:
        first = second
    elif second is not None and placement.split >= prompt + (call.max_tokens or prompt + placement.split):
        second = first
    if first is second or call.whole is not None:
        return _undivided(first, second, prompt, call, ready)
    if not (prefills(first) and (second is None or decodes(second))):
        return _nearest(first, second, prompt, ready), Deviation.ROLES
    if second is None:
        return Execution(first.id, None, prompt, prompt), None if late or alone(first) else Deviation.OPEN_SECOND
    if placement.split != prompt and (why := _unsplit(placement.split, prompt, first, second, call)):
        return Execution(first.id, second.id, prompt, prompt), why
    return Execution(first.id, second.id, placement.split, prompt), None


def _undivided(
    first: WorkerView, second: WorkerView | None, prompt: int, call: Splittable, ready: Sequence[WorkerView]
) -> tuple[Execution, Deviation | None]:
    """Let one worker do all of it, as the router or the request wants it."""
    if first is second and alone(first):
        return Execution.local(first.id, prompt), None
    if call.whole is not None:
        return _by_itself(first, second, prompt, ready), Deviation.WHOLE
    return _nearest(first, second, prompt, ready), Deviation.LOCAL


def _unsplit(split: int, prompt: int, first: WorkerView, second: WorkerView, call: Splittable) -> Deviation | None:
    """Return the reason why a request cannot be split here."""
    if not all((worker.capabilities or ANYTHING).splits for worker in (first, second)):
        return Deviation.STOCK_SPLIT
    if not call.one_answer:
        return Deviation.SEVERAL_ANSWERS
    if split < prompt and not call.pushes:
        return Deviation.KEPT_APART
    return Deviation.DECODE_SPLIT if split > prompt and not call.splits_in_decode else None


def _nearest(first: WorkerView, second: WorkerView | None, prompt: int, ready: Sequence[WorkerView]) -> Execution:
    """Return the nearest thing to a placement that these workers cannot do: another pair, or one worker alone."""
    to_prefill = [first] if prefills(first) else list(filter(prefills, ready))
    to_decode = [second] if second and decodes(second) else list(filter(decodes, ready))
    if to_prefill and to_decode:
        p = min(to_prefill, key=lambda worker: worker.load.queued_tokens)
        d = min(to_decode, key=_requests)
        if p is not d:
            return Execution(p.id, d.id, prompt, prompt)
    return _by_itself(first, second, prompt, ready)


def _by_itself(first: WorkerView, second: WorkerView | None, prompt: int, ready: Sequence[WorkerView]) -> Execution:
    """Return all of it on one worker: a named one, or the least loaded of the others."""
    named: list[WorkerView] = [worker for worker in (second, first) if worker is not None and alone(worker)]
    by_themselves = named or list(filter(alone, ready))
    if not by_themselves:
        raise NobodyServesError("the workers that are there cannot serve this request")
    return Execution.local(min(by_themselves, key=_requests).id, prompt)


def _requests(worker: WorkerView) -> float:
    """Return all that a worker has: a whole answer counts as queued until it is there."""
    return worker.load.running_requests + worker.load.queued_requests
