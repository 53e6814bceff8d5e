"""anisoscope watches the geometry of a language model while it learns.

Public names are resolved on first use, so that importing the package imports nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from anisoscope.version import __version__ as __version__

_HOME = {
    "AnisoscopeError": "errors",
    "CaptureOptions": "record.scope_options",
    "Directions": "stats.unit_directions",
    "Estimate": "geometry.results",
    "Evidence": "evidence.result",
    "EvidenceOptions": "record.scope_options",
    "Moments": "stats.moments",
    "Neighbours": "geometry.neighbours",
    "Reservoir": "stats.reservoir",
    "Scope": "scope",
    "ScopeWarning": "errors",
    "SessionOptions": "record.scope_options",
    "Subspace": "geometry.subspace",
    "TokenCounts": "stats.counts",
    "UpdateProjection": "intervene.updates",
    "ablate": "intervene.removal",
    "adjust": "evidence.inference",
    "all_reduce": "stats.reduce",
    "average_cosine": "geometry.isotropy",
    "cross_fit": "evidence.cross_fit",
    "cross_fit_weight": "evidence.cross_fit",
    "curvature": "geometry.curvature",
    "document_rates": "intervene.frequency_weights",
    "effective_rank": "geometry.isotropy",
    "energy_share": "evidence.energy",
    "fit_subspace": "geometry.subspace",
    "frequency_weights": "intervene.frequency_weights",
    "gride": "geometry.dimension",
    "install_taps": "capture.compiled",
    "isoscore": "geometry.isotropy",
    "isoscore_of_covariance": "geometry.isotropy",
    "isoscore_star": "geometry.isotropy",
    "judge": "evidence.judge",
    "ladder": "evidence.ladder",
    "levina_bickel": "geometry.dimension",
    "linear_cka": "geometry.cka",
    "load_plugins": "plugins",
    "local_isotropy": "geometry.isotropy",
    "masking_rates": "intervene.frequency_weights",
    "neighbourhood_overlap": "geometry.overlap",
    "neighbours": "geometry.neighbours",
    "open_run": "report.notebook_run",
    "pairing_share": "evidence.sequence_pairing",
    "participation_ratio": "geometry.isotropy",
    "partition_ratio": "geometry.isotropy",
    "principal_angles": "geometry.subspace",
    "rankme": "geometry.spectra",
    "register_measure": "geometry.measure_registry",
    "register_null": "evidence.nulls.registry",
    "register_proxy": "geometry.subspace",
    "semi_nmf": "geometry.semi_nmf",
    "spectral_decay": "geometry.spectra",
    "tangency": "geometry.tangency",
    "tangent_overlap": "geometry.tangents",
    "top_share": "geometry.isotropy",
    "two_nn": "geometry.dimension",
    "verify": "evidence.referee_checks",
    "visible_curvature": "geometry.visible_curvature",
    "weighted_loss": "intervene.frequency_weights",
}

__all__ = [*_HOME, "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from anisoscope.capture.compiled import install_taps as install_taps
    from anisoscope.errors import AnisoscopeError as AnisoscopeError
    from anisoscope.errors import ScopeWarning as ScopeWarning
    from anisoscope.evidence.cross_fit import cross_fit as cross_fit
    from anisoscope.evidence.cross_fit import cross_fit_weight as cross_fit_weight
    from anisoscope.evidence.energy import energy_share as energy_share
    from anisoscope.evidence.inference import adjust as adjust
    from anisoscope.evidence.judge import judge as judge
    from anisoscope.evidence.ladder import ladder as ladder
    from anisoscope.evidence.nulls.registry import register_null as register_null
    from anisoscope.evidence.referee_checks import verify as verify
    from anisoscope.evidence.result import Evidence as Evidence
    from anisoscope.evidence.sequence_pairing import pairing_share as pairing_share
    from anisoscope.geometry.cka import linear_cka as linear_cka
    from anisoscope.geometry.curvature import curvature as curvature
    from anisoscope.geometry.dimension import gride as gride
    from anisoscope.geometry.dimension import levina_bickel as levina_bickel
    from anisoscope.geometry.dimension import two_nn as two_nn
    from anisoscope.geometry.isotropy import average_cosine as average_cosine
    from anisoscope.geometry.isotropy import effective_rank as effective_rank
    from anisoscope.geometry.isotropy import isoscore as isoscore
    from anisoscope.geometry.isotropy import isoscore_of_covariance as isoscore_of_covariance
    from anisoscope.geometry.isotropy import isoscore_star as isoscore_star
    from anisoscope.geometry.isotropy import local_isotropy as local_isotropy
    from anisoscope.geometry.isotropy import participation_ratio as participation_ratio
    from anisoscope.geometry.isotropy import partition_ratio as partition_ratio
    from anisoscope.geometry.isotropy import top_share as top_share
    from anisoscope.geometry.measure_registry import register_measure as register_measure
    from anisoscope.geometry.neighbours import Neighbours as Neighbours
    from anisoscope.geometry.neighbours import neighbours as neighbours
    from anisoscope.geometry.overlap import neighbourhood_overlap as neighbourhood_overlap
    from anisoscope.geometry.results import Estimate as Estimate
    from anisoscope.geometry.semi_nmf import semi_nmf as semi_nmf
    from anisoscope.geometry.spectra import rankme as rankme
    from anisoscope.geometry.spectra import spectral_decay as spectral_decay
    from anisoscope.geometry.subspace import Subspace as Subspace
    from anisoscope.geometry.subspace import fit_subspace as fit_subspace
    from anisoscope.geometry.subspace import principal_angles as principal_angles
    from anisoscope.geometry.subspace import register_proxy as register_proxy
    from anisoscope.geometry.tangency import tangency as tangency
    from anisoscope.geometry.tangents import tangent_overlap as tangent_overlap
    from anisoscope.geometry.visible_curvature import visible_curvature as visible_curvature
    from anisoscope.intervene.frequency_weights import document_rates as document_rates
    from anisoscope.intervene.frequency_weights import frequency_weights as frequency_weights
    from anisoscope.intervene.frequency_weights import masking_rates as masking_rates
    from anisoscope.intervene.frequency_weights import weighted_loss as weighted_loss
    from anisoscope.intervene.removal import ablate as ablate
    from anisoscope.intervene.updates import UpdateProjection as UpdateProjection
    from anisoscope.plugins import load_plugins as load_plugins
    from anisoscope.record.scope_options import CaptureOptions as CaptureOptions
    from anisoscope.record.scope_options import EvidenceOptions as EvidenceOptions
    from anisoscope.record.scope_options import SessionOptions as SessionOptions
    from anisoscope.report.notebook_run import open_run as open_run
    from anisoscope.scope import Scope as Scope
    from anisoscope.stats.counts import TokenCounts as TokenCounts
    from anisoscope.stats.moments import Moments as Moments
    from anisoscope.stats.reduce import all_reduce as all_reduce
    from anisoscope.stats.reservoir import Reservoir as Reservoir
    from anisoscope.stats.unit_directions import Directions as Directions


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'anisoscope' has no attribute {name!r}")
    return getattr(import_module(f"anisoscope.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
