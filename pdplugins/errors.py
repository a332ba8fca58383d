"""The errors that a user sees. The command line prints them as one line and exits with code 2."""


class PdpluginsError(Exception):
    """Something the user can put right. The message says who, what and what to do next."""


class ConfigError(PdpluginsError):
    """A config file or an option that cannot be used."""


class PluginError(PdpluginsError):
    """A plugin that cannot be loaded, named together with its distribution."""


class TraceError(PdpluginsError):
    """A trace that is missing or malformed, with file and line."""


class HostError(PdpluginsError):
    """A host (Dynamo, SGLang) that is missing, too old, or did not start."""
