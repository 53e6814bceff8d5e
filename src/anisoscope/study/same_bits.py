"""Bits of a training depend on the number of threads, the release of torch and the device: a resume keeps threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from anisoscope.record.run_provenance import machine, versions

_MOST_THREADS = 1024  # a damaged or hostile manifest must not start a million of them


@contextmanager
def as_begun(manifest: Mapping[str, Any], said: Callable[[str], None]) -> Iterator[None]:
    """Go on with as many threads as the run began with; what cannot be kept is said in one line."""
    threads, lost = _threads(manifest), _differences(manifest)
    before = torch.get_num_threads()
    if threads is None:
        lost = ["the number of threads at its start is not recorded", *lost]
    elif threads != before:
        said(f"using {threads} torch thread(s), as at the start of the run, instead of {before}")
        torch.set_num_threads(threads)
    if lost:
        said(f"results may differ in their last bits from an uninterrupted run: {'; '.join(lost)}")
    try:
        yield
    finally:
        torch.set_num_threads(before)


def threads_of_jobs(manifest: Mapping[str, Any]) -> int | None:
    """The threads of every job of a study, as its settings say."""
    config = manifest.get("config")
    return _sane(config.get("threads") if isinstance(config, dict) else None)


def lost_bits(manifest: Mapping[str, Any], *, threads: int, begun: int | None) -> str | None:
    """Why jobs of a study that goes on may differ in their last bits from those that are done, if they may."""
    lost = [] if begun in (None, threads) else [f"threads were {begun} and are {threads}"]
    lost += _differences(manifest)
    return f"results may differ in their last bits from an uninterrupted run: {'; '.join(lost)}" if lost else None


def _threads(manifest: Mapping[str, Any]) -> int | None:
    own = manifest.get("machine")
    return _sane(own.get("threads") if isinstance(own, dict) else None)


def _sane(number: Any) -> int | None:
    return number if isinstance(number, int) and 0 < number <= _MOST_THREADS else None


def _differences(manifest: Mapping[str, Any]) -> list[str]:
    """What decides bits and is not as it was, where the manifest says how it was."""
    found = []
    for where, now, names in (("versions", versions(), ("torch", "transformers")), ("machine", machine(), ("device",))):
        then = manifest.get(where)
        for name in names:
            was = then.get(name) if isinstance(then, dict) else None
            if was is not None and was != now.get(name):
                found.append(f"{name} was {was} and is {now.get(name, 'missing')}")
    return found
