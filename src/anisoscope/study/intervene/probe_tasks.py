"""What linear probes are asked of a model in training: labels that any text gives, and a file of one's own.

Letters: B sequences, T positions, L layers (0 is what enters the first block), N examples, D width.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.data.tokens import Tokenised
from anisoscope.errors import AnisoscopeError, broken
from anisoscope.evaluate.row_builders import Row, row
from anisoscope.evidence.frequency_evidence import frequency_bins
from anisoscope.intervene.linear_probe import FEWEST, Examples, possible, probe

SEQUENCES = 384  # of held-out text at most
EXAMPLES = 900  # of tokens
_DOCUMENTS = 8  # that are told apart
_BATCH = 64


@dataclass(frozen=True, slots=True, eq=False)
class ProbeTask:
    """Texts as token ids, which vectors of them are probed, and what for.

    ``places`` are pairs of sequence and position, or None for the mean over the positions of every sequence.
    """

    name: str
    ids: np.ndarray  # (B, T)
    lengths: np.ndarray  # (B,)
    places: np.ndarray | None
    examples: Examples


def tasks_of(data: Tokenised, labelled: str | None, *, seed: int) -> list[ProbeTask]:
    """All tasks that the held-out text allows; the same for every arm and seed of a plan with this corpus."""
    found = [make(data, seed) for make in (_order, _capital, _document, _frequency)]
    if labelled is not None:
        found.append(_of_file(data, labelled))
    return [task for task in found if task is not None and possible(task.examples, seed) is None]


def probe_rows(model: Any, tasks: list[ProbeTask], common: Row, *, seed: int) -> list[Row]:
    """Accuracy above the most frequent label, and above the control task, layer by layer."""
    found = []
    for task in tasks:
        for layer, vectors_ND in enumerate(_vectors(model, task)):
            fit = probe(vectors_ND, task.examples, seed=seed)
            about = common | {"layer": layer, "variant": task.name, "n": fit.n, "subset": None}
            found.append(row(**about, measure="probe", value=fit.gain, floor=fit.majority))
            found.append(row(**about, measure="probe_selectivity", value=fit.selectivity, floor=fit.control))
    return found


def read_labels(path: str) -> list[tuple[str, str, str]]:
    """Text, label and document of every line of a file with the columns text, label and, if it likes, document."""
    try:
        with Path(path).expanduser().open(newline="", encoding="utf-8") as file:
            lines = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise AnisoscopeError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    head = [name.strip().lower() for name in lines[0]] if lines else []
    if not {"text", "label"} <= set(head):
        raise broken("a file of labels must have the columns text and label", ", ".join(head) or "none", "name them")
    rows = []
    for number, fields in enumerate(lines[1:], 2):
        if not fields:
            continue
        if len(fields) != len(head) or not fields[head.index("label")].strip():
            raise broken(
                f"every line of {path} must have {len(head)} fields with a label",
                f"{len(fields)} fields, or no label, in line {number}",
                "give each text its label",
            )
        own = dict(zip(head, fields, strict=True))
        rows.append((own["text"], own["label"].strip(), own.get("document", str(number))))
    labels = {label for _, label, _ in rows}
    if len(rows) < FEWEST or len(labels) < 2:
        raise broken(
            f"a file of labels must have at least {FEWEST} texts and 2 labels", f"{len(rows)} and {len(labels)}", "add"
        )
    return rows


def _vectors(model: Any, task: ProbeTask) -> list[np.ndarray]:
    """Vectors of every layer, of the model as it is: its mode and random state are kept."""
    taken: list[list[Tensor]] = [[] for _ in range(1 + len(model.gpt_neox.layers))]
    hooks = [model.gpt_neox.layers[0].register_forward_pre_hook(lambda module, args: taken[0].append(args[0]))]
    for layer, block in enumerate(model.gpt_neox.layers, 1):
        hooks.append(block.register_forward_hook(_keep(taken[layer])))
    trained = model.training
    model.eval()
    try:
        with torch.no_grad():
            parts = [_part(model, task, start, taken) for start in range(0, len(task.ids), _BATCH)]
    finally:
        for hook in hooks:
            hook.remove()
        model.train(trained)
    return [np.concatenate(layer) for layer in zip(*parts, strict=True)]


def _keep(into: list[Tensor]) -> Callable[..., None]:
    def hook(module: Any, args: Any, output: Any) -> None:
        into.append(output if isinstance(output, Tensor) else output[0])

    return hook


def _part(model: Any, task: ProbeTask, start: int, taken: list[list[Tensor]]) -> list[np.ndarray]:
    ids_BT = torch.from_numpy(task.ids[start : start + _BATCH].astype(np.int64))
    lengths_B = torch.from_numpy(task.lengths[start : start + _BATCH].astype(np.int64))
    mask_BT = torch.arange(ids_BT.shape[1])[None] < lengths_B[:, None]
    model(input_ids=ids_BT, attention_mask=mask_BT.long())
    found = []
    for layer in taken:
        hidden_BTD = layer.pop()
        if task.places is None:
            mean_BD = (hidden_BTD * mask_BT[..., None]).sum(1) / mask_BT.sum(1, keepdim=True)
            found.append(mean_BD.double().numpy())
        else:
            own = task.places[(task.places[:, 0] >= start) & (task.places[:, 0] < start + _BATCH)]
            found.append(hidden_BTD[own[:, 0] - start, own[:, 1]].double().numpy())
    return found


def _held(data: Tokenised) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Held-out sequences spread over all documents, their lengths and documents."""
    part = data.held
    chosen = np.unique(np.linspace(0, len(part.ids) - 1, min(SEQUENCES, len(part.ids))).round().astype(int))
    documents = part.units()
    return part.ids[chosen], part.lengths[chosen], chosen if documents is None else documents[chosen]


def _groups(documents: np.ndarray) -> np.ndarray:
    """Documents, or sequences where there are too few documents to split by."""
    return documents if len(np.unique(documents)) >= 5 else np.arange(len(documents))


def _order(data: Tokenised, seed: int) -> ProbeTask | None:
    """Two sentences that follow one another, in their order or swapped."""
    ids_BT, lengths_B, documents_B = _held(data)
    width, rng = ids_BT.shape[1], np.random.default_rng([seed, 13])
    rows, labels, owners = [], [], []
    for ids, length, document in zip(ids_BT, lengths_B, documents_B, strict=True):
        sentences = re.split(r"(?<=[.!?:;])\s+", data.tokeniser.decode(ids[:length].tolist()).strip())
        inner = sentences[1:-1] if len(sentences) > 3 else sentences  # the first and the last may be cut
        if len(inner) < 2:
            continue
        swapped = int(rng.random() < 0.5)
        pair = inner[:2][::-1] if swapped else inner[:2]
        rows.append(data.tokeniser.encode(" ".join(pair))[:width])
        labels.append(swapped)
        owners.append(document)
    return _pooled("sentence order", data, rows, np.asarray(labels), np.asarray(owners), width)


def _document(data: Tokenised, seed: int) -> ProbeTask | None:
    """Which document a sequence is of. Sequences are split here, and not documents: those are the labels."""
    part = data.held
    documents = part.units()
    if documents is None:
        return None
    known, counts = np.unique(documents, return_counts=True)
    largest = known[np.argsort(-counts, kind="stable")[:_DOCUMENTS]]
    each = max(1, SEQUENCES // _DOCUMENTS)
    places = np.concatenate([np.flatnonzero(documents == one)[:each] for one in largest])
    rows = [part.ids[k][: part.lengths[k]].tolist() for k in places]
    return _pooled("document", data, rows, documents[places], np.arange(len(places)), part.ids.shape[1])


def _capital(data: Tokenised, seed: int) -> ProbeTask | None:
    """Whether the word that comes next begins with a capital letter, at the last token of a word."""
    ids_BT, lengths_B, documents_B = _held(data)
    text = [data.tokeniser.text(k) for k in range(data.vocabulary)]
    begins = np.asarray([one[:1].isspace() and one.strip()[:1].isalpha() for one in text])
    capital = np.asarray([one.strip()[:1].isupper() for one in text])
    sequence, position = np.nonzero(begins[ids_BT[:, 1:]] & (np.arange(1, ids_BT.shape[1])[None] < lengths_B[:, None]))
    labels = capital[ids_BT[sequence, position + 1]].astype(int)
    return _of_tokens("capital", ids_BT, lengths_B, documents_B, (sequence, position, labels), seed)


def _frequency(data: Tokenised, seed: int) -> ProbeTask | None:
    """How frequent the token is in the text that was trained on, in five classes."""
    ids_BT, lengths_B, documents_B = _held(data)
    bins_V = frequency_bins(torch.from_numpy(data.counts()), by="types").numpy()
    inside = np.arange(ids_BT.shape[1])[None] < lengths_B[:, None]
    sequence, position = np.nonzero(inside & (bins_V[ids_BT] >= 0))
    chosen = sequence, position, bins_V[ids_BT[sequence, position]]
    return _of_tokens("frequency class", ids_BT, lengths_B, documents_B, chosen, seed)


def _of_tokens(
    name: str,
    ids_BT: np.ndarray,
    lengths_B: np.ndarray,
    documents_B: np.ndarray,
    chosen: tuple[np.ndarray, np.ndarray, np.ndarray],
    seed: int,
) -> ProbeTask | None:
    sequence, position, labels = chosen
    if not len(labels):
        return None
    drawn = np.sort(np.random.default_rng([seed, 14]).permutation(len(labels))[:EXAMPLES])
    sequence, position, labels = sequence[drawn], position[drawn], labels[drawn]
    examples = Examples(labels, ids_BT[sequence, position], _groups(documents_B)[sequence])
    return ProbeTask(name, ids_BT, lengths_B, np.stack([sequence, position], 1), examples)


def _pooled(
    name: str, data: Tokenised, rows: list[list[int]], labels: np.ndarray, groups: np.ndarray, width: int
) -> ProbeTask | None:
    """Sequences whose mean vector is probed; every one is a type of its own to the control task."""
    kept = [k for k, ids in enumerate(rows) if ids]
    if not kept:
        return None
    ids_BT = np.full((len(kept), width), data.pad_id, np.int64)
    for at, k in enumerate(kept):
        ids_BT[at, : len(rows[k])] = rows[k][:width]
    lengths_B = np.asarray([min(len(rows[k]), width) for k in kept])
    return ProbeTask(name, ids_BT, lengths_B, None, Examples(labels[kept], np.asarray(kept), _groups(groups[kept])))


def _of_file(data: Tokenised, path: str) -> ProbeTask | None:
    given = read_labels(path)
    width = data.held.ids.shape[1]
    rows = [data.tokeniser.encode(text)[:width] for text, _, _ in given]
    _, labels = np.unique([label for _, label, _ in given], return_inverse=True)
    _, groups = np.unique([document for _, _, document in given], return_inverse=True)
    return _pooled("own labels", data, rows, labels, groups, width)
