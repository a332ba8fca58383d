"""What sections of the config file are made of: values within bounds, and plugins picked by name."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

LONGEST_S = 1e9
"""The longest time, thirty years: clocks can tell it, also that of the simulator."""
MOST_WORK_S = 60.0
"""The longest work on one request, and the longest time that it adds to a step: few requests would take years of it."""
MOST_GPUS = 2**16
"""The most GPUs of one deployment."""
MOST_JOBS = 1024
"""The most runs that a command does at the same time."""
MOST_NAME = 250
"""Characters of the longest name or path."""

Seconds = Annotated[float, Field(gt=0, le=LONGEST_S, allow_inf_nan=False)]
Pause = Annotated[float, Field(ge=0, le=LONGEST_S, allow_inf_nan=False)]
Work = Annotated[float, Field(ge=0, le=MOST_WORK_S, allow_inf_nan=False)]
Watts = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """One section of the file: it knows all its keys, and never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Choice(BaseModel):
    """One plugin, picked by name. Every other key is a setting of that plugin."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @property
    def settings(self) -> dict[str, Any]:
        """The plugin's own keys."""
        return dict(self.model_extra or {})
