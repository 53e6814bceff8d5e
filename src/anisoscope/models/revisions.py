"""The names of checkpoints and the order they tell: steps or tokens in a label, folders of a Trainer, Pythia's 154."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from anisoscope.errors import broken

PYTHIA = tuple(f"step{step}" for step in (0, *(2**k for k in range(10)), *range(1000, 143_001, 1000)))
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_WEIGHTS = ("*.safetensors*", "*.bin", "*.gguf")
_STEP = re.compile(r"(?:step|checkpoint|ckpt|iter|global_step)[-_=]?0*(\d+)(k|m)?(?![a-z0-9])", re.IGNORECASE)
_TOKENS = re.compile(r"(\d+(?:\.\d+)?)(k|m|b|t)[-_]?tokens?|tokens?[-_=]?(\d+(?:\.\d+)?)(k|m|b|t)?", re.IGNORECASE)
_STAGE = re.compile(r"stage[-_]?(\d+)", re.IGNORECASE)


def place(label: str) -> tuple[int, float] | None:
    """Stage and step (or else tokens) that a label tells; None for one that tells neither, such as ``main``.

    >>> place("step512"), place("stage2-step1000-tokens5B"), place("checkpoint-40"), place("50B-tokens"), place("main")
    ((0, 512.0), (2, 1000.0), (0, 40.0), (0, 50000000000.0), None)
    """
    stage = _STAGE.search(label)
    step, tokens = _STEP.search(label), _TOKENS.search(label)
    if step:
        value = float(step[1]) * _UNITS[(step[2] or "").lower()]
    elif tokens:
        number, unit = (tokens[1], tokens[2]) if tokens[1] else (tokens[3], tokens[4])
        value = float(number) * _UNITS[(unit or "").lower()]
    else:
        return None
    return int(stage[1]) if stage else 0, value


def counts_tokens(label: str) -> bool:
    """Whether a label tells a number of tokens and no step.

    >>> counts_tokens("50B-tokens"), counts_tokens("step10-tokens5B")
    (True, False)
    """
    return _STEP.search(label) is None and _TOKENS.search(label) is not None


def in_order(labels: Iterable[str]) -> list[str]:
    """Labels in the order of training; those that tell no step come last, as the end."""

    def key(label: str) -> tuple[bool, int, float]:
        found = place(label)
        return (True, 0, 0.0) if found is None else (False, *found)

    return sorted(labels, key=key)


def folders(patterns: Sequence[str]) -> list[Path]:
    """Checkpoint folders in the order of training: named, globbed, or the ``checkpoint-*`` inside a named one."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        matches = [Path(match) for match in glob.glob(pattern)] or [Path(pattern)]
        for path in matches:
            inside = [one for one in path.glob("*") if one.is_dir() and place(one.name)] if path.is_dir() else []
            weights = path.is_dir() and any(next(path.glob(ending), None) for ending in _WEIGHTS)
            if not path.exists():
                raise broken("a checkpoint must exist", pattern, "check the path")
            found |= dict.fromkeys([path] if weights or path.is_file() or not inside else inside)
    by_name = {path: path.stem if path.is_file() else path.name for path in found}
    ordered = in_order(by_name.values())
    return sorted(found, key=lambda path: (ordered.index(by_name[path]), str(path)))
