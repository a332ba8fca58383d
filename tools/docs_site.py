"""Hook of MkDocs: what the pages link to outside docs/ becomes part of the site, so that every link works there too.

Pages are written for the repository's own view. A link to another file of it leads to a copy under `repository/`: a
Markdown file becomes a page, a folder a list of its files, anything else is the file itself.
"""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
import unicodedata
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
COPIES = "repository"
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")
COMMENT = re.compile(r"<!--.*?-->")
"""A mark of a figure: what stands in brackets there is no link."""
FENCE = re.compile(r"^ *(```|~~~)")
NO_WORD = re.compile(r"[^\w\- ]", re.UNICODE)


def slug(text: str, separator: str) -> str:
    """Return the anchor of a heading as code hosts make it; the page's links are written for these."""
    plain = NO_WORD.sub("", unicodedata.normalize("NFC", text).lower())
    return plain.replace(" ", separator)


def on_files(files: Files, config: Any) -> Files:
    """Add everything that a page links to, and what those pages link to in turn."""
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    seen = set(waiting)
    while waiting:
        page = waiting.pop()
        if not page.endswith(".md"):
            continue
        for target in _targets(page):
            if target not in seen:
                seen.add(target)
                waiting.append(target)
                if not (target.startswith("docs/") and files.get_file_from_path(_place(target))):
                    files.append(_copy(target, config))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of one page."""
    here = _origin(page.file.src_uri)

    def change(line: str) -> str:
        return LINK.sub(lambda found: _link(found, here), COMMENT.sub("", line))

    return "".join(_outside_fences(markdown, change))


def _outside_fences(markdown: str, change: Any) -> Any:
    inside = False
    for line in markdown.splitlines(keepends=True):
        fence = FENCE.match(line) is not None
        yield line if inside or fence else change(line)
        inside ^= fence


def _targets(page: str) -> set[str]:
    """Return the files that a page links to, as paths of the repository."""
    if (ROOT / page).is_dir():
        return set()
    found: set[str] = set()
    text = (ROOT / page).read_text(encoding="utf-8")
    for _ in _outside_fences(text, lambda line: found.update(_resolved(t, page) for t, _ in LINK.findall(line))):
        pass
    return {target for target in found if (ROOT / target).exists()}


def _resolved(target: str, page: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def _place(path: str) -> str:
    """Return where a file of the repository lies in the site's sources."""
    if (ROOT / path).is_dir():
        return f"{COPIES}/{path}/files.md"
    inside = path.startswith("docs/") and path.endswith((".md", ".svg", ".json", ".service"))
    return path.removeprefix("docs/") if inside else f"{COPIES}/{path}"


def _origin(place: str) -> str:
    """Return the file of the repository that lies at `place` in the site's sources."""
    path = place.removeprefix(f"{COPIES}/")
    return (
        path.removesuffix("/files.md") + "/."
        if path.endswith("/files.md")
        else (path if place != path else f"docs/{place}")
    )


def _link(found: re.Match[str], here: str) -> str:
    target = _resolved(found[1], here)
    if not (ROOT / target).exists():
        return found[0]  # MkDocs then says that it leads nowhere
    start = posixpath.dirname(_place(here.removesuffix("/.")))
    return f"]({posixpath.relpath(_place(target), start)}{found[2] or ''})"


def _copy(path: str, config: Any) -> File:
    full = ROOT / path
    if not full.is_dir():
        return File.generated(config, _place(path), abs_src_path=str(full), inclusion=InclusionLevel.NOT_IN_NAV)
    names = subprocess.run(
        ["git", "ls-files", "--", f"{path}/"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    names = names or sorted(os.path.relpath(one, ROOT) for one in full.rglob("*") if one.is_file())
    text = f"# {path}/\n\nFiles of this folder:\n\n" + "".join(f"* `{name}`\n" for name in names)
    return File.generated(config, _place(path), content=text, inclusion=InclusionLevel.NOT_IN_NAV)
