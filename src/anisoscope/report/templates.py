"""The templates of the page, in one environment: every value that they show is escaped unless they mark it safe."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from anisoscope.report.formatting import number
from anisoscope.report.glossary import TERMS
from anisoscope.report.names import KEYS, word_of
from anisoscope.report.prepared import LONG, halves, pieces, table_class
from anisoscope.report.signs import SIGNS, sign_of
from anisoscope.report.tree import Cell


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("anisoscope.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,  # files of an installed package do not change
    )
    made.filters |= {
        "halves": halves,
        "number": number,
        "pieces": pieces,
        "sign": sign_of,
        "table_class": table_class,
        "word": word_of,
    }
    made.tests["cell"] = lambda value: isinstance(value, Cell)
    made.globals |= {"KEYS": KEYS, "LONG": LONG, "SIGNS": SIGNS, "TERMS": TERMS}
    return made


def filled(template: str, **values: Any) -> str:
    """A template of the page with these values."""
    return _environment().get_template(template).render(values)


def markup(macro: str, *values: Any) -> Markup:
    """What a macro of ``blocks.html.j2`` makes of values."""
    return getattr(_blocks(), macro)(*values)


@cache
def _blocks() -> Any:
    return _environment().get_template("blocks.html.j2").module
