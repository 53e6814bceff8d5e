"""What a scope can see of a model: which views have sites, and what compilation hides."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from anisoscope.capture.compiled import has_taps, is_compiled
from anisoscope.capture.sites import Sites, choose_sites, unwrapped
from anisoscope.errors import broken
from anisoscope.vocabulary import VIEWS, require_each


@dataclass(frozen=True, slots=True, eq=False)
class SiteChoice:
    """Sites and views of a model, and notes for its user; ``whole_compiled`` models are observed eagerly."""

    sites: Sites
    views: tuple[str, ...]
    notes: tuple[str, ...]
    whole_compiled: bool


def choose(
    model: nn.Module,
    sites: Sites | Sequence[str] | None,
    views: Sequence[str] | None,
    maps: Sequence[str] = ("mlp",),
) -> SiteChoice:
    """Decide what is watched; raises for a view that was asked for by name and cannot be had."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise broken("a model to observe must have parameters that require gradients", "none", "unfreeze it")
    found = choose_sites(model, sites, maps)
    notes = list(found.notes)
    taps = has_taps(unwrapped(model))
    whole_compiled = is_compiled(model) and not taps
    if whole_compiled:
        notes.append(
            "the model is compiled as a whole: observed steps run without its graph, so weights differ from an "
            "unobserved run by rounding; call anisoscope.install_taps(model) before torch.compile to be exact"
        )
        warnings.warn(notes[-1], stacklevel=4)
    elif not taps and any(is_compiled(site.module) for site in found.blocks) and (found.weights or found.routers):
        note = "blocks are compiled: no weight view, unless anisoscope.install_taps(model) came before torch.compile"
        if views is not None and "weight" in views:
            raise broken("the weight view must have hooks inside the blocks", "compiled blocks", note)
        notes.append(note)
        found = replace(found, weights=(), routers=())
    chosen = _chosen_views(found, views)
    if views is None and (frozen := frozen_embedding(found)) is not None:
        notes.append(frozen)
    return SiteChoice(found, chosen, tuple(notes), whole_compiled)


def frozen_embedding(sites: Sites) -> str | None:
    """Why the view of an embedding that is there is left out, if it is not trained."""
    weight = _table(sites)
    if sites.embedding is None or weight is None or weight.requires_grad:
        return None
    return f"the embedding {sites.embedding.name} is frozen (requires_grad is False), so the embedding view is left out"


def _table(sites: Sites) -> Tensor | None:
    weight = getattr(sites.embedding.module, "weight", None) if sites.embedding is not None else None
    return weight if weight is not None and weight.ndim == 2 else None


def _chosen_views(sites: Sites, views: Sequence[str] | None) -> tuple[str, ...]:
    weight = _table(sites)
    watched = {site.view for site in sites.blocks if site.name not in sites.left_out}
    has = {view: view in watched or any(site.view == view for site in sites.weights) for view in VIEWS} | {
        "embedding": weight is not None and weight.requires_grad,
    }
    if views is None:
        return tuple(view for view in VIEWS if has[view])
    require_each("views", views, VIEWS)
    for view in views:
        if view == "embedding" and (frozen := frozen_embedding(sites)) is not None:
            raise broken("an embedding must be trained to be observed", frozen, "unfreeze it, or leave the view out")
        if not has[view]:
            raise broken(
                f"a model observed in the {view} view must have sites for it",
                "; ".join(sites.notes) or "none",
                "name them with capture=CaptureOptions(sites=[...])",
            )
    return tuple(views)
