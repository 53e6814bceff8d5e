"""What was tried, counted: `make faults` tries all of it and writes docs/reliability.md; `make test` a sample.

Every test is a part. What came of it is kept as soon as it ends, with a fingerprint of the source, so that
`make faults` can be broken off and goes on; parts that passed on the source as it is now are not tried again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ALL = os.environ.get("ANISOSCOPE_FAULTS") == "all"
SECONDS = float(os.environ.get("ANISOSCOPE_FAULTS_SECONDS", "inf"))  # no part is begun after so long
PAGE, KEPT = ROOT / "docs" / "reliability.md", ROOT / "bench" / "results" / "faults.json"
_HERE = "tests/faults"
LEFT = {"outcome": "left", "source": "", "tests": "", "seconds": 0.0, "cases": {}, "measured": {}}
_BEGAN = time.monotonic()
_DEAR = ("rows[profile]", "rows[checkpoints]", "rows[intervene]", "rows[reproduce]")
_DEAR += ("one_line[reproduce-into]", "one_line[ablate]", "terminal[reproduce]", "terminal[ablate]", "terminal[verify]")


@pytest.fixture
def counted(request):
    """Say how many cases of a promise were tried."""
    return lambda promise, cases: request.node.user_properties.append(("cases", (promise, cases)))


@pytest.fixture
def measured(request):
    """Say what a number was."""
    return lambda what, said: request.node.user_properties.append(("measured", (what, said)))


@functools.cache
def source() -> str:
    """A fingerprint of the package: what a result is of."""
    files = (ROOT / "src" / "anisoscope").rglob("*")
    return _digest(path for path in files if path.is_file() and path.suffix != ".pyc")


@functools.cache
def tested(file: str) -> str:
    """A fingerprint of the tests in a file, and of what they share."""
    shared = (path for path in Path(__file__).parent.iterdir() if path.is_file() and not path.name.startswith("test_"))
    others = [path for path in shared if path.name not in ("conftest.py", "page.md")]
    return _digest([ROOT / file, Path(__file__).with_name("test_errors.py"), *others])


def _digest(files: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for path in sorted(set(files)):
        found.update(f"{path.relative_to(ROOT).as_posix()}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()[:16]


def kept() -> dict[str, Any]:
    """What came of every part so far, by its name."""
    return json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}


def pytest_collection_modifyitems(config, items):
    if not ALL:  # what takes seconds a form is left to `make slow` and `make faults`
        for item in items:
            if item.nodeid.startswith(_HERE) and item.nodeid.endswith(_DEAR):
                item.add_marker("slow")
        return
    done = {name for name, part in kept().items() if _is_of_now(name, part) and part["outcome"] == "passed"}
    here = [item for item in items if item.nodeid.startswith(_HERE)]
    over = [item for item in here if item.nodeid in done]
    if not config.option.keyword and all(Path(arg).resolve() == ROOT / _HERE for arg in config.args):
        _keep({item.nodeid: kept().get(item.nodeid, LEFT) for item in here})  # what was renamed is no part any more
    if over:
        config.hook.pytest_deselected(items=over)
        items[:] = [item for item in items if item not in over]


def _is_of_now(name: str, part: dict[str, Any]) -> bool:
    file = name.partition("::")[0]
    return (ROOT / file).exists() and (part["source"], part["tests"]) == (source(), tested(file))


def pytest_runtest_setup(item):
    if ALL and time.monotonic() - _BEGAN > SECONDS:
        pytest.skip("left for the next call")


def pytest_runtest_logreport(report):
    if not ALL or not report.nodeid.startswith(_HERE):
        return
    if report.when != "call" and not (report.failed or report.skipped):
        return
    why = str(report.longrepr[-1]) if isinstance(report.longrepr, tuple) else ""
    if "left for the next call" in why:
        return
    said = {"cases": {}, "measured": {}} | {"source": source(), "outcome": report.outcome}
    said["tests"] = tested(report.nodeid.partition("::")[0])
    said |= {"seconds": round(report.duration, 1)} | ({"why": why} if why else {})
    for name, (key, value) in ((name, pair) for name, pair in report.user_properties if name in ("cases", "measured")):
        said[name][key] = said[name].get(key, 0) + value if name == "cases" else value
    _keep(kept() | {report.nodeid: said})


def _keep(parts: dict[str, Any]) -> None:
    new = KEPT.with_suffix(".new")
    new.write_text(json.dumps(dict(sorted(parts.items())), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    new.replace(KEPT)


def pytest_sessionfinish(session):
    if ALL and kept():
        PAGE.write_text(page(kept()), encoding="utf-8")


def page(parts: dict[str, Any]) -> str:
    """The page of promises, with how often each was tried and how often it was not kept."""
    cases: dict[str, int] = {}
    for part in parts.values():
        for promise, number in part["cases"].items():
            cases[promise] = cases.get(promise, 0) + number
    bad = [name for name, part in parts.items() if part["outcome"] == "failed"]
    unkept = {promise: sum(promise in parts[name]["cases"] for name in bad) for promise in cases}
    rows = "\n".join(f"| {promise} | {n:,} | {unkept[promise]} |" for promise, n in sorted(cases.items()))
    other = "".join(f"\n- failed: `{name}`" for name in bad)
    left = {name: part.get("why", "") for name, part in parts.items() if part["outcome"] == "skipped"}
    skipped = "".join(f"\n- not tried: `{name}` ({why})" for name, why in left.items())
    load = {what: said for part in parts.values() for what, said in part["measured"].items()}
    text = (Path(__file__).parent / "page.md").read_text(encoding="utf-8")
    return text.format(
        rows=rows,
        unkept=other + skipped,
        load="\n".join(f"| {what} | {said} |" for what, said in sorted(load.items())),
        made=_made(parts),
    )


def _made(parts: dict[str, Any]) -> str:
    """How many parts there are, of which source, and how long they took; those that are left are named."""
    done = [part for part in parts.values() if part["outcome"] != "left"]
    minutes = sum(part["seconds"] for part in done) / 60
    sources = [f"{count} of the source {source}" for source, count in Counter(p["source"] for p in done).most_common()]
    said = f"{len(done)} of {len(parts)} parts ({', '.join(sources)}), {minutes:.0f} minutes in all"
    left = Counter(name.partition("::")[0] for name, part in parts.items() if part["outcome"] == "left")
    of = ", ".join(f"{number} of {Path(file).stem.removeprefix('test_')}" for file, number in left.items())
    return said + (f"; **{left.total()} are left and were not tried** ({of})" if left else "")
