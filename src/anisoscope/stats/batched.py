"""Moments of many clouds of one shape, over many steps, at the price of a few kernels a step.

Letters: C clouds, B sequences, T positions, D width, P parts.

What passes is only copied (``put``); the arithmetic is done once a step for all clouds together (``absorb``), as in
``running`` about a centre that is fixed by the first step; first positions are few and wait until there are more. A
cloud that is not finite in a step adds nothing there. Nothing here waits for the device, and on a GPU the arithmetic
runs beside the training (``side_stream``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from anisoscope.stats.moments import STATE_DTYPE, Moments
from anisoscope.stats.running import about_means, on_the_grid, products
from anisoscope.stats.side_stream import SideStream

_FEW = 8  # steps whose sums wait to be added up in float64


class Batched:
    """Count, sum and scatter of ``P`` parts of each of ``C`` clouds, first positions and the rest apart."""

    def __init__(self, parts: int, aside: SideStream | None = None) -> None:
        self.parts = parts
        self._aside = aside or SideStream()
        self._places: dict[object, int] = {}
        self._seen: set[int] = set()
        self._buffer: Tensor | None = None
        self._sums: dict[str, tuple[Tensor, Tensor, Tensor, Tensor]] = {}
        self._firsts: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self._recent: Tensor | None = None
        self._steps = 0
        self._read: torch.cuda.Event | None = None

    def put(self, key: object, x_BTD: Tensor, *, short: bool) -> None:
        """Keep a copy of what passes; ``key`` names the cloud. All clouds of a step are of one shape."""
        if self._read is not None:  # what was put before may still be in use
            torch.cuda.current_stream(x_BTD.device).wait_event(self._read)
            self._read = None
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
        """Add what was put since the last time; a cloud that was not put is left as it is.

        The selections must have been made in the same ``aside``.
        """
        if self._buffer is None or not self._seen:
            return
        clouds = len(self._places)
        x_CBTD = self._buffer[:clouds]
        put = [place in self._seen for place in range(clouds)]
        self._seen = set()
        with self._aside.reading(self._buffer):
            put_C = None if all(put) else torch.tensor(put).to(x_CBTD.device, non_blocking=True)
            rows = torch.arange(len(first_B), device=first_B.device)
            if self._firsts and len(self._firsts[0][0]) != clouds:
                self._absorb_firsts()
            self._firsts.append((x_CBTD[:, rows, first_B], members_PB, put_C))
            if len(self._firsts) >= _FEW:
                self._absorb_firsts()
            self._add(x_CBTD, rest_BT, members_PB, put_C)
        self._read = self._aside.mark()

    def moments(self) -> dict[object, dict[str, list[Moments]]]:
        """For each cloud and part of positions (``first``, ``rest``) the moments of its parts."""
        with self._aside.reading(self._buffer):
            self._absorb_firsts()
            self._absorb_recent()
        self._aside.join(*(tensor for sums in self._sums.values() for tensor in sums))
        found: dict[object, dict[str, list[Moments]]] = {key: {} for key in self._places}
        for name, sums in self._sums.items():
            for key, place in self._places.items():
                count, centre, total, scatter = (one[place] for one in sums)
                found[key][name] = about_means(count, centre, total, scatter)
        return found

    def _add(self, x_CBTD: Tensor, mask_BT: Tensor, members_PB: Tensor, put_C: Tensor | None) -> None:
        clouds, sequences, _, width = x_CBTD.shape
        short = x_CBTD.dtype == torch.bfloat16
        work = torch.float32 if short else STATE_DTYPE
        if "rest" not in self._sums:
            weight_BT = mask_BT.to(work) / mask_BT.sum().clamp_min(1)
            # Of the dtype of the rows, so that the centre taken off is the centre that is remembered.
            centre = torch.einsum("bt,cbtd->cd", weight_BT.to(x_CBTD.dtype), x_CBTD)
            self._begin("rest", on_the_grid(centre.to(work)) if short else centre)
            self._recent = torch.zeros(clouds, self.parts, width * width, dtype=work, device=x_CBTD.device)
        count, centre, total, _ = self._sums["rest"]
        y = x_CBTD.sub_(centre[:, None, None].to(x_CBTD.dtype)).masked_fill_(~mask_BT[..., None], 0)
        fine_C = torch.isfinite(y.sum((1, 2, 3), dtype=work))
        fine_C = fine_C if put_C is None else fine_C & put_C
        y = y.masked_fill_(~fine_C[:, None, None, None], 0).flatten(0, 1)
        weights_PB = members_PB.to(work)
        assert self._recent is not None, "made with the sums"
        if short:
            products_CBE = products(y).reshape(clouds, sequences, -1).to(self._recent.dtype)
            weights_CPB = weights_PB.to(self._recent.dtype).expand(clouds, *weights_PB.shape)
            self._recent.baddbmm_(weights_CPB, products_CBE)
        else:  # in float64, so one cloud at a time
            for recent_PE, y_BTD in zip(self._recent, y.unflatten(0, (clouds, sequences)), strict=True):
                recent_PE += weights_PB @ products(y_BTD.to(work)).flatten(1)
        total += weights_PB @ y.sum(1, dtype=work).reshape(clouds, sequences, width)
        count += fine_C[:, None] * (members_PB.to(STATE_DTYPE) @ mask_BT.sum(1, dtype=STATE_DTYPE))
        self._steps += 1
        if self._steps % _FEW == 0:
            self._absorb_recent()

    def _absorb_recent(self) -> None:
        """Add the products of the last steps, which were added up as they were multiplied, in float64."""
        if self._recent is not None:
            scatter = self._sums["rest"][3]
            scatter += self._recent.reshape(scatter.shape)
            self._recent.zero_()

    def _absorb_firsts(self) -> None:
        """Add the first positions that wait, in float64."""
        if not self._firsts:
            return
        clouds, width = len(self._firsts[0][0]), self._firsts[0][0].shape[-1]
        members = []
        for x_CBD, members_PB, put_C in self._firsts:
            fine_C = torch.isfinite(x_CBD.sum((1, 2)))
            fine_C = fine_C if put_C is None else fine_C & put_C
            members.append(members_PB & fine_C[:, None, None])
        x_CBD, members_CPB = torch.cat([x.double() for x, *_ in self._firsts], 1), torch.cat(members, 2)
        self._firsts = []
        if "first" not in self._sums:
            self._begin("first", torch.where(members_CPB.any(1)[..., None], x_CBD, 0.0).mean(1))
        count, centre, total, scatter = self._sums["first"]
        y_CPBD = torch.where(members_CPB[..., None], (x_CBD - centre[:, None])[:, None], 0.0)
        scatter += products(y_CPBD.flatten(0, 1)).reshape(clouds, self.parts, width, width)
        total += y_CPBD.sum(2)
        count += members_CPB.sum(2)

    def _begin(self, name: str, centre_CD: Tensor) -> None:
        clouds, width = centre_CD.shape
        shape = (clouds, self.parts)
        zeros = torch.zeros(*shape, width, width, dtype=STATE_DTYPE, device=centre_CD.device)
        self._sums[name] = (
            zeros.new_zeros(shape),
            centre_CD.nan_to_num(0.0, 0.0, 0.0),
            zeros.new_zeros(*shape, width),
            zeros,
        )
