"""What an engine is told, whom it tells, and who composes its steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from pdplugins.sim.core.engine import Engine
    from pdplugins.sim.core.flight import Flight


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How engines batch. The defaults are vLLM's."""

    order: Literal["decode_first", "prefill_first"] = "decode_first"
    """Decodes take part in steps with prefill (vLLM, Sarathi), or wait for them (SGLang's default)."""
    step_tokens: int = 8192
    """Most tokens of one step: prompts are cut into chunks to fit."""
    whole_prompts: bool = False
    """A prompt that does not fit into what is left of a step waits for the next one (TensorRT-LLM's default)."""
    max_batch: int = 256
    """Most requests that run at once."""
    watermark: float = 0.01
    """Share of the KV cache that must stay free when a request is let in, so that the others can grow (vLLM 0.8)."""
    block_tokens: int = 512
    """Tokens of one prefix block of the trace."""


class Owner(Protocol):
    """What an engine tells the simulation."""

    def leg_done(self, flight: Flight, engine: Engine) -> None:
        """`flight` has computed its part on `engine`; its KV cache is still there."""

    def chunk_done(self, flight: Flight, engine: Engine) -> None:
        """`flight` has computed a part of its prompt, and goes on."""

    def read_history(self, flight: Flight, engine: Engine) -> bool:
        """Bring the history that the queued `flight` lacks; it leaves the queue until that has come. False: not now."""
        ...

    def capacity_freed(self, engine: Engine) -> None:
        """`engine` has room in its KV cache that it had not before, and requests wait for it."""

    def failed(self, flight: Flight, why: str) -> None:
        """`flight` cannot be served by its engine; it holds nothing there."""

    def purged(self, flight: Flight) -> None:
        """`flight` was given up, as its `error` asked."""


class Batching(Protocol):
    """Composes the steps that have prefill in them."""

    def compose(self, engine: Engine) -> list[Flight]:
        """Return the requests to prefill in the next step, their `chunk` set; empty for decodes only."""
        ...

    def stepped(self, took: int) -> None:
        """Learn how long the composed step took."""
        ...

    @property
    def always_ask(self) -> bool:
        """Whether its answer may change although nothing was admitted and nothing left."""
        ...
