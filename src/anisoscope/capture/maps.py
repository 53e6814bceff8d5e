"""Which linear map of a block serves the weight view, and where experts and their router are.

Letters: D width of the residual stream, F inner width of an MLP, E experts, k experts of a token.

* The **first map of an MLP** is the linear map D → F (or D → 2F, where a gate is fused) that a later map F → D of the
  same block undoes, F being the largest there is; among several, the one that lives closest to its partner. Maps of
  attention are none: three or more maps beside each other read the stream there.
* Where there is no MLP, it is the **first map that reads the residual stream**, and a note names it.
* **Experts** see tokens that were routed to them. Their maps have no place here, and a note says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import nn

from anisoscope.capture.trace import Called

_ATTENTION = ("attn", "attention")
_OTHER_STACK = ("cross", "encdec", "encoder_attn", "encoder_decoder")
Map = tuple[str, nn.Module, tuple[int, int]]


@dataclass(frozen=True, slots=True, eq=False)
class Router:
    """Where the indices of the experts of each token can be read: among what a module is given, or gives.

    ``where`` is the place or name of an argument, or the place of a part of the output. The layer is that of the block.
    Where it is as wide as there are experts it is no index, but says of each whether the token goes there.
    """

    name: str
    layer: int
    module: nn.Module
    side: str
    where: int | str
    experts: int
    view: str = "representation"


@dataclass(frozen=True, slots=True)
class MapChoice:
    """The map of a block, by its name in the model; ``kind`` says what it is, or why there is none.

    Kinds are ``mlp``, ``reads`` (the first map that reads the stream), ``experts`` and ``none``.
    """

    kind: str
    name: str = ""
    module: nn.Module | None = None


def choose_map(
    prefix: str, block: nn.Module, width: int | None, call: Called | None, names: dict[nn.Module, str]
) -> MapChoice:
    """The map of a block called ``prefix``; ``width`` and ``call`` are known where the model was traced."""
    maps = maps_of(prefix, block)
    if has_experts(block, width, call):
        return MapChoice("experts")
    pair = first_map(maps, width)
    if pair is not None:
        return MapChoice("mlp", *pair)
    if call is not None and width is not None:
        read = _first_read(call, width, names)
        if read is not None:
            return MapChoice("reads", *read)
    return MapChoice("none")


def attention_maps(prefix: str, block: nn.Module, width: int | None, call: Called | None) -> list[Map]:
    """Projections of a block's own attention that every token passes: Q, K, V and O, or what fuses some of them.

    Where the block was traced, a map counts if it was called with the tokens of the stream: maps of relative positions
    are given something else, and some attention reads its weights past the module. Attention to another stack is none.
    """
    found = [one for one in maps_of(prefix, block) if _in_own_attention(one[0].removeprefix(prefix))]
    if call is None or call.taken is None or not width:
        fused = {
            child
            for module in block.modules()
            if isinstance(module, nn.MultiheadAttention)
            for child in module.children()
        }
        return [one for one in found if one[1] not in fused]
    tokens = call.taken.numel() // width
    taken = {inner.module: inner.taken for inner in call.within() if inner.taken is not None}
    return [
        (name, module, shape)
        for name, module, shape in found
        if module in taken and taken[module][-1] == shape[0] and taken[module].numel() == tokens * shape[0]
    ]


def _in_own_attention(path: str) -> bool:
    parts = [part.lower() for part in path.split(".")]
    own = any(word in part for part in parts for word in _ATTENTION)
    return own and not any(word in part for part in parts for word in _OTHER_STACK)


def maps_of(prefix: str, block: nn.Module) -> list[Map]:
    """Linear maps in a block with their names in the model, in their order."""
    dot = f"{prefix}." if prefix else ""
    return [(f"{dot}{n}" if n else prefix, m, s) for n, m in block.named_modules() if (s := linear_shape(m))]


def first_map(maps: Sequence[Map], width: int | None) -> tuple[str, nn.Module] | None:
    """The map that opens the MLP among the maps of a block."""
    best: tuple[tuple[int, int, int], str, nn.Module] | None = None
    for back, (back_name, _, (inner, out_width)) in enumerate(maps):
        if inner == out_width or (width is not None and out_width != width):
            continue
        for order, (name, module, (into, out)) in enumerate(maps[:back]):
            if into != out_width or out not in (inner, 2 * inner) or _of_attention(name, back_name, maps):
                continue
            rank = (inner, _shared_depth(name, back_name), -order)
            if best is None or rank > best[0]:
                best = (rank, name, module)
    return None if best is None else (best[1], best[2])


def _of_attention(name: str, back_name: str, maps: Sequence[Map]) -> bool:
    """Whether a pair of maps opens and closes attention, not an MLP."""
    common = name.split(".")[: _shared_depth(name, back_name)]
    if any(word in part.lower() for part in common for word in _ATTENTION):
        return True
    into = next(shape[0] for other, _, shape in maps if other == name)
    everything = [other.split(".")[: len(common)] for other, _, _ in maps]
    if all(part == common for part in everything):  # directly in the block, where attention may be too
        return False
    beside = {other.split(".")[len(common)] for other, _, shape in maps if shape[0] == into and _is_in(other, common)}
    return len(beside) > 2


def _is_in(name: str, parent: list[str]) -> bool:
    return name.split(".")[: len(parent)] == parent


def _shared_depth(a: str, b: str) -> int:
    depth = 0
    for left, right in zip(a.split(".")[:-1], b.split(".")[:-1], strict=False):
        if left != right:
            break
        depth += 1
    return depth


def _first_read(call: Called, width: int, names: dict[nn.Module, str]) -> tuple[str, nn.Module] | None:
    tokens = None if call.taken is None else call.taken.numel() // width
    for inner in call.within():
        shape, taken = linear_shape(inner.module), inner.taken
        if shape is None or taken is None or shape[0] != width or taken[-1] != width or inner.module not in names:
            continue
        if tokens == taken.numel() // width:
            return names[inner.module], inner.module
    return None


def has_experts(block: nn.Module, width: int | None, call: Called | None) -> bool:
    """Whether tokens are routed inside a block."""
    return experts_of(block, width, call) is not None


def experts_of(block: nn.Module, width: int | None, call: Called | None) -> tuple[nn.Module, int] | None:
    """The module that holds experts, and how many: fused in one parameter, or a list of which only some are called."""
    for module in block.modules():
        for parameter in module._parameters.values():
            if parameter is None or parameter.ndim != 3 or isinstance(module, nn.modules.conv._ConvNd):
                continue
            if (
                parameter.shape[0] > 1
                and (width is None or width in parameter.shape[1:])
                and min(parameter.shape[1:]) > 1
            ):
                return module, parameter.shape[0]
    if call is None:
        return None
    called: dict[nn.Module, list[Called]] = {}
    for inner in call.within():
        called.setdefault(inner.module, []).append(inner)
    tokens = None if call.taken is None or not width else call.taken.numel() // width
    for module in block.modules():
        members = [child for child in module.children() if any(child.children()) or linear_shape(child)]
        listed = isinstance(module, nn.ModuleList | nn.ModuleDict)
        if not listed or len(members) < 2 or len({type(child) for child in members}) > 1:
            continue
        used = [made for child in members for made in called.get(child, [])]
        some = 0 < len({made.module for made in used}) < len(members)
        part = any(made.taken is not None and len(made.taken) == 2 and made.taken[0] != tokens for made in used)
        if (some or part) and first_map(maps_of("", members[0]), width) is not None:
            return module, len(members)
    return None


def find_router(
    layer: int, block: nn.Module, width: int, call: Called, names: dict[nn.Module, str], view: str
) -> Router | None:
    """Where the experts of each token can be read, in a block that routes; ``None`` where no module tells."""
    found = experts_of(block, width, call)
    if found is None or call.taken is None:
        return None
    holder, experts = found
    routed = names.get(holder, "").rpartition(".")[0]  # others choose too: sparse attention chooses positions
    tokens = call.taken.numel() // width
    for inner in call.within():
        if inner.module not in names or not f"{names[inner.module]}.".startswith(f"{routed}."):
            continue
        for side, where, shape in inner.indices:
            if len(shape) > 1 and 0 < shape[-1] <= experts and shape.numel() == tokens * shape[-1]:
                return Router(names[inner.module], layer, inner.module, side, where, experts, view)
    return None


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


def notes_on_maps(choices: Iterable[tuple[str, MapChoice]]) -> list[str]:
    """What is to be said of blocks whose map is not the first one of an MLP."""
    by_kind: dict[str, list[tuple[str, MapChoice]]] = {}
    for name, choice in choices:
        by_kind.setdefault(choice.kind, []).append((name, choice))
    notes = []
    if by_kind.get("experts"):
        where = shortened([name for name, _ in by_kind["experts"]])
        notes.append(
            f"mixture of experts in {where}: no weight view there, for experts see routed tokens only; sites= can name "
            "a map that all tokens pass, of a shared expert for instance"
        )
    if by_kind.get("reads"):
        where = shortened([choice.name for _, choice in by_kind["reads"]])
        notes.append(f"no MLP: the weight view is of the first map that reads the residual stream, {where}")
    if by_kind.get("none"):
        where = shortened([name for name, _ in by_kind["none"]])
        notes.append(f"no MLP (a map D → F and its way back F → D) in {where}: no weight view there")
    return notes


def shortened(names: Sequence[str]) -> str:
    """A few names of many.

    >>> shortened(["h.0", "h.1", "h.2", "h.3", "h.4"])
    'h.0, h.1 … h.4'
    """
    return ", ".join(names) if len(names) < 4 else f"{names[0]}, {names[1]} … {names[-1]}"
