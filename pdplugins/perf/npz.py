"""Writes a performance model as the timing table that Dynamo's mocker and replay read (``planner_profile_data``).

With it the mocker, the replay and the planner share one truth. The file has the five keys of the mocker's own format
(``dynamo/mocker/utils/planner_profiler_perf_data_converter.py`` of ai-dynamo 1.4.2); the mocker interpolates linearly
in the sum of prompt tokens of a prefill step, and bilinearly in (active KV tokens, mean context) of a decode step.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pdplugins.types import PerfModel

LONG_TOKENS = (65_536, 131_072)
"""Up to the longest context of the Llama 3.1 family; the mocker goes on linearly."""
MOST_KV_TOKENS = 600_000
"""More than one worker of the shipped profiles holds at decode TP 2."""


def export_npz(perf: PerfModel, path: Path, prefill_tp: int, decode_tp: int) -> None:
    """Write the times of `perf` at one prefill and one decode tensor-parallel size to `path` (a ``.npz`` file)."""
    tokens = [1, *_log_spaced(64, 32_768, 40), *LONG_TOKENS]
    contexts = [*_log_spaced(64, 32_768, 24), *LONG_TOKENS]
    kv_tokens = [0, *_log_spaced(64, MOST_KV_TOKENS, 60)]
    # The mocker's table has no batch axis: a step of k active KV tokens at mean context c is a batch of k / c.
    itl_ms = [[1e3 * perf.decode_step_s(max(k / c, 1.0), c, decode_tp) for c in contexts] for k in kv_tokens]
    with path.open("wb") as file:  # a file object, because numpy appends .npz to a name that lacks it
        np.savez(
            file,
            prefill_isl=np.array(tokens, dtype=float),
            prefill_ttft_ms=np.array([1e3 * perf.prefill_s(t, prefill_tp) for t in tokens]),
            decode_active_kv_tokens=np.array(kv_tokens, dtype=float),
            decode_context_length=np.array(contexts, dtype=float),
            decode_itl=np.array(itl_ms),
        )


def _log_spaced(first: int, last: int, count: int) -> list[int]:
    return [int(x) for x in np.unique(np.geomspace(first, last, count).astype(int))]
