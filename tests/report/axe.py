"""The accessibility rules of axe-core, from npm in a pinned version; a loud skip where there is no npm or network."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

VERSION = "4.10.3"


@functools.cache
def axe_source() -> str:
    """The script that a page is judged by."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / f"anisoscope-axe-{VERSION}"
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    npm = shutil.which("npm")
    if not script.exists() and npm:
        folder.mkdir(parents=True, exist_ok=True)
        wanted = ["--no-save", "--ignore-scripts", "--no-audit", "--no-fund", f"axe-core@{VERSION}"]
        try:
            subprocess.run([npm, "install", "--prefix", str(folder), *wanted], capture_output=True, timeout=120)
        except (OSError, subprocess.TimeoutExpired) as error:
            print(error, file=sys.__stderr__)
    if not script.exists():
        said = "NO AXE-CORE: the report was not judged for accessibility. Install npm, or reach its registry once."
        print(f"\n{'!' * 20} {said}", file=sys.__stderr__, flush=True)
        pytest.skip(said)
    return script.read_text(encoding="utf-8")


def violations(page) -> list[str]:
    """What breaks WCAG 2 A and AA or axe's best practices, a line each."""
    page.evaluate(axe_source())
    found = page.evaluate("axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']})")
    assert len(found["passes"]) > 15, "the rules were not run"
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found["violations"]
        for node in one["nodes"]
    ]
