"""A copy of a model that has its structure and code, and none of its numbers, to be run once without any trace.

Every parameter of the copy is a single zero, seen in the parameter's shape: a model of any size takes no memory, and a
product with such a weight is not computed, only its shape is. Activations of a few tokens are real tensors on the
host, so that code which looks at numbers (routing of tokens to experts) runs as it is. The model that is copied is read
and never run: its parameters, buffers, modes, hooks, counters and random generators stay as they are.
"""

from __future__ import annotations

import copy
import functools
import random
import types
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from anisoscope.errors import AnisoscopeError

_LARGEST_BUFFER = 1 << 22  # elements; a larger one is a single zero too
_LARGEST = 1 << 28  # elements of one result, a gigabyte: more is too much for a look
_IN_ALL = 1 << 35  # elements of all results; no limit of time, for all ranks must come to one choice
_LONGEST = 4096  # members of a container that are looked through
_PRODUCTS = frozenset(
    getattr(torch.ops.aten, name)
    for name in ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "convolution", "linear")
    if hasattr(torch.ops.aten, name)
)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOK_FLAGS = ("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called")


class Shadow:
    """The copy of a model; ``original`` finds the module that one of the copy stands for.

    >>> big = nn.Linear(8, 8, device="meta")
    >>> shadow = Shadow(nn.Sequential(big))
    >>> shadow.original[shadow.model[0]] is big, shadow.model[0].weight.untyped_storage().nbytes()
    (True, 4)
    """

    def __init__(self, model: nn.Module) -> None:
        self.original: dict[nn.Module, nn.Module] = {}
        self._made: dict[int, Any] = {}
        self._alive: list[Any] = []  # what was copied keeps its identity as long as the copy is made
        self.model = self._module(model)

    def _module(self, module: nn.Module) -> nn.Module:
        if id(module) in self._made:
            return self._made[id(module)]
        inner = getattr(module, "_orig_mod", None)  # what torch.compile wraps
        if isinstance(inner, nn.Module):
            self._made[id(module)] = found = self._module(inner)
            self.original[found] = module
            return found
        found = object.__new__(type(module))
        self._made[id(module)], self.original[found] = found, module
        state = dict(module.__dict__)
        for name in (*_HOOKS, *_HOOK_FLAGS):
            state[name] = OrderedDict()
        if "_old_forward" in state:  # accelerate puts its hooks round the forward of an instance
            state["forward"] = state["_old_forward"]
        state |= {"training": False, "_compiled_call_impl": None}
        state.pop("_hf_hook", None)
        for name in ("_parameters", "_buffers", "_modules"):
            state[name] = type(state[name])()
        vars(found).update(state)
        for name, parameter in module._parameters.items():
            found._parameters[name] = None if parameter is None else self._parameter(parameter)
        for name, buffer in module._buffers.items():
            found._buffers[name] = None if buffer is None else self._tensor(buffer)
        for name, child in module._modules.items():
            found._modules[name] = None if child is None else self._module(child)
        own = {"_parameters", "_buffers", "_modules", *_HOOKS, *_HOOK_FLAGS}
        for name, value in state.items():
            if name not in own:
                vars(found)[name] = self._value(value, deep=True)
        return found

    def _parameter(self, parameter: Tensor) -> nn.Parameter:
        return self._once(parameter, functools.partial(_zero_parameter, parameter))

    def _tensor(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, nn.Parameter):
            return self._parameter(tensor)
        return self._once(tensor, lambda: _copied(tensor))

    def _once(self, what: Any, make: Any) -> Any:
        if id(what) not in self._made:
            self._alive.append(what)
            self._made[id(what)] = make()
        return self._made[id(what)]

    def _value(self, value: Any, *, deep: bool) -> Any:
        """An attribute as the copy has it: whatever a forward pass may write to is its own."""
        if isinstance(value, nn.Module):
            return self._module(value)
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, torch.Generator):
            return self._once(value, lambda: _generator(value))
        if isinstance(value, random.Random | np.random.Generator | np.random.RandomState):
            return self._once(value, lambda: copy.deepcopy(value))
        if isinstance(value, types.MethodType):
            return types.MethodType(value.__func__, self._value(value.__self__, deep=False))
        if type(value) is functools.partial:
            args = [self._value(arg, deep=deep) for arg in value.args]
            kwargs = {name: self._value(arg, deep=deep) for name, arg in value.keywords.items()}
            return functools.partial(self._value(value.func, deep=deep), *args, **kwargs)
        if type(value) in (list, tuple, set, dict, OrderedDict):
            return self._container(value, deep) if len(value) <= _LONGEST else value
        if deep and hasattr(value, "__dict__") and not isinstance(value, type | types.FunctionType | types.ModuleType):
            return self._once(value, lambda: self._object(value))
        return value

    def _container(self, value: Any, deep: bool) -> Any:
        if isinstance(value, dict):
            return type(value)((key, self._value(part, deep=deep)) for key, part in value.items())
        return type(value)(self._value(part, deep=deep) for part in value)

    def _object(self, value: Any) -> Any:
        """A shallow copy of an object that a module holds, with its own tensors and containers; else the object."""
        try:
            found = copy.copy(value)
            for name, part in list(vars(value).items()):
                vars(found)[name] = self._value(part, deep=False)
        except Exception:
            return value
        return found


class _ShapesOnly(TorchDispatchMode):
    """Products with a weight that is a single zero are zero: only their shape is worked out.

    What takes too much memory or work is given up.
    """

    def __init__(self) -> None:
        super().__init__()
        self._elements = 0

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if args and _is_hollow(args[0]) and func._schema.is_mutable:  # a model that rescales its weights in place
            return args[0]
        if func.overloadpacket is getattr(torch.ops.aten, "_grouped_mm", None) and _is_hollow(args[1]):
            return args[0].new_zeros(*args[0].shape[:-1], args[1].shape[-1])  # one product an expert
        if func.overloadpacket in _PRODUCTS and any(_is_hollow(arg) for arg in args):
            shaped = func(*(_as_meta(arg) for arg in args), **{name: _as_meta(arg) for name, arg in kwargs.items()})
            return torch.zeros(shaped.shape, dtype=shaped.dtype, device="cpu")
        found = func(*args, **kwargs)
        if isinstance(found, Tensor) and not _is_hollow(found):
            self._elements += found.numel()
            if found.numel() > _LARGEST or self._elements > _IN_ALL:
                raise AnisoscopeError("a forward pass of a few tokens is too large for the host")
        return found


@contextmanager
def untouched() -> Iterator[None]:
    """Run a shadow: eagerly, without autocast, and with all random states as before afterwards."""
    python, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with (
            torch.random.fork_rng(devices=[]),
            torch.compiler.set_stance("force_eager"),
            torch.autocast("cpu", enabled=False),
            torch.enable_grad(),
            torch.device("cpu"),
            torch.autograd.graph.saved_tensors_hooks(lambda kept: None, lambda _: torch.empty(0)),  # no backward
            _ShapesOnly(),
        ):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_state)  # noqa: NPY002


def _zero_parameter(parameter: Tensor) -> nn.Parameter:
    return nn.Parameter(_zero(parameter.shape, _plain(parameter.dtype)), requires_grad=False)


def _zero(shape: Any, dtype: torch.dtype) -> Tensor:
    return torch.zeros((), dtype=dtype, device="cpu").expand(tuple(shape))


def _plain(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.is_floating_point else dtype


def _copied(tensor: Tensor) -> Tensor:
    dtype = _plain(tensor.dtype)
    if tensor.is_meta or hasattr(tensor, "full_tensor") or tensor.numel() > _LARGEST_BUFFER:
        return _zero(tensor.shape, dtype)
    return tensor.detach().to("cpu", dtype, copy=True)


def _generator(given: torch.Generator) -> torch.Generator:
    made = torch.Generator()
    return made.set_state(given.get_state()) if given.device.type == "cpu" else made.manual_seed(0)


def _is_hollow(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and tensor.ndim > 1 and tensor.numel() > 1 and not any(tensor.stride())


def _as_meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, Tensor) else value
