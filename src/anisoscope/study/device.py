"""The device of a command: one check for all of them. Needs no torch to see whether a name is one."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

from pydantic import AfterValidator

from anisoscope.errors import BrokenRuleError, broken

_CHOSEN = "ANISOSCOPE_DEVICE_CHOSEN"
_NAMES = "auto, cpu, cuda, cuda:1 … or mps"


def _known(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        raise ValueError(f"must be {_NAMES}")
    return name


Device = Annotated[str, AfterValidator(_known)]
"""A setting that names a device."""


def require_device(name: str) -> None:
    """Raise for a device that this machine cannot have, without torch: its build, the driver and the platform tell.

    Whether the driver has a GPU of that number is left to ``resolve_device``, which asks torch.
    """
    kind, _, number = name.partition(":")
    if kind == "mps" and sys.platform != "darwin":
        raise _absent(name, 0)
    if kind == "cuda" and (most := _most_gpus()) is not None and int(number or 0) >= most:
        raise _absent(name, most)


def resolve_device(name: str) -> str:
    """The device that is used; raises for one that this machine does not have."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(number or 0) >= count:
            raise _absent(name, count)
    if kind == "mps" and not torch.backends.mps.is_available():
        raise _absent(name, 0)
    return name


def _absent(name: str, count: int) -> BrokenRuleError:
    if name == "mps":
        return broken("--device mps must have an Apple GPU that torch can use", "none", "use --device auto")
    there = "no GPU that torch can use" if not count else f"{count} GPU{'' if count == 1 else 's'}"
    number = name.partition(":")[2] or 0
    return broken(
        f"--device {name} must have GPU number {number}", there, "use --device auto, or see: anisoscope doctor"
    )


def _most_gpus() -> int | None:
    """How many GPUs torch can find here at most, as far as that is certain without torch; None where it is not."""
    try:
        build = version("torch").partition("+")[2]
    except PackageNotFoundError:
        return None
    if build == "cpu" or sys.platform == "darwin":
        return 0
    if build.startswith("cu") and not _has_cuda_driver():
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if visible is None else len([each for each in visible.split(",") if each.strip() not in ("", "-1")])


def _has_cuda_driver() -> bool:
    """Whether the driver's library can be opened; it is not initialised, which would spoil it for forked children."""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


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
