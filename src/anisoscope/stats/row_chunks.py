"""How many rows to work on at a time. Letters: N rows, D width."""

from __future__ import annotations

from torch import Tensor

_NUMBERS = 1 << 19
_ON_A_GPU = 8192


def rows_per_chunk(x_ND: Tensor) -> int:
    """Rows whose temporaries a CPU keeps in its cache; on a GPU many more.

    Temporaries of tens of megabytes are worse than slow: the allocator maps and unmaps their pages each time, and the
    unmapping is done under Python's global lock, where it holds up a training in the same process.
    """
    if x_ND.is_cuda:
        return _ON_A_GPU
    return max(1, _NUMBERS // max(1, x_ND.shape[-1]))
