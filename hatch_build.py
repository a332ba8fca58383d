"""What hatchling asks for: the compiled kernel of the simulator, and a README whose links live on an index page.

Compiles the simulator's kernel with mypyc while a wheel is built, also for an editable installation.

Without a C compiler, or where compilation fails, the wheel holds plain Python and serves as well, only slower;
`pdplugins doctor` says which one runs. ``HATCH_BUILD_NO_HOOKS=true`` builds without the kernel.

hatch-mypyc is not used: it ends the installation where there is no compiler, and it moves pyproject.toml away while it
works.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

SETUP = """
from mypyc.build import mypycify
from setuptools import setup

modules = mypycify(
    ["--ignore-missing-imports", "--follow-imports=silent", *{files!r}], group_name={group!r}, opt_level="3"
)
setup(name="kernel", packages=[], ext_modules=modules)
"""


LINK = re.compile(r"\[((?:[^\[\]]|`[^`]*`)*)\]\((?!https?://|#)([^)\s]+)\)")
"""A link to a file of the repository."""


class IndexPageHook(MetadataHookInterface):
    """Gives the package its URLs, and README as its description."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in the fields that are dynamic in pyproject.toml."""
        repository = self.config["repository"].rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": index_page(text, repository)}
        metadata["urls"] = {
            name: repository + path
            for name, path in (
                ("Documentation", "/blob/main/docs/README.md"),
                ("Source", ""),
                ("Issues", "/issues"),
                ("Changelog", "/blob/main/CHANGELOG.md"),
            )
            if repository
        }


def index_page(text: str, repository: str) -> str:
    """Return README for a page that has no files beside it: links lead into `repository`, or are text without one."""
    text = re.sub(r"<!--.*?-->", "", text)
    return LINK.sub(rf"[\1]({repository}/blob/main/\2)" if repository else r"\1", text)


class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled modules that ``[tool.hatch.build.hooks.custom]`` lists to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tell hatchling what came of it."""
        if self.target_name != "wheel":
            return
        sources = [Path(name) for name in self.config["modules"]]
        folder = sources[0].parent
        for old in (self.path / folder).glob("*.so"):
            old.unlink()
        with tempfile.TemporaryDirectory(prefix="pdplugins-kernel-") as scratch:
            if (error := compile_kernel(self.path, Path(scratch), sources)) is not None:
                self.app.display_warning(f"pdplugins: the simulator runs as plain Python: {error}")
                return
            for library in (Path(scratch) / folder).glob("*.so"):
                shutil.copy2(library, self.path / folder / library.name)
        stamp = {source.name: hashlib.sha256((self.path / source).read_bytes()).hexdigest() for source in sources}
        (self.path / folder / "kernel.json").write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")
        build_data["infer_tag"] = True
        build_data["pure_python"] = False
        build_data["artifacts"] += [f"/{folder}/*.so", f"/{folder}/kernel.json"]

    @property
    def path(self) -> Path:
        """The folder with pyproject.toml."""
        return Path(self.root)


def compile_kernel(root: Path, scratch: Path, sources: list[Path]) -> str | None:
    """Compile `sources` below `scratch`; return in one line why that failed, or None.

    All modules become one shared library inside their own package, so that nothing with a generic name is installed.
    """
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    shutil.copytree(
        root / "pdplugins", scratch / "pdplugins", ignore=shutil.ignore_patterns("_data", "__pycache__", "*.so")
    )
    group = ".".join([*sources[0].parent.parts, "kernel"])
    (scratch / "setup.py").write_text(SETUP.format(files=[str(source) for source in sources], group=group))
    # What nobody calls by name from outside may be inlined.
    flags = f"{os.environ.get('CFLAGS', '')} -fvisibility=hidden -fno-semantic-interposition"
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"], cwd=scratch, env={**os.environ, "CFLAGS": flags},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        return " ".join((done.stdout + done.stderr).split())[-400:]
    return None
