"""Fairness between local prefill, prefill for others and decode on one engine: which of them runs the next step."""

from __future__ import annotations

from pdplugins.hosts.sglang.roles import EngineRole

PREFILLS = (EngineRole.LOCAL, EngineRole.PREFILL)


class Turns:
    """Orders the three kinds of work for the next step, so that none of them starves under any steady mix.

    Prefill goes first, as in SGLang, but for `burst` steps in a row at most while requests decode. Among the prefills
    the two queues take turns; a prompt that is cut into chunks keeps the turn until its last chunk, because an engine
    has one such prompt at a time. Only a hand-over may go between the chunks of a local prompt, one after each. So
    whoever waits gets a step after one prompt of the other queue at the most.
    """

    def __init__(self, burst: int) -> None:
        self._burst = burst
        self._in_a_row = 0
        self._last = EngineRole.PREFILL

    def order(
        self, *, chunk: EngineRole | None, waiting: frozenset[EngineRole], decodes: bool, hands_over: bool = False
    ) -> list[EngineRole]:
        """Return the kinds of work to try for the next step, first choice first.

        :param chunk: whose prompt is in the middle of its chunks.
        :param waiting: the queues that have a prompt waiting.
        :param decodes: whether requests decode, or wait to join those.
        :param hands_over: whether the KV cache of a prompt for another server is here, and waits to be sent.
        """
        prefills = [chunk] if chunk else sorted(waiting, key=lambda role: role is self._last)
        if hands_over and chunk is self._last is EngineRole.LOCAL:
            prefills = [EngineRole.PREFILL, chunk]
        if decodes and self._in_a_row >= self._burst:
            return [EngineRole.DECODE, *prefills]
        return [*prefills, EngineRole.DECODE]

    def tried(self, role: EngineRole) -> None:
        """Note that `role` has the step, or was the first choice for it although its prompts did not fit."""
        if role in PREFILLS:
            self._last = role

    def ran(self, *, prefill: bool) -> None:
        """Note whether the step that was composed makes the decodes wait."""
        self._in_a_row = self._in_a_row + 1 if prefill else 0
