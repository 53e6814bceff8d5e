"""Where to look in a network, found from its structure and not from the names of classes.

Letters: D width of the residual stream, F inner width of an MLP.

* The **blocks** are the largest list of modules of one class in the model.
* The **first map of an MLP** is the linear map D → F (or D → 2F, where a gate is fused) that a later map F → D of the
  same block undoes, F being the largest there is; among several, the one that lives closest to its partner.
* The **embedding** is what the model (or a model inside it) names, else the table with as many rows as some linear map
  has outputs, which is the vocabulary, else the one with the most rows.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from anisoscope.errors import broken

View = str  # a name of ``vocabulary.VIEWS``


class SiteKey(NamedTuple):
    """What statistics are kept by: how many blocks come before, and the name of the module.

    Two linear maps of one block share the layer, two calls of one block the name. What enters the first block is of no
    module: its name is empty.
    """

    layer: int
    name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A place in the network: a module, and which view it serves.

    ``layer`` counts blocks from 1; the representation of layer 0 is what enters the first block. A block that the model
    calls several times is one site here, and its calls are told apart as they come.
    """

    name: str
    view: View
    layer: int
    module: nn.Module

    @property
    def key(self) -> SiteKey:
        """What its statistics are kept by, at its first call."""
        return SiteKey(self.layer, self.name)


@dataclass(frozen=True, slots=True, eq=False)
class Sites:
    """All sites of a model, and what was looked for in vain."""

    blocks: tuple[Site, ...]
    weights: tuple[Site, ...]
    embedding: Site | None
    output: nn.Module | None
    notes: tuple[str, ...] = ()

    @property
    def tied(self) -> bool:
        """Whether input and output embedding are one parameter."""
        if self.embedding is None or self.output is None:
            return False
        return getattr(self.embedding.module, "weight", None) is getattr(self.output, "weight", self)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside data parallelism and ``torch.compile``."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = getattr(model, "module", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def find_sites(model: nn.Module, *, blocks: Sequence[str] | None = None, weights: Sequence[str] | None = None) -> Sites:
    """Find the sites of a model; ``blocks`` and ``weights`` name modules where the structure does not tell.

    >>> from torch import nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> sites = find_sites(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))
    >>> [site.name for site in sites.blocks], [site.name for site in sites.weights]
    (['layers.0', 'layers.1', 'layers.2'], ['layers.0.linear1', 'layers.1.linear1', 'layers.2.linear1'])
    """
    model = unwrapped(model)
    names = dict(model.named_modules())
    chosen = [(name, _named(names, name)) for name in blocks] if blocks else _largest_list(model)
    if not chosen:
        raise broken(
            "a model must have a list of blocks (a ModuleList or Sequential of one class with parameters)",
            f"{type(model).__name__} without one",
            "name them with CaptureOptions(sites=['encoder.0', 'encoder.1', …])",
        )
    block_sites = tuple(Site(name, "representation", i + 1, module) for i, (name, module) in enumerate(chosen))
    notes: list[str] = []
    if weights:
        weight_sites = tuple(Site(name, "weight", _layer_of(name, chosen), _named(names, name)) for name in weights)
    else:
        found = [(site, _first_map(site.module)) for site in block_sites]
        weight_sites = tuple(
            Site(f"{site.name}.{path}", "weight", site.layer, module)
            for site, pair in found
            if pair
            for path, module in [pair]
        )
        missing = [site.name for site, pair in found if pair is None]
        if missing:
            notes.append(
                f"no MLP (a map D → F and its way back F → D) in {', '.join(missing[:4])}: no weight view there"
            )
    embedding = _embedding(model, names)
    if embedding is None:
        notes.append("no embedding: no embedding view")
    heads = (_call(module, "get_output_embeddings") for module in (model, *names.values()))
    output = next((head for head in heads if isinstance(head, nn.Module)), None)
    return Sites(block_sites, weight_sites, embedding, output, tuple(notes))


def choose_sites(model: nn.Module, sites: Sites | Sequence[str] | None) -> Sites:
    """Sites as given, or by name (linear maps serve the weight view, other modules are blocks), or found."""
    if isinstance(sites, Sites):
        return sites
    if isinstance(sites, str):
        sites = [sites]
    names = dict(unwrapped(model).named_modules())
    maps = [name for name in sites or () if linear_shape(_named(names, name))]
    blocks = [name for name in sites or () if name not in maps]
    return find_sites(model, blocks=blocks or None, weights=maps or None)


def linear_shape(module: nn.Module) -> tuple[int, int] | None:
    """``(in, out)`` of a linear map, however it stores its weight; ``None`` for anything else."""
    weight = getattr(module, "weight", None)
    if isinstance(module, nn.Embedding) or weight is None or getattr(weight, "ndim", 0) != 2 or any(module.children()):
        return None
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    # Some keep the weight the other way round; the bias then has the length of the second side.
    bias = getattr(module, "bias", None)
    rows, columns = weight.shape
    turned = bias is not None and bias.shape[0] == columns and rows != columns
    return (rows, columns) if turned or getattr(module, "nf", None) == columns else (columns, rows)


def _named(names: dict[str, nn.Module], name: str) -> nn.Module:
    if name in names:
        return names[name]
    close = difflib.get_close_matches(name, [n for n in names if n], n=3, cutoff=0.4)
    raise broken("a site must be the name of a module of the model", name, f"nearest: {', '.join(close) or 'none'}")


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _lists(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        children = list(module.children())
        alike = len({type(child) for child in children}) == 1
        if isinstance(module, nn.ModuleList | nn.Sequential) and children and alike and _parameters(children[0]):
            yield name, module


def _largest_list(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Children of the list with the most parameters; of nested lists that tie, the outer one, which comes first."""
    best: tuple[int, str, nn.Module] | None = None
    for name, module in _lists(model):
        size = _parameters(module)
        if best is None or size > best[0]:
            best = (size, name, module)
    if best is None:
        return []
    prefix = f"{best[1]}." if best[1] else ""
    return [(f"{prefix}{name}", child) for name, child in best[2].named_children()]


def _first_map(block: nn.Module) -> tuple[str, nn.Module] | None:
    """The map that opens the MLP of a block, with its name inside the block."""
    maps = [(name, module, shape) for name, module in block.named_modules() if (shape := linear_shape(module))]
    best: tuple[tuple[int, int, int], str, nn.Module] | None = None
    for back, (back_name, _, (inner, width)) in enumerate(maps):
        if inner == width:
            continue
        for order, (name, module, (into, out)) in enumerate(maps[:back]):
            if into != width or out not in (inner, 2 * inner):
                continue
            rank = (inner, _shared_depth(name, back_name), -order)
            if best is None or rank > best[0]:
                best = (rank, name, module)
    return None if best is None else (best[1], best[2])


def _shared_depth(a: str, b: str) -> int:
    depth = 0
    for left, right in zip(a.split(".")[:-1], b.split(".")[:-1], strict=False):
        if left != right:
            break
        depth += 1
    return depth


def _layer_of(name: str, blocks: list[tuple[str, nn.Module]]) -> int:
    for number, (block, _) in enumerate(blocks):
        if name == block or name.startswith(f"{block}."):
            return number + 1
    raise broken("a weight site must lie inside a block", name, f"blocks are {blocks[0][0]} … {blocks[-1][0]}")


def _embedding(model: nn.Module, names: dict[str, nn.Module]) -> Site | None:
    named = (_call(module, "get_input_embeddings") for module in (model, *names.values()))
    module = next((m for m in named if isinstance(m, nn.Module) and getattr(m, "weight", None) is not None), None)
    if module is None:
        # Positions have a table too, maybe a larger one; the vocabulary is what some linear map goes back to.
        outputs = {shape[1] for m in names.values() if (shape := linear_shape(m))}
        tables = [m for m in names.values() if isinstance(m, nn.Embedding)]
        module = max(tables, key=lambda t: (t.num_embeddings in outputs, t.num_embeddings), default=None)
    if module is None:
        return None
    name = next((name for name, other in names.items() if other is module), "embedding")
    return Site(name, "embedding", 0, module)


def _call(model: nn.Module, method: str) -> Any:
    try:
        return getattr(model, method)()
    except (AttributeError, NotImplementedError):
        return None
