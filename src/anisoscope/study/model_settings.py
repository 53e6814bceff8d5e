"""What a study of finished weights is asked for. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from anisoscope.study.device import Device, resolve_device
from anisoscope.study.judging_settings import JudgingSettings, UnitSettings
from anisoscope.study.setting_fields import RANK, Known, Numbers, Rank, Settings, Words, known_words
from anisoscope.vocabulary import LABEL_NULLS, NULLS, PROXIES, VIEWS

FEWEST_VECTORS = 4096  # below it a dimension is not to be compared


class TextSettings(UnitSettings):
    """Which text a finished model reads, how much of it, and what the model runs on."""

    text: str = Field(
        default="kjv", description="kjv, zipf:s, enwik8:PATH, hf:NAME[:CONFIG], or text files, folders and globs."
    )
    tokeniser: str | None = Field(
        default=None,
        description="A tokenizer.json, or a folder or hub name with one, for models without a tokeniser.",
    )
    objective: Literal["causal", "masked"] | None = Field(
        default=None, description="Training objective, if the configuration does not determine it."
    )
    length: int = Field(default=128, ge=8, description="Tokens per sequence.")
    sequences: int = Field(default=64, ge=8, description="Number of sequences for gradients, or for the losses.")
    chunk: int = Field(default=8, ge=1, description="Sequences per forward pass; lower it to save memory.")
    mask_rate: float = Field(
        default=0.15, gt=0, lt=1, description=("Fraction of tokens that a masked model must predict.")
    )
    precision: Literal["float32", "bf16"] = Field(
        default="float32", description="Precision in which models compute; statistics are always float32 and float64."
    )
    device: Device = Field(default="auto", description="auto, cpu, cuda, cuda:1 … or mps.")
    device_map: Literal["auto"] | None = Field(
        default=None, description="auto: spread the model over several devices with accelerate."
    )
    threads: int = Field(default=2, ge=1, description="Number of torch threads, the same for every job.")
    seed: int = Field(
        default=0,
        ge=0,
        lt=2**31,
        description=("Seed of the drawn text, the folds, the masks and the weights of the untrained twin."),
    )
    trust_remote_code: bool = Field(default=False, description="Run code that is shipped with the model.")
    allow_pickle: bool = Field(default=False, description="Read pickled .bin weights, with weights_only=True.")

    @property
    def dtype(self) -> Any:
        """What a model computes in."""
        import torch

        return {"float32": torch.float32, "bf16": torch.bfloat16}[self.precision]

    @property
    def place(self) -> str:
        """The device, decided; raises for one that this machine does not have."""
        return resolve_device(self.device)

    @property
    def judging_place(self) -> str:
        """Where statistics are judged: all of them on one device, whatever devices the layers lie on."""
        return self.place if self.device_map is None else "cpu"


class Examination(JudgingSettings, TextSettings):
    """Settings that `profile` and `checkpoints` share."""

    rank: Rank = Field(default=32, description=RANK)
    ranks: Numbers = Field(default=(), description="Other ranks to report, separated by commas.")
    proxies: Annotated[Words, Known(known_words("proxies", PROXIES))] = Field(
        default=("pca", "svd"),
        min_length=1,
        description="Proxy methods, separated by commas; the first is the main one.",
    )
    views: Annotated[Words | None, Known(known_words("views", VIEWS))] = Field(
        default=None,
        description=("representation, weight, embedding; by default all views that the model has sites for."),
    )
    targets: bool = Field(default=True, description="Add the nulls with other labels (one extra pass each).")
    frequency: bool = Field(default=True, description="Frequency and curvature analysis.")
    keep_bases: bool = Field(default=False, description="Keep the proxies of every model, as safetensors.")

    @model_validator(mode="after")
    def _one_kind_of_rank(self) -> Examination:
        if self.ranks and isinstance(self.rank, str):
            raise ValueError(f"--ranks go with a number for --rank, not with {self.rank}")
        return self

    @property
    def nulls(self) -> tuple[str, ...]:
        """The nulls that gradients are judged against."""
        return tuple(n for n in NULLS if NULLS[n].live and (self.targets or n not in LABEL_NULLS))

    def request(self) -> Any:
        """What a judgement is asked for."""
        from anisoscope.evaluate.judge_sites import Request

        asked = (self.proxies, self.rank, ("all",), self.nulls, self.resamples, self.seed, self.ranks)
        return Request(*asked, margin=self.margin)


QUICK: dict[str, Any] = {
    "batches": 1,
    "vectors": FEWEST_VECTORS,
    "measures": "usual",
    "sequences": 16,
    "proxies": ("pca",),
    "views": ("representation",),
    "targets": False,
    "frequency": False,
}
"""What `profile --quick` sets where nothing else is asked for: about a seventh of the time of the defaults."""


class ProfileSettings(Examination):
    """Settings of `profile`."""

    vectors: int = Field(
        default=4608, ge=FEWEST_VECTORS, description="Vectors per batch, for each layer and subset of tokens."
    )
    batches: int = Field(default=4, ge=1, description="Number of batches of vectors; intervals are over batches.")
    measures: Literal["all", "usual", "spectrum"] = Field(
        default="all",
        description=(
            "Measures of the layers: all in every variant; only those shown for a training run, in the usual "
            "variant; or of these only the measures of spectra and directions, without neighbours and clusters."
        ),
    )
    gradients: bool = Field(default=True, description="Judge gradients; without this, only layers are measured.")
    untrained: bool = Field(
        default=True, description="Also measure the untrained twin; without it, gradients have no null `init`."
    )
    attention: Literal["usual", "causal", "bidirectional", "none"] = Field(
        default="usual",
        description=(
            "Tokens that each token attends to: as in training (usual), those before it (causal), all (bidirectional), "
            "or only itself (none: attention is switched off)."
        ),
    )
    ablate: bool = Field(
        default=False,
        description="Also remove the main proxy from one block at a time, as `ablate` does.",
    )
    quick: bool = Field(
        default=False,
        description=(
            "A first look in about a seventh of the time: one batch of 4096 vectors, the usual measures, gradients of "
            "16 sequences in the representation view with `pca` only, no label nulls, no frequency. Options that are "
            "given override it."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _quick(cls, data: Any) -> Any:
        # A command reads its TOML file first; what stands there counts before this too.
        if not isinstance(data, Mapping) or not data.get("quick") or data.get("config"):
            return data
        return QUICK | dict(data)

    @model_validator(mode="after")
    def _removable(self) -> ProfileSettings:
        if self.ablate and isinstance(self.rank, str):
            raise ValueError(f"--ablate goes with a number for --rank, not with {self.rank}")
        return self


class HistoryPlan(Settings):
    """How a training history is studied."""

    revisions: str | None = Field(
        default=None,
        description=(
            "Names separated by commas (branch, tag, or REVISION:FOLDER); `auto` for all whose name gives a step or a "
            "number of tokens, also on the hub; `pythia` for its 154 steps."
        ),
    )
    seeds: int = Field(
        default=1, ge=1, le=10_000, description=("Number of draws of the text; with several, error bars are over them.")
    )
    shards: int = Field(default=1, ge=1, description="Split the text into this many jobs; the parts add up exactly.")
    probe: int = Field(
        default=5120,
        ge=0,
        description=(
            "Further tokens of the text, for the intrinsic dimension and the similarity of checkpoints; 0 to skip both."
        ),
    )
    steps: int | None = Field(
        default=None, ge=1, description="Total training steps, if training continued after the last checkpoint."
    )
    keep: int | None = Field(
        default=None,
        ge=1,
        description=("Maximum number of downloaded revisions to keep on disk; files that were already there stay."),
    )
    include_untrusted: bool = Field(
        default=False, description="Include in curves the checkpoints that the integrity check would leave out."
    )


class JobOptions(Settings):
    """Where jobs run."""

    ray: str | None = Field(
        default=None,
        description="Run jobs on Ray: `local`, `auto` (this machine's cluster) or an address. By default: one by one.",
    )
    gpus: float = Field(default=0.0, ge=0, description="Fraction of a GPU for each job on Ray.")
    memory: float | None = Field(default=None, gt=0, description="Memory of each job on Ray, in GiB.")
    retries: int = Field(default=1, ge=0, description="Times a job is retried before it counts as failed.")
