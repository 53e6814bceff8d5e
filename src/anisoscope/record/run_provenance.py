"""What a run was made with: versions, machine, commit, and every constant that decides a number."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from anisoscope.bell_rule import SMALLEST
from anisoscope.evaluate import small_scale_rows as local
from anisoscope.evaluate.judge_sites import SEMI_NMF_ITERATIONS
from anisoscope.evaluate.measure_intervals import GROUPS
from anisoscope.evidence.correlation import FEWEST_FOR_TAILS, HEAVIEST
from anisoscope.evidence.frequency_evidence import BINS
from anisoscope.evidence.inference import FEWEST_EFFECTIVE, FEWEST_SWAPPED, FEWEST_UNITS
from anisoscope.evidence.isotropy_gain import FRAMES, NORMAL_FRAMES, ZETA
from anisoscope.evidence.sequence_pairing import CLASS_WIDTH, MOST_SEQUENCES, SMALLEST_CLASS
from anisoscope.geometry.cloud_parts import CONTROL_POINTS
from anisoscope.geometry.dimension import DISCARD
from anisoscope.observe import probe as probing
from anisoscope.observe.collector import SKETCH
from anisoscope.verdict import ALPHA, FIT_MARGIN, MIXED
from anisoscope.version import __version__
from anisoscope.vocabulary import EARLY, LATE

PACKAGES = ("torch", "transformers", "accelerate", "tokenizers", "numpy", "scipy", "pyarrow")


def provenance(**parameters: Any) -> dict[str, Any]:
    """For a manifest: how the run was made; ``parameters`` are those of this run, beside the constants."""
    return {"versions": versions(), "machine": machine(), "commit": commits(), "parameters": constants() | parameters}


def constants() -> dict[str, Any]:
    """Hyper-parameters that are no settings and decide numbers all the same."""
    return {
        "alpha": ALPHA,
        "mixed_share": MIXED,
        "fit_margin": FIT_MARGIN,
        "shape_smallest_change": SMALLEST,
        "windows": {"early": EARLY, "late": LATE},
        "zeta": ZETA,
        "semi_nmf_iterations": SEMI_NMF_ITERATIONS,
        "two_nn_discard": DISCARD,
        "sketch_columns": SKETCH,
        "gain_frames_at_least": FRAMES,
        "gain_normal_frames": NORMAL_FRAMES,
        "control_points": CONTROL_POINTS,
        "pairing_class_width": CLASS_WIDTH,
        "pairing_smallest_class": SMALLEST_CLASS,
        "pairing_most_sequences": MOST_SEQUENCES,
        "swaps_fewest_units": FEWEST_SWAPPED,
        "correlation_heaviest_tails": HEAVIEST,
        "correlation_fewest_for_tails": FEWEST_FOR_TAILS,
        "fewest_effective_units": FEWEST_EFFECTIVE,
        "fewest_units": FEWEST_UNITS,
        "frequency_bins": BINS,
        "probe_fewest": probing.FEWEST,
        "probe_rows": probing.ROWS,
        "measure_groups": GROUPS,
        "local_rows": local.ROWS,
        "local_points": local.POINTS,
        "local_controls": local.CONTROLS,
    }


def versions() -> dict[str, str]:
    """What the run was made with."""
    found = {"python": platform.python_version(), "anisoscope": __version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Where the run was made."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "device": device,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "command": " ".join(sys.argv),
    }


def commits() -> dict[str, str]:
    """Git commits of anisoscope's own source and of the working directory, where they are checkouts."""
    found = {"anisoscope": commit_of(Path(__file__).parent), "working_directory": commit_of(Path.cwd())}
    return {where: commit for where, commit in found.items() if commit is not None}


def commit_of(folder: Path) -> str | None:
    """The commit that a folder is of, with a plus sign if files differ from it; None if it is no checkout."""

    def git(*words: str) -> str:
        given = {"capture_output": True, "text": True, "timeout": 5, "check": True, "stdin": subprocess.DEVNULL}
        return subprocess.run(["git", "-C", str(folder), *words], **given).stdout.strip()

    try:
        if git("ls-files", "--error-unmatch", ".") == "":  # inside someone else's checkout, but not of it
            return None
        commit, changed = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+" if changed else commit
