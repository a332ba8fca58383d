"""What is wrong with a value that a user gave, in one line: which key, what is expected, and what was given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pdplugins.config.base import Choice
from pdplugins.errors import ConfigError, one_line, shown

Model = TypeVar("Model", bound=BaseModel)

_EXPECTED = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "enum": "must be {expected}",
    "finite_number": "must be a finite number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "frozen_set_type": "must be a list",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller whole number",
    "int_type": "must be a whole number",
    "invalid_key": "the key must be a text; put it in quotes",
    "json_invalid": "is not JSON: {error}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "none_required": "must be left out",
    "path_type": "must be a path",
    "set_type": "must be a list",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_long": "must have {max_length} or fewer characters",
    "string_too_short": "must have {min_length} or more characters",
    "string_type": "must be a text",
    "too_long": "must have {max_length} or fewer entries",
    "too_short": "must have {min_length} or more entries",
    "tuple_type": "must be a list",
}
"""By pydantic's type of an error: what is expected instead, with what pydantic says of it. Others keep its words."""
_NUMBER = "must be a number"
_LIMITS = {"greater_than", "greater_than_equal", "less_than", "less_than_equal", "multiple_of"}
"""Types of errors of numbers, also of a true or false that pydantic takes for one."""
_SECTIONS = {"dict_type", "mapping_type", "model_attributes_type", "model_type"}
"""Types of errors where keys and values are expected."""
_RAISED = {"assertion_error", "value_error"}
"""Types of errors that a validator of ours has raised: its own words say what is wrong."""


def checked(model: type[Model], data: Any, where: str) -> Model:
    """Return what a user gave as a `model`. Raises ConfigError with one line for the first error; `where` begins it."""
    try:
        found = model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{where}: {first_error(error, model)}") from None
    for keys, value in _truths_as_numbers(data, found):
        raise ConfigError(f"{where}: {one_line('.'.join(keys))}: {_NUMBER} (got {_given(value)})")
    return found


def _truths_as_numbers(data: Any, found: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the keys at which `data` has true or false, which pydantic has taken for 1 or 0 in `found`."""
    if isinstance(data, bool):
        if isinstance(found, int | float) and not isinstance(found, bool):
            yield keys, data
    elif isinstance(data, Mapping):
        values = dict(found) if isinstance(found, BaseModel | Mapping) else {}
        for key, value in data.items():
            yield from _truths_as_numbers(value, values.get(key), (*keys, str(key)))
    elif isinstance(data, list | tuple) and isinstance(found, list | tuple):
        for index, (value, taken) in enumerate(zip(data, found, strict=False)):
            yield from _truths_as_numbers(value, taken, (*keys, str(index)))


def first_error(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first error of `error` in one line, with the valid choices where there are any."""
    errors = error.errors()
    first = errors[0]
    if first["type"] == "value_error" and not first["loc"]:  # of several keys together: its message names them
        return one_line(first["ctx"]["error"])
    keys, types = _place(model, first["loc"])
    key = one_line(".".join(keys)) or "file"
    if first["type"] == "extra_forbidden":
        _, here = _place(model, first["loc"][:-1])
        return f"unknown key '{key}'; {_valid_keys(here) or 'there are no keys here'}"
    if first["type"] == "missing":
        return f"{key}: must be given"
    if first["type"] == "union_tag_not_found":
        tag = first["ctx"]["discriminator"]
        return f"{key}: say {tag} too, as it tells which keys there are (got {_given(first['input'])})"
    if first["type"] == "union_tag_invalid":
        told = first["ctx"]
        tag = told["discriminator"].strip("'")
        return f"{key}.{tag}: must be one of {told['expected_tags']} (got {shown(told['tag'])})"
    alike = [each for each in errors if _place(model, each["loc"])[0] == keys]  # one for each member of a union
    wanted = list(dict.fromkeys(one_line(_expected(each, types)) for each in alike))
    more = "".join(f" or {each.removeprefix('must be ')}" for each in wanted[1:])
    return f"{key}: {wanted[0]}{more} (got {_given(first['input'])})"


def _expected(error: ErrorDetails, types: list[Any]) -> str:
    """Return what is expected in place of what one error is about."""
    kind, told = error["type"], error.get("ctx", {})
    if kind in _RAISED:
        return str(told["error"])
    if kind in _LIMITS and isinstance(error["input"], bool):
        return _NUMBER
    if kind in _SECTIONS:
        if Choice in types:
            return "must be the name of a plugin, or keys with values, of which one is the name"
        return "; ".join(filter(None, ("must be keys with values", _valid_keys(types))))
    limits = {name: f"{value:.12g}" if isinstance(value, float) else value for name, value in told.items()}
    text = _EXPECTED[kind].format(**limits) if kind in _EXPECTED else error["msg"]
    return f"the key {text}" if error["loc"][-1:] == ("[key]",) else text


def _given(value: object) -> str:
    """Return a value as users write it, short."""
    written = {None: "nothing", True: "true", False: "false"}
    return written[value] if value is None or isinstance(value, bool) else shown(value)


def _valid_keys(types: list[Any]) -> str:
    """Return which keys the models among `types` have; nothing without any."""
    keys = sorted({key for each in types if _is_model(each) for key in each.model_fields})
    return f"valid keys here are {', '.join(keys)}" if keys else ""


def _place(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[list[str], list[Any]]:
    """Return the keys to `loc` as the user has written them, and the types that a value may have there.

    Pydantic's `loc` also names the member of a union that it has tried.
    """
    keys: list[str] = []
    types: list[Any] = [model]
    for part in loc:
        inner = [found for each in types for found in _within(each, part)]
        if not inner and isinstance(part, str) and (part == "[key]" or len(types) > 1):
            types = [each for each in types if _is_model(each) and _is_tagged(each, part)] or types
            continue
        keys.append(str(part))
        types = inner
    return keys, types


def _within(kind: Any, part: int | str) -> list[Any]:
    """Return the types that a value of type `kind` may have at a key or index; none where it has no such one."""
    if _is_model(kind):
        return _members(kind.model_fields[part].annotation) if part in kind.model_fields else []
    origin, inner = get_origin(kind), get_args(kind)
    if origin is dict:
        return _members(inner[1])
    if origin in {list, tuple} and isinstance(part, int):
        return _members(inner[part] if part < len(inner) and Ellipsis not in inner else inner[0])
    return []


def _members(annotation: Any) -> list[Any]:
    """Return the types in an annotation: itself, or the members of its union but for None."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _members(get_args(annotation)[0])
    if origin in {Union, UnionType}:
        return [found for each in get_args(annotation) for found in _members(each)]
    return [] if annotation is NoneType else [annotation]


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _is_tagged(model: type[BaseModel], tag: str) -> bool:
    return any(field.default == tag for field in model.model_fields.values())
