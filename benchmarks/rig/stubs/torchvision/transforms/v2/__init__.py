from torchvision.transforms import InterpolationMode  # noqa: F401

from . import functional  # noqa: F401
