"""docs/results.md describes every field of the result schema, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from pdplugins.results import Result, Scaling, Spread

PAGE = Path(__file__).parents[2] / "docs/results.md"


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every field of `model` by its path; those of a distribution are described once for all."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel) and inner is not Spread:
            yield from fields(inner, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_every_field_is_described() -> None:
    table = PAGE.read_text().split("## Fields")[1].split("\n## ")[0]
    described = {name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`([^`]+)`", row)}
    spread = {f"metrics.<time>.{name}" if name == "mean" else f".{name}" for name in Spread.model_fields}
    assert described == set(fields(Result)) | spread
    assert all(f"`{name}`" in table for name in Scaling.model_fields)
