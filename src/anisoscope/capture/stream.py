"""Which modules the residual stream passes, found from a trace of one forward pass.

The calls that one call makes are candidates if they take and give hidden states of one width. Such a chain of calls
*carries* the residual stream if nothing gets from before a call to after the next but through what that call gives.
Attention and MLP of a block with skip connections fail that test, for the stream goes round them; the block passes it.
Of all chains that pass, the one with the most parameters is taken, and what merely wraps a chain gives way to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from anisoscope.capture.trace import Called, Trace

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_CARRIES = 0.5  # share of the calls of a chain that pass the test: some models add what entered to a few blocks
_MOST_OF = 0.5  # share of the parameters that what is wrapped has of its wrapper
_SMALLEST = 0.02  # share of the parameters of the larger stack that the other one has
_FEWEST = 0.2  # share of the parameters of the model below which a chain is no trunk


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """A chain of calls that carries a residual stream, and the call that makes them."""

    within: Called
    calls: tuple[Called, ...]

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """Each module once, in the order of first calls."""
        return tuple(dict.fromkeys(call.module for call in self.calls))

    def owner(self) -> Called | None:
        """The innermost call around the chain that was given token ids."""
        call: Called | None = self.within
        while call is not None and not call.reads_ids:
            call = call.parent
        return call


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """The main chain of a model and, of an encoder-decoder, the one of the encoder."""

    main: Stack
    encoder: Stack | None


def find_stream(trace: Trace, names: dict[nn.Module, str], model: nn.Module) -> Stream | None:
    """The chains of a model; ``None`` where no chain carries a stream."""
    found = [stack for stack in _candidates(trace, names, model) if _carries(stack)]
    if not found:
        return None
    whole = max(_size(model), 1)
    matrices = [stack for stack in found if any(_has_matrix(module) for module in stack.modules)]
    best = max(matrices or found, key=lambda stack: _size(*stack.modules))
    best = _unwrapped(best, found, names, model)
    if _size(*best.modules) < _FEWEST * _trunk(whole, model) and matrices:
        bare = [stack for stack in found if stack not in matrices]  # of lists of attention and MLP, the norms
        listed = max(bare, key=lambda stack: (len(stack.calls), _last(stack)), default=best)
        best = listed if len(listed.calls) > 1 else best
    pairs = [stack for stack in found if _apart(stack, best) and (_feeds(stack, best) or _feeds(best, stack))]
    pairs = [stack for stack in pairs if _size(*stack.modules) > _SMALLEST * _size(*best.modules)]
    if not pairs or not trace.two_inputs:
        return Stream(best, None)
    other = _unwrapped(max(pairs, key=lambda stack: _size(*stack.modules)), pairs, names, model)
    return Stream(best, other) if _feeds(other, best) else Stream(other, best)


def is_checkpointed(trace: Trace) -> bool:
    """Whether blocks run outside of the graph because they are run again on the way back (reentrant checkpointing)."""
    open_nodes = [node for node in trace.root.ends if node is not None]
    seen = set(open_nodes)
    while open_nodes:
        node = open_nodes.pop()
        if node.name() == "CheckpointFunctionBackward":
            return True
        below = {each for each, _ in node.next_functions if each is not None} - seen
        seen |= below
        open_nodes += below
    return False


def _candidates(trace: Trace, names: dict[nn.Module, str], model: nn.Module) -> Iterable[Stack]:
    modules = dict(model.named_modules())
    seen: set[nn.Module] = set()
    for call in trace.root.within():
        if call.module in seen:
            continue
        seen.add(call.module)
        alike = [inner for inner in call.inner if _keeps_width(inner) and inner.module in names]
        alike = [inner for inner in alike if any(True for _ in inner.module.parameters())]
        if not alike:
            continue
        trunk = [inner for inner in alike if _has_matrix(inner.module) and any(inner.module.children())]
        trunk = _of_one_kind(trunk, names, modules)
        groups = [trunk] if trunk else []
        for kind in dict.fromkeys(_numberless(names[inner.module]) for inner in alike):
            members = [inner for inner in alike if _numberless(names[inner.module]) == kind]
            if kind.count("*") and members not in groups:
                groups.append(members)
        for group in groups:
            yield Stack(call, tuple(group))


def _numberless(name: str) -> str:
    """A name with its numbers left out: members of one list, or the same part of each of them, have it in common."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _of_one_kind(calls: list[Called], names: dict[nn.Module, str], modules: dict[str, nn.Module]) -> list[Called]:
    """Without what stands beside the chain: a last projection, where blocks are kept in lists or share a class."""
    listed = [call for call in calls if isinstance(modules.get(_container(call.module, names)), _CONTAINERS)]
    if listed:
        return listed
    count = {type(call.module): 0 for call in calls}
    for module in dict.fromkeys(call.module for call in calls):
        count[type(module)] += 1
    if max(count.values(), default=0) < 2:
        return calls
    return [call for call in calls if count[type(call.module)] > 1 or names[call.module][-1:].isdigit()]


def _unwrapped(best: Stack, found: Sequence[Stack], names: dict[nn.Module, str], model: nn.Module) -> Stack:
    """The chain inside what only wraps it: a model, an encoder, a list that is called as one."""
    modules = dict(model.named_modules())
    while True:
        kinds = {type(module) for module in best.modules}
        named = any(isinstance(modules.get(_container(module, names)), _CONTAINERS) for module in best.modules)
        if named or (len(best.modules) > 1 and len(kinds) < len(best.modules)):
            return best
        largest = max(best.calls, key=lambda call: _size(call.module))
        inside = set(largest.within())
        inner = [stack for stack in found if stack is not best and stack.within in inside]
        inner = [s for s in inner if any(_has_matrix(m) for m in s.modules)]
        chosen = max(inner, key=lambda stack: (_size(*stack.modules), len(stack.calls)), default=None)
        if chosen is None or _size(*chosen.modules) < _MOST_OF * _trunk(_size(largest.module), largest.module):
            return best
        best = chosen


def _carries(stack: Stack) -> bool:
    calls, good = stack.calls, 0
    for number, call in enumerate(calls):
        before = set(_nodes(calls[number - 1])) if number else {calls[0].start} - {None}
        after = _nodes(calls[number + 1]) if number + 1 < len(calls) else [stack.within.end]
        cut = set(_nodes(call))
        good += bool(before) and bool(cut) and not _reaches(after, before, cut)
    return good > _CARRIES * len(calls) or (len(calls) == 2 and good == 1)


def _feeds(first: Stack, second: Stack) -> bool:
    """Whether the second chain reads what the first one gives, and does not begin with it: encoder and decoder."""
    ends = set(_nodes(first.calls[-1]))
    begins, last = second.calls[0].start, second.calls[-1].end
    if not ends or begins is None or last is None or first.within is second.within:
        return False
    return _reaches([last], ends, set()) and not _reaches([begins], ends, set())


def _apart(a: Stack, b: Stack) -> bool:
    """Whether neither chain is inside the other, and they were not given the same ids."""
    inside = any(a.within in call.within() for call in b.calls) or any(b.within in call.within() for call in a.calls)
    return not inside and a.owner() is not b.owner()


def _reaches(tops: Iterable[Any], bottoms: set[Any], cut: set[Any]) -> bool:
    """Whether the graph leads from one of the tops down to one of the bottoms, round the cut."""
    open_nodes = [node for node in tops if node is not None and node not in cut]
    seen = set(open_nodes)
    while open_nodes:
        node = open_nodes.pop()
        if node in bottoms:
            return True
        for below, _ in node.next_functions:
            if below is not None and below not in seen and below not in cut:
                seen.add(below)
                open_nodes.append(below)
    return False


def _nodes(call: Called) -> list[Any]:
    return [node for node in call.ends if node is not None]


def _keeps_width(call: Called) -> bool:
    a, b = call.taken, call.given
    if a is None or b is None or len(a) != len(b) or call.end is None or call.start is None:
        return False
    return a == b or (len(a) > 2 and a[-1] == b[-1] and a[0] == b[0])


def _container(module: nn.Module, names: dict[nn.Module, str]) -> str:
    return names[module].rpartition(".")[0]


def _has_matrix(module: nn.Module) -> bool:
    return any(parameter.ndim > 1 for parameter in module.parameters())


def _last(stack: Stack) -> int:
    return stack.within.inner.index(stack.calls[-1])


def _size(*modules: nn.Module) -> int:
    found = {id(p): p.numel() for module in modules for p in module.parameters()}
    return sum(found.values())


def _trunk(whole: int, model: nn.Module) -> int:
    """Parameters of a model without its tables of tokens and positions, and without maps back to tokens."""
    found = {id(m.weight): m.weight for m in model.modules() if isinstance(m, nn.Embedding)}
    types = max((weight.shape[0] for weight in found.values()), default=0)
    heads = [m.weight for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == types]
    return whole - sum(weight.numel() for weight in ({id(w): w for w in heads} | found).values())
