"""Moments of many clouds of one shape, over many steps, at the price of a few kernels a step.

Letters: C clouds, B sequences, T positions, D width, P parts.

What passes is only copied (``put``); the arithmetic is done once a step for all clouds together (``absorb``), as in
``running`` about a centre that is fixed by the first step. A cloud that is not finite in a step adds nothing there.
Nothing here waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anisoscope.stats.moments import STATE_DTYPE, Moments
from anisoscope.stats.running import about_means, on_the_grid, products


class Batched:
    """Count, sum and scatter of ``P`` parts of each of ``C`` clouds, first positions and the rest apart."""

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self._places: dict[object, int] = {}
        self._seen: set[int] = set()
        self._buffer: Tensor | None = None
        self._sums: dict[str, tuple[Tensor, Tensor, Tensor, Tensor]] = {}

    def put(self, key: object, x_BTD: Tensor, *, short: bool) -> None:
        """Keep a copy of what passes; ``key`` names the cloud. All clouds of a step are of one shape."""
        place = self._places.setdefault(key, len(self._places))
        room = 0 if self._buffer is None else self._buffer.shape[0]
        if self._buffer is None or place >= room or self._buffer.shape[1:] != x_BTD.shape:
            dtype = torch.bfloat16 if short and x_BTD.is_cuda else torch.promote_types(x_BTD.dtype, torch.float32)
            grown = torch.zeros(max(place + 1, 2 * room), *x_BTD.shape, dtype=dtype, device=x_BTD.device)
            if self._buffer is not None and self._buffer.shape[1:] == x_BTD.shape:
                grown[:room] = self._buffer
            self._buffer = grown
        self._buffer[place].copy_(x_BTD)
        self._seen.add(place)

    def absorb(self, rest_BT: Tensor, first_B: Tensor, members_PB: Tensor) -> None:
        """Add what was put since the last time; a cloud that was not put is left as it is."""
        if self._buffer is None or not self._seen:
            return
        clouds = len(self._places)
        x_CBTD = self._buffer[:clouds]
        put_C = None
        if len(self._seen) < clouds:
            put_C = torch.tensor([place in self._seen for place in range(clouds)]).to(x_CBTD.device, non_blocking=True)
        rows = torch.arange(len(first_B), device=first_B.device)
        first_CB1D = x_CBTD[:, rows, first_B][:, :, None]
        self._add("first", first_CB1D, torch.ones_like(rest_BT[:, :1]), members_PB, put_C)
        self._add("rest", x_CBTD, rest_BT, members_PB, put_C)
        self._seen = set()

    def moments(self) -> dict[object, dict[str, list[Moments]]]:
        """For each cloud and part of positions (``first``, ``rest``) the moments of its parts."""
        found: dict[object, dict[str, list[Moments]]] = {key: {} for key in self._places}
        for name, sums in self._sums.items():
            for key, place in self._places.items():
                count, centre, total, scatter = (one[place] for one in sums)
                found[key][name] = about_means(count, centre, total, scatter)
        return found

    def _add(self, name: str, x_CBTD: Tensor, mask_BT: Tensor, members_PB: Tensor, put_C: Tensor | None) -> None:
        clouds, sequences, _, width = x_CBTD.shape
        work = torch.float64 if x_CBTD.dtype == torch.float64 else torch.float32
        if name not in self._sums:
            weight_BT = mask_BT.to(work) / mask_BT.sum().clamp_min(1)
            centre = torch.einsum("bt,cbtd->cd", weight_BT.to(x_CBTD.dtype), x_CBTD).to(work).nan_to_num_(0.0, 0.0, 0.0)
            centre = on_the_grid(centre) if x_CBTD.dtype == torch.bfloat16 else centre
            shape = (clouds, self.parts)
            zeros = torch.zeros(*shape, width, width, dtype=STATE_DTYPE, device=x_CBTD.device)
            self._sums[name] = zeros.new_zeros(shape), centre, zeros.new_zeros(*shape, width), zeros
        count, centre, total, scatter = self._sums[name]
        about = centre[:, None, None].to(x_CBTD.dtype)
        y = x_CBTD.sub_(about) if name == "rest" else x_CBTD - about
        y = y.masked_fill_(~mask_BT[..., None], 0).flatten(0, 1)
        sums_CBD = y.sum(1, dtype=work).reshape(clouds, sequences, width)
        fine_C = torch.isfinite(sums_CBD.sum((1, 2)))
        fine_C = fine_C if put_C is None else fine_C & put_C
        weights_PB = members_PB.to(work)
        if mask_BT.shape[1] == 1:  # few rows: by part at once
            y_CPBD = y.reshape(clouds, 1, sequences, width) * members_PB[..., None]
            sums = products(y_CPBD.flatten(0, 1)).reshape(clouds, self.parts, -1)
        else:
            sums = weights_PB @ products(y).reshape(clouds, sequences, -1)
        scatter += torch.where(fine_C[:, None, None], sums, 0.0).reshape(scatter.shape)
        total += torch.where(fine_C[:, None, None], weights_PB @ sums_CBD, 0.0)
        count += fine_C[:, None] * (members_PB.to(STATE_DTYPE) @ mask_BT.sum(1, dtype=STATE_DTYPE))
