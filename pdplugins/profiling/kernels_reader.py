"""Reads the kernels of tensor-parallel workers; see `kernels.ask`."""

from collections.abc import Callable
from typing import Any

Sdk = Callable[[str], Any]
"""Returns a module of aiconfigurator's SDK."""


def read(asked: dict[str, Any], database: Any, sdk: Sdk) -> dict[str, Any]:
    """Return the parts of the steps for each requested TP size, in milliseconds."""
    return {"parts": {str(tp): _parts(asked, database, sdk, tp) for tp in asked["tp"]}}


def _parts(asked: dict[str, Any], database: Any, sdk: Sdk, tp: int) -> dict[str, Any]:
    config, models, backend = sdk("config"), sdk("models"), asked["backend"]
    # moe_tp_size and moe_ep_size only matter for models with experts: they are split like everything else.
    model = models.get_model(asked["model"], config.ModelConfig(tp_size=tp, moe_tp_size=tp, moe_ep_size=1), backend)
    engine = sdk("backends.factory").get_backend(backend)
    static = sdk("inference_session").InferenceSession(model, database, engine)

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
