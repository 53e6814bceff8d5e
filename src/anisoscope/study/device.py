"""The device of a command: one check for all of them. Needs no torch to see whether a name is one."""

from __future__ import annotations

import os
import re
from typing import Annotated

from pydantic import AfterValidator

from anisoscope.errors import AnisoscopeError

_CHOSEN = "ANISOSCOPE_DEVICE_CHOSEN"
_NAMES = "auto, cpu, cuda, cuda:1 … or mps"


def _known(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        raise ValueError(f"must be {_NAMES}")
    return name


Device = Annotated[str, AfterValidator(_known)]
"""A setting that names a device."""


def resolve_device(name: str) -> str:
    """The device that is used; raises for one that this machine does not have."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(number or 0) >= count:
            there = "no GPU that torch can use" if not count else f"{count} GPU{'' if count == 1 else 's'}"
            raise AnisoscopeError(
                f"--device {name} needs GPU number {number or 0}, and this machine has {there}; use --device auto, or "
                "see: anisoscope doctor"
            )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise AnisoscopeError("--device mps needs an Apple GPU, and torch finds none; use --device auto")
    return name


def select_device(name: str) -> None:
    """Make the device of a training the one that is used: of several GPUs a Trainer would take the first, or all.

    To be called before anything is put on a GPU.
    """
    if os.environ.get(_CHOSEN) == name:
        return
    found = resolve_device(name) if name != "auto" else name
    kind, _, number = found.partition(":")
    if kind == "cuda" and number:
        visible = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[int(number)] if visible else number
        os.environ[_CHOSEN] = name
