"""Metadata that depend on where the source is public: README links and ``Project-URL`` of a wheel.

``ANISOSCOPE_URL=https://host/owner/anisoscope python -m pip wheel --no-deps .`` makes every relative link of the
README an absolute one, at ``ANISOSCOPE_REF`` (by default the tag ``v<version>``). Without it no address is made up: a
relative link becomes the name of the file in the source. A wheel of an sdist takes the address of the sdist.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")
_KEPT = re.compile(r"^Project-URL: Changelog, (\S+)/blob/(\S+)/CHANGELOG\.md$", re.MULTILINE)


class LinksHook(MetadataHookInterface):
    """Fills ``readme`` and ``urls``; ``urls`` of the hook's own table are always there."""

    def update(self, metadata: dict) -> None:
        """Called by hatchling, after the version is known."""
        root = Path(self.root)
        source, ref = _address(root, metadata["version"])
        text = (root / "README.md").read_text(encoding="utf-8")
        replace = _absolute(source, ref, root) if source else _unlinked
        metadata["readme"] = {"content-type": "text/markdown", "text": _outside_code(text, replace)}
        metadata["urls"] = dict(self.config.get("urls", {}))
        if source:
            metadata["urls"] |= {
                "Source": source,
                "Documentation": f"{source}/blob/{ref}/docs/index.md",
                "Changelog": f"{source}/blob/{ref}/CHANGELOG.md",
                "Issues": f"{source}/issues",
            }


def _address(root: Path, version: str) -> tuple[str | None, str]:
    """Where the source is public and under which tag, if that is known."""
    given, ref = os.environ.get("ANISOSCOPE_URL", "").rstrip("/"), os.environ.get("ANISOSCOPE_REF") or f"v{version}"
    if given:
        if not re.fullmatch(r"https?://[^\s/]+(/[^\s/]+)+", given):
            raise ValueError(
                f"ANISOSCOPE_URL must be the web page of a repository (https://host/owner/name), got {given!r}"
            )
        return given, ref
    sdist = root / "PKG-INFO"
    found = _KEPT.search(sdist.read_text(encoding="utf-8")) if sdist.exists() else None
    return (found[1], found[2]) if found else (None, ref)


def _absolute(source: str, ref: str, root: Path) -> Callable[[re.Match[str]], str]:
    def replace(found: re.Match[str]) -> str:
        image, text, path = found.groups()
        view = "raw" if image else "tree" if (root / path).is_dir() else "blob"
        return f"{image}[{text}]({source}/{view}/{ref}/{path})"

    return replace


def _unlinked(found: re.Match[str]) -> str:
    image, text, path = found.groups()
    if image:
        return f"*Picture: {text} (`{path}` in the source).*"
    return f"`{path}`" if text == path else f"{text} (`{path}`)"


def _outside_code(text: str, replace: Callable[[re.Match[str]], str]) -> str:
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(replace, part) for part in parts)
