"""What a series of observations must remember to go on after a restart, as named tensors: no pickle, no code.

Kept are statistics (of step 0, of the last observation, pooled over the early ones), not what was concluded from them:
proxies and evidence are computed again, from the same numbers to the same numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from anisoscope.errors import AnisoscopeError
from anisoscope.observe.statistics import Name, SkippedSteps, Statistics, copied_statistics
from anisoscope.stats.moments import Moments
from anisoscope.stats.reservoir import Reservoir

VERSION = 2
_KINDS = {"moments": Moments, "kept": Reservoir}


@dataclass(frozen=True, slots=True, eq=False)
class ScopeState:
    """Statistics by occasion, and the few numbers beside them."""

    step: int
    tokens: int
    between: SkippedSteps = field(default_factory=SkippedSteps)
    frozen: bool = False  # whether the anchored proxies are fixed
    steps: dict[str, int] = field(default_factory=dict)  # of the occasions that are observations
    occasions: dict[str, Statistics] = field(default_factory=dict)

    def to(self, device: torch.device) -> ScopeState:
        """The same on another device."""
        moved = {what: copied_statistics(part, lambda t: t.to(device)) for what, part in self.occasions.items()}
        return replace(self, occasions=moved)

    def to_bytes(self) -> bytes:
        """As a safetensors file."""
        from safetensors.torch import save

        tensors: dict[str, Tensor] = {}
        names: list[list[Any]] = []
        for occasion, statistics in self.occasions.items():
            for name, statistic in statistics.items():
                number = len(names)
                kind = "sum" if isinstance(statistic, Tensor) else _kind(statistic)
                names.append([occasion, kind, *name])
                parts = {"sum": statistic} if isinstance(statistic, Tensor) else statistic.state()
                tensors |= {f"{number}.{part}": tensor.detach().cpu().clone() for part, tensor in parts.items()}
        about = {
            "version": VERSION,
            "step": self.step,
            "tokens": self.tokens,
            "between": list(self.between),
            "frozen": self.frozen,
            "steps": self.steps,
            "names": names,
        }
        return save(tensors, {"anisoscope": json.dumps(about)})

    @classmethod
    def from_bytes(cls, content: bytes, where: str = "the state of the scope") -> ScopeState:
        """Read it back."""
        try:
            about, tensors = _read(content)
            if about["version"] != VERSION:
                raise AnisoscopeError(f"{where} is of version {about['version']}, and this anisoscope reads {VERSION}")
            parts: dict[int, dict[str, Tensor]] = {}
            for key, tensor in tensors.items():
                number, part = key.split(".", 1)
                parts.setdefault(int(number), {})[part] = tensor
            occasions: dict[str, Statistics] = {}
            for number, (occasion, kind, *name) in enumerate(about["names"]):
                state = parts[number]
                found = state["sum"] if kind == "sum" else _KINDS[kind].from_state(state)
                occasions.setdefault(occasion, {})[Name(*name)] = found
            steps = {str(occasion): int(step) for occasion, step in about["steps"].items()}
            between = SkippedSteps(*about["between"])
            return cls(about["step"], about["tokens"], between, bool(about["frozen"]), steps, occasions)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise AnisoscopeError(f"{where} is damaged: {error}") from error


def _read(content: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    if len(content) < 8:
        raise ValueError("it ends too early")
    size = int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8 : 8 + size])
        return json.loads(header["__metadata__"]["anisoscope"]), load(content)
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def _kind(statistic: Moments | Reservoir) -> str:
    return next(kind for kind, made in _KINDS.items() if type(statistic) is made)
