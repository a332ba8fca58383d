from enum import Enum

from . import functional  # noqa: F401


class InterpolationMode(Enum):
    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


class _Transform:
    def __call__(self, *arguments, **keywords):
        raise NotImplementedError("torchvision stub")


Compose = Normalize = ToTensor = Resize = CenterCrop = Lambda = RandomResizedCrop = _Transform
