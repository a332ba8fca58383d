"""How a request fails: by its client, by a worker, or by the gateway."""

from __future__ import annotations

import errno
import math

SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Errors of a connection that are this process's own: it has no descriptor, memory or port for one more."""


def said(error: BaseException) -> str:
    """Return the type of an error and its message, if it has one."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def shortage(error: BaseException) -> bool:
    """Tell whether a connection failed because this process is short of something."""
    return isinstance(error, OSError) and error.errno in SHORTAGES


def refused(error: BaseException) -> bool:
    """Tell whether nobody listens at an address."""
    return isinstance(error, OSError) and error.errno == errno.ECONNREFUSED


class WorkerFailedError(Exception):
    """A worker that did not do its part; the request may go elsewhere.

    :param worker: its id.
    :param gone: it cannot be reached at all, so nothing goes there until it answers again.
    :param silent: it said nothing for too long.
    """

    def __init__(self, worker: str, why: str, *, gone: bool = False, silent: bool = False) -> None:
        super().__init__(f"{worker}: {why}")
        self.workers: tuple[str, ...] = (worker,)
        """Those that may be at fault, the most suspect first."""
        self.gone = gone
        self._silent = silent

    def of_pair(self, *pair: str) -> None:
        """Suspect the other worker of a pair too, and suspect it first when the one that failed still answers."""
        if not self.gone:
            failed = self.workers[0]
            other = tuple(worker for worker in pair if worker != failed)
            self.workers = (failed, *other) if self._silent else (*other, failed)


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
    """

    def __init__(self, status: int, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {} if retry_after_s is None else {"Retry-After": str(math.ceil(retry_after_s))}


class FlowRefusedError(GatewayError):
    """The flow policy refused a request, or the queue before the workers is full."""
