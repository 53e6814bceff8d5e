"""Settings that no training could serve, found before the first step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from anisoscope.capture.sites import Sites, linear_shape
from anisoscope.errors import broken
from anisoscope.evaluate.place_ranks import require_rank
from anisoscope.geometry.subspace import proxy_name
from anisoscope.observe.embedding import type_folds
from anisoscope.vocabulary import CAPTURED_SUBSETS, LABEL_NULLS, NULLS, PROXIES, require_each


def proxy_names(proxies: Any) -> tuple[str, ...]:
    """The names of the proxies that are asked for, all of them known."""
    if not isinstance(proxies, str):
        proxies = [proxy_name(proxy) for proxy in proxies]
    require_each("proxies", proxies, PROXIES)
    return tuple(proxies)


def live_nulls(nulls: Sequence[str] | None, *, targets: bool) -> tuple[str, ...]:
    """The nulls that are asked for, all of them known; by default those that take no extra pass."""
    live = [null.name for null in NULLS.values() if null.live]
    if nulls is None:
        nulls = [null for null in live if null not in LABEL_NULLS]
    require_each("nulls", nulls or ("haar",), live)
    return tuple(dict.fromkeys((*nulls, *(LABEL_NULLS if targets else ()))))


def require_plain(
    *, rank: Any, ranks: Sequence[int], resamples: Any, subsets: Sequence[str], steps: Any, seed: Any
) -> None:
    """Raise for settings that are wrong whatever the model is."""
    require_each("subsets", subsets, CAPTURED_SUBSETS)
    require_rank(rank)
    for each in ranks:
        _require_whole("rank", each, 1, "use a number such as 32")
    if ranks and isinstance(rank, str):
        raise broken("ranks beside the main one must go with a number", f"rank {rank!r}", "leave ranks out")
    if resamples is not None:
        _require_whole("resamples", resamples, 1, "leave it out for the default")
    if steps is not None:
        _require_whole("steps", steps, 1, "pass the length of training in optimiser steps")
    _require_whole("seed", seed, None, "use a whole number")


def require_possible(
    sites: Sites, views: Sequence[str], *, ranks: Sequence[int | str], proxies: Sequence[str], seed: int
) -> None:
    """Raise for a rank that a place of this model cannot have; a place that finds its own takes what it can have."""
    numbers = [rank for rank in ranks if isinstance(rank, int)]
    if not numbers or all(PROXIES[name].rank is not None for name in proxies):
        return
    rank = max(numbers)
    for view, where, width in _widths(sites, views):
        if rank >= width:
            raise broken(
                f"rank must be below the width of what is observed, {width} in the {view} view{where}",
                rank,
                f"pass rank={max(1, width // 4)}",
            )
    table = getattr(sites.embedding.module, "weight", None) if sites.embedding is not None else None
    if "embedding" in views and isinstance(table, torch.Tensor):
        types = table.shape[0]
        second = int(type_folds(torch.arange(types, device="cpu"), seed=seed).sum())
        most = min(second, types - second) - 1
        if rank > most:
            rest = tuple(view for view in views if view != "embedding")
            raise broken(
                f"rank must be at most {most} in the embedding view, for {types} types in two folds",
                rank,
                f"lower it, or leave the view out with views={rest}",
            )


def frozen_note(sites: Sites) -> str | None:
    """What to know of a model in which nothing that is watched is trained."""
    watched: list[nn.Module] = [site.module for site in sites.blocks]
    watched += [] if sites.embedding is None else [sites.embedding.module]
    if any(parameter.requires_grad for module in watched for parameter in module.parameters()):
        return None
    return (
        "no block and no embedding of this model is trained: unless something before the blocks is, no gradient "
        "reaches them and every observation will be skipped; unfreeze a block, or observe another part of the model"
    )


def _widths(sites: Sites, views: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    for site in sites.weights if "weight" in views else ():
        shape = linear_shape(site.module)
        if shape is not None:
            yield "weight", f" at {site.name}", shape[0]
    table = getattr(sites.embedding.module, "weight", None) if sites.embedding is not None else None
    if "embedding" in views and isinstance(table, torch.Tensor):
        yield "embedding", "", table.shape[1]
    if "representation" in views:
        # The first map of an MLP reads the residual stream; one of another width was named by hand.
        shapes = {linear_shape(site.module) for site in sites.weights}
        widths = {shape[0] for shape in shapes if shape is not None}
        if len(widths) == 1:
            yield "representation", "", widths.pop()


def _require_whole(what: str, value: Any, least: int | None, step: str) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or (least is not None and value < least):
        raise broken(
            f"{what} must be a whole number{'' if least is None else f' of at least {least}'}", repr(value), step
        )


def require_options(options: dict[str, Any], taker: Callable[..., Any], *, given_by: str = "") -> None:
    """Raise for an option that ``taker`` does not have."""
    import inspect

    from anisoscope.vocabulary import nearest

    known = [
        name for name, p in inspect.signature(taker).parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    for name in options:
        if name not in known:
            raise broken(f"options must be those of Scope{given_by}", name, nearest(name, known) or f"known: {known}")
