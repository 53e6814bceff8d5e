"""A model of a configuration without its weights, on the meta device: enough to see what it is made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from anisoscope.errors import AnisoscopeError
from anisoscope.models.cards import own_random, read_configuration
from anisoscope.models.located import Located, library, needs_gguf, quiet, reason

_AUTOS = ("AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForSeq2SeqLM", "AutoModel")


def skeleton_of(located: Located, *, trust_remote_code: bool = False) -> nn.Module:
    """The model that a configuration describes: of the class that it names, else of the first kind that there is."""
    needs_gguf(located)
    config = read_configuration(located, trust_remote_code)
    named = [getattr(library(), name, None) for name in getattr(config, "architectures", None) or ()]
    try:
        with quiet(), own_random(0), torch.device("meta"):
            for made in named:
                if made is not None and hasattr(made, "_from_config"):
                    return made._from_config(config)
            return _of_kind(config, trust_remote_code)
    except AnisoscopeError:
        raise
    except Exception as error:
        raise AnisoscopeError(
            f"{located.name} cannot be built from its configuration: {reason(error)}; is transformers"
            f" {library().__version__} new enough for it?"
        ) from error


def _of_kind(config: Any, trust_remote_code: bool) -> nn.Module:
    transformers = library()
    for name in _AUTOS:
        auto = getattr(transformers, name)
        if type(config) in auto._model_mapping:
            return auto.from_config(config)
        if name in (getattr(config, "auto_map", None) or {}) and trust_remote_code:
            return auto.from_config(config, trust_remote_code=True)
    raise AnisoscopeError(
        f"transformers {transformers.__version__} has no model for a configuration of type {config.model_type}"
    )
