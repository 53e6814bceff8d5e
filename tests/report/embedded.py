"""The figures in a page, as a reader of the page unpacks them."""

import json
import re


def figures_in(page):
    """Figures by id; each series with its label and tags as words again."""
    figures = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
    return {
        figure["id"]: figure | {"series": [_series(figure, packed) for packed in figure.get("series", [])]}
        for figure in figures
    }


def _series(figure, packed):
    label, tags, points, null, scattered = packed
    words = [*figure["words"], None]  # the place -1 is no word
    named = {key: words[place] for key, place in zip(figure["keys"], tags, strict=True) if place >= 0}
    return {"label": words[label], "tags": named, "points": points, "null": bool(null), "scattered": bool(scattered)}
