"""The command line with the commands of all plugins, as `pdplugins` has it once it runs."""

from pdplugins.cli import app
from pdplugins.registry import default_registry

__all__ = ["app"]

default_registry().add_commands(app)
