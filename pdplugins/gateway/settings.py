"""How long the gateway waits, and how much it keeps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Deadlines and limits of one gateway."""

    timeout_s: float = 600.0
    """A request that has not finished after this long fails with 504, whatever was tried."""
    first_token_s: float = 60.0
    """A worker that has not begun to answer after this long is given up, and the request goes elsewhere."""
    silence_s: float = 60.0
    """A stream that says nothing for this long is dead."""
    connect_s: float = 5.0
    retries: int = 3
    """How often a request starts anew, or goes on elsewhere, because a worker failed."""
    rest_s: float = 5.0
    """A worker that failed a request gets no new ones for this long."""
    poll_s: float = 0.5
    """Pause between two looks at the load of a worker."""
    transfer_history: bool = True
    """Rounds of a session that prefill on another worker than the one with their history get its KV cache from there;
    else they compute it again."""
    most_waiting: int = 10_000
    """With a flow policy: requests that may wait before the workers; what comes on top is refused."""
    drain_s: float = 30.0
    """When the gateway stops, requests in flight have this long to finish."""
