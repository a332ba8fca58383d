"""Keys come from a file or the environment, and an error never shows one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdplugins.errors import ConfigError
from pdplugins.processes.keys import read_secret
from pdplugins.redaction import HIDDEN, redacted


def test_a_key_comes_from_a_file_or_else_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    assert read_secret(None, "--key-file", "SOME_KEY") is None
    monkeypatch.setenv("SOME_KEY", "from-the-environment")
    assert read_secret(None, "--key-file", "SOME_KEY") == "from-the-environment"
    (tmp_path / "key").write_text("from-the-file\n")
    assert read_secret(tmp_path / "key", "--key-file", "SOME_KEY") == "from-the-file"
    assert redacted("from-the-file and from-the-environment") == f"{HIDDEN} and {HIDDEN}"


@pytest.mark.parametrize(
    "content", [b"", b"short", b"two words-here", b"first-line-of-two\nsecond-line-of-two", b"\xff" * 20, b"x" * 5000]
)
def test_what_is_no_key_is_one_line_that_does_not_show_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(ConfigError, match=r"^--key-file \S+: (a key|larger)") as caught:
        read_secret(tmp_path / "key", "--key-file", "SOME_KEY")
    said = str(caught.value).removeprefix(f"--key-file {tmp_path}/key: ")
    assert said.isprintable()
    assert not content or content.decode("ascii", "replace")[:10] not in said


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_secret(tmp_path / "none", "--key-file", "SOME_KEY")
    with pytest.raises(ConfigError, match="larger than 4096 bytes"):
        read_secret(Path("/dev/zero"), "--key-file", "SOME_KEY")
