"""What a user is told where a host cannot listen."""

from __future__ import annotations

import errno
import socket

import pytest

from pdplugins.errors import cannot_listen

OTHERS = "h is no address of this machine; give one that is, such as 127.0.0.1"


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (OSError(errno.EADDRINUSE, "Address already in use"), "choose another port"),
        (PermissionError(errno.EACCES, "Permission denied"), "choose another port"),
        (OverflowError("port must be 0-65535"), "choose another port"),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"), OTHERS),
        (OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol"), OTHERS),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), OTHERS),
        (UnicodeError("label empty or too long"), OTHERS),
        (OSError("could not bind on any address out of [('192.0.2.1', 0)]"), OTHERS),  # asyncio, from Python 3.13 on
    ],
)
def test_what_to_give_instead_is_an_address_or_a_port(error: Exception, fix: str) -> None:
    why = getattr(error, "strerror", None) or str(error)
    assert str(cannot_listen("gateway", "h", 8000, error)) == f"gateway: cannot listen on h:8000 ({why}); {fix}"
