"""Reads the kernels of workers of several GPUs, mixtures of experts among them; see `layouts.ask`.

All times are those of one worker: `tokens` and `batch` are of the whole worker, and spread evenly over the GPUs that
keep attention apart (data-parallel attention). With pipeline stages, a batch is one micro-batch for each stage.
"""

from collections.abc import Callable
from math import ceil
from typing import Any

Sdk = Callable[[str], Any]
"""Returns a module of aiconfigurator's SDK."""


def read(asked: dict[str, Any], database: Any, sdk: Sdk) -> dict[str, Any]:
    """Return the parts of the steps of each layout, in milliseconds, and what its weights and KV cache take."""
    database.system_spec["node"]["inter_node_bw"] *= asked["rails"]  # the tables count one adapter for a whole ring
    workers = [Worker(asked, layout, database, sdk) for layout in asked["layouts"]]
    return {"layouts": [{**worker.memory(), **worker.parts(asked)} for worker in workers]}


class Worker:
    """One worker of several GPUs."""

    def __init__(self, asked: dict[str, Any], layout: dict[str, int], database: Any, sdk: Sdk) -> None:
        self._sdk = sdk
        common = sdk("common")
        wanted = {"gemm": "GEMM", "kvcache": "KVCache", "fmha": "FMHA", "moe": "MoE"}
        modes = {
            f"{name}_quant_mode": getattr(common, f"{kind}QuantMode")[asked["modes"][name]]
            for name, kind in wanted.items()
            if name in asked["modes"]
        }
        self._ranks, self._stages, self._database = layout["attention_data"], layout["pipeline"], database
        self._gpus = layout["tensor"] * layout["attention_data"] * layout["pipeline"]
        self._arguments = {
            "tp_size": layout["tensor"],
            "pp_size": layout["pipeline"],
            "attention_dp_size": layout["attention_data"],
            "workload_distribution": asked["experts"],
            **modes,
        }
        self._asked = asked["model"], asked["backend"]
        self._beside = asked["shared_beside"]
        self.note: str | None = None
        self.model = self._made(layout["expert_tensor"], layout["expert"])
        if layout["expert"] > 1 and not self._has_experts():
            self.model = self._made(layout["expert_tensor"] * layout["expert"], 1)
            self.note = (
                f"the tables lack experts spread over {layout['expert']} GPUs; each is split over all GPUs instead, "
                "which reads as many weights"
            )

    def _made(self, expert_tensor: int, expert: int) -> Any:
        config = self._sdk("config").ModelConfig(moe_tp_size=expert_tensor, moe_ep_size=expert, **self._arguments)
        return self._sdk("models").get_model(self._asked[0], config, self._asked[1])

    def _has_experts(self) -> bool:
        try:
            self._generation(1, 64)
        except Exception:
            return False
        return True

    def memory(self) -> dict[str, Any]:
        """Return bytes of the weights over all GPUs, bytes of KV cache, and the precisions."""
        model = self.model
        config = model.config
        value_bytes = config.kvcache_quant_mode.value.memory
        values = 576 if model.model_family == "DEEPSEEK" else 2 * model._num_kv_heads * model._head_size
        heads = 1 if model.model_family == "DEEPSEEK" else model._num_kv_heads
        windows = model._num_layers // 2 if model.architecture == "GptOssForCausalLM" else 0
        stage_bytes = sum(op.get_weights() for op in model.generation_ops) / self._stages
        return {
            "weights_bytes": stage_bytes * self._gpus,
            "kv_bytes_per_token": values * value_bytes * (model._num_layers - windows),
            "window_bytes_per_token": values * value_bytes * windows,
            "window_tokens": 128 if windows else None,
            "kv_copies": max(config.tp_size / heads, 1),
            "layers": model._num_layers,
            "max_context": model._context_length,
            "note": self.note,
            "modes": {name: getattr(config, f"{name}_quant_mode").name for name in ("gemm", "moe", "kvcache", "fmha")},
        }

    def parts(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the parts of prefill over tokens, and of decode over batch and context."""
        prompts = [self._context(tokens) for tokens in asked["tokens"]]
        steps = [[self._generation(batch, context) for context in asked["contexts"]] for batch in asked["batches"]]
        return {
            "dense": [dense for dense, _, _ in prompts],
            "attention": [attention / self._ranks for _, attention, _ in prompts],
            "experts": [experts for _, _, experts in prompts],
            "decode_dense": [row[0][0] for row in steps],
            "decode_attention": [[attention for _, attention, _ in row] for row in steps],
            "decode_experts": [row[0][2] for row in steps],
        }

    def _context(self, tokens: int) -> tuple[float, float, float]:
        """Return the time of a prompt without its attention, of its attention on one rank, and of its experts."""
        own = ceil(tokens / self._ranks)
        dense, _, experts = self._sum(self.model.context_ops, own, 1, own)
        _, attention, _ = self._sum(self.model.context_ops, tokens, 1, tokens)
        return dense, attention, experts

    def _generation(self, batch: int, context: int) -> tuple[float, float, float]:
        own = ceil(batch / (self._ranks * self._stages))
        return self._sum(self.model.generation_ops, own, own, context, beside=self._beside)

    def _sum(
        self, operations: Any, tokens: int, batch: int, length: int, *, beside: bool = False
    ) -> tuple[float, float, float]:
        """Return the time without attention, of attention, and of experts, beside which shared ones may hide."""
        total, attention, experts, shared = 0.0, 0.0, 0.0, 0.0
        for operation in operations:
            name = operation._name
            asked = {"batch_size": batch, "beam_width": 1, "s": length, "prefix": 0, "model_name": ""}
            query = getattr(operation, "query", None) or operation._engine_query  # aiconfigurator 0.12 renamed it
            ms = float(query(self._database, x=batch if "logits" in name else tokens, **asked))
            total += ms
            attention += ms if name.endswith("_attention") else 0.0
            experts += ms if name.endswith(("_moe", "_moe_overlap")) else 0.0
            shared += ms if "_shared_" in name else 0.0
        if beside:
            total -= min(shared, experts)
        return total - attention, attention, experts
