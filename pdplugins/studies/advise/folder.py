"""The folder of ``--save-dir``: a config, start commands for SGLang and for Dynamo, and a Kubernetes manifest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

import yaml

from pdplugins.config import Config
from pdplugins.errors import ConfigError
from pdplugins.files import check_outputs, is_file, write_whole
from pdplugins.studies.advise.kubernetes import manifest
from pdplugins.studies.advise.serving import CONFIG, dynamo_script, sglang_script

SGLANG, DYNAMO, KUBERNETES = "sglang.sh", "dynamo.sh", "kubernetes.yaml"
NAMES = (CONFIG, SGLANG, DYNAMO, KUBERNETES)
"""Files that are written."""
PROFILE = "profile.json"
SCRIPT = 0o777
"""Mode of the scripts, less what the user's umask takes away."""
FOUND_BY = "(simulated; found by: "
"""What the head of each of these files says, before the command."""
HEAD_BYTES = 2**16


def check(folder: Path) -> None:
    """Raise ConfigError if the folder cannot be written, or made, before work is lost.

    Files of an earlier `advise` are replaced. Those of others would be lost, so they are refused.
    """
    try:
        with TemporaryFile(dir=folder if folder.exists() else folder.parent):
            pass
    except OSError as error:
        raise ConfigError(f"--save-dir {folder}: {error.strerror}; give a folder that can be written") from None
    if folder.exists():
        check_outputs(*(folder / name for name in (*NAMES, PROFILE)))
        for path in (folder / name for name in NAMES):
            if is_file(path) and not _is_ours(path):
                raise ConfigError(f"--save-dir {folder}: its {path.name} is not of 'advise'; name another folder")


def _is_ours(path: Path) -> bool:
    """Tell whether `write` has written a file."""
    try:
        with path.open("rb") as file:
            return FOUND_BY.encode() in file.read(HEAD_BYTES)
    except OSError as error:
        raise ConfigError(f"--save-dir: {path}: {error.strerror}; name another folder") from None


def write(config: Config, model: str | None, about: str, folder: Path) -> Iterator[tuple[Path, str]]:
    """Write every file; yield each with what it is.

    :param model: path or Hugging Face name; None leaves it to who runs the files.
    :param about: what was found, in a few lines.
    """
    folder.mkdir(exist_ok=True)
    if (own := Path(config.deployment.profile)).suffix == ".json":
        write_whole(folder / PROFILE, own.read_text(encoding="utf-8"))
        yield folder / PROFILE, "the profile that the config names; on a cluster put it into the image"
        deployment = config.deployment.model_copy(update={"profile": PROFILE})
        config = config.model_copy(update={"deployment": deployment})
    head = "".join(f"# {line}\n" for line in about.splitlines())
    data = yaml.safe_dump(config.model_dump(mode="json", exclude_none=True), sort_keys=False, allow_unicode=True)
    files = (
        (CONFIG, head + data, 0o666, "what runs, for every host"),
        (SGLANG, sglang_script(config, model, about), SCRIPT, "starts SGLang's servers and the gateway"),
        (DYNAMO, dynamo_script(config, model, about), SCRIPT, "starts Dynamo's frontend and workers"),
        (KUBERNETES, manifest(config, model, about), 0o666, "the same on a cluster"),
    )
    for name, text, mode, what in files:
        write_whole(folder / name, text, mode)
        yield folder / name, what
