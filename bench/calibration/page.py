"""Results of sections, kept one file each, and the page that is assembled from them."""

from __future__ import annotations

import json
import subprocess
import textwrap
import time
from datetime import date
from pathlib import Path
from typing import Any

from bench.calibration import (
    correlation,
    dimension,
    embedding,
    gains,
    intervals,
    orientation,
    pairing,
    premise,
    removals,
    swaps,
    tangency,
    verdicts,
)
from bench.calibration.cells import MISS_BAR, REJECTION_BAR, RESAMPLES, Row, table
from bench.calibration.section import Section
from bench.machine import RESULTS

FOLDER = RESULTS / "calibration"
PAGE = Path(__file__).parents[2] / "docs" / "calibration.md"
_MODULES = (
    orientation, intervals, embedding, gains, swaps, pairing, tangency, premise, dimension, correlation,
    removals, verdicts
)  # fmt: skip
SECTIONS: dict[str, Section] = {section.name: section for module in _MODULES for section in module.SECTIONS}


def run(section: Section, asked: int, folder: Path = FOLDER) -> None:
    """Make the rows of a section, tell each as it comes, and keep them."""
    repetitions, start = section.repetitions(asked), time.perf_counter()
    print(f"{section.name}: {repetitions} repetitions", flush=True)
    rows: list[Row] = []
    for row in section.make(repetitions):
        rows.append(row)
        print(f"  {time.perf_counter() - start:6.0f} s  " + " | ".join(row), flush=True)
    record = {
        "commit": _commit(),
        "date": date.today().isoformat(),
        "repetitions": repetitions,
        "seconds": round(time.perf_counter() - start),
        "rows": rows,
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    (folder / f"{section.name}.json").write_text(text, encoding="utf-8")


def _commit() -> str:
    """The commit that last changed what is under test."""

    def git(*command: str) -> str:
        where = Path(__file__).parent
        return subprocess.run(["git", "-C", str(where), *command], capture_output=True, text=True, check=True).stdout

    source = Path(__file__).parents[2] / "src"
    changed = " with changes" if git("status", "--porcelain", "--", str(source)).strip() else ""
    return git("log", "-1", "--format=%h", "--", str(source)).strip() + changed


def kept(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """What each section gave when it was last run."""
    found = {}
    for name in SECTIONS:
        path = folder / f"{name}.json"
        if path.exists():
            found[name] = json.loads(path.read_text(encoding="utf-8"))
    return found


def unlisted(records: dict[str, dict[str, Any]]) -> list[str]:
    """Rows above a bar that no known limit explains."""
    rows = {name: SECTIONS[name].unlisted(record["rows"]) for name, record in records.items()}
    return [f"{name}: {' | '.join(row)}" for name, found in rows.items() for row in found]


def page(records: dict[str, dict[str, Any]]) -> str:
    """The page, from what sections gave."""
    commits = {record["commit"] for record in records.values()}
    parts = [_head(records, commits)]
    for name, record in records.items():
        section = SECTIONS[name]
        about = section.about.format(repetitions=record["repetitions"])
        made = f" Made at commit {record['commit']}." if len(commits) > 1 else ""
        parts.append(f"## {section.title}\n\n{_wrapped(about + made)}\n\n{table(section.heads, record['rows'])}")
    limits = [limit.text for name in records for limit in SECTIONS[name].limits]
    parts.append("## Known limits\n\n" + "\n".join(_wrapped(f"- {text}", "  ") for text in limits))
    return "\n\n".join(parts) + "\n"


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 116, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _head(records: dict[str, dict[str, Any]], commits: set[str]) -> str:
    minutes = sum(record["seconds"] for record in records.values()) / 60
    at = f" at commit {next(iter(commits))}" if len(commits) == 1 else ""
    above = unlisted(records)
    listed = "\n".join(f"- {row}" for row in above)
    warning = f"\n\n**Above the bar and not explained:**\n\n{listed}" if above else ""
    about = (
        f"Made by `make calibration` (`python -m bench.calibration`){at}, {minutes:.0f} minutes on one core; "
        "`--only NAME` remakes one section. Brackets are 99 % binomial intervals. The bar: no rejection rate whose "
        f"interval lies wholly above {REJECTION_BAR:.2f}, no rate of issued and missing intervals wholly above "
        f"{MISS_BAR:.2f}, but for the known limits at the end. It is read from these intervals, so slow constructions "
        f"have fewer repetitions. Draws of each null: {RESAMPLES}. The constructions are in `anisoscope.testing`, to "
        "try your own null or measure on."
    )
    return f"# Calibration\n\n{_wrapped(about)}{warning}"
