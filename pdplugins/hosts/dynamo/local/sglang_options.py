"""What ``dynamo serve --engine sglang`` was asked for, checked before anything starts."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from pdplugins.errors import ConfigError
from pdplugins.files import is_file

OURS = (
    *("--model-path", "--model", "--served-model-name", "--host", "--endpoint"),
    *("--disaggregation-mode", "--disaggregation-bootstrap-port", "--disaggregation-transfer-backend"),
)
"""Options that the launcher sets."""


@dataclass(frozen=True, slots=True)
class SglangSpec:
    """What workers run."""

    model: Path
    """Folder of the model."""
    python: str
    """The Python that has SGLang."""
    arguments: tuple[str, ...] = ()
    """Further options of each worker."""


def sglang_spec(engine: str, model: Path | None, python: str | None, arguments: str | None) -> SglangSpec | None:
    """Return what the options of ``dynamo serve`` say of SGLang; None with another engine. Raises ConfigError."""
    if engine != "sglang":
        given = {"--model-path": model, "--engine-python": python, "--engine-args": arguments}
        for name, value in given.items():
            if value is not None:
                raise ConfigError(f"{name} is about SGLang's workers; add --engine sglang")
        return None
    if model is None:
        raise ConfigError("--engine sglang: no model; add --model-path FOLDER")
    if not is_file(model / "config.json"):
        raise ConfigError(f"--model-path {model}: no model there; give a folder with config.json and weights")
    try:
        words = tuple(shlex.split(arguments or ""))
    except ValueError as error:
        raise ConfigError(f"--engine-args: {error}; close every quotation") from None
    if taken := sorted({word.partition("=")[0] for word in words} & set(OURS)):
        raise ConfigError(f"--engine-args: leave out {', '.join(taken)}; the launcher sets it for each worker")
    return SglangSpec(model.absolute(), python or sys.executable, words)
