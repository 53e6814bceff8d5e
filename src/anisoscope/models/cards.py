"""What a model is, known from its configuration alone: objective, sizes, and code of its own that it would run."""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from packaging.version import Version
from torch import nn

from anisoscope.errors import AnisoscopeError, DamagedFileError, broken
from anisoscope.models.catalogue import Objective, find
from anisoscope.models.fingerprints import weight_files
from anisoscope.models.located import Located, library, needs_gguf, quiet, reason, stamp_of

_AUTO = {"causal": "AutoModelForCausalLM", "masked": "AutoModelForMaskedLM"}
_ENDINGS: dict[str, Objective] = {"ForCausalLM": "causal", "LMHeadModel": "causal", "ForMaskedLM": "masked"}


@dataclass(frozen=True, slots=True, eq=False)
class Card:
    """A model before its weights are read; ``notes`` are what a reader of its numbers has to know.

    ``new_head`` says that the files hold no map to the vocabulary, so that one is made at random when they are loaded.
    """

    located: Located
    config: Any  # transformers' PretrainedConfig
    objective: Objective
    layers: int
    width: int
    vocabulary: int
    parameters: int
    dtype: torch.dtype
    notes: tuple[str, ...] = ()
    new_head: bool = False


@dataclass(frozen=True, slots=True)
class Maker:
    """The class of transformers that makes a model, and whether code from the model's repository is run for it."""

    auto: Any
    remote: bool

    def fresh(self, config: Any, dtype: torch.dtype) -> nn.Module:
        """A model with new weights; the configuration given is left as it is."""
        options = {"trust_remote_code": True} if self.remote else {}
        return self.auto.from_config(copy.deepcopy(config), **dtype_option(dtype), **options)


def describe(located: Located, *, objective: Objective | None = None, trust_remote_code: bool = False) -> Card:
    """Read the configuration and build the model without memory, on the meta device, to count its parameters."""
    needs_gguf(located)
    config = read_configuration(located, trust_remote_code)
    notes: list[str] = []
    chosen = objective or _objective(located, config)
    maker = maker_of(located, config, chosen, trust_remote_code)
    try:
        with quiet(), own_random(0), torch.device("meta"):
            skeleton = maker.fresh(config, torch.float32)
    except Exception as error:
        raise AnisoscopeError(
            f"{located.name} cannot be built from its configuration: {reason(error)}; is transformers"
            f" {library().__version__} new enough for it?"
        ) from error
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    if min(int(text.num_hidden_layers), int(text.hidden_size), int(text.vocab_size)) < 1:
        raise AnisoscopeError(
            f"the configuration of {located.name} cannot be used: it says {text.num_hidden_layers} layers of width "
            f"{text.hidden_size} and {text.vocab_size} tokens"
        )
    new_head = _head_is_new(located, config, skeleton)
    if new_head:
        notes.append(
            "the checkpoint has no head that maps to the vocabulary: the head is new, random and seeded, so losses and"
            " gradients are not those of a trained model"
        )
    if chosen == "causal" and _known_objective(config) == "masked":
        notes.append(f"a {config.model_type} attends to both sides: as a causal model it sees what it is to predict")
    if located.is_gguf:
        notes.append("the weights are of a GGUF file: quantised ones are expanded, what was rounded off stays lost")
    if maker.remote:
        notes.append(f"code of its own repository was run: {', '.join(_remote_code(config.to_dict()))}")
    return Card(
        located=located,
        config=config,
        objective=chosen,
        layers=int(text.num_hidden_layers),
        width=int(text.hidden_size),
        vocabulary=int(text.vocab_size),
        parameters=sum(one.numel() for one in skeleton.parameters()),
        dtype=_stored_dtype(config),
        notes=tuple(notes),
        new_head=new_head,
    )


def maker_of(located: Located, config: Any, objective: Objective, trust_remote_code: bool) -> Maker:
    """The class for an objective: transformers' own where it has one, even if foreign code is allowed."""
    transformers = library()
    auto = getattr(transformers, _AUTO[objective])
    if type(config) in auto._model_mapping:
        return Maker(auto, remote=False)
    if _AUTO[objective] in (getattr(config, "auto_map", None) or {}):
        if not trust_remote_code:
            raise _not_trusted(located, config.to_dict())
        return Maker(auto, remote=True)
    other = {"causal": "masked", "masked": "causal"}[objective]
    raise broken(
        f"transformers {transformers.__version__} must have a {objective} language model of the kind that is asked for",
        f"{located.name} of type {config.model_type}",
        f"pass --objective {other}, or choose another model",
    )


@contextmanager
def own_random(seed: int) -> Iterator[None]:
    """Random numbers from ``seed``, on every device; the caller's own come out as if nothing had happened."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def dtype_option(dtype: torch.dtype) -> dict[str, torch.dtype]:
    """The option that sets the precision, which transformers renamed in 4.56."""
    release = Version(library().__version__).release  # of a build in between too: 4.56.0.dev0
    return {"dtype" if release >= (4, 56) else "torch_dtype": dtype}


def is_body(name: str, model: nn.Module) -> bool:
    """Whether a weight is of the model proper, not of the head on top."""
    prefix = getattr(model, "base_model_prefix", "")
    return not (prefix and hasattr(model, prefix)) or name.startswith(f"{prefix}.")


def read_configuration(located: Located, trust_remote_code: bool) -> Any:
    """The configuration of a model, without its weights."""
    transformers = library()
    importlib.import_module("anisoscope.models.twins")  # makes our own models known to transformers
    options: dict[str, Any] = {"local_files_only": True}
    if not located.is_gguf:
        file = located.path / "config.json"
        try:
            told = json.loads(file.read_text(encoding="utf-8"))
            kind = told.get("model_type")
        except (OSError, ValueError, AttributeError) as error:
            raise DamagedFileError(f"{file} cannot be read: {error}; download it again") from error
        if kind not in transformers.CONFIG_MAPPING:
            if "AutoConfig" not in (told.get("auto_map") or {}):
                raise AnisoscopeError(
                    f"{file} is of a model_type that transformers {transformers.__version__} does not know, {kind}:"
                    " update transformers, or choose another model"
                )
            if not trust_remote_code:
                raise _not_trusted(located, told)
            options["trust_remote_code"] = True
    try:
        if located.is_gguf:
            return copy.deepcopy(_gguf_configuration(tuple(sorted(located.source.items())), stamp_of(located.path)))
        with quiet():
            return transformers.AutoConfig.from_pretrained(**located.source, **options)
    except Exception as error:
        raise AnisoscopeError(
            f"the configuration of {located.path} cannot be read: {reason(error)}; is it complete?"
        ) from error


@lru_cache(maxsize=4)
def _gguf_configuration(source: tuple[tuple[str, str], ...], stamp: object) -> Any:
    """The configuration inside a ``.gguf`` file, which takes seconds to find and is asked for again."""
    with quiet():
        return library().AutoConfig.from_pretrained(**dict(source), local_files_only=True)


def _remote_code(told: dict[str, Any]) -> list[str]:
    """Files that ``auto_map`` names; one of another repository is written ``OWNER/NAME--file.Class``."""
    found = (told.get("auto_map") or {}).values()
    names = [one for value in found for one in (value if isinstance(value, (list, tuple)) else [value]) if one]
    return sorted({f"{name.rpartition('.')[0]}.py".replace("--", ": ") for name in names})


def _not_trusted(located: Located, told: dict[str, Any]) -> AnisoscopeError:
    return AnisoscopeError(
        f"{located.name} is made by code of its own repository ({', '.join(_remote_code(told))}), which transformers"
        f" {library().__version__} does not have; it would be run on this machine with your rights, so it is off by"
        " default: read it, then pass --trust-remote-code"
    )


def _named_objective(config: Any) -> Objective | None:
    names = getattr(config, "architectures", None) or []
    return next((what for name in names for ending, what in _ENDINGS.items() if name.endswith(ending)), None)


def _known_objective(config: Any) -> Objective | None:
    """The objective of a model type, by the classes that transformers has for it."""
    transformers = library()
    own = getattr(config, "causal", None)  # twins say it themselves
    if isinstance(own, bool):
        return "causal" if own else "masked"
    causal, masked = (type(config) in getattr(transformers, _AUTO[one])._model_mapping for one in ("causal", "masked"))
    if getattr(config, "is_encoder_decoder", False):
        return None
    if causal and masked:  # BERT and its kin have a causal class too, for those who make a decoder of one
        return "causal" if getattr(config, "is_decoder", False) else "masked"
    return "causal" if causal else "masked" if masked else None


def _objective(located: Located, config: Any) -> Objective:
    entry = find(located.name)
    listed = entry.objective if entry and entry.model_type == config.model_type else None
    found = _named_objective(config) or listed or _known_objective(config)
    if found is None:
        raise broken(
            "the configuration must state whether the model predicts the next token or masked ones",
            ", ".join(getattr(config, "architectures", None) or ["no architectures"]),
            "pass --objective causal or --objective masked",
        )
    return found


def _head_is_new(located: Located, config: Any, skeleton: nn.Module) -> bool:
    """Whether the files lack the head: told by the architecture, or else by the names of the stored tensors."""
    # A head tied to the embedding is no parameter of its own, and needs no file.
    head = {name for name, _ in skeleton.named_parameters() if not is_body(name, skeleton)}
    if not head or located.is_gguf or _named_objective(config) is not None:
        return False
    if not any(located.path.glob("*.safetensors")):
        if not any(located.path.glob("*.bin")):
            return False  # a configuration alone, for an untrained model
        return not any(str(name).endswith("ForPreTraining") for name in getattr(config, "architectures", None) or [])
    return head.isdisjoint(name for file in weight_files(located.path) for name in stored_names(file))


def stored_names(file: Any) -> list[str]:
    """Names of the tensors of a safetensors file; opening it checks that it is whole."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="pt") as opened:
            return list(opened.keys())
    except (SafetensorError, OSError) as error:
        raise DamagedFileError(
            f"{file} is not a complete safetensors file: {reason(error)}; download it again"
        ) from error


def _stored_dtype(config: Any) -> torch.dtype:
    told = getattr(config, next(iter(dtype_option(torch.float32))), None)
    if isinstance(told, str):
        told = getattr(torch, told.removeprefix("torch."), None)
    return told if isinstance(told, torch.dtype) else torch.float32
