"""Articles of a MediaWiki dump such as enwik8, as text: code, media and HTML are removed.

An article is a document. What readers of the encyclopedia saw as prose stays; templates, tables, references, formulas,
program code, galleries, pictures, category and language links, comments and tags go, and each kind is counted. The 205
characters of the vocabulary are chosen later, from the part that is trained on (see ``tokenisers.train_characters``).
"""

from __future__ import annotations

import html
import re
import zipfile
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anisoscope.errors import AnisoscopeError, DamagedFileError, broken
from anisoscope.machine_capacity import require_memory

# Pages of these namespaces are code, media or indices, not articles.
_NAMESPACES = {"category", "file", "image", "media", "mediawiki", "module", "template"}
# Every pattern takes a time in proportion to the text: a dump is of many hands, and one page may be made to be slow.
_TITLE = re.compile(rb"<title>([^<]*)</title>")
_TEXT = re.compile(rb"<text\b[^<>]*(?<!/)>(.*?)(?:</text>|</page>|\Z)", re.S)
_REDIRECT = re.compile(r"\s*#redirect", re.I)
_ELEMENTS = (
    "ref|references|math|chem|code|pre|source|syntaxhighlight|gallery|timeline|score|hiero|imagemap|table|script|style"
)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.S)
_EMPTY_ELEMENT = re.compile(rf"<({_ELEMENTS})\b[^<>]*/>", re.I)
_BEGIN = re.compile(rf"<({_ELEMENTS})\b[^<>]*>", re.I)
_END = re.compile(rf"</({_ELEMENTS})\s*>", re.I)
_PARAMETER = re.compile(r"\{\{\{[^{}]*\}\}\}")
_BRACES = re.compile(r"\{\{|\}\}|^[ \t:]*\{\||^[ \t]*\|\}(?!\})", re.M)
_OUTER_LINK = re.compile(r"\[(?:(?:https?|ftp|irc|news|gopher)://|mailto:)[^\s\[\]]*+[ \t]*+([^\[\]\n]*+)\]", re.I)
_BRACKET = re.compile(r"([\[\]])")
_LANGUAGE = re.compile(r"(?:[a-z]{2,3}|simple|tokipona|roa-rup|zh-[a-z-]+|be-x-old|bat-smg|map-bms|nds-nl|fiu-vro):")
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_MAGIC = re.compile(r"__[A-Z]+__")
_QUOTES = re.compile(r"'{2,5}")
_HEADING = re.compile(r"^=.*$", re.M)
_MARKER = re.compile(r"^(?:[*#:;]+[ \t]*|-{4,})", re.M)
_SPACES = re.compile(r"[ \t\u00a0]+")
_LINE_EDGES = re.compile(r" ?\n ?")
_LINES = re.compile(r"\n{3,}")


def load(path: Path) -> tuple[list[str], dict[str, Any]]:
    """Read the articles of a dump, plain or as the only file of a ``.zip``, without redirects."""
    removed: Counter[str] = Counter()
    texts = []
    raw = _read(path)
    for title, body in pages(raw, path):
        namespace, colon, _ = title.partition(":")
        if colon and namespace.strip().lower() in _NAMESPACES:
            removed["pages of other namespaces"] += 1
        elif _REDIRECT.match(body):
            removed["redirects"] += 1
        else:
            texts.append(cleaned(body, removed))
    about = {"file": str(path), "bytes": len(raw), "removed": dict(sorted(removed.items())), "document": "an article"}
    return texts, about


def pages(raw: bytes, path: Path) -> Iterator[tuple[str, str]]:
    """Yield titles and wiki texts; a last page that the end of the file cuts off counts as far as it goes."""
    start = raw.find(b"<page>")
    if start < 0:
        raise broken("enwik8:PATH must name a MediaWiki dump in XML", f"{path} without a <page>", "unpack it first?")
    while start >= 0:
        end = raw.find(b"<page>", start + 6)
        page = raw[start : end if end >= 0 else None]
        title, text = _TITLE.search(page), _TEXT.search(page)
        if title and text:
            offset = start + text.start(1)
            yield html.unescape(title[1].decode("utf-8", "replace")), _decoded(text[1], path, offset, len(raw))
        start = end


def cleaned(wiki: str, removed: Counter[str] | None = None) -> str:
    """Turn wiki text, as it stands in the XML, into prose, and count what was removed.

    >>> cleaned("'''Anarchism''' is a [[philosophy|view]]{{fact}} of [[Europe]].&lt;ref&gt;Goldman&lt;/ref&gt;")
    'Anarchism is a view of Europe.'
    """
    removed = Counter() if removed is None else removed

    def drop(pattern: re.Pattern[str], kind: str, text: str, by: str = "") -> str:
        text, count = pattern.subn(by, text)
        if count:
            removed[kind] += count
        return text

    text = html.unescape(wiki)
    text = drop(_COMMENT, "comments", text)
    for name in _EMPTY_ELEMENT.findall(text):  # <ref/> first, or it would pair with the end of a later <ref>
        removed[name.lower()] += 1
    text = _without_elements(_EMPTY_ELEMENT.sub("", text), removed)
    text = drop(_PARAMETER, "parameters", text)
    text = _without_braces(text, removed)
    text = drop(_TAG, "tags", text, " ")
    text = drop(_OUTER_LINK, "addresses", text, r"\1")
    text = _without_links(text, removed)
    text = _MARKER.sub("", _HEADING.sub(_heading, _QUOTES.sub("", _MAGIC.sub("", text))))
    text = html.unescape(text)  # once for XML, once for what writers put: &amp;nbsp; in the file is &nbsp; in the wiki
    text = _SPACES.sub(" ", text.replace("\r", ""))
    return _LINES.sub("\n\n", _LINE_EDGES.sub("\n", text)).strip()


def _without_elements(text: str, removed: Counter[str]) -> str:
    """Remove elements from each beginning to the first end of its name; a beginning without an end stays."""
    ends: dict[str, deque[re.Match[str]]] = {}
    for end in _END.finditer(text):
        ends.setdefault(end[1].lower(), deque()).append(end)
    kept, at = [], 0
    for begin in _BEGIN.finditer(text):
        if begin.start() < at:  # inside one that was removed
            continue
        name = begin[1].lower()
        later = ends.get(name, deque[re.Match[str]]())
        while later and later[0].start() < begin.end():
            later.popleft()
        if later:
            kept.append(text[at : begin.start()])
            at = later[0].end()
            removed[name] += 1
    return "".join((*kept, text[at:]))


def _heading(found: re.Match[str]) -> str:
    """The words of a heading, without its marks."""
    line = found[0].rstrip(" \t")
    left, right = len(line) - len(line.lstrip("=")), len(line) - len(line.rstrip("="))
    marks = min(left, right, 6, (len(line) - 1) // 2)
    return line[marks:-marks].strip(" \t") if marks > 0 else found[0]


def _without_braces(text: str, removed: Counter[str]) -> str:
    """Remove templates and tables, nested ones too; a mark without its partner goes alone."""
    kept: list[str] = []
    opened: list[tuple[str, int]] = []  # kind, and how much was kept before it
    places: dict[str, list[int]] = {"templates": [], "tables": []}  # of each kind in ``opened``
    at = 0
    for mark in _BRACES.finditer(text):
        kept.append(text[at : mark.start()])
        at = mark.end()
        kind = "templates" if mark[0] in ("{{", "}}") else "tables"
        if mark[0].endswith(("{{", "{|")):
            places[kind].append(len(opened))
            opened.append((kind, len(kept)))
            continue
        # A mark that was never closed inside a closed pair goes with the pair.
        if places[kind]:
            partner = places[kind][-1]
            del kept[opened[partner][1] :]
            for gone, _ in opened[partner:]:
                places[gone].pop()
            del opened[partner:]
            removed[kind] += 1
    kept.append(text[at:])
    return "".join(kept)


def _without_links(text: str, removed: Counter[str]) -> str:
    """Replace links by their labels, innermost first, so that a picture goes with all of its caption."""

    def label(link: str) -> str:
        target, _, rest = link.partition("|")
        namespace, colon, _ = target.strip().partition(":")
        if colon and namespace.strip().lower() in _NAMESPACES - {"template", "mediawiki"}:
            removed["categories" if namespace.strip().lower() == "category" else "media"] += 1
            return ""
        if _LANGUAGE.match(target.strip()) and not rest:
            removed["language links"] += 1
            return ""
        return rest.rpartition("|")[2] if rest else target.strip().removeprefix(":")

    kept: list[str] = []  # brackets and texts between them, no two texts in a row

    def keep(piece: str) -> None:
        if kept and kept[-1] not in ("[", "]"):
            piece = kept.pop() + piece
        if piece:
            kept.append(piece)

    for piece in _BRACKET.split(text):
        if piece not in ("[", "]"):
            keep(piece)
            continue
        kept.append(piece)
        words = 0 if kept[-3:-2] in (["["], ["]"]) else 1
        if kept[-2:] == ["]", "]"] and kept[-4 - words : -2 - words] == ["[", "["]:
            inside = kept[-3] if words else ""
            del kept[-4 - words :]
            keep(label(inside))
    return "".join(kept)


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise broken("enwik8:PATH must name a file", path, "check the path; enwik8.zip is at mattmahoney.net/dc")
    try:
        if not zipfile.is_zipfile(path):
            return path.read_bytes()
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if len(names) != 1:
                raise broken("a zipped dump must be alone in its file", f"{len(names)} files in {path}", "unpack it")
            size = archive.getinfo(names[0]).file_size
            require_memory(3 * size, f"{names[0]} in {path}", "use a part of it")
            return archive.read(names[0])
    except (OSError, zipfile.BadZipFile) as error:
        raise AnisoscopeError(f"{path} cannot be read: {error}; is the file complete?") from error


def _decoded(raw: bytes, path: Path, offset: int, size: int) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        cut_off = error.reason == "unexpected end of data" and offset + len(raw) == size
        if not cut_off:  # the first 10^8 bytes of a dump may end inside a character
            place = offset + error.start
            raise DamagedFileError(
                f"{path} is not UTF-8 text: byte 0x{raw[error.start]:02x} at offset {place}; is the file complete?"
            ) from error
        return raw[: error.start].decode("utf-8")
