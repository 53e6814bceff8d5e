"""Blocks of a view tree, taken for what they must be."""

from typing import TypeVar

from anisoscope.report.tree import Text

Kind = TypeVar("Kind")


def the(kind: type[Kind], block: object) -> Kind:
    """The block, which is of this kind."""
    assert isinstance(block, kind)
    return block


def headed(blocks, head):
    """The only text with this head."""
    (found,) = (block for block in blocks if isinstance(block, Text) and block.head == head)
    return found


def block(report, section, kind: type[Kind], id=None) -> Kind:
    """The first block of this kind (and id) in a section."""
    blocks = next(s for s in report.sections if s.id == section).blocks
    return next(b for b in blocks if isinstance(b, kind) and (id is None or getattr(b, "id", None) == id))
