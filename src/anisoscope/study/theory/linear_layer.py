"""A linear layer with a loss, and what every token asks of its weights. Letters: N tokens, D width, E outputs.

Inputs are coordinates around the point of the manifold, so its position is in the bias. The gradient of the weights is
``Σ_i δ_i x_iᵀ`` with ``δ = ∂loss/∂output``; with ``x = (u, n)`` its tangent part is ``Σ δ_i u_iᵀ``, the normal one
``Σ δ_i n_iᵀ``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Loss = Literal["squared", "cross-entropy"]


@dataclass(frozen=True, slots=True, eq=False)
class LinearLayer:
    """``y = Wx + b`` under a loss, the same target for every token of the patch."""

    weights: np.ndarray  # (E, D)
    bias: np.ndarray
    target: np.ndarray  # what squared loss wants, or probabilities
    loss: Loss

    @classmethod
    def drawn(cls, width: int, outputs: int, loss: Loss, rng: np.random.Generator, scale: float = 1.0) -> LinearLayer:
        """Random weights; a random target, which under cross-entropy is one class.

        ``scale`` is a number per unit of length, as weights are: one that goes with the curvature leaves outputs, and
        so all that is judged, as they are in any unit.
        """
        target = rng.standard_normal(outputs) if loss == "squared" else np.eye(outputs)[rng.integers(outputs)]
        return cls(scale * rng.standard_normal((outputs, width)), rng.standard_normal(outputs), target, loss)

    def deltas(self, x_ND: np.ndarray) -> np.ndarray:
        """The derivative of ``½‖y − target‖²`` or of the cross-entropy by the outputs, token by token."""
        y_NE = x_ND @ self.weights.T + self.bias
        if self.loss == "cross-entropy":
            y_NE = np.exp(y_NE - y_NE.max(1, keepdims=True))
            y_NE /= y_NE.sum(1, keepdims=True)
        return y_NE - self.target


def outer(deltas_NE: np.ndarray, x_ND: np.ndarray) -> np.ndarray:
    """``δ_i x_iᵀ`` of every token as a row of length E·D."""
    return (deltas_NE[:, :, None] * x_ND[:, None, :]).reshape(len(x_ND), -1)


def mean_gradient(deltas_NE: np.ndarray, x_ND: np.ndarray) -> float:
    """Norm of the mean of ``δ_i x_iᵀ``."""
    return float(np.linalg.norm(deltas_NE.T @ x_ND)) / len(x_ND)
