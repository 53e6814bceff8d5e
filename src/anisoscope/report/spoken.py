"""What a page says under every set of choices, packed: pieces of markup that recur are there once."""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any

from anisoscope.report.blocks import ANSWER, choices_key, front_slots, slots_of
from anisoscope.report.tree import Report

_PIECES = re.compile(r"(?=<tr>|<li>|<p[ >]|<div class=\"(?:tabled|marks|limits)|<td)")


def spoken(report: Report) -> dict[str, Any]:
    """For every set of choices the slots of the page that differ from those that it begins with, as lists of pieces."""
    if len(report.fronts) < 2:
        return {"begins": "", "pieces": [], "at": {}}
    drawings = {figure.id for figure in report.figures()}
    first = front_slots(report.fronts[0], drawings)
    for section in report.sections:
        first |= slots_of(section)
    places: dict[str, int] = {}
    lists: dict[str, int] = {}  # of one slot, a list of pieces that recurs as a whole
    at: dict[str, dict[str, int]] = {}
    packed: list[list[int]] = []
    for front in report.fronts:
        differing = {}
        for slot, markup in front_slots(front, drawings).items():
            if markup == first.get(slot) or (slot not in first and slot != ANSWER):
                continue
            if markup not in lists:
                lists[markup] = len(packed)
                packed.append([places.setdefault(piece, len(places)) for piece in _PIECES.split(markup)])
            differing[slot] = lists[markup]
        at[choices_key(front.choices)] = differing
    slots = list(dict.fromkeys(slot for found in at.values() for slot in found))
    numbered = {key: {slots.index(slot): number for slot, number in found.items()} for key, found in at.items()}
    begins = choices_key(report.fronts[0].choices)
    return {"begins": begins, "slots": slots, "pieces": list(places), "texts": packed, "at": numbered}


def deflated(data: dict[str, Any]) -> dict[str, Any]:
    """For the script of the page: the choices that it has words for, and the words, deflated until one is made.

    They are markup of hundreds of tables that are nearly alike and take a tenth of their size so.
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    words = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    return {"begins": data["begins"], "for": list(data["at"]), "words": words}
