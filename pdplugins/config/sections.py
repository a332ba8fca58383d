"""The sections of the config file that have no module of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from pdplugins.config.base import MOST_GPUS, MOST_NAME, Pause, Seconds, Section, Work
from pdplugins.contracts.workers import Role

MOST_BATCH = 2**16
"""The largest decode batch: tables of step times have a row for each size up to it."""
MOST_TOKEN_S, MOST_SCALE = 0.06, 100.0
"""Bounds on what makes each step slower, as `MOST_WORK_S` is."""
SHORTEST_LOOK_S = 0.01
"""The shortest time between two looks at a worker: each is an event of the simulator."""


class SloConfig(Section):
    """The objectives of each request."""

    ttft_s: Seconds = Field(2.0, description="time to first token")
    tpot_s: Seconds = Field(0.08, description="time per output token after the first")


class PoolConfig(Section):
    """The workers of one role at start."""

    replicas: int = Field(1, ge=0, description="workers at start; 0 where those of the other role do both phases")
    tp: int | Literal["auto"] = Field(1, description="GPUs per worker, or auto: DOPD's choice (Eq. 11-16)")

    @model_validator(mode="after")
    def _positive(self) -> PoolConfig:
        if self.tp != "auto" and self.tp < 1:
            raise ValueError("tp must be at least 1, or auto")
        return self


class DeploymentConfig(Section):
    """The model, the GPUs and the pools."""

    profile: str = Field(
        "h100/llama-3.1-70b-fp8", max_length=MOST_NAME, description="performance profile, <gpu>/<model>"
    )
    gpu_budget: int = Field(8, ge=2, le=MOST_GPUS, description="GPUs that all workers may use together")
    startup_s: Pause = Field(30.0, description="seconds until a new worker serves")
    max_batch: int = Field(256, ge=1, le=MOST_BATCH, description="largest decode batch of a worker (its CUDA graphs)")
    kv_tokens: int | None = Field(
        None, ge=1, description="KV cache of a decode worker that its engine states; else Eq. 11"
    )
    mixed_steps: bool = Field(
        True, description="engines prefill and decode in one step; false for SGLang without --enable-mixed-chunk"
    )
    isl_tokens: int = Field(1024, ge=1, description="prompt length to choose tp: auto for")
    osl_tokens: int = Field(256, ge=1, description="output length to choose tp: auto for")
    prefill: PoolConfig = PoolConfig(tp=1)
    decode: PoolConfig = PoolConfig(tp=2)


class ExtraWorkers(Section):
    """More workers at start, on GPUs of another kind."""

    role: Role
    count: int = Field(1, ge=1, le=MOST_GPUS)
    tp: int = Field(1, ge=1, description="GPUs per worker")
    profile: str | None = Field(
        None, max_length=MOST_NAME, description="their performance profile; the deployment's when absent"
    )


class Death(Section):
    """A worker that dies. The simulator calls workers p0, p1, ... and d0, d1, ... in the order of their start."""

    at_s: Pause
    worker: str = Field(max_length=MOST_NAME)


class SimulationConfig(Section):
    """Settings that only the simulator reads: how engines and workers behave. docs/simulator.md explains every key."""

    order: Literal["decode_first", "prefill_first"] = Field(
        "decode_first", description="decodes take part in steps with prefill (vLLM), or wait for them (SGLang)"
    )
    step_tokens: int = Field(8192, ge=1, description="most tokens of one step: prompts are cut into chunks to fit")
    whole_prompts: bool = Field(
        False, description="a prompt that does not fit into what is left of a step waits for the next one"
    )
    watermark: float = Field(0.01, ge=0, lt=1, description="share of the KV cache kept free when a request is let in")
    block_tokens: int = Field(512, ge=1, description="tokens of one prefix block of the trace")
    mixed_step_scale: float = Field(
        1.0,
        gt=0,
        le=MOST_SCALE,
        allow_inf_nan=False,
        description="factor on the time that prefill adds to a step with decodes",
    )
    kv_tokens: int | None = Field(None, ge=2, description="KV cache of every worker; what its profile says when absent")
    frontend_s: Work = Field(0.0, description="work of a frontend on each request, one after the other")
    begin_s: Work = Field(0.0, description="work of an engine on each request before its first step there")
    first_token: Literal["prefill", "transfer", "decode"] = Field(
        "decode", description="who gives the first token of a request that decodes on another worker, and when"
    )
    overlap: bool = Field(False, description="send the KV cache chunk by chunk, while the next one computes")
    history: Literal["transfer", "recompute"] = Field(
        "transfer", description="how a worker gets the history of a session that is cached on another one"
    )
    flip: Literal["drain", "label"] = Field(
        "drain", description="a worker drains before it changes its role, or only its label changes"
    )
    flip_s: Pause = Field(0.0, description="time that a drained worker needs for the change")
    drain_deadline_s: Seconds | None = Field(
        None, description="a change of role whose worker has not drained by then is rolled back"
    )
    when_full: Literal["stay", "wait"] = Field(
        "stay", description="a request that decodes and whose second worker is full decodes on where it is, or waits"
    )
    late_handoff_s: Work | None = Field(
        None,
        description="time until a hand-over that the router chose after prefill reaches the worker that has prefilled "
        "as a request of its own, which takes a step there; none: it begins at once",
    )
    late_step_s: Work = Field(
        0.0, description="time that this step takes beyond one of a token, for each hand-over in it"
    )
    late_step_token_s: float = Field(
        0.0,
        ge=0,
        le=MOST_TOKEN_S,
        allow_inf_nan=False,
        description="and for each token of the KV cache of that hand-over",
    )
    polled_handoff: bool = Field(
        False,
        description="workers see a hand-over that was chosen late, and a KV cache that has arrived, only between steps",
    )
    handoff_timeout_s: Seconds = Field(
        300.0, ge=SHORTEST_LOOK_S, description="how often to look for a deadlock over KV capacity"
    )
    retries: int = Field(3, ge=0, description="how often a request starts anew when its worker dies")
    deaths: tuple[Death, ...] = Field((), description="workers that die, and when")
    predict: Literal["nothing", "true_length"] = Field(
        "nothing", description="what routers are told of the length of the answer"
    )
    prefill_profile: str | None = Field(
        None, max_length=MOST_NAME, description="profile of prefill workers, on GPUs of their own kind"
    )
    decode_profile: str | None = Field(
        None, max_length=MOST_NAME, description="profile of decode workers, on GPUs of their own kind"
    )
    extra: tuple[ExtraWorkers, ...] = Field((), description="more workers at start, each on GPUs of its own kind")


class SglangConfig(Section):
    """Settings that only the SGLang plugin reads. docs/sglang.md explains every key."""

    dual_role: bool = Field(False, description="serve the prefill, the decode and the local role in one server")
    strict: bool = Field(True, description="do not start when a feature cannot work; else stock SGLang serves")
    prefill_burst: int = Field(1, ge=1, description="prefill steps in a row while requests decode")
    prefill_reserve: float = Field(
        0.1, ge=0, lt=1, description="share of KV cache and request slots that transfers leave free for prefill"
    )
    own_hosts: tuple[str, ...] = Field((), description="further names by which routers call this server")
    nixl_poll_us: int = Field(
        200,
        ge=0,
        le=1_000_000,
        description="shortest pause between polls for transfers, in µs; 0 lets threads spin, as in stock",
    )


class DecisionLogConfig(Section):
    """The contents of decision logs. docs/explain.md explains them."""

    sample: int = Field(100, ge=1, description="routers, flow policies and batch schedulers: keep one in this many")
    most_per_s: int = Field(50, ge=1, description="most lines of these a second")
    most_mb: int = Field(256, ge=1, description="size in MiB at which the file becomes FILE.1 and a new one begins")


class SignalsConfig(Section):
    """How the parts of one policy exchange signals. docs/explain.md explains it."""

    folder: Path | None = Field(
        None, description="folder shared by processes on one node; absent: within a process only"
    )
    fresh_s: Seconds = Field(10.0, description="age from which a signal is ignored")
