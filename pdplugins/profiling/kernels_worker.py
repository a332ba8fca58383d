"""Reads aiconfigurator's kernel tables.

An interpreter with aiconfigurator runs this file, which therefore imports nothing of pdplugins. It takes one JSON
object on standard input and writes one on standard output; see `kernels.ask`.
"""

import importlib
import json
import logging
import sys
from importlib.metadata import version
from typing import Any


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of the steps for each requested TP size, in milliseconds."""
    perf_database = _sdk("perf_database")
    system, backend = asked["system"], asked["backend"]
    tables = asked["version"] or str(perf_database.get_latest_database_version(system, backend))
    database = perf_database.get_database(system=system, backend=backend, version=tables)
    return {
        "tool": f"aiconfigurator {version('aiconfigurator')}",
        "version": tables,
        "parts": {str(tp): _parts(asked, database, tp) for tp in asked["tp"]},
    }


def _parts(asked: dict[str, Any], database: Any, tp: int) -> dict[str, Any]:
    config, models, backend = _sdk("config"), _sdk("models"), asked["backend"]
    # moe_tp_size and moe_ep_size only matter for models with experts: they are split like everything else.
    model = models.get_model(asked["model"], config.ModelConfig(tp_size=tp, moe_tp_size=tp, moe_ep_size=1), backend)
    engine = _sdk("backends.factory").get_backend(backend)
    static = _sdk("inference_session").InferenceSession(model, database, engine)

    def run(batch: int, tokens: int, mode: str) -> tuple[float, float]:
        runtime = config.RuntimeConfig(batch_size=batch, beam_width=1, isl=tokens, osl=2)
        summary = static.run_static(runtime, mode=mode)
        latencies = summary.get_context_latency_dict if mode == "static_ctx" else summary.get_generation_latency_dict
        attention = sum(ms for name, ms in latencies().items() if name.endswith("_attention"))
        return sum(latencies().values()) - attention, attention

    prefill = [run(1, tokens, "static_ctx") for tokens in asked["tokens"]]
    decode = [[run(batch, context, "static_gen") for context in asked["contexts"]] for batch in asked["batches"]]
    return {
        "dense": [dense for dense, _ in prefill],
        "attention": [attention for _, attention in prefill],
        "decode_dense": [row[0][0] for row in decode],
        "decode_attention": [[attention for _, attention in row] for row in decode],
    }


def _sdk(name: str) -> Any:
    return importlib.import_module(f"aiconfigurator.sdk.{name}")


def main() -> None:
    """Answer the request on standard input."""
    logging.disable(logging.WARNING)
    asked = json.load(sys.stdin)
    try:
        found = answer(asked)
    except ModuleNotFoundError as error:
        found = {"missing": error.name}
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
