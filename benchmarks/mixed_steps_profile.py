"""Makes a profile of what `mixed_steps_gpu.py` has measured: prefill alone, decodes alone, and the dense part.

    python benchmarks/mixed_steps_profile.py

Mixed steps are left out: `mixed_steps_error.py` compares them with what the simulator makes of this profile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import manifest
from manifest import ROOT, Data

from pdplugins.files import write_whole

NAME = "h100-measured/llama-3.1-8b"
PATH = ROOT / "profiles" / f"{NAME}.json"
TOKEN_BYTES = 32 * 8 * 128 * 2 * 2
"""KV cache of a token: layers, KV heads, size of a head, K and V, bytes."""
MODEL_BYTES = 16_059_990_016
LINK_BYTES_PER_S = 5e10


def profile(found: Data) -> dict[str, Any]:
    """Return the profile as its file holds it, of the result mixed-steps-gpu."""
    gpu, kv_tokens, versions = found["gpu_before"], found["kv_tokens"], found["versions"]
    prompts = {row["tokens"]: row["gpu_ms"] for row in of(found, "prefill") if not row["earlier"]}
    dense = {row["tokens"]: row["gpu_ms"] for row in of(found, "dense")}
    decode, missing = decode_table({(row["batch"], row["context"]): row["gpu_ms"] for row in of(found, "decode")})
    reserved = gpu["memory_bytes"] - MODEL_BYTES - kv_tokens * TOKEN_BYTES
    what = ", ".join(f"{batch} requests of {context:,d} tokens" for batch, context in missing)
    return {
        "schema": 1,
        "gpu": gpu["name"],
        "model": "meta-llama/Llama-3.1-8B",
        "kind": "measured",
        "provenance": {
            "source": f"SGLang {versions['sglang']} on one {gpu['name']}, driver {gpu['driver']}: "
            "benchmarks/results/mixed-steps-gpu.json",
            "command": "python benchmarks/mixed_steps_profile.py",
            "notes": [
                "Time on the GPU of a step with its sampling, launched ahead as SGLang's overlapped scheduler does; "
                "medians. From an idle GPU a step takes up to 4 ms more.",
                "Random weights in BF16. Every prompt fills a size of SGLang's CUDA graphs exactly; one that does not "
                "takes the time of the next larger size.",
                f"Linear extrapolations, as the KV cache does not hold them: {what}.",
            ],
        },
        "memory": {
            "gpu_bytes": gpu["memory_bytes"],
            "reserved_bytes": reserved,
            "model_bytes": MODEL_BYTES,
            "kv_bytes_per_token": TOKEN_BYTES,
            "source": f"gpu: NVML; reserved: what is left beside {kv_tokens:,d} tokens of KV cache, which SGLang took "
            "by default; model: BF16 weights; kv: 32 layers x 8 KV heads x 128 x (K, V) x BF16",
        },
        "bandwidth": {
            "bytes_per_s": 3.35e12,
            "utilisation": reached(decode),
            "source": "H100 SXM data sheet; alpha: from the decode steps of 256 requests at 256 and 1,024 tokens",
        },
        "transfer": {
            "latency_s": 0.001,
            "bytes_per_s": LINK_BYTES_PER_S,
            "source": "400 Gb/s of RDMA for each worker, assumed",
        },
        "scale": {"prefill": 1.0, "decode": 1.0, "source": "none: times are used as they were measured"},
        "prefill": {"1": {"tokens": list(prompts), "raw_ms": list(prompts.values())}},
        "decode": {"1": decode},
        "dense": {"1": {"tokens": list(dense), "raw_ms": list(dense.values())}},
    }


def of(found: Data, kind: str) -> Iterator[Data]:
    """Yield the rows of one kind of step."""
    return (row for row in found["rows"] if row["kind"] == kind)


def decode_table(measured: dict[tuple[int, int], float]) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """Return the table of decode steps, and which of them are extrapolated from shorter contexts."""
    batches, contexts = (sorted({key[axis] for key in measured}) for axis in (0, 1))
    rows, missing = [], []
    for batch in batches:
        row: list[float] = []
        for index, context in enumerate(contexts):
            if (batch, context) in measured:
                row.append(measured[batch, context])
                continue
            missing.append((batch, context))
            before, last = contexts[index - 2 : index]
            row.append(round(row[-1] + (row[-1] - row[-2]) / (last - before) * (context - last), 4))
        rows.append(row)
    return {"batch": batches, "context_tokens": contexts, "raw_ms": rows}, missing


def reached(decode: dict[str, Any]) -> float:
    """Return the share of the bandwidth that the largest batch reaches with the KV cache of longer contexts."""
    read = decode["batch"][-1] * (decode["context_tokens"][1] - decode["context_tokens"][0]) * TOKEN_BYTES
    more_ms = decode["raw_ms"][-1][1] - decode["raw_ms"][-1][0]
    return float(round(read / (more_ms / 1e3) / 3.35e12, 3))


def text() -> str:
    """Return the profile file."""
    return json.dumps(profile(manifest.read("mixed-steps-gpu")), indent=1) + "\n"


if __name__ == "__main__":
    write_whole(PATH, text())
