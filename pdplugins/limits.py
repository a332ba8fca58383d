"""The limits of the gateway: the sections `gateway` and `terms` of a config.

docs/limits.md has the deadlines and limits in one table, docs/gateway.md has the terms.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]

MIB = 2**20


class TermsConfig(BaseModel):
    """What clients may ask of a gateway for one request of theirs. As shipped, nothing: then nobody is preferred."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    most_priority: int = Field(0, ge=0, le=9, description="priorities lie from minus this to this")
    most_weight: float = Field(1.0, ge=1, description="weights lie from one over this to this")
    ttft_s: tuple[Seconds, Seconds] | None = Field(None, description="bounds of a TTFT objective of its own")
    tpot_s: tuple[Seconds, Seconds] | None = Field(None, description="bounds of a TPOT objective of its own")
    tenant_header: str | None = Field(None, description="header that names the tenant, set by what authenticates it")
    tenants: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {}, description="share of the capacity of some tenants, by name; the others have 1"
    )

    @field_validator("ttft_s", "tpot_s")
    @classmethod
    def _in_order(cls, bounds: tuple[float, float] | None) -> tuple[float, float] | None:
        if bounds is not None and bounds[0] > bounds[1]:
            raise ValueError(f"{bounds[0]:g} is above {bounds[1]:g}; give the smaller one first")
        return bounds


class GatewayConfig(BaseModel):
    """What a gateway allows its clients and its workers, in time, number and size."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # --- time of clients
    head_s: Seconds = Field(10.0, description="from a new connection to the whole head of its first request")
    idle_s: Seconds = Field(75.0, description="from an answer to the whole head of the next request")
    body_s: Seconds = Field(30.0, description="from the head of a request to the end of its body")
    write_s: Seconds = Field(30.0, description="a client takes nothing of what is written to it")
    timeout_s: Seconds = Field(600.0, description="from the body of a request to the end of its answer")

    # --- time of workers
    connect_s: Seconds = Field(5.0, description="to open a connection to a worker")
    first_token_s: Seconds = Field(60.0, description="until a worker begins a stream, or ends a prefill")
    silence_s: Seconds = Field(60.0, description="between two pieces of a stream, or two load reports of an engine")
    worker_wait_s: Seconds = Field(5.0, description="a request waits so long when no worker is there")
    rest_s: Seconds = Field(5.0, description="a worker that failed a request gets no new ones for so long")
    poll_s: Seconds = Field(0.5, description="pause between two looks at the load of a worker")
    poll_timeout_s: Seconds = Field(3.0, description="until a worker has answered such a look")
    poll_misses: Count = Field(3, description="looks without a good answer after which a worker is gone")

    # --- the end of the gateway
    drain_s: Seconds = Field(25.0, description="from SIGTERM to the end of the process")

    # --- connections and requests
    max_connections: Count = Field(10_000, description="connections of all clients")
    max_connections_per_client: Count = Field(4_000, description="connections from one address")
    key_rate: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="requests a second of one API key whose line says no rate; 0: any"
    )
    key_burst: Count = Field(10, description="requests of one API key that may come at once")
    max_requests: Count = Field(4_000, description="requests that are waiting or being served")
    max_waiting: Count = Field(2_000, description="requests that wait: in the flow queue, for a worker, for a retry")
    max_sessions: Count = Field(20_000, description="sessions that are remembered")

    # --- sizes
    max_body_mib: Count = Field(4, description="the body of one request")
    max_bodies_mib: Count = Field(256, description="the bodies of all requests in the gateway together")
    max_json_depth: Count = Field(64, description="nesting of a body")
    max_prompts: Count = Field(2_048, description="prompts of one request, times its answers to each")
    max_name_chars: Count = Field(256, description="a request's `rid` or `model`")
    max_answer_mib: Count = Field(64, description="a whole answer of a worker, or one event of its stream")

    max_answers_mib: Count = Field(1024, description="the whole answers of all requests in the gateway together")

    # --- retries
    retries: int = Field(3, ge=0, description="how often one request starts anew, or goes on elsewhere")
    retry_share: float = Field(0.1, ge=0, le=1, description="retries of all requests, as a share of the requests")
    retry_reserve: Count = Field(10, description="retries that are allowed on top of that share, one more each second")
    backoff_s: Seconds = Field(0.05, description="longest pause before the first retry after a refusal; it doubles")
    max_backoff_s: Seconds = Field(2.0, description="longest pause before any retry")

    # --- no limits
    transfer_history: bool = Field(
        True, description="a prefill worker gets a session's history from the worker that has it, or computes it again"
    )
    access_log: bool = Field(False, description="log a line for each request")
    access_log_json: bool = Field(False, description="log each request as a JSON object on stdout")
    shadow: bool = Field(
        False, description="the router decides and logs, and is not followed: requests go to the least loaded workers"
    )
