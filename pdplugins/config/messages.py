"""What is wrong with a value that a user gave, in one line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from pdplugins.errors import one_line, shown


def first_error(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first error of `error` in one line, with the valid choices where there are any."""
    first = error.errors()[0]
    if first["type"] == "value_error" and not first["loc"]:  # of several keys together: its message names them
        return one_line(first["ctx"]["error"])
    key = one_line(".".join(str(part) for part in first["loc"])) or "file"
    if first["type"] == "extra_forbidden":
        return f"unknown key '{key}'; valid keys here are {', '.join(_keys_at(model, first['loc'][:-1]))}"
    if first["type"] == "union_tag_not_found":
        tag = first["ctx"]["discriminator"]
        return f"{key}: say {tag} too, as it tells which keys there are (got {shown(first['input'])})"
    return f"{key}: {one_line(first['msg'])} (got {shown(first['input'])})"


def _keys_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Return the valid keys at `loc`, which also contains list indexes and the kind of a union."""
    here = [model]
    for part in loc:
        if annotations := [m.model_fields[str(part)].annotation for m in here if part in m.model_fields]:
            here = [m for annotation in annotations for m in _models(annotation)]
        else:
            here = [m for m in here if any(part == field.default for field in m.model_fields.values())] or here
    return sorted({key for m in here for key in m.model_fields})


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in an annotation: itself, or the ones within its list, union or Annotated."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)
