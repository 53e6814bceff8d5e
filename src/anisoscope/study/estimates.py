"""What a study of finished weights will need: memory beyond the model, and time, estimated before it starts.

Letters: B sequences at once, T positions, D width, L layers, V vocabulary.

The estimate of memory is meant as a bound. What autograd holds on to for the backward pass of a block is counted as
34 numbers a position and unit of width (Korthikanti et al. 2022, in bytes of 16-bit training: about 34·B·T·D and
5·heads·B·T² for attention that is written out, here taken as numbers, not bytes, which is generous), with the logits
and their gradient on top. Once measured: MiniLM-L6 with 32 sequences took 2.06 GiB beyond the model and the imports,
where the estimate says 2.1.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from anisoscope.models.cards import Card
from anisoscope.observe.collector import RESERVOIR_ROWS, SKETCH
from anisoscope.study.model_settings import Examination, ProfileSettings, TextSettings
from anisoscope.vocabulary import CAPTURED_SUBSETS, LABEL_NULLS, SUBSETS

_PER_BLOCK = 34
_LOGITS = 4  # logits, their softmax, the gradient, and a copy in float32
START_SECONDS = 7.0  # importing torch and transformers, reading the weights, the run's files and its page
_FLOOR_SECONDS = 1.0
_PER_PASS = 2.0  # times its products alone, which are slower than the large one that gives the rate, with its taps
_SPARED = 0.85  # of threads, what work that is dealt out to them gains
_COPIES = 8
_IDS = 48  # bytes of every row of a sample: its keys, token, sequence and position


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes and seconds of one model of a study."""

    weights: int
    passing: int
    statistics: int
    judging: int
    vectors: int
    seconds: float

    @property
    def beyond(self) -> int:
        """Bytes beyond the model at the worst moment: text and vectors never pass at one time."""
        return max(self.statistics + self.passing + self.judging, self.vectors)

    @property
    def total(self) -> int:
        """Bytes with the model."""
        return self.weights + self.beyond


@dataclass(frozen=True, slots=True)
class Dimensions:
    """As much of a model's card as its size takes, where the model is not on this disk."""

    parameters: int
    layers: int
    width: int
    vocabulary: int
    config: None = None


def size_of(card: Card | Dimensions, settings: Examination, *, rate: float, sequences: int = 0) -> Size:
    """Estimate one model at ``rate`` floating-point operations a second; ``sequences`` are a profile's a batch."""
    number = torch.finfo(settings.dtype).bits // 8
    width, layers = card.width, card.layers
    rows_per_chunk = settings.chunk * settings.length
    passing = rows_per_chunk * (layers * _PER_BLOCK * width + _LOGITS * card.vocabulary) * number
    passes = 1 + (len(LABEL_NULLS) if settings.targets else 0)
    tokens = passes * settings.sequences * settings.length * 3 if _judges_gradients(settings) else 0
    vectors = 0
    if isinstance(settings, ProfileSettings):
        vectors = len(SUBSETS) * 4 * settings.vectors * width * (layers + 1)
        tokens += (settings.batches + settings.untrained) * sequences * settings.length
    seconds = _FLOOR_SECONDS + _PER_PASS * 2.0 * card.parameters * tokens / rate
    seconds += evaluation_seconds(card, settings, rate=rate)
    kept = statistics_bytes(card, settings)
    return Size(card.parameters * number, passing, kept, _judging_bytes(card, settings), vectors, seconds)


def evaluation_seconds(card: Card | Dimensions, settings: Examination, *, rate: float) -> float:
    """A guess of the time that measuring layers and judging gradients takes, which is mostly more than the passes.

    Fitted by hand to six profiles on two cores (widths 192 and 384, with and without ``--quick``; ``bench.estimates``
    asks again). A layer, selection of tokens and batch takes 0.07 CPU s and the time of 2.3 products of all pairs of
    vectors, with all measures 3.6, of spectra alone 0.3; a proxy at a site takes 0.1 + 5.5e-6·D² s. Both are dealt out
    to the threads.
    """
    width, layers = card.width, card.layers
    seconds, models = 0.0, 1
    if isinstance(settings, ProfileSettings):
        selections = len(CAPTURED_SUBSETS) + (card.config is not None and card.objective == "masked")  # special tokens
        pairs = 2.0 * settings.vectors**2 * width / rate * torch.get_num_threads()
        products = {"all": 3.6, "usual": 2.3, "spectrum": 0.3}[settings.measures]
        clouds = (settings.batches + settings.untrained) * (layers + 1) * selections
        seconds += clouds * (0.07 + products * pairs)
        models = 1 + settings.untrained
    if _judges_gradients(settings):
        sites = {"representation": layers + 1, "weight": layers * _maps(settings), "embedding": 4}
        watched = sum(sites[view] for view in settings.views or sites)
        seconds += models * watched * len(settings.proxies) * (0.1 + 5.5e-6 * width**2)
    return seconds / max(1.0, _SPARED * settings.threads)


def statistics_bytes(card: Card | Dimensions, settings: Examination) -> int:
    """Bytes of all that is judged: moments in float64, samples in float32, by layer and fold, under all labels."""
    width, layers, folds = card.width, card.layers, 2
    inner = getattr(card.config, "intermediate_size", None) or 4 * width
    again = len(LABEL_NULLS) if settings.targets else 0  # passes that keep gradients only
    moments = 8 * width * width * folds * 2  # of first positions and of the rest
    rows = min(RESERVOIR_ROWS, settings.sequences * settings.length) * folds  # each fold has room for all
    sample, sketch = rows * (4 * width + _IDS), rows * (4 * (SKETCH + 1) + _IDS)
    clouds = (layers + 1) * (moments + sample) * (2 + again)
    linear = layers * _maps(settings) * (moments + (1 + again) * (8 * inner * width * folds + sample + sketch))
    tables = 4 * card.vocabulary * width * 2 * (1 + again)
    return clouds + linear + tables


def _maps(settings: Examination) -> int:
    """Linear maps of a block that are watched: Q, K, V and O of attention."""
    return ("mlp" in settings.maps) + 4 * ("attention" in settings.maps)


def _judging_bytes(card: Card | Dimensions, settings: Examination) -> int:
    """Bytes while a site is judged: its sample in float64, a few times over."""
    rows = 2 * min(RESERVOIR_ROWS, settings.sequences * settings.length)
    return _COPIES * 8 * rows * card.width if _judges_gradients(settings) else 0


def _judges_gradients(settings: Examination) -> bool:
    return not isinstance(settings, ProfileSettings) or settings.gradients


def rate_of(settings: TextSettings) -> float:
    """Multiplications and additions a second of this device, from a product that takes a moment."""
    return _rate(settings.dtype, settings.place)


def cpu_rate() -> float:
    """The same of the CPU in float32."""
    return _rate(torch.float32, "cpu")


def _rate(dtype: torch.dtype, place: str) -> float:
    size = 1024
    a = torch.ones(size, size, dtype=dtype, device=place)
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        product = a @ a
        float(product[0, 0])  # waits for the device
        best = min(best, time.perf_counter() - began)
    return 2.0 * size**3 / best


def in_words(size: int) -> str:
    """Bytes for people.

    >>> in_words(1536 << 20)
    '1.5 GiB'
    """
    for unit, power in (("GiB", 30), ("MiB", 20)):
        if size >= 1 << power:
            return f"{size / (1 << power):.1f} {unit}"
    return f"{size / 1024:.0f} KiB"
