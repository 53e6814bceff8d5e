"""What is removed: a proxy fitted on one fold of sequences, and the controls of equal rank.

Letters: B sequences, T positions, D width, K rank.

``haar`` frames are the same for both folds; ``normal`` ones are what is left of them orthogonal to the proxy. ``next``
are the directions after the first K by the proxy's own order where it has one (``pca``, ``svd``), by that of ``pca``
where it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from anisoscope.capture.calls import Batch
from anisoscope.capture.sites import SiteKey
from anisoscope.capture.taps import Listener
from anisoscope.errors import broken
from anisoscope.geometry.subspace import fit_subspace
from anisoscope.stats.hashing import as_key, mix, second_fold
from anisoscope.stats.moments import Moments
from anisoscope.vocabulary import PROXIES

SAMPLE_ROWS = 8192  # a fold, for methods that need rows
FOLDS = (0, 1)
_RANKED = ("pca", "svd")


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Which tokens of a batch are removed from ``(B, T)``, and which sequences are of the second fold ``(B,)``."""

    where: Tensor
    second: Tensor

    @classmethod
    def of(cls, batch: Mapping[str, Tensor], *, subset: str, seed: int) -> Tokens:
        """Never padding, and no first positions where the subset says so; folds are those of all evidence."""
        tokens, mask = batch["input_ids"], batch.get("attention_mask")
        inside = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.bool()
        where = inside if subset == "all" else inside & (inside.long().cumsum(1) > 1)
        return cls(where, second_fold(tokens, mask, seed=seed, documents_B=batch.get("documents")))

    def fold(self, number: int) -> Tensor:
        """Tokens ``(B, T)`` of one fold."""
        return self.where & (self.second == bool(number))[:, None]


@dataclass(slots=True, eq=False)
class StreamMoments(Listener):
    """Moments of the residual stream by layer and fold; rows too, of the first sequences, if ``rows`` has room."""

    layers: frozenset[int]
    rows: int = 0
    tokens: Tokens | None = None  # of the batch that passes
    moments: dict[tuple[int, int], Moments] = field(default_factory=dict)
    sample: dict[tuple[int, int], list[Tensor]] = field(default_factory=dict)
    sites: dict[int, SiteKey] = field(default_factory=dict)

    def activation(self, at: SiteKey, x_BTD: Tensor, batch: Batch) -> None:
        """Absorb the tokens of the subset."""
        if at.layer not in self.layers:
            return
        assert self.tokens is not None, "set before a batch passes"
        self.sites[at.layer] = at
        for fold in FOLDS:
            mask_BT, key = self.tokens.fold(fold).to(x_BTD.device), (at.layer, fold)
            found = Moments.of(x_BTD, mask=mask_BT, higher=False)
            self.moments[key] = self.moments[key].merge(found) if key in self.moments else found
            kept = self.sample.setdefault(key, [])
            if sum(map(len, kept)) < self.rows:
                kept.append(x_BTD[mask_BT].float().cpu())


@dataclass(frozen=True, slots=True, eq=False)
class Frames:
    """Directions by the fold that they are removed from, ``(D, K)`` each; None stands for the whole stream."""

    name: str
    bases: tuple[Tensor, Tensor] | None
    energy: tuple[float, float]  # mean squared length inside, about the other fold's mean, a token of the judged fold


@dataclass(frozen=True, slots=True, eq=False)
class Removal:
    """What a pass removes: frames, with a strength for each judged fold."""

    frames: Frames
    strength: tuple[float, float] = (1.0, 1.0)

    @property
    def displacement(self) -> tuple[float, float]:
        """Mean squared displacement of a token of each judged fold."""
        first, second = (s * s * e for s, e in zip(self.strength, self.frames.energy, strict=True))
        return first, second

    @property
    def mean_strength(self) -> float:
        """Over the two folds."""
        return sum(self.strength) / 2

    def change(self, means: tuple[Tensor, Tensor], tokens: Tokens) -> Callable[[Tensor], Tensor]:
        """``h − a·QQᵀ(h − m)`` at these tokens, by the fold of each sequence; in float32 at least."""

        def act(hidden_BTD: Tensor) -> Tensor:
            kind = torch.promote_types(hidden_BTD.dtype, torch.float32)
            h_BTD, device = hidden_BTD.to(kind), hidden_BTD.device
            found = h_BTD
            for fold in FOLDS:
                away = h_BTD - means[fold].to(device=device, dtype=kind)
                if self.frames.bases is not None:
                    basis_DK = self.frames.bases[fold].to(device=device, dtype=kind)
                    away = (away @ basis_DK) @ basis_DK.T
                chosen_BT = tokens.fold(fold).to(device)
                found = torch.where(chosen_BT[:, :, None], h_BTD - self.strength[fold] * away, found)
            return found.to(hidden_BTD.dtype)

        return act


@dataclass(frozen=True, slots=True, eq=False)
class RemovedLayer:
    """Everything that is removed from one layer at one rank. Folds are the judged ones; means are the other fold's."""

    at: SiteKey
    rank: int
    width: int
    means: tuple[Tensor, Tensor]
    spread: tuple[float, float]  # mean squared distance of a judged token from that mean
    proxy: Frames
    controls: Mapping[str, tuple[Frames, ...]]  # by name, each its draws

    def strengths(self, control: str) -> tuple[Removal, list[Removal]]:
        """Proxy and control removed so that both displace a token of each fold as far, mean square over draws.

        The larger of the two is removed in part: the proxy with ``a = (E(F)/E(Q))^½``, or where that is above 1 the
        control with ``1/a``.
        """
        frames = self.controls[control]
        wanted = [sum(f.energy[k] for f in frames) / len(frames) for k in FOLDS]
        ratio = [(w / e) ** 0.5 if e > 0 else 1.0 for w, e in zip(wanted, self.proxy.energy, strict=True)]
        own = min(ratio[0], 1.0), min(ratio[1], 1.0)
        other = min(1 / ratio[0], 1.0), min(1 / ratio[1], 1.0)
        return Removal(self.proxy, own), [Removal(f, other) for f in frames]


def fit_layer(stream: StreamMoments, layer: int, *, method: str, rank: int, draws: int, seed: int) -> RemovedLayer:
    """Proxy and controls of one layer: each judged fold gets the directions of the other one."""
    fitted_on = [stream.moments[layer, 1 - fold] for fold in FOLDS]
    judged = [stream.moments[layer, fold].about(fitted_on[fold].mean) for fold in FOLDS]
    width = judged[0].width
    if 2 * rank > width:
        raise broken(f"the rank must be at most half of the width, {width // 2}", rank, "lower it")

    def frames(name: str, bases: Sequence[Tensor]) -> Frames:
        inside = [_inside(judged[fold], bases[fold]) for fold in FOLDS]
        return Frames(name, (bases[0], bases[1]), (inside[0], inside[1]))

    generator = torch.Generator().manual_seed(int(as_key(mix(torch.tensor(layer), seed=seed + 7919 * rank))))
    proxies, following = [], []
    for fold in FOLDS:
        given = fitted_on[fold] if PROXIES[method].needs == "moments" else torch.cat(stream.sample[layer, 1 - fold])
        proxies.append(fit_subspace(given, method=method, rank=rank, generator=generator).basis.cpu())
        ranked = fit_subspace(fitted_on[fold], method=method if method in _RANKED else "pca", rank=2 * rank)
        following.append(ranked.basis[:, rank:].cpu())
    drawn = [torch.randn(width, rank, generator=generator, dtype=torch.float64, device="cpu") for _ in range(draws)]
    controls = {
        "haar": tuple(frames("haar", [torch.linalg.qr(z).Q] * 2) for z in drawn),
        "normal": tuple(frames("normal", [orthogonal_to(q, z) for q in proxies]) for z in drawn),
        "next": (frames("next", following),),
    }
    spread = [_total(moments) for moments in judged]
    means = (fitted_on[0].mean, fitted_on[1].mean)
    return RemovedLayer(
        stream.sites[layer], rank, width, means, (spread[0], spread[1]), frames(method, proxies), controls
    )


def _inside(judged: Moments, basis_DK: Tensor) -> float:
    """Mean squared length inside, a token."""
    basis_DK = basis_DK.to(judged.scatter)
    return float(((judged.scatter @ basis_DK) * basis_DK).sum() / judged.count)


def _total(judged: Moments) -> float:
    return float(judged.scatter.diagonal().sum() / judged.count)


def orthogonal_to(basis_DK: Tensor, z_DK: Tensor) -> Tensor:
    """An orthonormal basis of what is left of ``z`` outside; projected twice, for rounding."""
    for _ in range(2):
        z_DK = z_DK - basis_DK @ (basis_DK.T @ z_DK)
    return torch.linalg.qr(z_DK).Q
