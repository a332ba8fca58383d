"""Names that clients give to things: of any length and content, so that none is kept or repeated as it is."""

from __future__ import annotations

import hashlib
import secrets

from pdplugins.gateway.errors import GatewayError
from pdplugins.gateway.share import own_share

_SHARE = own_share()
_KEY = secrets.token_bytes(16) if _SHARE is None else bytes.fromhex(_SHARE.key)
"""Another one in each gateway, so that a log does not tell who a user is."""


def hashed(name: str) -> str:
    """Return a short name that stands for `name` in this process."""
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16, key=_KEY).hexdigest()


def checked(field: str, name: str, most_chars: int) -> str:
    """Return `name`, which goes back to the client as it is. Raises GatewayError when it is too long, or no Unicode."""
    if len(name) > most_chars:
        raise GatewayError(400, f"{field} is longer than {most_chars} characters")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise GatewayError(400, f"{field} is not Unicode") from None
    return name
