"""Writes the step times of ``pdplugins validate silicon`` from the kernel tables that aiconfigurator carries.

    python benchmarks/fidelity_tables.py profiles/validation    # where aiconfigurator 0.7.0 is installed

One profile for each model, GPU and engine of the measured rows. A step is what aiconfigurator's operations say, with
attention apart from the rest. Four choices are ours, and are the same for all rows of a profile:

* NVIDIA's FP8 checkpoints of Llama have static scales and take ``fp8_static`` GEMMs; all others what their row says.
  vLLM's tables lack what a static scale saves, so what it saves in TensorRT-LLM's on the same GPU is taken off.
* No FP8 GEMM takes longer than the BF16 GEMM of its shape on the same engine and GPU: it moves half of the bytes. Where
  the tables have it longer (small shapes; vLLM's prompts), we take that for casts, or kernels that nobody tuned.
* Where measured queues show twice the tokens that a 16-bit KV cache would hold, the KV cache is FP8.
* An engine leaves a tenth of the GPU alone, and 3 GB more (SGLang: 10 GB) for activations.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from aiconfigurator.sdk import common, config, models, perf_database

TOKENS = (
    1, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 640, 768, 1024, 1280, 1536, 2048, 2560,
    3072, 4096, 5120, 6144, 8192, 10240, 12288, 16384, 24576, 32768,
)  # fmt: skip
BATCH = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024)
CONTEXT = (64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 32768)
ENGINES = {"vllm": "0.12.0", "trtllm": "1.0.0rc3", "sglang": "0.5.6.post2"}
"""Versions of the tables; the rows name others where aiconfigurator has none, or none at all (Llama 70B)."""


class Model(NamedTuple):
    """A model, and how many bytes its weights and the keys and values of one token take with two bytes each."""

    path: str
    fp8_bytes: float
    bf16_bytes: float
    kv_bytes: int


LLAMA_70B = Model("meta-llama/Meta-Llama-3.1-70B", 72.7e9, 141.1e9, 327_680)
LLAMA_8B = Model("meta-llama/Meta-Llama-3.1-8B", 9.1e9, 16.1e9, 131_072)
QWEN_32B = Model("Qwen/Qwen3-32B", 34.3e9, 65.5e9, 262_144)
CASES = {
    "h100/llama-3.1-70b-fp8-vllm": (LLAMA_70B, "fp8_static", "float16", (2, 4, 8)),
    "h200/llama-3.1-70b-fp8-trtllm": (LLAMA_70B, "fp8_static", "fp8", (1, 2, 4, 8)),
    "h200/llama-3.1-70b-fp8-vllm": (LLAMA_70B, "fp8_static", "fp8", (1, 2, 4, 8)),
    "h100/llama-3.1-8b-trtllm": (LLAMA_8B, "float16", "float16", (1, 2, 4, 8)),
    "h200/llama-3.1-8b-fp8-sglang": (LLAMA_8B, "fp8_block", "float16", (1, 2, 4, 8)),
    "h200/llama-3.1-8b-fp8-vllm": (LLAMA_8B, "fp8_static", "float16", (1, 2, 4, 8)),
    "h100/qwen3-32b-sglang": (QWEN_32B, "float16", "float16", (1, 2, 4, 8)),
    "h100/qwen3-32b-vllm": (QWEN_32B, "float16", "float16", (2, 4, 8)),
    "h100/qwen3-32b-fp8-vllm": (QWEN_32B, "fp8", "float16", (2, 8)),
    "h100/qwen3-32b-fp8-trtllm": (QWEN_32B, "fp8", "fp8", (1, 2, 4, 8)),
}
"""Name to (model, GEMMs, KV cache, TP sizes)."""
GPUS = {"h100": (85.9e9, 3.35e12), "h200": (150.7e9, 4.8e12)}
"""Bytes and bytes/s of memory."""


class Timer:
    """Milliseconds of the operations of one step of one model on one engine."""

    def __init__(self, model: Model, database: Any, engine: str, modes: tuple[str, str], tp: int) -> None:
        self._database = database
        self._model = models.get_model(
            model.path,
            config.ModelConfig(
                tp_size=tp,
                gemm_quant_mode=common.GEMMQuantMode[modes[0]],
                kvcache_quant_mode=common.KVCacheQuantMode[modes[1]],
                fmha_quant_mode=common.FMHAQuantMode.float16,
                moe_quant_mode=common.MoEQuantMode.float16,
            ),
            engine,
        )

    def ms(self, phase: str, tokens: int, batch: int, length: int, wanted: Callable[[str], bool]) -> dict[str, float]:
        """Time of each of those operations of a phase that are wanted."""
        return {
            op._name: float(
                op.query(
                    self._database,
                    x=batch if "logits" in op._name else tokens,
                    batch_size=batch,
                    beam_width=1,
                    s=length,
                    prefix=0,
                    model_name="",
                )
            )
            for op in getattr(self._model, f"{phase}_ops")
            if wanted(op._name)
        }


def tables(gpu: str, engine: str, model: Model, modes: tuple[str, str], tp: int) -> dict[str, dict[str, Any]]:
    """Return the prefill, dense and decode table of one tensor-parallel size."""
    database = perf_database.get_database(f"{gpu}_sxm", engine, ENGINES[engine])
    substitute = modes[0] == "fp8_static" and engine != "trtllm"
    timer = Timer(model, database, engine, ("fp8" if substitute else modes[0], modes[1]), tp)
    other = perf_database.get_database(f"{gpu}_sxm", "trtllm", ENGINES["trtllm"])
    slow, fast = (Timer(model, other, "trtllm", (gemm, modes[1]), tp) for gemm in ("fp8", "fp8_static"))
    bf16 = Timer(model, database, engine, ("float16", modes[1]), tp)

    def dense(phase: str, tokens: int, batch: int) -> float:
        def gemms(timer: Timer) -> dict[str, float]:
            return timer.ms(phase, tokens, batch, tokens, lambda name: "gemm" in name)

        ms = timer.ms(phase, tokens, batch, tokens, lambda name: not name.endswith("_attention"))
        if substitute:
            whole, left = gemms(slow), gemms(fast)
            ms |= {name: ms[name] - (whole[name] - left[name]) for name in whole}
        ms |= {name: min(ms[name], most) for name, most in gemms(bf16).items()}
        return sum(ms.values())

    def attention(phase: str, tokens: int, batch: int, length: int) -> float:
        return sum(timer.ms(phase, tokens, batch, length, lambda name: name.endswith("_attention")).values())

    rest = [dense("context", t, 1) for t in TOKENS]
    whole = [ms + attention("context", t, 1, t) for ms, t in zip(rest, TOKENS, strict=True)]
    steps = [(dense("generation", b, b), b) for b in BATCH]
    decode = [[ms + attention("generation", b, b, length) for length in CONTEXT] for ms, b in steps]
    return {
        "prefill": {"tokens": TOKENS, "raw_ms": [round(ms, 4) for ms in whole]},
        "dense": {"tokens": TOKENS, "raw_ms": [round(ms, 4) for ms in rest]},
        "decode": {
            "batch": BATCH,
            "context_tokens": CONTEXT,
            "raw_ms": [[round(ms, 4) for ms in row] for row in decode],
        },
    }


def profile(name: str) -> dict[str, Any]:
    """Return one profile file as data."""
    model, gemm, kv, tps = CASES[name]
    gpu, rest = name.split("/")
    title, engine = rest.rsplit("-", 1)
    by_tp = {tp: tables(gpu, engine, model, (gemm, kv), tp) for tp in tps}
    memory_bytes, bytes_per_s = GPUS[gpu]
    return {
        "schema": 1,
        "gpu": gpu.upper(),
        "model": title,
        "kind": "modelled",
        "provenance": {
            "source": f"aiconfigurator 0.7.0, tables of {gpu}_sxm, {engine} {ENGINES[engine]}; "
            f"GEMM {gemm}, KV cache {kv}, FMHA float16",
            "command": "python benchmarks/fidelity_tables.py profiles/validation",
            "notes": [line[2:].replace("\n  ", " ") for line in re.findall(r"^\* .*(?:\n  .*)*", __doc__ or "", re.M)],
        },
        "memory": {
            "gpu_bytes": memory_bytes,
            "reserved_bytes": 0.1 * memory_bytes + (10e9 if engine == "sglang" else 3e9),
            "model_bytes": model.bf16_bytes if gemm == "float16" else model.fp8_bytes,
            "kv_bytes_per_token": model.kv_bytes // (2 if kv == "fp8" else 1),
            "source": "data sheet; parameters of the model; see provenance.notes",
        },
        "bandwidth": {"bytes_per_s": bytes_per_s, "utilisation": 0.8, "source": "aiconfigurator 0.7.0"},
        "transfer": {"latency_s": 0.0, "bytes_per_s": 1.0, "source": "not used: prompt and answer on one worker"},
        "scale": {"prefill": 1.0, "decode": 1.0, "source": "as aiconfigurator says"},
        **{part: {tp: by_tp[tp][part] for tp in tps} for part in ("prefill", "dense", "decode")},
    }


def main() -> None:
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for name in CASES:
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(profile(name), indent=1)
        path.write_text(re.sub(r"(?<=[\d\[,])\s+(?=[\d\]])", "", text) + "\n", encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
