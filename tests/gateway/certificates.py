"""Certificates for tests, made on the spot: an authority, and what it signs."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
RSA = ("-newkey", "rsa:2048")


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@dataclass(frozen=True)
class Authority:
    """An authority of its own, in a folder."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.pem"

    @classmethod
    def make(cls, folder: Path) -> Authority:
        folder.mkdir()
        it = cls(folder)
        key = str(folder / "ca.key")
        openssl(
            *("req", "-x509", *EC, "-nodes", "-keyout", key, "-out", str(it.certificate), "-days", "2"),
            *("-subj", "/CN=an authority of a test", "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )
        return it

    def sign(self, name: str, password: str | None = None, kind: Sequence[str] = EC) -> tuple[Path, Path]:
        """Make a certificate for 127.0.0.1; return it and its key."""
        certificate, key, request = (self.folder / f"{name}.{end}" for end in ("pem", "key", "csr"))
        extensions = self.folder / "extensions"
        extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\nauthorityKeyIdentifier=keyid\n")
        secret = ("-nodes",) if password is None else ("-passout", f"pass:{password}")
        openssl("req", *kind, *secret, "-keyout", str(key), "-out", str(request), "-subj", f"/CN={name}")
        openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self.folder / "ca.key")),
            *("-out", str(certificate), "-days", "2", "-extfile", str(extensions)),
        )
        return certificate, key
