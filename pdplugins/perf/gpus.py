"""Peaks of the GPUs that profiles are computed for, from their makers' data sheets.

``gemm_share`` is the share of the peak that large BF16 matrix products reach. SemiAnalysis published 0.73 for H100 and
H200 and 0.47 for MI300X in December 2024 ("MI300X vs H100 vs H200": 720 of 989 and 620 of 1307 TFLOP/s). Other NVIDIA
GPUs are assumed to reach 0.73 too. ``bandwidth_share`` is aiconfigurator's empirical 0.8 for all GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdplugins.errors import ConfigError

GB = 1e9
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU."""

    name: str
    bf16_flops: float
    """Peak for dense matrices, without sparsity."""
    fp8_flops: float
    bytes_per_s: float
    """Memory bandwidth."""
    memory_bytes: int
    link_bytes_per_s: float
    """Bandwidth to one other GPU of the same server, in one direction."""
    gemm_share: float = 0.73
    bandwidth_share: float = 0.8
    aiconfigurator: str | None = None
    """Name of the system in aiconfigurator, if that has kernel tables for it."""

    def flops(self, weight_bytes: int) -> float:
        """Return the peak for weights of this size."""
        return self.fp8_flops if weight_bytes == 1 else self.bf16_flops


GPUS = {
    "a100": Gpu("NVIDIA A100 SXM 80 GB", 312e12, 312e12, 2.039e12, 80 * GIB, 300 * GB, aiconfigurator="a100_sxm"),
    "h100": Gpu("NVIDIA H100 SXM 80 GB", 989e12, 1978e12, 3.35e12, 80 * GIB, 450 * GB, aiconfigurator="h100_sxm"),
    "h200": Gpu("NVIDIA H200 SXM 141 GB", 989e12, 1978e12, 4.8e12, 141 * GIB, 450 * GB, aiconfigurator="h200_sxm"),
    "b200": Gpu("NVIDIA B200 SXM 180 GB", 2250e12, 4500e12, 8e12, 180 * GIB, 900 * GB, aiconfigurator="b200_sxm"),
    "gb200": Gpu("NVIDIA GB200 186 GB", 2500e12, 5000e12, 8e12, 186_000_000_000, 900 * GB, aiconfigurator="gb200_sxm"),
    "l40s": Gpu("NVIDIA L40S 48 GB", 362e12, 733e12, 0.864e12, 48 * GIB, 32 * GB, aiconfigurator="l40s"),
    "h800": Gpu("NVIDIA H800 SXM 80 GB", 989e12, 1978e12, 3.35e12, 80 * GIB, 200 * GB),
    "h20": Gpu("NVIDIA H20 SXM 96 GB", 148e12, 296e12, 4e12, 96 * GIB, 450 * GB),
    "mi300x": Gpu("AMD Instinct MI300X 192 GB", 1307e12, 2614e12, 5.3e12, 192 * GIB, 64 * GB, gemm_share=0.47),
}
"""By the folder that their profiles are in."""


def find_gpu(name: str) -> Gpu:
    """Return the GPU of this name. Raises a ConfigError that lists the known ones."""
    if (gpu := GPUS.get(name)) is None:
        raise ConfigError(f"gpu: there is no {name!r}; choose from {', '.join(sorted(GPUS))}")
    return gpu
