"""What was tried, counted: `make faults` tries all of it and writes docs/reliability.md; `make test` a sample."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

ALL = os.environ.get("ANISOSCOPE_FAULTS") == "all"
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
_cases: dict[str, int] = {}
_failed: dict[str, int] = {}
_promise: dict[str, str] = {}
_measured: dict[str, str] = {}


@pytest.fixture
def counted(request):
    """Say how many cases of a promise were tried."""

    def count(promise: str, cases: int) -> None:
        _cases[promise] = _cases.get(promise, 0) + cases
        _promise[request.node.nodeid] = promise

    return count


@pytest.fixture
def measured():
    """Say what a number was."""

    def tell(what: str, said: str) -> None:
        _measured[what] = said

    return tell


def pytest_runtest_logreport(report):
    if report.when == "call" and report.failed and "faults" in report.nodeid:
        promise = _promise.get(report.nodeid, report.nodeid.rpartition("::")[2])
        _failed[promise] = _failed.get(promise, 0) + 1


def pytest_sessionfinish(session):
    """Write the page; with ``ANISOSCOPE_FAULTS_COUNTS`` the counts of several sessions are added up in that file."""
    if not ALL or not _cases:
        return
    kept = os.environ.get("ANISOSCOPE_FAULTS_COUNTS")
    if kept is not None:
        before = json.loads(Path(kept).read_text()) if Path(kept).exists() else [{}, {}, {}]
        for now, then in zip((_cases, _failed), before[:2], strict=True):
            now |= {name: then.get(name, 0) + now.get(name, 0) for name in {*then, *now}}
        _measured.update(before[2] | _measured)
        Path(kept).write_text(json.dumps([_cases, _failed, _measured]))
    PAGE.write_text(page(_cases, _failed, _measured), encoding="utf-8")


def page(cases: dict[str, int], failed: dict[str, int], measured: dict[str, str]) -> str:
    """The page of promises, with how often each was tried and how often it was not kept."""
    rows = "\n".join(f"| {promise} | {n:,} | {failed.get(promise, 0)} |" for promise, n in sorted(cases.items()))
    unkept = "".join(f"\n- failed: `{name}`" for name in failed if name not in cases)
    load = "\n".join(f"| {what} | {said} |" for what, said in sorted(measured.items()))
    text = (Path(__file__).parent / "page.md").read_text(encoding="utf-8")
    return text.format(rows=rows, unkept=unkept, load=load)
