"""Models with their weights, or with none: what was located and described is made here.

The steps are ``locate`` (where is it), ``describe`` (what is it), then ``load``, or ``untrained`` for a model of the
same configuration that has learnt nothing. Weights are read from safetensors; a pickle only if asked, and then with
``weights_only=True``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from anisoscope.errors import AnisoscopeError, DamagedFileError
from anisoscope.models.cards import (
    Card,
    describe,
    dtype_option,
    is_body,
    maker_of,
    own_random,
    stored_names,
)
from anisoscope.models.catalogue import Objective
from anisoscope.models.fingerprints import weight_files
from anisoscope.models.located import (
    Located,
    TokeniserParts,
    converted_tokeniser,
    library,
    locate,
    needs_gguf,
    quiet,
    reason,
)

__all__ = [
    "Card",
    "Located",
    "Objective",
    "TokeniserParts",
    "converted_tokeniser",
    "describe",
    "load",
    "locate",
    "untrained",
]
_NAMED = 4  # tensors that a message names


def load(
    card: Card,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    device_map: str | None = None,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
    seed: int = 0,
) -> nn.Module:
    """The model with its weights, in eval mode; ``seed`` matters only where a head has to be made."""
    located = card.located
    needs_gguf(located)
    files = weight_files(located.path, allow_pickle=allow_pickle)
    pickled = [file for file in files if file.suffix == ".bin"]
    for file in files:
        if file.suffix == ".safetensors":
            stored_names(file)  # a file cut off is named here; transformers would not say which
    if pickled:
        warnings.warn(f"{pickled[0]} is a pickle: it is read with weights_only=True", stacklevel=2)
    if device_map is not None and importlib.util.find_spec("accelerate") is None:
        raise AnisoscopeError('--device-map needs accelerate: pip install "anisoscope[models]"')
    maker = maker_of(located, card.config, card.objective, trust_remote_code)
    options: dict[str, Any] = {"device_map": device_map} if device_map is not None else {}
    if maker.remote:
        options["trust_remote_code"] = True
    if located.is_gguf:
        options |= _expanded(located)
    else:
        options |= {"use_safetensors": not pickled, "weights_only": True}
    # The bar of a GGUF file is drawn past transformers' switch.
    unseen = contextlib.redirect_stderr(io.StringIO()) if located.is_gguf else contextlib.nullcontext()
    try:
        with quiet(), unseen, own_random(seed):
            model, told = maker.auto.from_pretrained(
                **located.source,
                config=card.config,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are refused below, by name
                **dtype_option(dtype),
                **options,
            )
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if pickled or located.is_gguf:
            raise DamagedFileError(f"{files[0]} cannot be read: {reason(error)}; is the file complete?") from error
        raise AnisoscopeError(f"{located.path} cannot be loaded: {reason(error)}") from error
    _refuse_misfits(card, model, told)
    _refuse_unread(files, model)
    if device_map is None:
        _refuse_empty(card, model)
        model = model.to(device)
    return model.requires_grad_(True).eval()


def untrained(
    card: Card,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    trust_remote_code: bool = False,
) -> nn.Module:
    """The model of the same configuration with fresh weights, the same ones for the same seed; in eval mode."""
    maker = maker_of(card.located, card.config, card.objective, trust_remote_code)
    with quiet(), own_random(seed):
        model = maker.fresh(card.config, dtype)
    return model.to(device).requires_grad_(True).eval()


def _expanded(located: Located) -> dict[str, Any]:
    """Where transformers could leave weights in GGUF's blocks, which have no gradient, it is told not to."""
    kind = getattr(library(), "GgufConfig", None)
    return {"quantization_config": kind(gguf_file=located.path.name, dequantize=True)} if kind else {}


def _refuse_misfits(card: Card, model: nn.Module, told: dict[str, Any]) -> None:
    path = card.located.path
    mismatched = {name: (tuple(stored), tuple(asked)) for name, stored, asked in told["mismatched_keys"]}
    if mismatched:
        name = min(mismatched)
        stored, asked = ("×".join(map(str, shape)) or "one number" for shape in mismatched[name])
        raise AnisoscopeError(
            f"{path} does not fit its config.json: {_some(mismatched)}; {name} is {stored} in the file and {asked} in"
            " the configuration"
        )
    missing = {name for name in told["missing_keys"] if not card.new_head or is_body(name, model)}
    if missing:
        raise AnisoscopeError(
            f"{path} lacks weights that its configuration asks for: {_some(missing)}; are all of its files there, and"
            " is it a checkpoint of this model?"
        )
    # Poolers and other heads may be left over; a layer that the configuration does not know of may not.
    known = {_numberless(name) for name in model.state_dict()}
    layers = {name for name in told["unexpected_keys"] if re.search(r"\.\d+\.", name) and _numberless(name) in known}
    if layers:
        raise AnisoscopeError(f"{path} has more layers than its config.json says: {_some(layers)} would be left out")


def _refuse_unread(files: Iterable[Path], model: nn.Module) -> None:
    """Some versions of transformers (4.48) drop the bias of RoBERTa's and ALBERT's head, and report nothing."""
    from safetensors import safe_open

    head = {
        name: tensor for name, tensor in model.state_dict().items() if tensor.ndim == 1 and not is_body(name, model)
    }
    for file in files:
        if not head or file.suffix != ".safetensors":
            continue
        with safe_open(str(file), framework="pt") as opened:
            for name in head.keys() & set(opened.keys()):
                stored = opened.get_tensor(name).to(head[name].dtype)
                if not head[name].is_meta and not torch.allclose(stored, head[name].cpu(), 0, 0, equal_nan=True):
                    raise AnisoscopeError(
                        f"transformers {library().__version__} did not read {name} of {file}; update transformers"
                    )


def _refuse_empty(card: Card, model: nn.Module) -> None:
    empty = [name for name, tensor in model.named_parameters() if tensor.is_meta]
    if empty:
        raise AnisoscopeError(f"{card.located.path} left weights without values: {_some(empty)}; is it complete?")


def _numberless(name: str) -> str:
    return re.sub(r"\.\d+\.", ".#.", name)


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return ", ".join(ordered[:_NAMED]) + more
