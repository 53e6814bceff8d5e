"""The gradient arm: the tangent part of every weight update is removed, after the user's optimiser has made it.

Letters: D width, F outputs, K rank.

Projecting the *gradient* is undone by Adam: its division by running squares is element by element, which puts the
update back into the subspace. So the weights are read before ``optimizer.step()`` and the difference is projected after
it: ``ΔW ← s·ΔW(I − a·QQᵀ)``, with ``s = min(4, ‖ΔW‖/‖ΔW(I − aQQᵀ)‖)`` so that the length of the step is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from anisoscope.capture.calls import as_batch
from anisoscope.capture.sites import Sites, choose_sites, unwrapped
from anisoscope.capture.taps import in_backward
from anisoscope.errors import broken
from anisoscope.geometry.subspace import fit_subspace
from anisoscope.intervene.directions import orthogonal_to
from anisoscope.intervene.readers import StreamReader, find_readers, inputs_of, named_readers
from anisoscope.stats.hashing import as_key, mix
from anisoscope.stats.moments import Moments
from anisoscope.stats.reduce import all_reduce
from anisoscope.vocabulary import PROXIES

LARGEST_SCALE = 4.0
Directions = Literal["proxy", "haar", "normal"]


@dataclass(frozen=True, slots=True)
class Removed:
    """What was taken from the update of one matrix at one step.

    ``share`` is the part of ``‖ΔW‖²`` inside the directions, ``removed`` the part that was taken, ``scale`` the factor
    ``s`` by which the rest was made longer.
    """

    step: int
    site: str
    share: float
    strength: float
    removed: float
    scale: float


@dataclass(frozen=True, slots=True, eq=False)
class _Frames:
    own: Tensor
    other: Tensor | None  # what an equal share is measured against


class UpdateProjection:
    """Remove directions from the updates of all matrices that read the residual stream, for the length of a ``with``.

    ``directions`` are the ``proxy`` of the matrix's own inputs, fitted anew every ``every`` steps on the batch of the
    step before, or its controls: ``haar`` and ``normal`` (orthogonal to the proxy) frames of the same rank. With
    ``against`` another of these, both arms lose an equal share of ``‖ΔW‖²``: the larger one is removed in part.
    ``strength`` is ``a``; 0 attaches nothing and the training is bit-identical. ``target="gradient"`` projects
    gradients before the step instead, which an adaptive optimiser undoes.

    The optimiser is the user's own, of any class, and its state is not touched. ``history`` has one entry a matrix
    at the first step after each fit.

    Example::

        with UpdateProjection(model, optimizer, rank=32, every=50):
            for batch in loader:
                model(**batch).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        proxy: str = "pca",
        rank: int = 32,
        directions: Directions = "proxy",
        against: Directions | None = None,
        strength: float = 1.0,
        every: int = 50,
        target: Literal["update", "gradient"] = "update",
        layers: Sequence[int] | None = None,
        maps: Sequence[str] | None = None,
        sites: Sites | Sequence[str] | None = None,
        seed: int = 0,
    ) -> None:
        if not 0 <= strength <= 1:
            raise broken("the strength must lie in 0…1", strength, "1 removes all, 0 nothing")
        if every < 1 or rank < 1:
            raise broken("rank and every must be at least 1", f"{rank} and {every}", "use 32 and 50")
        if proxy not in PROXIES or PROXIES[proxy].needs != "moments":
            known = ", ".join(name for name, word in PROXIES.items() if word.needs == "moments")
            raise broken(f"the proxy must be one of {known}", repr(proxy), "others need rows, which are not kept")
        if directions not in ("proxy", "haar", "normal") or against not in (None, "proxy", "haar", "normal"):
            raise broken(
                "directions must be proxy, haar or normal", f"{directions!r}, {against!r}", "check the spelling"
            )
        if any(hasattr(parameter, "full_tensor") for parameter in model.parameters()):
            raise broken("updates can be projected where parameters are whole", "sharded ones (FSDP2)", "use DDP")
        self._model, self._optimizer, self._sites = model, optimizer, choose_sites(model, sites)
        self._proxy, self._rank, self._strength, self._every = proxy, rank, strength, every
        self._directions, self._against, self._target, self._seed = directions, against, target, seed
        self._layers = None if layers is None else frozenset(layers)
        self._maps = maps
        self._readers: tuple[StreamReader, ...] = ()
        self._moments: dict[str, Moments] = {}
        self._frames: dict[str, _Frames] = {}
        self._before: dict[str, Tensor] = {}
        self._mask: Tensor | None = None
        self._step, self._fitted_at = 0, -1
        self._off: list[Callable[[], None]] = []
        self.history: list[Removed] = []

    def __enter__(self) -> UpdateProjection:
        """Attach to the model and the optimiser; with strength 0 there is nothing to attach."""
        if self._strength == 0:
            return self
        root = unwrapped(self._model)
        self._off.append(root.register_forward_pre_hook(self._begin, with_kwargs=True).remove)
        self._off.append(self._optimizer.register_step_pre_hook(self._before_step).remove)
        self._off.append(self._optimizer.register_step_post_hook(self._after_step).remove)
        return self

    def __exit__(self, *error: object) -> None:
        """Detach."""
        while self._off:
            self._off.pop()()
        self._before.clear()

    def basis(self, site: str) -> Tensor | None:
        """The directions that are removed from a matrix at present, ``(D, K)``; None before the first fit."""
        found = self._frames.get(site)
        return None if found is None else found.own

    @property
    def sites(self) -> list[str]:
        """Names of the matrices, known from the first pass on."""
        return [reader.name for reader in self._readers]

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if in_backward() or not torch.is_grad_enabled():
            return
        batch = as_batch(0, module, args, kwargs)
        self._mask = batch.mask
        if not self._readers:
            self._find(args, kwargs)

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._maps is not None:
            found = named_readers(self._model, self._sites, self._maps)
        else:
            given = {key: value for key, value in kwargs.items() if isinstance(value, Tensor) and key != "labels"}
            if args and isinstance(args[0], Tensor):
                given["input_ids"] = args[0]
            found = find_readers(unwrapped(self._model), self._sites, given)
        kept = [reader for reader in found if self._layers is None or reader.layer in self._layers]
        if not kept:
            raise broken("layers must hold a matrix that reads the stream", sorted(self._layers or ()), "name others")
        narrow = min(reader.as_rows(reader.weight).shape[1] for reader in kept)
        if 2 * self._rank > narrow:
            raise broken(f"the rank must be at most half of the width, {narrow // 2}", self._rank, "lower it")
        trained = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
        self._readers = tuple(reader for reader in kept if id(reader.weight) in trained)
        if not self._readers:
            raise broken("the optimiser must train the matrices that read the stream", "none of them", "unfreeze them")
        self._off += inputs_of(self._readers, self._absorb)

    def _absorb(self, reader: StreamReader, x: Tensor) -> None:
        """Moments of what enters a matrix, at the steps whose batch the next fit is on."""
        if in_backward() or not torch.is_grad_enabled() or not self._is_collected():
            return
        mask = self._mask
        fits = mask is not None and x.shape[:-1] == mask.shape
        found = Moments.of(x, mask=mask.to(x.device) if fits and mask is not None else None, higher=False)
        before = self._moments.get(reader.name)
        self._moments[reader.name] = found if before is None else before.merge(found)

    def _is_collected(self) -> bool:
        return self._step == 0 or (self._step + 1) % self._every == 0

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._frames:
            return
        for reader in self._readers:
            if self._target == "gradient":
                gradient = reader.weight.grad
                if gradient is not None:
                    gradient.copy_(self._projected(reader, gradient))
            else:
                self._before[reader.name] = reader.weight.detach().clone()

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            for reader in self._readers:
                before = self._before.pop(reader.name, None)
                if before is not None:
                    reader.weight.copy_(before + self._projected(reader, reader.weight - before))
            if self._is_collected() and self._moments:
                self._fit()
        self._step += 1

    @torch.no_grad()
    def _projected(self, reader: StreamReader, change: Tensor) -> Tensor:
        frames, rows_FD = self._frames[reader.name], reader.as_rows(change).double()
        whole = float(rows_FD.square().sum())
        if whole == 0:  # a step that was skipped, or a matrix that got no gradient
            return change
        basis_DK = frames.own.to(rows_FD)
        inside_FK = rows_FD @ basis_DK
        share = float(inside_FK.square().sum()) / whole
        strength = self._strength
        if frames.other is not None:
            other = float((rows_FD @ frames.other.to(rows_FD)).square().sum()) / whole
            strength *= partial_strength(share, other)
        left_FD = rows_FD - strength * inside_FK @ basis_DK.T
        removed = 1 - float(left_FD.square().sum()) / whole
        scale = min(LARGEST_SCALE, (1 - removed) ** -0.5) if removed < 1 else LARGEST_SCALE
        if self._step == self._fitted_at + 1:
            self.history.append(Removed(self._step, reader.name, share, strength, removed, scale))
        return reader.as_rows(scale * left_FD).to(change.dtype)

    def _fit(self) -> None:
        for number, reader in enumerate(self._readers):
            moments = all_reduce(self._moments[reader.name])
            proxy = fit_subspace(moments, method=self._proxy, rank=self._rank).basis
            key = int(as_key(mix(torch.tensor([self._step, number]), seed=self._seed))[0])
            generator = torch.Generator().manual_seed(key)
            z_DK = torch.randn(*proxy.shape, generator=generator, dtype=torch.float64, device="cpu").to(proxy)
            made: Mapping[str, Tensor] = {
                "proxy": proxy,
                "haar": torch.linalg.qr(z_DK).Q,
                "normal": orthogonal_to(proxy, z_DK),
            }
            other = None if self._against is None else made[self._against]
            self._frames[reader.name] = _Frames(made[self._directions], other)
        self._moments.clear()
        self._fitted_at = self._step


def partial_strength(own: float, other: float) -> float:
    """The ``a`` at which directions with this share of ``‖ΔW‖²`` lose no more than the other ones hold.

    ``2a − a²`` of what is inside goes.

    >>> round(partial_strength(0.8, 0.2), 4), partial_strength(0.1, 0.2)
    (0.134, 1.0)
    """
    return 1.0 if own <= other else 1 - (1 - other / own) ** 0.5
