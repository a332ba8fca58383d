"""Step times of an engine, with what kernel tables leave out of a step that computes prompts."""

from __future__ import annotations

from pdplugins.perf.profile import Profile
from pdplugins.perf.table import TableModel


class PromptSteps(TableModel):
    """Step times of a profile with a dense part, where steps with prompts have a least time.

    CUDA graphs hold decode steps alone. Kernels of other steps are launched one by one, and a step with few tokens
    waits for its launches. Where attention is data-parallel, all groups compute a step together: it takes as long as
    the group with most tokens, so one prompt costs what one in every group does.

    :param launch_s: seconds to launch the kernels of one step; 0 for engines that replay graphs here too.
    :param least_tokens: tokens that a step with prompts counts at least.
    """

    def __init__(self, profile: Profile, launch_s: float, least_tokens: float) -> None:
        super().__init__(profile)
        self._launch_s = launch_s
        self._least_tokens = least_tokens

    def dense_s(self, tokens: float, tp: int) -> float:
        """Seconds of a step without its attention."""
        return max(super().dense_s(max(tokens, self._least_tokens), tp) or 0.0, self._launch_s)

    def prefill_s(self, tokens: float, tp: int) -> float:
        """Seconds to prefill one prompt of `tokens` tokens."""
        attention_s = super().prefill_s(tokens, tp) - (super().dense_s(tokens, tp) or 0.0)
        return attention_s + self.dense_s(tokens, tp)
