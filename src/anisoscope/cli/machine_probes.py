"""What this machine offers: one small probe each, and a probe that fails is a finding, not a crash."""

from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # a machine may lack it, and the doctor says so
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

PACKAGE = "anisoscope"
_MODULES = {"scikit-learn": "sklearn"}  # where the name to import is not the name to install
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
Status = Literal["ok", "missing", "broken", "unknown"]


@dataclass(frozen=True, slots=True)
class MachineFinding:
    """One line of the doctor; a ``needed`` one that is not ok means that the core does not work."""

    name: str
    status: Status
    value: str
    fix: str | None = None
    needed: bool = False


def examined() -> list[MachineFinding]:
    """All findings, in the order in which one reads them."""
    probes: tuple[tuple[str, Callable[[], Iterator[MachineFinding]]], ...] = (
        ("python", _python),
        ("core packages", _core),
        ("devices", _devices),
        ("cores", _cores),
        ("memory", _memory),
        ("disk", _disk),
        ("temporary directory", _temporary),
        ("chromium", _chromium),
        ("extras", _extras),
    )
    return [finding for name, probe in probes for finding in _guarded(name, probe)]


def _guarded(name: str, probe: Callable[[], Iterator[MachineFinding]]) -> list[MachineFinding]:
    found: list[MachineFinding] = []
    try:
        found.extend(probe())  # what was found before a failure is kept
    except Exception as error:
        found.append(MachineFinding(name, "unknown", _told(error)))
    return found


def _told(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _python() -> Iterator[MachineFinding]:
    wanted = "3.11"
    status = "ok" if sys.version_info >= (3, 11) else "broken"
    yield MachineFinding(
        "python",
        status,
        f"{platform.python_version()} on {platform.platform()}",
        None if status == "ok" else f"use {wanted} or newer",
        needed=True,
    )


def requirements(extra: str = "") -> list[Requirement]:
    """What the installed package asks for on this machine, for its core or for one extra alone."""
    from packaging.requirements import Requirement

    def holds(wanted: Requirement, name: str) -> bool:
        return wanted.marker is None or wanted.marker.evaluate({"extra": name})

    every = [Requirement(text) for text in metadata.requires(PACKAGE) or ()]
    return [each for each in every if holds(each, extra) and not (extra and holds(each, ""))]


def _core() -> Iterator[MachineFinding]:
    """Every package that the core needs is imported: one can be installed and still not load."""
    from anisoscope import __version__

    yield MachineFinding(PACKAGE, "ok", f"{__version__} in {Path(__file__).parents[1]}", needed=True)
    try:
        importlib.import_module("packaging.requirements")  # which reads what all others must be
    except Exception as error:
        status = "missing" if isinstance(error, ModuleNotFoundError) else "broken"
        yield MachineFinding("packaging", status, _told(error), "pip install --force-reinstall packaging", needed=True)
        return
    for each in requirements():
        yield _imported(each)


def _imported(wanted: Requirement) -> MachineFinding:
    version = installed(wanted.name)
    fix = f'pip install "{wanted.name}{wanted.specifier}"'
    if version is None:
        return MachineFinding(wanted.name, "missing", "not installed", fix, needed=True)
    wrong = misfit(version, wanted.specifier)
    if wrong is not None:
        return MachineFinding(wanted.name, "broken", f"{version}, {wrong}", fix, needed=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(_MODULES.get(wanted.name, wanted.name.replace("-", "_")))
    except Exception as error:
        again = f"pip install --force-reinstall {wanted.name}"
        return MachineFinding(wanted.name, "broken", f"{version}, does not load: {_told(error)}", again, needed=True)
    return MachineFinding(wanted.name, "ok", version, needed=True)


def installed(name: str) -> str | None:
    """The version of an installed package."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def misfit(version: str, wanted: SpecifierSet) -> str | None:
    """What is wrong with a version, or None.

    A pre-release counts as its release: builds of vendors are called so (2.6.0a0+nv25.01). A version that cannot be
    ordered is not held against a package: whether it loads says more.
    """
    from packaging.version import InvalidVersion, Version

    try:
        base = Version(version).base_version
    except InvalidVersion:
        return None
    wrong = next((each for each in wanted if base not in each), None)
    if wrong is None:
        return None
    return f"older than {wrong.version}" if wrong.operator == ">=" else f"not {wrong}"


def _extras() -> Iterator[MachineFinding]:
    """Each extra with what it lacks; an extra made of others (dev) lacks what they lack."""
    for extra in metadata.metadata(PACKAGE).get_all("Provides-Extra") or ():
        lacking = list(dict.fromkeys(_lacking(extra, frozenset())))
        yield MachineFinding(
            f"extra {extra}",
            "missing" if lacking else "ok",
            f"lacks {', '.join(lacking)}" if lacking else _versions(extra),
            f'pip install "{PACKAGE}[{extra}]"' if lacking else None,
        )


def _versions(extra: str) -> str:
    named = ((each.name, sorted(each.extras)) for each in requirements(extra))
    return ", ".join(
        ", ".join(f"{name}[{inner}]" for inner in inside) if name == PACKAGE else f"{name} {installed(name)}"
        for name, inside in named
    )


def _lacking(extra: str, inside: frozenset[str]) -> Iterator[str]:
    if extra in inside:
        return
    for each in requirements(extra):
        if each.name == PACKAGE:
            for inner in sorted(each.extras):
                yield from _lacking(inner, inside | {extra})
            continue
        version = installed(each.name)
        if version is None:
            yield each.name
        elif misfit(version, each.specifier) is not None:
            yield f"{each.name}{each.specifier} (has {version})"


def _devices() -> Iterator[MachineFinding]:
    import torch

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        there = torch.cuda.is_available()
    for index in range(torch.cuda.device_count() if there else 0):
        about = torch.cuda.get_device_properties(index)
        yield MachineFinding(
            f"cuda:{index}", "ok", f"{about.name}, {_size(about.total_memory)}, CUDA {torch.version.cuda}"
        )
    if not there:
        mps = torch.backends.mps.is_available()
        yield MachineFinding("device", "ok", "mps (Apple)" if mps else "cpu only: no CUDA device that torch can use")
    for warning in said:  # a driver that is too old says so in a warning, and nowhere else
        yield MachineFinding("device", "broken", str(warning.message).splitlines()[0])


def _cores() -> Iterator[MachineFinding]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = _cgroup("cpu.max").split()
    limit = f", limited to {int(quota[0]) / int(quota[1]):g} by cgroup" if quota[:1] and quota[0] != "max" else ""
    yield MachineFinding("cores", "ok", f"{usable} usable of {os.cpu_count()}{limit}")
    import torch

    asked = os.environ.get("OMP_NUM_THREADS")
    yield MachineFinding(
        "threads", "ok", f"torch uses {torch.get_num_threads()}" + (f", OMP_NUM_THREADS={asked}" * bool(asked))
    )


def _memory() -> Iterator[MachineFinding]:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    meminfo = Path("/proc/meminfo")
    free = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text()) if meminfo.exists() else None
    limit = _cgroup("memory.max").strip()
    yield MachineFinding(
        "memory",
        "ok",
        _size(total)
        + (f", {_size(int(free[1]) * 1024)} available" if free else "")
        + (f", limited to {_size(int(limit))} by cgroup" if limit.isdigit() else ""),
    )


def _cgroup(name: str) -> str:
    try:
        return Path("/sys/fs/cgroup", name).read_text()
    except OSError:
        return ""


def _disk() -> Iterator[MachineFinding]:
    here = Path.cwd()
    usage = shutil.disk_usage(here)
    yield MachineFinding("disk", "ok", f"{_size(usage.free)} free of {_size(usage.total)} at {here}")


def _temporary() -> Iterator[MachineFinding]:
    try:
        with tempfile.NamedTemporaryFile(prefix="anisoscope-") as file:
            file.write(b"x" * 4096)
            file.flush()
            yield MachineFinding("temporary directory", "ok", f"{Path(file.name).parent} is writable")
    except OSError as error:
        yield MachineFinding("temporary directory", "broken", _told(error), "set TMPDIR to a folder with room")


def _chromium() -> Iterator[MachineFinding]:
    found = next((path for name in _BROWSERS if (path := shutil.which(name))), None) or _playwrights()
    if found is not None:
        yield MachineFinding("chromium", "ok", found)
    else:
        yield MachineFinding(
            "chromium", "missing", "none found", "pip install playwright && playwright install chromium"
        )


def _playwrights() -> str | None:
    """The browser that playwright keeps for itself."""
    caches = (Path.home() / ".cache/ms-playwright", Path.home() / "Library/Caches/ms-playwright")
    named = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    folders = (Path(named), *caches) if named else caches
    return next((str(path) for folder in folders for path in sorted(folder.glob("chromium*"))), None)


def _size(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"
