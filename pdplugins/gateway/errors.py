"""How a request fails: by its client, by a worker, or by the gateway."""

from __future__ import annotations

import errno
import math

from pdplugins.errors import one_line

SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Errors of a connection that are this process's own: it has no descriptor, memory or port for one more."""

FULL = frozenset({429, 503})
"""How a server says that it has too much to do."""


def said(error: BaseException) -> str:
    """Return the type of an error and its message, if it has one, in one line: a worker may have written it."""
    return one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def shortage(error: BaseException) -> bool:
    """Tell whether a connection failed because this process is short of something."""
    return isinstance(error, OSError) and error.errno in SHORTAGES


def refused(error: BaseException) -> bool:
    """Tell whether nobody listens at an address."""
    return isinstance(error, OSError) and error.errno == errno.ECONNREFUSED


class WorkerFailedError(Exception):
    """A worker that did not do its part; the request may go elsewhere. Its message is for the log, not for clients.

    :param worker: its id.
    :param gone: nobody listens there, so nothing goes there until it answers again.
    :param silent: it said nothing for too long.
    :param told: it said itself that it failed.
    """

    full = False
    """Whether it works, and has too much to do."""
    retry_after_s: float | None = None
    """After how many seconds it wants to be asked again, if it said so."""

    def __init__(self, worker: str, why: str, *, gone: bool = False, silent: bool = False, told: bool = False) -> None:
        super().__init__(f"{worker}: {why}")
        self.workers: tuple[str, ...] = (worker,)
        """Those that may be at fault, the most suspect first."""
        self.gone = gone
        self.silent = silent
        self.told = told

    def of_pair(self, *pair: str) -> None:
        """Suspect the other worker of a pair too, and first where this one says an error: mostly that of its peer."""
        if not self.gone:
            failed = self.workers[0]
            other = tuple(worker for worker in pair if worker != failed)
            self.workers = (*other, failed) if self.told else (failed, *other)


class WorkerFullError(WorkerFailedError):
    """A worker that has too much to do to take one more request. There is nothing wrong with it."""

    full = True

    def __init__(self, worker: str, why: str, retry_after_s: float | None = None) -> None:
        super().__init__(worker, why)
        self.retry_after_s = retry_after_s

    def of_pair(self, *pair: str) -> None:
        """Suspect nobody else."""


class RefusedError(Exception):
    """A worker's refusal of a request that any worker would refuse. It goes to the client as it is."""

    def __init__(self, status: int, body: bytes, content_type: str) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.body = body
        self.content_type = content_type


class GatewayError(Exception):
    """An error of the gateway itself, with its HTTP status.

    :param retry_after_s: after how many seconds the client may try again; None when there is nothing to say.
    :param param: the field of the request that is at fault; None for none.
    :param code: what OpenAI's API calls the error; None for its status.
    """

    def __init__(
        self,
        status: int,
        message: str,
        retry_after_s: float | None = None,
        *,
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = {} if retry_after_s is None else {"Retry-After": str(math.ceil(retry_after_s))}


class ShortageError(GatewayError):
    """This process has no descriptor, memory or port for one more connection."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(503, "the gateway has too many connections", 1.0)
        self.why = said(error)


class AnswersTooLongError(GatewayError):
    """There is no room for one more whole answer beside those that clients have not taken yet."""

    def __init__(self) -> None:
        super().__init__(503, "the answers to all requests together are too long", 1.0)


class FlowRefusedError(GatewayError):
    """The flow policy refused a request, or the queue before the workers is full."""
