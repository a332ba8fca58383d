"""Stands in for torchvision, whose wheels hold CUDA code that does not load beside a PyTorch for CPUs."""

from . import io, transforms  # noqa: F401

__version__ = "0.0.0+stub"
