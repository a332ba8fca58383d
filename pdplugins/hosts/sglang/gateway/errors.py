"""How a request fails: by its client, by a worker, or by the gateway."""

from __future__ import annotations


class WorkerFailedError(Exception):
    """A worker that did not do its part; the request may go elsewhere.

    :param worker: its id.
    :param gone: it cannot be reached at all, so nothing goes there until it answers again.
    """

    def __init__(self, worker: str, why: str, *, gone: bool = False) -> None:
        super().__init__(f"{worker}: {why}")
        self.workers: tuple[str, ...] = (worker,)
        """Those that may be at fault. Of a pair that is both, where neither is known to be gone."""
        self.gone = gone


class RefusedError(Exception):
    """A worker's refusal that any worker would give: the client's own mistake. It goes to the client as it is."""

    def __init__(self, status: int, body: bytes, content_type: str) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.body = body
        self.content_type = content_type


class GatewayError(Exception):
    """What the gateway itself has to say to the client, with its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
