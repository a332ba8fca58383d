"""The errors that users see. The command line prints them as one line and exits with code 2."""

from __future__ import annotations

import difflib
import errno
import socket
from collections.abc import Iterable
from reprlib import Repr

MOST_SHOWN = 80
"""Characters of a value that are shown."""
MOST_TOLD = 250
"""Characters of the detail that another library tells."""
_MEANT = "; did you mean "


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


def printable(text: str) -> str:
    """Return `text` without characters that move the cursor, end the line or cannot be encoded."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def one_line(detail: object, most: int = MOST_TOLD) -> str:
    """Return a text, or what an error says, in one line of at most `most` printable characters."""
    line = printable(" ".join(str(detail)[: 2 * most].split()))
    return line if len(line) <= most else line[: most - 1] + "…"


def shown(value: object) -> str:
    """Return a value that a user gave, short and safe to print: it may be huge, or may contain itself."""
    return one_line(_SHORT.repr(value), MOST_SHOWN)


def meant(name: str, known: Iterable[str]) -> str:
    """Return a question for the nearest of the `known` names, to end an error with; nothing where none is near."""
    near = difflib.get_close_matches(str(name)[:MOST_SHOWN], list(known), n=1)
    return f"{_MEANT}{near[0]}?" if near else ""


def is_address_wrong(error: Exception) -> bool:
    """Tell whether listening failed for the address, whatever the port: it is none, or none of this machine."""
    if isinstance(error, socket.gaierror | UnicodeError):
        return True
    # Python's own event loop gives no number where it can listen on no address of a name.
    return isinstance(error, OSError) and error.errno in {None, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


def cannot_listen(who: str, host: str, port: int, error: Exception) -> HostError:
    """Return the error of `who` that cannot listen, with what to give instead: another address, or another port."""
    host, why = one_line(host), one_line(getattr(error, "strerror", None) or error)
    if is_address_wrong(error):
        fix = f"{host} is no address of this machine; give one that is, such as 127.0.0.1"
    else:
        fix = "choose another port"
    return HostError(f"{who}: cannot listen on {host}:{port} ({why}); {fix}")


def question_first(message: str) -> str:
    """Return an error with the question of `meant`, if it ends with one, right after what is wrong.

    Before the long list of what there is, readers see it.
    """
    told, _, name = message.rpartition(_MEANT)
    what, _, rest = told.partition("; ")
    return f"{what}{_MEANT}{name} Else: {rest}" if rest and name.endswith("?") else message


class _Short(Repr):
    """Python's short `repr`, also of whole numbers that Python refuses to print."""

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() < 1000 else "a huge number"


_SHORT = _Short()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist, _SHORT.maxstring = 3, 3, 3, 60
