"""What users hand over, as a tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def as_tensor(x: Any) -> Tensor:
    """``x`` where it lies, and numbers and arrays on the CPU.

    ``torch.as_tensor`` would move it to torch's default device, away from what it is to be combined with.
    """
    return x if isinstance(x, Tensor) else torch.as_tensor(x, device="cpu")
