"""Ranks that are found place by place: a share of the variance, or the intrinsic dimension of the activations.

They are read off activations alone, of both folds together, so that a place has one rank and the folds, which are
judged on gradients, stay evidence of one another.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import torch

from anisoscope.errors import broken
from anisoscope.geometry.dimension import two_nn
from anisoscope.geometry.subspace import Method
from anisoscope.observe.statistics import Cloud

DIMENSION = "id"
_SHARE = re.compile(r"(\d+(?:\.\d+)?)%")
_ABOUT_MEAN = ("pca", "haar")  # methods whose explained share is about the mean; of the others it is about 0


@dataclass(frozen=True, slots=True)
class FoundRank:
    """A rank, or None where there is none; and what to know of it."""

    rank: int | None
    note: str | None = None


def require_rank(rank: Any) -> None:
    """Raise for what is neither a whole number of at least 1, a share such as ``95%``, nor ``id``."""
    whole = isinstance(rank, int) and not isinstance(rank, bool) and rank >= 1
    if not whole and not (isinstance(rank, str) and (rank == DIMENSION or share_of(rank) is not None)):
        rule = "rank must be a whole number of at least 1, a share of the variance such as '95%', or 'id'"
        raise broken(rule, repr(rank), "use a number such as 32")


def share_of(rule: str) -> float | None:
    """The share that a text names.

    >>> share_of("95%"), share_of("id"), share_of("120%")
    (0.95, None, None)
    """
    found = _SHARE.fullmatch(rule)
    return float(found[1]) / 100 if found and 0 < float(found[1]) <= 100 else None


def rank_at(clouds: tuple[Cloud, Cloud], subset: str, rule: str, method: Method) -> FoundRank:
    """The rank of one place by its rule, at most half of the width: controls need as many directions outside."""
    moments = clouds[0].of(subset).merge(clouds[1].of(subset))
    fewest = min(round(float(cloud.of(subset).count)) for cloud in clouds)
    most = max(1, min(moments.width // 2, fewest - 1))
    share = share_of(rule)
    if share is None:
        found = two_nn(torch.cat([cloud.sample(subset).values for cloud in clouds]).float())
        if not math.isfinite(float(found)):
            return FoundRank(None, f"no proxy: rank {rule} needs an intrinsic dimension, {found.note}")
        rank = max(1, round(float(found)))
    else:
        second = moments.scatter if method in _ABOUT_MEAN else moments.second
        spectrum = torch.linalg.eigvalsh(second).flip(0).clamp_min(0)
        total = float(spectrum.sum())
        if not math.isfinite(total) or total <= 0:
            return FoundRank(None, f"no proxy: rank {rule} needs a cloud with variance")
        rank = int((spectrum.cumsum(0) / total < share - 1e-12).sum()) + 1
    if rank <= most:
        return FoundRank(rank)
    return FoundRank(most, f"rank {rule} asks for {rank} directions; {most} are taken, the most that controls allow")
