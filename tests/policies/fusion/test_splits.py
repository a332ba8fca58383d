"""Why placement splits no prompt for time: both parts run one after the other."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.costs import Costs
from pdplugins.runtime.assembly import load_profile
from pdplugins.testing import deployment

PROFILES = {"h100/llama-3.1-70b-fp8": 2, "a100/qwen2.5-14b": 1, "h800/llama-3.1-8b": 1, "h200/deepseek-r1": 8}
"""And the tensor-parallel size of a worker."""
ROUNDED = 0.06
"""Share of a prefill by which the costs of two parts may be below that of the whole: a few tokens beyond the last whole
chunk are dear, and two parts are cut elsewhere. An engine could cut the whole like that too."""
WAITS_S = st.floats(0.0, 10.0)


@pytest.mark.parametrize(("profile", "tp"), PROFILES.items())
def test_a_split_for_time_gains_no_more_than_the_transfer_that_it_spares(profile: str, tp: int) -> None:
    """Against the better of the whole prompt away, and the whole prompt where it decodes."""
    where = deployment(load_profile(profile), prefill_tp=tp, decode_tp=tp)
    costs = Costs(FusionSettings(), where)

    @settings(max_examples=300, deadline=None)
    @given(st.integers(2, 32_768), st.floats(0.01, 0.99), WAITS_S, WAITS_S, st.floats(1.0, 20.0))
    @example(8193, 0.875, 0.5, 1.0, 1.0)
    def holds(prompt: int, share: float, away_waits_s: float, local_waits_s: float, slow: float) -> None:
        first = max(int(prompt * share), 1)
        whole_s, moved_s = costs.prefill_s(prompt), costs.transfer_s(prompt)
        away_s = away_waits_s + whole_s + moved_s
        local_s = local_waits_s + slow * whole_s
        begun_s = max(away_waits_s + costs.prefill_s(first) + costs.transfer_s(first), local_waits_s)
        split_s = begun_s + slow * costs.prefill_s(prompt, first)
        spared_s = moved_s - costs.transfer_s(first)
        step_s = costs.prefill_s(1)  # one more of these, for the few tokens that are left of a prompt cut elsewhere
        assert min(away_s, local_s) - split_s <= spared_s + ROUNDED * whole_s + step_s

    holds()
