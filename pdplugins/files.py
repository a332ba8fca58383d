"""Files. Outputs are checked before the work starts, and written completely or not at all; ``-`` is stdout."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

from pdplugins.errors import ConfigError, shown

STDOUT, DEVICE = Path("-"), Path("/dev/stdout")
"""The name by which users ask for standard output, and what is written to."""
PICTURES = (".png", ".svg", ".pdf")
"""How files end that a plot can be written to."""
USUAL_MODE = 0o666
"""Of new files, less what the user's umask takes away."""


@contextmanager
def results_alone() -> Iterator[None]:
    """Send what is said to people to standard error, so that standard output has nothing but a result."""
    with redirect_stdout(sys.stderr):
        yield


def check_outputs(*paths: Path | None) -> None:
    """Raise ConfigError for the first of `paths` that cannot be written, before work is lost. None means no file."""
    for path in filter(None, paths):
        if path == STDOUT:
            continue
        try:
            folder = path.resolve().parent
        except (OSError, RuntimeError):  # older Pythons raise a RuntimeError
            raise ConfigError(f"{path}: a link that leads to itself; give a path that can be written") from None
        try:
            _check_output(path, folder)
        except OSError as error:
            raise _unwritable(path, error) from None


def _check_output(path: Path, folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}; create it first")
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; name a file in it")
    target = _target(path)
    if (scratch := _scratch(target)) != target:
        scratch.touch()
        scratch.unlink()


def check_picture(option: str, path: Path) -> None:
    """Raise ConfigError where no plot can be written."""
    if path.suffix not in PICTURES:
        raise ConfigError(f"{option} {path}: name a file that ends in {', '.join(PICTURES)}")
    check_outputs(path)


def check_apart(outputs: Mapping[str, Path | None], inputs: Mapping[str, Path | str | None]) -> None:
    """Raise ConfigError where an output is a file that is read too, or another output: one of them would be lost.

    :param outputs: by the options that name them. None means no file.
    :param inputs: likewise; what is no file, such as the name of a shipped config, is left alone.
    """
    named = {option: Path(path) for option, path in inputs.items() if path is not None}
    taken = {option: path for option, path in named.items() if is_file(path)}
    for option, path in outputs.items():
        if path is None:
            continue
        also = next((other for other, before in taken.items() if _same(path, before)), None)
        if also is not None:
            raise ConfigError(f"{option} {path} is also {also}; name another file")
        taken[option] = path


def profiles_of(name: str, profiles: Iterable[str]) -> dict[str, Path]:
    """Return the profiles that a config names, some of which are files, as inputs of `check_apart`."""
    return {f"{profile}, a profile of {name}": Path(profile) for profile in profiles}


def is_file(path: Path) -> bool:
    """Tell whether a file is at `path`: there is none where the name is too long, or its folder may not be read."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Tell whether a folder is at `path`, likewise."""
    try:
        return path.is_dir()
    except OSError:
        return False


def read_limited(path: Path, most_bytes: int, *, pipes: bool = False) -> bytes:
    """Return what a file holds. Raises OSError, or ConfigError with one line that does not name the file.

    :param pipes: also read a pipe or a device, which may keep its reader waiting.
    """
    mode = path.stat().st_mode
    if not (pipes or stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ConfigError("a pipe or a device; write it to a file first")
    with path.open("rb") as file:
        raw = file.read(most_bytes + 1)
    if len(raw) > most_bytes:
        raise ConfigError(f"larger than {most_bytes // 1024} KiB; is it the right file?")
    return raw


class TwiceError(Exception):
    """A JSON object has a key twice. It says which."""


def object_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object: an ``object_pairs_hook``, as Python silently takes the last of two equal keys.

    Raises TwiceError.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise TwiceError(f"key {shown(key)} stands twice; keep one of them")
    return found


@contextmanager
def whole(path: Path, *, keep_mode: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write to. It replaces `path` at the end, or is removed after an error.

    A file that it replaces leaves it its mode, unless `keep_mode` is off. Where `path` is a link to a file, that one is
    replaced. Raises ConfigError where the file system refuses.
    """
    path = _target(path)
    try:
        scratch = _scratch(path)
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        yield scratch
        if scratch != path:
            if keep_mode and path.exists():
                scratch.chmod(stat.S_IMODE(path.stat().st_mode))
            scratch.replace(path)
    except BrokenPipeError:  # who read our standard output has had enough
        raise
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        if scratch != path:
            scratch.unlink(missing_ok=True)


def write_whole(path: Path, text: str, mode: int = USUAL_MODE) -> None:
    """Write `text` to `path`, completely or not at all. Raises ConfigError where the file system refuses.

    :param mode: of the file, less what the umask takes away. With the usual one, a file that is there keeps its own.
    """
    with whole_text(path, mode) as file:
        file.write(text)


@contextmanager
def whole_text(path: Path, mode: int = USUAL_MODE) -> Iterator[TextIO]:
    """Yield a file to write text to, in pieces: it is there completely or not at all, as with `write_whole`."""
    path = _target(path)
    with (
        whole(path, keep_mode=mode == USUAL_MODE) as scratch,
        os.fdopen(_opened(scratch, path, mode), "w", encoding="utf-8") as file,
    ):
        yield file


def write_whole_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path`, as `write_whole` does with text."""
    path = _target(path)
    with whole(path, keep_mode=True) as scratch, os.fdopen(_opened(scratch, path, USUAL_MODE), "wb") as file:
        file.write(data)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Wait until no other process changes files of this folder: for what reads `path`, changes it and writes it again.

    Raises ConfigError where there is no such folder.
    """
    try:
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _opened(scratch: Path, path: Path, mode: int) -> int:
    if scratch == DEVICE:  # opened by its name, a file behind it (``>> FILE``) would lose what it has
        return os.dup(1)
    ours = os.O_NOFOLLOW if scratch != path else 0  # a link of that name is someone else's
    return os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | ours, mode)


def _target(path: Path) -> Path:
    """Return where `path` leads: to standard output, or along links to a file that is there or can be."""
    if path in (STDOUT, DEVICE):
        return DEVICE
    try:
        leads = path.is_symlink() and (path.is_file() or not path.exists())
        return path.resolve() if leads else path
    except (OSError, RuntimeError):  # what reads or writes it says why; older Pythons raise a RuntimeError for a loop
        return path


def _same(one: Path, other: Path) -> bool:
    """Tell whether two paths lead to one file or pipe. A device such as ``/dev/null`` takes any number of writers."""
    one, other = _target(one), _target(other)
    if one == other == DEVICE:
        return True
    try:
        if one.is_char_device():
            return False
        return one.resolve() == other.resolve() or one.samefile(other)
    except (OSError, RuntimeError):  # one of them is not there; older Pythons raise a RuntimeError for a loop
        return False


def _scratch(path: Path) -> Path:
    """Return a temporary name next to `path`, with its suffix. A pipe or device (``/dev/stdout``) is used directly.

    Every process has its own, so that two that write the same file do not write into each other.
    """
    special = path == DEVICE or (path.exists() and not path.is_file())
    return path if special else path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path}: {error.strerror or error}; give a path that can be written")
