"""Small jobs of the pair study that end within seconds."""

import math
import random

import numpy as np
from safetensors.numpy import load_file

from anisoscope import open_run
from anisoscope.study.pair.pair_settings import PairSettings

ROWS_THAT_DIFFER = ("run",)


def corpus(folder, documents=40, seed=0):
    """Text files of a few hundred words each, with a frequency law."""
    random.seed(seed)
    words = [
        f"{a}{b}" for a in ("ba", "ke", "li", "mo", "nu", "pa", "re", "so") for b in ("ta", "ni", "ro", "de", "l", "s")
    ]
    weights = [1 / (i + 1) for i in range(len(words))]
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(documents):
        text = " ".join(random.choices(words, weights, k=200))
        (folder / f"{number:03d}.txt").write_text(f"{number} {text}.\n", encoding="utf-8")
    return f"{folder}/*.txt"


def settings(where, **changed):
    """Two layers of width 16, twelve steps."""
    given = {
        "corpus": corpus(where / "texts"),
        "layers": 2,
        "width": 16,
        "heads": 2,
        "vocabulary": 320,
        "length": 16,
        "batch": 12,
        "steps": 12,
        "held_out": 0.2,
        "rank": 4,
        "ranks": (2,),
        "proxies": ("pca", "semi_nmf"),
        "resamples": 19,
        "frequency": False,
        "probe": 0,
        "evaluations": 3,
        "checkpoints": 4,
        "device": "cpu",
    }
    return PairSettings(**(given | changed))


class Quiet:
    """A display that shows nothing and remembers what it was told."""

    def __init__(self, at_step=None):
        self.lines, self.steps, self.seen, self.at_step = [], [], [], at_step

    def said(self, line):
        self.lines.append(line)

    def training(self, job, begin):
        self.lines.append(f"{job.name} from {begin}")
        return self

    def stepped(self, step, loss, tokens):
        self.steps.append((step, loss, tokens))
        if self.at_step is not None:
            self.at_step(step)

    def observed(self, rows):
        self.seen.append(rows)


def comparable(run):
    """All rows of a run, in an order that does not depend on how they were written, without what may differ."""
    rows = run.table().drop_columns(list(ROWS_THAT_DIFFER)).to_pylist()
    rows = [row for row in rows if row["measure"] != "cost"]  # seconds
    return sorted((tuple(_plain(row[name]) for name in sorted(row)) for row in rows), key=repr)


def _plain(value):
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def weights(folder):
    return {
        (file.parent.name, name): array
        for file in sorted((folder / "models").glob("*/*.safetensors"))
        for name, array in load_file(file).items()
    }


def assert_same(first, second):
    """Two runs have the same rows and the same weights, bit for bit."""
    a, b = comparable(open_run(first)), comparable(open_run(second))
    assert len(a) == len(b)
    assert [x for x, y in zip(a, b, strict=True) if x != y][:3] == []
    one, two = weights(first), weights(second)
    assert one.keys() == two.keys()
    assert one
    assert all(np.array_equal(one[name], two[name]) for name in one)
