"""Where to look in a network: found from one forward pass of its shadow, or named, and not from names of classes.

Letters: B sequences, T positions, D width of the residual stream.

* The **blocks** are the modules that the residual stream passes in a small traced forward pass (``stream``); where the
  model cannot be traced, the list of modules with the most parameters.
* The **weight view** has one map a block (``maps``): the first of its MLP, where it has one.
* The **embedding** is what the model (or a model inside it) names, else the table with as many rows as some linear map
  has outputs, which is the vocabulary, else the one with the most rows.

An encoder-decoder has two chains of blocks, in views of their own.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from anisoscope.capture.maps import (
    MapChoice,
    Router,
    attention_maps,
    choose_map,
    find_router,
    first_map,
    linear_shape,
    maps_of,
    notes_on_maps,
    shortened,
)
from anisoscope.capture.stream import Stack, find_stream, is_checkpointed
from anisoscope.capture.trace import Called, Trace, TraceError, trace
from anisoscope.errors import broken
from anisoscope.vocabulary import ENCODER, MAPS, require_each

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
    calls several times is one site here, and its calls are told apart as they come. ``layout`` says in which order it
    has sequences, positions and width: ``BTD``, ``TBD``, ``BDT``, or ``ND`` where tokens are flattened.
    """

    name: str
    view: View
    layer: int
    module: nn.Module
    layout: str = "BTD"

    @property
    def encoder(self) -> bool:
        """Whether it belongs to the encoder of an encoder-decoder."""
        return self.view.startswith(ENCODER)

    @property
    def key(self) -> SiteKey:
        """What its statistics are kept by, at its first call."""
        return SiteKey(self.layer, self.name)


@dataclass(frozen=True, slots=True, eq=False)
class Sites:
    """All sites of a model, and what was looked for in vain.

    ``how`` says how the blocks were chosen, ``left_out`` why a block is in no view of representations. ``lookups`` are
    the modules that are called to look up the rows of the embedding, ``inputs`` those that are given the token ids of
    an encoder-decoder's decoder.
    """

    blocks: tuple[Site, ...]
    weights: tuple[Site, ...]
    embedding: Site | None
    output: nn.Module | None
    notes: tuple[str, ...] = ()
    how: str = ""
    left_out: dict[str, str] = field(default_factory=dict)
    routers: tuple[Router, ...] = ()
    lookups: tuple[nn.Module, ...] = ()
    inputs: nn.Module | None = None
    entrance: str = ""  # the name of what holds the encoder's blocks: that of its layer 0
    width: int | None = None  # of the residual stream, where the model was traced

    @property
    def has_encoder(self) -> bool:
        """Whether there are two chains of blocks."""
        return any(site.encoder for site in self.blocks)

    @property
    def layers(self) -> range:
        """Numbers of layers, from what enters the first block on."""
        return range(max((site.layer for site in self.blocks), default=0) + 1)

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


def find_sites(
    model: nn.Module,
    *,
    blocks: Sequence[str] | None = None,
    weights: Sequence[str] | None = None,
    maps: Sequence[str] = ("mlp",),
) -> Sites:
    """Find the sites of a model; ``blocks`` and ``weights`` name modules where they are not to be found.

    ``maps`` says which maps of a block are found for the weight view: those of ``mlp``, of ``attention``, or both.

    The model itself is not run, and nothing about it changes.

    >>> from torch import nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> sites = find_sites(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))
    >>> [site.name for site in sites.blocks], [site.name for site in sites.weights]
    (['layers.0', 'layers.1', 'layers.2'], ['layers.0.linear1', 'layers.1.linear1', 'layers.2.linear1'])
    """
    model = unwrapped(model)
    names = dict(model.named_modules())
    notes: list[str] = []
    found, why = _traced(model)
    trunks, how = _trunks(model, found, why, blocks)
    if not trunks or not trunks[0].members:
        raise broken(
            "a model must have a chain of blocks (modules with parameters that hidden states pass one after the other)",
            f"{type(model).__name__} without one" + (f"; it could not be traced: {why}" if why else ""),
            "name them with CaptureOptions(sites=['encoder.0', 'encoder.1', …])",
        )
    block_sites = [site for trunk in trunks for site in trunk.sites()]
    if weights:
        weight_sites = [_named_weight(name, _named(names, name), trunks) for name in weights]
    else:
        chosen = [(trunk, member, trunk.choose(member)) for trunk in trunks for member in trunk.members]
        notes += notes_on_maps([(member.name, choice) for _, member, choice in chosen]) if "mlp" in maps else []
        weight_sites = []
        for trunk, member, choice in chosen:
            of_block = [] if choice.module is None or "mlp" not in maps else [(choice.name, choice.module)]
            if "attention" in maps:
                of_block += [one for one in trunk.attention(member) if one not in of_block]
            weight_sites += [
                Site(name, f"{trunk.prefix}weight", member.layer, module, member.layout) for name, module in of_block
            ]
        if "attention" in maps:
            without = [m.name for trunk, m, _ in chosen if not trunk.attention(m)]
            notes += [f"no map of attention that tokens pass in {shortened(without)}"] if without else []
    left_out = {member.name: why for trunk in trunks for member in trunk.members if (why := member.left_out)}
    if left_out:
        first = next(iter(left_out.values()))
        notes.append(f"no representation of {shortened(list(left_out))}: {first}")
    notes += [note for trunk in trunks for note in trunk.notes()]
    embedding, lookups = _embedding(model, names, found)
    if embedding is None:
        notes.append("no embedding that is looked up with token ids: no embedding view")
    routers = tuple(router for trunk in trunks for router in trunk.routers())
    if found is not None and not routers and any("mixture of experts" in note for note in notes):
        notes.append("no module is given or gives which experts a token goes to: no load of routers")
    heads = (_call(module, "get_output_embeddings") for module in (model, *names.values()))
    output = next((head for head in heads if isinstance(head, nn.Module)), None)
    return Sites(
        tuple(block_sites),
        tuple(weight_sites),
        embedding,
        output,
        tuple(notes),
        how,
        left_out,
        routers,
        lookups,
        trunks[0].inputs if len(trunks) > 1 else None,
        trunks[1].entrance if len(trunks) > 1 else "",
        trunks[0].width,
    )


def choose_sites(model: nn.Module, sites: Sites | Sequence[str] | None, maps: Sequence[str] = ("mlp",)) -> Sites:
    """Sites as given, or by name (linear maps serve the weight view, other modules are blocks), or found."""
    require_each("maps", maps or ("none",), MAPS)
    if sites is not None and tuple(maps) != ("mlp",):
        raise broken("maps= must go without sites=", list(maps), "name the maps among the sites")
    if isinstance(sites, Sites):
        return sites
    if isinstance(sites, str):
        sites = [sites]
    names = dict(unwrapped(model).named_modules())
    weights = [name for name in sites or () if linear_shape(_named(names, name))]
    blocks = [name for name in sites or () if name not in weights]
    return find_sites(model, blocks=blocks or None, weights=weights or None, maps=maps)


@dataclass(frozen=True, slots=True, eq=False)
class _Member:
    """A block of a chain: its call in the trace, and what was made of its shapes."""

    name: str
    layer: int
    module: nn.Module
    call: Called | None
    layout: str
    left_out: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Trunk:
    """A chain of blocks; of an encoder-decoder one of two."""

    members: list[_Member]
    names: dict[nn.Module, str]
    stack: Stack | None = None
    prefix: str = ""
    expected: torch.Size | None = None  # shape of the ids

    @property
    def width(self) -> int | None:
        """Width of the stream, where it is known."""
        call = None if self.stack is None else self.stack.calls[0]
        if call is None or call.given is None:
            return None
        return call.given[1] if self.members[0].layout == "BDT" else call.given[-1]

    @property
    def inputs(self) -> nn.Module | None:
        """The module around the chain that is given its token ids."""
        owner = None if self.stack is None else self.stack.owner()
        return None if owner is None else owner.module

    @property
    def entrance(self) -> str:
        """The name of the module whose call makes the calls of the chain."""
        return "" if self.stack is None else self.names.get(self.stack.within.module, "")

    def sites(self) -> list[Site]:
        """Sites of the blocks."""
        return [Site(m.name, f"{self.prefix}representation", m.layer, m.module, m.layout) for m in self.members]

    def choose(self, member: _Member) -> MapChoice:
        """The map of a block; of a norm that ends a layer, the one among what was called since the norm before."""
        if self.stack is None or any(p.ndim > 1 for p in member.module.parameters()):
            return choose_map(member.name, member.module, self.width, member.call, self.names)
        maps = [
            found for call in self._since(member) for found in maps_of(self.names.get(call.module, ""), call.module)
        ]
        pair = first_map(maps, self.width)
        return MapChoice("none") if pair is None else MapChoice("mlp", *pair)

    def attention(self, member: _Member) -> list[tuple[str, nn.Module]]:
        """The projections of attention in a block."""
        found = attention_maps(member.name, member.module, self.width, member.call)
        return [(name, module) for name, module, _ in found]

    def routers(self) -> list[Router]:
        """Where the choice of experts can be read, block by block."""
        found = [
            find_router(m.layer, m.module, self.width, m.call, self.names, f"{self.prefix}representation")
            for m in self.members
            if m.call is not None and self.width is not None
        ]
        return [router for router in found if router is not None]

    def notes(self) -> list[str]:
        """What is unusual about the chain."""
        notes = []
        first = self.members[0]
        if not any(p.ndim > 1 for p in first.module.parameters()):
            notes.append(
                f"attention, MLP and norms of a layer are in lists of their own: the residual stream is read after "
                f"{first.name} and its like, and layer 0 is what enters {first.name}"
            )
        given = None if first.call is None else first.call.given
        length = None if given is None or len(given) != 3 else given[0 if first.layout == "TBD" else 1]
        if self.expected is not None and length is not None and first.layout in ("BTD", "TBD"):
            lengths = {m.call.given[0 if m.layout == "TBD" else 1] for m in self.members if m.call and m.call.given}
            if lengths != {self.expected[1]}:
                notes.append(
                    f"of {self.expected[1]} tokens blocks have {', '.join(map(str, sorted(lengths)))} positions: they "
                    "are observed only where lengths agree"
                )
        return notes

    def _since(self, member: _Member) -> list[Called]:
        """The calls beside a block's, after those of the block before."""
        assert self.stack is not None
        beside, own = self.stack.within.inner, {m.module for m in self.members}
        found: list[Called] = []
        for call in beside:
            if call.module is member.module:
                return found
            found = [] if call.module in own else [*found, call]
        return found


def _traced(model: nn.Module) -> tuple[Trace | None, str]:
    try:
        return trace(model), ""
    except TraceError as error:
        return None, str(error)


def _trunks(model: nn.Module, found: Trace | None, why: str, blocks: Sequence[str] | None) -> tuple[list[_Trunk], str]:
    """The chains of a model, and how they were chosen."""
    by_name = dict(model.named_modules())
    names = {module: name for name, module in by_name.items()}
    if blocks:
        given = [_Member(n, i + 1, m := _named(by_name, n), None, _layout_of(m)) for i, n in enumerate(blocks)]
        return [_Trunk(given, names)], "named by the user"
    stream = None if found is None else find_stream(found, names, model)
    if stream is None or found is None:
        listed = _largest_list(model)
        members = [_Member(n, i + 1, m, None, _layout_of(m), _unseen(m, found)) for i, (n, m) in enumerate(listed)]
        reason = f"the model could not be traced ({why})" if why else "no chain of calls carries the residual stream"
        return [_Trunk(members, names)], f"the list with the most parameters, for {reason}"
    trunks = [_trunk(stream.main, names, found.ids, "", by_name)]
    if stream.encoder is not None:
        trunks.append(_trunk(stream.encoder, names, found.source, ENCODER, by_name))
    said = " and ".join(
        f"{shortened([m.name for m in trunk.members])} ({len(trunk.members)} modules, "
        f"{len(trunk.stack.calls) if trunk.stack else 0} calls)"
        for trunk in trunks
    )
    return trunks, f"traced: the residual stream passes {said}"


def _unseen(module: nn.Module, found: Trace | None) -> str | None:
    """Why gradients of a block cannot be seen: it runs outside of the graph, as reversible layers do."""
    if found is None:
        return None
    calls = [call for call in found.root.within() if call.module is module]
    given = [call for call in calls if call.given is not None]
    if given and all(call.end is None for call in given) and not is_checkpointed(found):
        return "it runs outside of autograd's graph (reversible layers do)"
    return None


def _trunk(
    stack: Stack, names: dict[nn.Module, str], ids: torch.Size | None, prefix: str, by_name: dict[str, nn.Module]
) -> _Trunk:
    calls = {call.module: call for call in reversed(stack.calls)}
    modules = list(stack.modules)
    containers = {names[module].rpartition(".")[0] for module in modules}
    listed = by_name.get(next(iter(containers)))
    if len(containers) == 1 and isinstance(listed, nn.ModuleList):  # with those that this pass had no use for
        every = [child for child in listed if _parameters(child)]
        if [child for child in every if child in calls] == modules:
            modules = every
    members = []
    for number, module in enumerate(modules):
        call = calls.get(module)
        shape = None if call is None else call.given
        layout = "BTD" if shape is None else _layout(shape, ids)
        why = None
        if layout is None:
            why = f"its output has shape {tuple(shape or ())}, not (sequences, positions, width): several streams"
        members.append(_Member(names[module], number + 1, module, call, layout or "BTD", why))
    return _Trunk(members, names, stack, prefix, ids)


def _layout(shape: torch.Size, ids: torch.Size | None) -> str | None:
    """In which order a block has sequences, positions and width."""
    if len(shape) == 2:
        return "ND" if ids is not None and shape[0] == ids.numel() else None
    if len(shape) != 3:
        return None
    if ids is not None and shape[:2] == (ids[1], ids[0]):
        return "TBD"
    if ids is not None and shape[0] == ids[0] and shape[2] == ids[1] != shape[1]:
        return "BDT"
    return "BTD"


def _layout_of(block: nn.Module) -> str:
    """The same, told from the structure of a block that could not be traced."""
    attention = getattr(block, "self_attn", None)
    return "TBD" if isinstance(attention, nn.MultiheadAttention) and not attention.batch_first else "BTD"


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
        fits = isinstance(module, nn.ModuleList) or (isinstance(module, nn.Sequential) and alike)
        if fits and children and all(_parameters(child) for child in children):
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


def _named_weight(name: str, module: nn.Module, trunks: list[_Trunk]) -> Site:
    for trunk in trunks:
        for member in trunk.members:
            if name == member.name or name.startswith(f"{member.name}."):
                return Site(name, f"{trunk.prefix}weight", member.layer, module, member.layout)
    blocks = [member.name for trunk in trunks for member in trunk.members]
    raise broken("a weight site must lie inside a block", name, f"blocks are {blocks[0]} … {blocks[-1]}")


def _embedding(
    model: nn.Module, names: dict[str, nn.Module], found: Trace | None
) -> tuple[Site | None, tuple[nn.Module, ...]]:
    """The table of tokens, and the modules that are called to look up its rows."""
    own = {found.ids, found.source} - {None} if found is not None else set()
    looking = [] if found is None else [call for call in found.root.within() if _looks_up(call)]
    called = [call.module for call in looking if {shape for _, _, shape in call.indices} & own]
    named = (_call(module, "get_input_embeddings") for module in (model, *names.values()))
    module = next((m for m in named if isinstance(m, nn.Module) and getattr(m, "weight", None) is not None), None)
    if module is None:
        # Positions have a table too, maybe a larger one; the vocabulary is what some linear map goes back to.
        outputs = {shape[1] for m in names.values() if (shape := linear_shape(m))}
        tables = [m for m in names.values() if isinstance(m, nn.Embedding)]
        tables = [m for m in tables if m in called] or tables
        module = max(tables, key=lambda t: (t.num_embeddings in outputs, t.num_embeddings), default=None)
    if module is None or (found is not None and found.ids is None and found.source is None):
        return None, ()
    weight = getattr(module, "weight", None)
    lookups = tuple(dict.fromkeys(c.module for c in looking if getattr(c.module, "weight", None) is weight))
    if found is not None and not lookups:
        return None, ()
    name = next((name for name, other in names.items() if other is module), "embedding")
    return Site(name, "embedding", 0, module), lookups or (module,)


def _looks_up(call: Called) -> bool:
    return call.reads_ids and getattr(call.module, "weight", None) is not None


def _call(model: nn.Module, method: str) -> Any:
    try:
        return getattr(model, method)()
    except (AttributeError, NotImplementedError):
        return None
