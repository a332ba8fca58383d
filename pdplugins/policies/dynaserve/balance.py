"""Algorithm 1: the split after which both workers finish at the same time."""

from __future__ import annotations

import math

from pdplugins.policies.dynaserve.config import DynaServeRouterSettings
from pdplugins.policies.dynaserve.passes import PassCosts
from pdplugins.policies.dynaserve.play import Leg
from pdplugins.policies.dynaserve.server import Job
from pdplugins.policies.dynaserve.timeline import Timeline


def legs(job: Job, cut: int, costs: PassCosts) -> tuple[Leg, Leg]:
    """Return the micro-requests of tokens [0, cut) and [cut, length), both ready at once."""
    inside = min(cut, job.prompt)
    decoded = cut - inside
    ahead = Leg(costs.prompt_s(job.history, inside), decoded, inside, job.now_s)
    behind = Leg(costs.prompt_s(inside, job.prompt), job.tokens - decoded, max(cut, job.prompt), job.now_s)
    return ahead, behind


def balance(job: Job, first: Timeline, second: Timeline, costs: PassCosts, settings: DynaServeRouterSettings) -> int:
    """Return the token to cut at, from 0 to the length of the request (lines 3 to 10).

    Of all cuts that were tried, this is the one whose later worker finishes earliest. Both ends, which leave the
    request whole, are tried too. The last cut of the search may be worse: the time jumps between the last prompt token
    and the first decoded one, and halving does not converge on a jump.
    """
    ratio, low, high = job.prompt / job.length, 0.0, 1.0
    best, best_s = 0, math.inf
    for cut in (job.length, 0):
        later_s = max(finish_s(job, cut, first, second, costs))
        if later_s < best_s:
            best, best_s = cut, later_s
    for _ in range(settings.probes):
        cut = math.ceil(ratio * job.length)
        t1, t2 = finish_s(job, cut, first, second, costs)
        if max(t1, t2) < best_s:
            best, best_s = cut, max(t1, t2)
        if abs(t1 - t2) < settings.tolerance_s:
            break
        if t1 > t2:
            high = ratio
        else:
            low = ratio
        ratio = (low + high) / 2
    return best


def finish_s(job: Job, cut: int, first: Timeline, second: Timeline, costs: PassCosts) -> tuple[float, float]:
    """Return when each worker would have done all of its work with its part of the request: T1 and T2 (line 6).

    As printed, both parts count as ready at once. In the long run each worker has other work while it waits.
    """
    ahead, behind = legs(job, cut, costs)
    t1 = first.finish_with_s(ahead) if cut > 0 else first.finish_s
    return t1, second.finish_with_s(behind) if cut < job.length else second.finish_s
