"""Losses that change the geometry of a model while it learns, for any training loop.

Example::

    from anisoscope.regularizers import IStar, Regularizer

    with Regularizer(model, IStar(), weight=0.1, layers=[4, 8]) as penalty:
        for batch in loader:
            loss = model(**batch).loss + penalty()
            loss.backward()
            ...
"""

from __future__ import annotations

from anisoscope.intervene.penalties import CosReg, CurvatureReg, IStar, SpectralDecay, TangentReg
from anisoscope.intervene.regularise import Regularizer

__all__ = ["CosReg", "CurvatureReg", "IStar", "Regularizer", "SpectralDecay", "TangentReg"]
