"""Stands in for sgl_kernel, whose wheels hold CUDA code only: SGLang then runs plain PyTorch on a CPU.

Anything may be imported from it, and raises when it is called, but the one operation that the CPU path does call.
"""

import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "0.0.0+stub"


def _missing(name):
    def missing(*arguments, **keywords):
        raise NotImplementedError(f"sgl_kernel stub: {name} has no CPU version")

    missing.__name__ = name
    return missing


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    if name == "ScalarType":
        return type("ScalarType", (), {})
    return _Names() if name == "scalar_types" else _missing(name)


class _Names:
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


def assign_req_to_token_pool_cpu(req_pool_indices, req_to_token, start, end, out_cache_loc, *more):
    """Put the next slice of `out_cache_loc` at [start, end) of each request's row."""
    at = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        req_to_token[row, first:last] = out_cache_loc[at : at + last - first].to(req_to_token.dtype)
        at += last - first


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.startswith("sgl_kernel."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = __getattr__
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


sys.meta_path.append(_Submodules())

# Dynamo's workers import SGLang's server of multimodal encoders, and go on without it after an ImportError only. Here
# it would be an AttributeError: an operator of PyTorch that this stub does not bring.
sys.modules.setdefault("sglang.srt.disaggregation.encode_server", None)
