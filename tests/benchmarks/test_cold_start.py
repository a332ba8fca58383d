"""The first minutes from a cold start: what is counted in which minute, and the client's file outlives its folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import cold_start


def test_requests_count_in_the_minute_in_which_they_arrive() -> None:
    found = [(0.0, True, 0.2), (59.9, False, None), (60.0, True, 0.1), (119.0, True, 0.3), (120.0, False, 9.0)]
    assert cold_start.by_minute(found, 2) == [
        {"minute": 1, "requests": 2, "attainment": 0.5, "ttft_ms": 200.0},
        {"minute": 2, "requests": 2, "attainment": 1.0, "ttft_ms": 200.0},
    ]


def test_a_row_has_the_rounds_and_the_prediction() -> None:
    def run(*shares: float) -> dict[str, object]:
        return {
            "minutes": [
                {"minute": number, "requests": 4, "attainment": share, "ttft_ms": 100 * share}
                for number, share in enumerate(shares, 1)
            ]
        }

    rows = cold_start.summary([run(0.5, 1.0), run(1.0, 1.0), run(0.75, 0.5)], run(0.9, 0.8))
    assert [row["minute"] for row in rows] == [1, 2]
    assert rows[0]["attainment"] == {"live": 0.75, "least": 0.5, "most": 1.0, "simulated": 0.9}
    assert rows[1]["attainment"] == {"live": 1.0, "least": 0.5, "most": 1.0, "simulated": 0.8}
    assert rows[1]["ttft_ms"] == {"live": 100.0, "least": 50.0, "most": 100.0, "simulated": 80.0}


def test_what_the_client_wrote_is_there_when_the_stack_has_gone(tmp_path: Path) -> None:
    records, stack = tmp_path / "records.jsonl", tmp_path / "stack"
    cold_start.keep(tmp_path, records)
    assert not records.exists()
    stack.mkdir()
    with (stack / "requests.jsonl").open("w") as out:
        out.write('{"requests": 1}\n')
        out.flush()
        cold_start.keep(tmp_path, records)
        cold_start.keep(tmp_path, records)
        row = {"request": 0, "arrival_s": 1.0, "isl_tokens": 8, "osl_tokens": 2, "token_times_s": [1.5, 1.52]}
        out.write(json.dumps({**row, "error": None}) + "\n")
    shutil.rmtree(stack)
    (record,) = cold_start.read(records)
    assert record.ok
    assert record.inside(cold_start.SLO)


def test_the_prediction_begins_with_one_worker_of_each_role(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:15:{second:02}.0000000,400,10" for second in range(59)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    found = cold_start.predicted(trace, 1)
    (row,) = found["minutes"]
    assert (row["requests"], row["attainment"]) == (59, 1.0)
    assert 0 < row["ttft_ms"] < 1000
    pools = cold_start.CONFIG.deployment
    assert (pools.prefill.replicas, pools.decode.replicas, pools.startup_s) == (1, 1, 2.0)
