"""Step times by the roofline: each part takes the larger of arithmetic over compute and bytes over memory bandwidth.

A part is either attention or dense. The dense part is everything else: projections, feed-forward, and the all-reduces
of tensor parallelism. Kernel launches are not included, so a small step of a real engine takes longer. With every share
at 1, no engine can be faster (`Roofline.peak`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pdplugins.perf.gpus import Gpu
from pdplugins.perf.shapes import BF16_BYTES, Shape

ALL_REDUCE_LATENCY_S = 10e-6
"""aiconfigurator's p2p_latency."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Lower estimates of the times of a step's parts, in seconds, on `tp` GPUs."""

    shape: Shape
    gpu: Gpu
    tp: int

    def peak(self) -> Roofline:
        """Return a bound for any engine, with full compute and bandwidth, and without communication."""
        free = replace(self.gpu, gemm_share=1.0, bandwidth_share=1.0, link_bytes_per_s=float("inf"))
        return replace(self, gpu=free)

    def dense_s(self, tokens: float) -> float:
        """Seconds of everything but attention for `tokens` tokens. Only one of them is sampled."""
        shape = self.shape
        active = shape.attention_weights + shape.active_experts * shape.expert_weights
        # Assuming that tokens choose experts independently: the share of experts that are chosen, and so read.
        chosen = 1 - (1 - shape.active_experts / shape.experts) ** max(tokens, 1)
        read = shape.attention_weights + shape.experts * chosen * shape.expert_weights
        flops = 2 * shape.layers * active * tokens
        layers_s = self._part(flops, shape.layers * read * shape.weight_bytes, shape.weight_bytes)
        head = shape.vocab * shape.hidden
        return layers_s + self._part(2 * head, head * BF16_BYTES, BF16_BYTES) + self._all_reduces_s(tokens)

    def prompt_attention_s(self, tokens: float) -> float:
        """Seconds of the causal attention of one prompt of `tokens` tokens."""
        shape = self.shape
        flops = 2 * shape.layers * shape.heads * shape.head_dim * tokens**2
        return self._part(flops, shape.kv_bytes_per_token * tokens, BF16_BYTES)

    def decode_attention_s(self, batch: float, context_tokens: float) -> float:
        """Seconds of the attention of one decode step, which reads the KV cache of every request."""
        shape, tokens = self.shape, batch * context_tokens
        flops = 4 * shape.layers * shape.heads * shape.head_dim * tokens
        return self._part(flops, shape.kv_bytes_per_token * tokens, BF16_BYTES)

    def _part(self, flops: float, read_bytes: float, weight_bytes: int) -> float:
        gpu = self.gpu
        compute_s = flops / (gpu.flops(weight_bytes) * gpu.gemm_share)
        return max(compute_s, read_bytes / (gpu.bytes_per_s * gpu.bandwidth_share)) / self.tp

    def _all_reduces_s(self, tokens: float) -> float:
        """Seconds of two ring all-reduces in each layer."""
        if self.tp == 1 or self.gpu.link_bytes_per_s == float("inf"):
            return 0.0
        moved_bytes = 2 * (self.tp - 1) / self.tp * tokens * self.shape.hidden * BF16_BYTES
        return 2 * self.shape.layers * (ALL_REDUCE_LATENCY_S + moved_bytes / self.gpu.link_bytes_per_s)
