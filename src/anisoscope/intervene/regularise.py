"""A penalty on layers of a model, beside any training loop."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.capture.calls import Batch, as_batch
from anisoscope.capture.compiled import is_compiled
from anisoscope.capture.sites import Sites, choose_sites, unwrapped
from anisoscope.capture.taps import in_backward
from anisoscope.errors import AnisoscopeError, broken

PenaltyFunction = Callable[..., Tensor]


class Regularizer:
    """The weighted penalty of some layers' residual streams, to be added to the loss of the same forward pass.

    ``penalty`` is one of this module, or any function ``(x, mask) -> scalar``; each layer has a copy of its own.
    ``layers`` are numbers of blocks from 1 (all by default). Hooks exist inside ``with``. With weight 0 nothing is
    computed and the training is bit-identical to one without it. Under data parallelism the penalties of this module
    are those of the whole batch.

    With ``every`` each layer is asked in every n-th pass only, with n times the weight; layers take turns, so that no
    pass is much dearer than another. By default it is the penalty's own: 20 for ``SpectralDecay``, else 1.

    >>> import torch
    >>> from anisoscope.models.twins import ModelShape, build
    >>> model = build("twin", "decoder", ModelShape(layers=2, width=16, heads=2, vocabulary=50, length=16), seed=0)
    >>> ids = torch.randint(50, (4, 16), generator=torch.Generator().manual_seed(0))
    >>> from anisoscope.regularizers import IStar
    >>> with Regularizer(model, IStar(), weight=0.1, layers=(1, 2)) as penalty:
    ...     loss = model(input_ids=ids, labels=ids).loss + penalty()
    ...     loss.backward()
    >>> penalty.values.keys()
    dict_keys([1, 2])
    """

    def __init__(
        self,
        model: nn.Module,
        penalty: PenaltyFunction,
        *,
        weight: float,
        layers: Sequence[int] | None = None,
        sites: Sites | Sequence[str] | None = None,
        every: int | None = None,
    ) -> None:
        found = choose_sites(model, sites)
        blocks = len(found.blocks)
        chosen = tuple(range(1, blocks + 1)) if layers is None else tuple(layers)
        wrong = [layer for layer in chosen if isinstance(layer, bool) or layer not in range(1, blocks + 1)]
        if wrong or not chosen or len(set(chosen)) < len(chosen):
            raise broken(f"layers must be different numbers in 1…{blocks}", chosen, "leave them out for all")
        if not isinstance(weight, int | float) or not torch.isfinite(torch.tensor(float(weight))):
            raise broken("the weight must be a finite number", repr(weight), "use 0 for none")
        if is_compiled(model) or any(is_compiled(site.module) for site in found.blocks):
            raise broken(
                "a model with penalties must not be compiled: hooks that come later never run in its graph",
                type(unwrapped(model)).__name__,
                "pass the model before torch.compile, and train it uncompiled",
            )
        every = getattr(penalty, "every", 1) if every is None else every
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise broken("every must be a whole number of passes, from 1", repr(every), "use 1 for each pass")
        self.weight, self._model, self._sites = float(weight), model, found
        self.every = every
        self._passes = 0  # that were asked for
        self.penalties = {layer: copy.deepcopy(penalty) for layer in chosen}
        self.values: dict[int, Tensor] = {}
        """The penalty of each layer when it was last asked, without gradient and weight."""
        self._hidden: dict[int, Tensor] = {}
        self._batch: Batch | None = None
        self._called = 0
        self._off: list[Callable[[], None]] = []

    def __enter__(self) -> Regularizer:
        """Attach; with weight 0 there is nothing to attach."""
        if self.weight:
            root = unwrapped(self._model)
            self._off.append(root.register_forward_pre_hook(self._begin, with_kwargs=True).remove)
            for module in {site.module: None for site in self._sites.blocks}:
                self._off.append(module.register_forward_hook(self._left).remove)
        return self

    def __exit__(self, *error: object) -> None:
        """Detach."""
        while self._off:
            self._off.pop()()
        self._hidden.clear()

    def __call__(self) -> Tensor:
        """``weight · every · Σ penalty`` over the layers whose turn it is, of the latest forward pass.

        Each pass can be asked for once.
        """
        nothing = torch.zeros((), device=next(self._model.parameters()).device)
        if not self.weight:
            return nothing
        hidden, self._hidden = self._hidden, {}
        due = self._due()
        self._passes += 1
        missing = sorted(due - hidden.keys())
        if missing:
            raise AnisoscopeError(
                f"no forward pass went through layers {missing} since the last call: call the model inside `with`, and "
                "the penalty once after each pass"
            )
        if not due:
            return nothing
        mask = None if self._batch is None else self._batch.mask
        total: Tensor | None = None
        with torch.autocast(next(iter(hidden.values())).device.type, enabled=False):
            for layer in sorted(due):
                x, penalty = hidden[layer], self.penalties[layer]
                found = penalty(x, None if mask is None else mask.to(x.device))
                self.values[layer] = found.detach()
                total = found if total is None else total + found.to(total.device)
        assert total is not None, "there is at least one layer"
        return self.weight * self.every * total

    def _due(self) -> set[int]:
        """The layers whose turn it is: their places are spread evenly over ``every`` passes."""
        count, place = len(self.penalties), self._passes % self.every
        return {layer for k, layer in enumerate(self.penalties) if k * self.every // count == place}

    def state_dict(self) -> dict[str, Tensor]:
        """What penalties remember, for a checkpoint."""
        own = {
            f"{layer}.{name}": value
            for layer, penalty in self.penalties.items()
            for name, value in getattr(penalty, "state_dict", dict)().items()
        }
        return own | {"passes": torch.tensor(self._passes)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where a checkpoint was."""
        self._passes = int(state.get("passes", 0))
        for layer, penalty in self.penalties.items():
            own = {name.partition(".")[2]: value for name, value in state.items() if name.startswith(f"{layer}.")}
            getattr(penalty, "load_state_dict", lambda given: None)(own)

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not in_backward():
            self._batch, self._called = as_batch(0, module, args, kwargs), 0
            self._hidden.clear()

    def _left(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if in_backward():  # a recomputation
            return
        self._called += 1
        if torch.is_grad_enabled() and self._called in self._due():
            hidden = output
            while not isinstance(hidden, Tensor):
                hidden = next(iter(hidden.values())) if isinstance(hidden, dict) else hidden[0]
            attention = getattr(module, "self_attn", None)
            turned = isinstance(attention, nn.MultiheadAttention) and not attention.batch_first
            self._hidden[self._called] = hidden.transpose(0, 1) if turned else hidden
