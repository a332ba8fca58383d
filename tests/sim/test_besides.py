"""Work on requests besides their steps takes the time of the engine."""

from __future__ import annotations

import pytest

from pdplugins.sim.core.engine_settings import EngineSettings
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.settings import SimSettings
from tests.sim.runs import To, run


def test_work_on_a_request_besides_its_steps_takes_the_time_of_the_engine() -> None:
    """Its first step waits for it, and so do all that follow at once."""
    work = Arrival(0.0, 1000, 1), Arrival(0.0, 1000, 1), Arrival(9.0, 1000, 1), Arrival(9.0, 500, 40)
    busy = EngineSettings(order="prefill_first", step_tokens=1000, begin_s=0.02)
    records = {
        engine: sorted(run(To("d0", "d0"), *work, settings=SimSettings(engine=engine)).records)
        for engine in (EngineSettings(order="prefill_first", step_tokens=1000), busy)
    }
    more = [later.ttft_s - sooner.ttft_s for sooner, later in zip(*records.values(), strict=True)]
    assert more == pytest.approx([0.02, 0.02 + 0.02, 0.02, 0.02 + 0.02])
    plain, slow = (found[3] for found in records.values())
    assert plain.tpot_s == slow.tpot_s


def test_work_on_a_request_besides_its_steps_delays_the_decodes_of_others() -> None:
    """Also on a worker that only decodes: the step after a request has come is longer."""
    short, long = Arrival(1.0, 500, 10), Arrival(0.0, 500, 400)
    stop = {
        engine: run(To("p0", "d0"), long, short, settings=SimSettings(engine=engine, first_token="transfer")).records
        for engine in (EngineSettings(), EngineSettings(begin_s=0.02))
    }
    ends = [{record.id: record.finish_s for record in records} for records in stop.values()]
    plain, begun = ({number: times[number] - ends[0][number] for number in times} for times in ends)
    assert plain == {"0": 0, "1": 0}
    assert begun["0"] == pytest.approx(0.02 + 0.02)  # its own prompt; the other's decodes
    assert begun["1"] == pytest.approx(0.02, abs=1e-3)  # the work on its decodes was over when its KV cache came
