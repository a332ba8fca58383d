"""Two measured rows of one recipe: one pool, and two pools with a handoff between them."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

from pdplugins.studies.measured.published import Pools
from pdplugins.studies.measured.rows import Row

ONE = Row(
    id="one",
    model="deepseek-r1",
    system="h200",
    engine="trtllm",
    isl_tokens=1024,
    osl_tokens=64,
    clients=4,
    pools=Pools(None, (1, "tp8+ep8"), 0),
    inference_max=True,
    fitted=True,
    ttft_s=0.3,
    tpot_s=0.012,
    day=date(2026, 2, 1),
)
TWO = replace(ONE, id="two", pools=Pools((1, "tp8+ep8"), (2, "dp8+ep8"), 0))
