"""The errors that users see. The command line prints them as one line and exits with code 2."""


class PdpluginsError(Exception):
    """An error that the user can fix. The message says who, what and what to do next."""


class ConfigError(PdpluginsError):
    """A config file or an option that cannot be used."""


class PluginError(PdpluginsError):
    """A plugin that cannot be loaded. The message names it and its distribution."""


class TraceError(PdpluginsError):
    """A trace that is missing or malformed. The message names file and line."""


class HostError(PdpluginsError):
    """A host (Dynamo, SGLang) that is missing, too old, or did not start."""
