"""Nulls by name. One of your own is one registration; its words are kept in ``anisoscope.vocabulary``.

One that belongs to the package is its words in the vocabulary and a function ``against_NAME`` in any file of this
folder, where it is found by its name. Letters: D width, K rank, R draws.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope import vocabulary
from anisoscope.errors import broken
from anisoscope.evidence import nulls
from anisoscope.evidence.nulls.comparison import Against, Judged, logit
from anisoscope.evidence.spectral import Draws

Draw = Callable[[Tensor, Tensor, int, torch.Generator], Tensor]
Mean = Callable[[Tensor, Tensor], float]


def _found_in_this_folder() -> dict[str, Callable[[Judged], Against]]:
    names = [module.name for module in pkgutil.iter_modules(nulls.__path__) if module.name != "registry"]
    modules = [importlib.import_module(f"{nulls.__name__}.{name}") for name in names]
    functions = {name: function for module in modules for name, function in vars(module).items()}
    return {null: functions[f"against_{null.replace('-', '_')}"] for null in vocabulary.NULLS}


METHODS = _found_in_this_folder()


@dataclass(frozen=True, slots=True)
class DrawnNull:
    """A null from outside: energies inside drawn fold by fold, from the second moment and the proxy alone."""

    draw: Draw
    mean: Mean | None

    def __call__(self, judged: Judged) -> Against:
        """Pool the folds; without a mean of its own, that of the draws counts."""
        generator = torch.Generator().manual_seed(judged.seed)
        drawn = []
        for fold in judged.folds:
            inside_R = self.draw(fold.second, fold.subspace.basis, judged.resamples, generator)
            if inside_R.shape != (judged.resamples,):
                raise broken(
                    f"a null must draw one energy for each of {judged.resamples} draws",
                    tuple(inside_R.shape),
                    "return a tensor of shape (draws,)",
                )
            inside_R = inside_R.to(fold.second)
            drawn.append(Draws(inside_R[None], (fold.second.diagonal().sum() - inside_R)[None]))
        total = judged.base.inside + judged.base.outside
        if self.mean is None:
            inside = float(torch.stack([d.inside[0].mean() for d in drawn]).sum())
        else:
            inside = sum(float(self.mean(f.second, f.subspace.basis)) for f in judged.folds)
        return Against(inside / total, logit(inside, total - inside), judged.p_of(drawn), judged.spread, judged.count)


def register_null(
    name: str,
    *,
    breaks: str,
    otherwise: str = "",
    views: Sequence[str] = tuple(vocabulary.VIEWS),
    mean: Mean | None = None,
) -> Callable[[Draw], Draw]:
    """Register a null: a function that draws the energy inside a control subspace.

    It takes the second moment ``(D, D)`` of the gradients, the proxy's basis ``(D, K)``, how many ``draws`` to make and
    a generator, and returns the energies ``(R,)``. ``mean(second, basis)`` is their expectation where it is known.
    ``breaks`` says in one sentence what the null breaks, ``otherwise`` what it means if it is not passed. The null is
    reported beside the ladder and does not count for its verdict. It is asked for by name, in ``nulls=``.

    >>> @register_null("first-axes", breaks="everything: the first K coordinate axes")
    ... def first_axes(second, basis, draws, generator):
    ...     return second.diagonal()[: basis.shape[1]].sum().expand(draws)
    >>> unregister_null("first-axes")
    """

    def register(draw: Draw) -> Draw:
        for view in views:
            vocabulary.require("views of a null", view, vocabulary.VIEWS)
        vocabulary.add(vocabulary.Null(name, breaks, otherwise or breaks, tuple(views), ladder=False))
        METHODS[name] = DrawnNull(draw, mean)
        return draw

    return register


def outside_modules() -> set[str]:
    """Modules that hold the nulls from outside."""
    return {method.draw.__module__ for method in METHODS.values() if isinstance(method, DrawnNull)}


def unregister_null(name: str) -> None:
    """Take a null that was registered from outside away again."""
    vocabulary.remove("nulls", name)
    if name not in vocabulary.NULLS:
        METHODS.pop(name, None)
