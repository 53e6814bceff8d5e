"""anisoscope watches the geometry of a language model while it learns.

Public names are resolved on first use, so that importing the package imports nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_HOME = {
    "AnisoscopeError": "errors",
    "Directions": "stats.directions",
    "Estimate": "geometry.results",
    "Moments": "stats.moments",
    "Neighbours": "geometry.neighbours",
    "Reservoir": "stats.reservoir",
    "TokenCounts": "stats.counts",
    "all_reduce": "stats.reduce",
    "average_cosine": "geometry.isotropy",
    "effective_rank": "geometry.isotropy",
    "gride": "geometry.dimension",
    "isoscore": "geometry.isotropy",
    "isoscore_of_covariance": "geometry.isotropy",
    "isoscore_star": "geometry.isotropy",
    "levina_bickel": "geometry.dimension",
    "local_isotropy": "geometry.isotropy",
    "neighbours": "geometry.neighbours",
    "participation_ratio": "geometry.isotropy",
    "partition_ratio": "geometry.isotropy",
    "top_share": "geometry.isotropy",
    "two_nn": "geometry.dimension",
}

__all__ = [*_HOME, "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from anisoscope.errors import AnisoscopeError as AnisoscopeError
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
    from anisoscope.geometry.neighbours import Neighbours as Neighbours
    from anisoscope.geometry.neighbours import neighbours as neighbours
    from anisoscope.geometry.results import Estimate as Estimate
    from anisoscope.stats.counts import TokenCounts as TokenCounts
    from anisoscope.stats.directions import Directions as Directions
    from anisoscope.stats.moments import Moments as Moments
    from anisoscope.stats.reduce import all_reduce as all_reduce
    from anisoscope.stats.reservoir import Reservoir as Reservoir


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'anisoscope' has no attribute {name!r}")
    return getattr(import_module(f"anisoscope.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
