"""What a scope would watch in a model, and why: the second half of ``anisoscope doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from anisoscope.cli.output import as_json, print_table, visible

if TYPE_CHECKING:
    from anisoscope.capture.sites import Site, Sites

_SHOWN = 3


def show_model(name: str, *, as_data: bool, trust_remote_code: bool) -> None:
    """Print the sites of a model, found without its weights."""
    from anisoscope.capture.sites import find_sites
    from anisoscope.models.located import locate
    from anisoscope.models.skeletons import skeleton_of

    model = skeleton_of(locate(name), trust_remote_code=trust_remote_code)
    sites = find_sites(model)
    if as_data:
        print(as_json(_plain(type(model).__name__, sites)), flush=True)
        return
    print(f"{visible(type(model).__name__)}: {visible(sites.how)}")
    print_table(["view", "sites", "layers", "first and last"], _rows(sites), right=["sites"])
    for note in sites.notes:
        print(f"note: {visible(note)}")


def _rows(sites: Sites) -> list[list[str]]:
    rows = [_row(view, members) for view, members in _by_view(sites).items()]
    if sites.embedding is not None:
        rows.append(["embedding", "1", "0", visible(sites.embedding.name)])
    if sites.routers:
        layers = sorted({router.layer for router in sites.routers})
        rows.append(
            ["routers", str(len(sites.routers)), _span(layers), visible(_ends([r.name for r in sites.routers]))]
        )
    return rows


def _row(view: str, members: Sequence[Site]) -> list[str]:
    layers = sorted({site.layer for site in members})
    return [view, str(len(members)), _span(layers), visible(_ends([site.name for site in members]))]


def _by_view(sites: Sites) -> dict[str, list[Site]]:
    found: dict[str, list[Site]] = {}
    for site in (*sites.blocks, *sites.weights):
        if site.name not in sites.left_out or not site.view.endswith("representation"):
            found.setdefault(site.view, []).append(site)
    return found


def _span(layers: Sequence[int]) -> str:
    whole = list(layers) == list(range(layers[0], layers[-1] + 1))
    return f"{layers[0]}-{layers[-1]}" if whole and len(layers) > 1 else ",".join(map(str, layers))


def _ends(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < _SHOWN else f"{names[0]} … {names[-1]}"


def _plain(name: str, sites: Sites) -> dict[str, Any]:
    return {
        "model": name,
        "how": sites.how,
        "sites": [
            {"view": site.view, "layer": site.layer, "site": site.name}
            for members in _by_view(sites).values()
            for site in members
        ]
        + ([] if sites.embedding is None else [{"view": "embedding", "layer": 0, "site": sites.embedding.name}]),
        "routers": [{"layer": r.layer, "site": r.name, "experts": r.experts} for r in sites.routers],
        "notes": list(sites.notes),
    }
