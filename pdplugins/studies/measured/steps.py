"""Step times of an engine, with what kernel tables leave out of a step that computes prompts."""

from __future__ import annotations

from pdplugins.perf.profile import Profile
from pdplugins.perf.table import Curve, TableModel


class PromptSteps(TableModel):
    """Step times of a profile with a dense part, where steps with prompts have a least time.

    CUDA graphs hold decode steps alone. Kernels of other steps are launched one by one, and a step with few tokens
    waits for its launches. Where attention is data-parallel, all groups compute a step together: it takes as long as
    the group with most tokens, so one prompt costs what one in every group does.

    :param launch_s: seconds to launch the kernels of one step; 0 for engines that replay graphs here too.
    :param least_tokens: tokens that a step with prompts counts at least.
    :param own_experts: whether experts count only the tokens that there are, since tokens of all groups reach them.
    """

    def __init__(self, profile: Profile, launch_s: float, least_tokens: float, *, own_experts: bool = False) -> None:
        super().__init__(profile)
        self._launch_s = launch_s
        self._least_tokens = least_tokens
        factor = profile.scale.prefill / 1e3
        self._experts = {
            tp: Curve(found.prefill.tokens, [ms * factor for ms in found.prefill.raw_ms])
            for tp, found in (profile.experts or {}).items()
            if own_experts
        }

    def dense_s(self, tokens: float, tp: int) -> float:
        """Seconds of a step without its attention."""
        counted = max(tokens, self._least_tokens)
        dense_s = super().dense_s(counted, tp) or 0.0
        if (experts := self._experts.get(tp)) is not None:
            dense_s -= experts(counted) - experts(tokens)
        return max(dense_s, self._launch_s)

    def prefill_s(self, tokens: float, tp: int) -> float:
        """Seconds to prefill one prompt of `tokens` tokens."""
        attention_s = super().prefill_s(tokens, tp) - (super().dense_s(tokens, tp) or 0.0)
        return attention_s + self.dense_s(tokens, tp)
