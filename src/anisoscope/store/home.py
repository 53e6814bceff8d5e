"""Paths for others to read: a run and its page are handed on, and say nothing about whose machine made them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def without_home(value: Any) -> Any:
    """The same with ``~`` in place of the home folder, in every text of it.

    >>> without_home({"file": str(Path.home() / "texts"), "steps": 3})
    {'file': '~/texts', 'steps': 3}
    """
    home = str(Path.home()).rstrip("/")
    if not home:
        return value
    return _replaced(value, re.compile(rf"(?<![\w./~-]){re.escape(home)}(?![\w.-])"))


def _replaced(value: Any, home: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return home.sub("~", value)
    if isinstance(value, dict):
        return {key: _replaced(part, home) for key, part in value.items()}
    return [_replaced(part, home) for part in value] if isinstance(value, list | tuple) else value
