"""Corpora through the library ``datasets``: names on the Hugging Face hub, its offline cache, and local tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anisoscope.errors import AnisoscopeError, BrokenRuleError, broken

COLUMNS = ("text", "content")
_BUILDERS = {
    ".json": "json",
    ".jsonl": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".txt": "text",
    ".text": "text",
}


def load(name: str, *, documents: int | None, seed: int) -> tuple[list[str], dict[str, Any]]:
    """Read the text column of ``NAME[:CONFIG]``, a row a document, the split ``train`` where there is one."""
    if not name:
        raise broken("hf: must be followed by a name or a path", "'hf:'", "write hf:NAME or hf:NAME:CONFIG")
    datasets = _library()
    try:
        found, source = _loaded(datasets, name)
    except (BrokenRuleError, AnisoscopeError):
        raise
    except Exception as error:
        raise _failure(name, error) from error
    splits = dict(found) if isinstance(found, Mapping) else {"train": found}
    used = ["train"] if "train" in splits else list(splits)
    if not used:
        raise broken("a data set must have a split", name, "choose another")
    column = text_column(name, splits[used[0]].features)
    rows = sum(len(splits[split]) for split in used)
    picked = _picked(rows, documents, seed)
    texts: list[str] = []
    first = 0
    for split in used:
        table = splits[split].select_columns([column])
        inside = picked[(picked >= first) & (picked < first + len(table))] - first
        first += len(table)
        # Only what was drawn is read: a large set is a file on disk until here.
        texts += [text or "" for text in table.select(inside)[column]]
    about = {
        **source,
        "library": f"datasets {datasets.__version__}",
        "splits": used,
        "column": column,
        "rows": rows,
        "document": "a row",
    }
    return texts, about


def text_column(name: str, features: Mapping[str, Any]) -> str:
    """Choose the column that holds the text: ``text``, ``content``, or the only one of strings."""
    strings = [key for key, kind in features.items() if getattr(kind, "dtype", None) in ("string", "large_string")]
    for column in (*COLUMNS, *strings):
        if column in strings and (column in COLUMNS or len(strings) == 1):
            return column
    raise broken(
        f"the data set {name} must have a column text or content, or one column of strings",
        ", ".join(features) or "no columns",
        "rename the column that holds the text",
    )


def _library() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise AnisoscopeError('a corpus hf:NAME needs datasets: pip install "anisoscope[train]"') from error
    return datasets


def _loaded(datasets: Any, name: str) -> tuple[Any, dict[str, Any]]:
    for text, config in ((name, None), name.rpartition(":")[::2]):
        path = Path(text).expanduser()
        if text and path.exists():
            if config:
                raise broken(
                    "a data set on disk has no configurations", f"hf:{name}", f"leave out :{config}, or name the file"
                )
            return _local(datasets, path), {"path": str(path)}
    if name.startswith((".", "/", "~")):
        raise broken("a data set on disk must exist", name, "check the path")
    hub_name, _, config = name.partition(":")
    return datasets.load_dataset(hub_name, config or None), {"dataset": hub_name, "config": config or None}


def _local(datasets: Any, path: Path) -> Any:
    if path.is_dir() and ((path / "state.json").exists() or (path / "dataset_dict.json").exists()):
        return datasets.load_from_disk(str(path))
    candidates = sorted(path.rglob("*")) if path.is_dir() else [path]
    files = [file for file in candidates if file.suffix.lower() in _BUILDERS]
    builders = {_BUILDERS[file.suffix.lower()] for file in files}
    if len(builders) != 1:
        raise broken(
            f"a data set on disk must be saved by datasets or hold files of one kind, {' '.join(_BUILDERS)}",
            f"{path} with {' and '.join(sorted(builders)) or 'none of them'}",
            "name the files",
        )
    options: dict[str, Any] = {}
    if builders == {"text"}:
        options["sample_by"] = "document"  # as without hf: a file is a document
    if {file.suffix.lower() for file in files} == {".tsv"}:
        options["sep"] = "\t"
    return datasets.load_dataset(builders.pop(), data_files=[str(file) for file in files], **options)


def _picked(rows: int, documents: int | None, seed: int) -> np.ndarray:
    if documents is None or documents >= rows:
        return np.arange(rows)
    return np.sort(np.random.default_rng(seed).choice(rows, documents, replace=False))


def _failure(name: str, error: Exception) -> Exception:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, ValueError) and "config" in str(error).lower():
        names = " ".join(str(error).split())
        return broken(
            "hf:NAME:CONFIG must name a configuration of the data set", f"hf:{name}", f"datasets says: {names}"
        )
    return AnisoscopeError(
        f"the data set hf:{name} cannot be loaded: {reason}; check the name and the network, or load it where"
        " there is one and copy the cache (HF_HOME), or give the path of a local copy"
    )
