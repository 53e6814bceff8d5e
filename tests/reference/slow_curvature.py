"""One local fit of the second fundamental form, slow and plain, in float64 numpy. Written from the definition."""

import itertools

import numpy as np


def second_form_squares(x, point, neighbours, *, dim, along=None) -> tuple[float, ...]:
    """``rms²`` and ``mean²`` at a row from its nearest neighbours, unweighted, less the variance of the fit.

    With ``along`` also the mean of ``‖B(u,u)‖²`` over its columns, each projected on the tangent and normalised.
    Normal coordinates are formed in full, and the variance of each combination of coefficients is taken by itself.
    """
    x = np.asarray(x, dtype=np.float64)
    order = np.argsort(np.linalg.norm(x - x[point], axis=1), kind="stable")
    y = x[order[1 : neighbours + 1]] - x[point]
    frame = np.linalg.svd(y - y.mean(0), full_matrices=True)[2].T
    pairs = list(itertools.combinations_with_replacement(range(dim), 2))

    def fitted(frame):
        """One fit in a frame, and the frame turned to the tangent that it finds."""
        tangent, normal = frame[:, :dim], frame[:, dim:]
        u, n = y @ tangent, y @ normal
        quadratic = [u[:, i] * u[:, j] * (0.5 if i == j else 1.0) for i, j in pairs]
        design = np.column_stack([np.ones(len(u)), u, *quadratic])
        solver = np.linalg.pinv(design)
        coefficient = solver @ n
        turned = np.linalg.qr(np.hstack([tangent + normal @ coefficient[1 : dim + 1].T, normal]))[0]
        return turned, tangent, n, design, solver, coefficient

    for _ in range(7):
        frame = fitted(frame)[0]
    _, tangent, n, design, solver, coefficient = fitted(frame)
    squares = ((n - design @ coefficient) ** 2).sum(1) / (1 - np.diag(design @ solver))
    b = np.zeros((dim, dim, n.shape[1]))
    rows = {}
    for place, (i, j) in enumerate(pairs, start=1 + dim):
        b[i, j] = b[j, i] = coefficient[place]
        rows[i, j] = rows[j, i] = solver[place]

    def square(form):
        """``‖Σ form_ij B_ij‖²`` less the variance of that sum."""
        value = np.einsum("ij,ijn->n", form, b)
        row = sum(form[i, j] * rows[i, j] for i in range(dim) for j in range(dim))
        return float(value @ value - row**2 @ squares)

    eye = np.eye(dim)
    whole = sum(square(np.outer(eye[i], eye[i])) for i in range(dim))
    whole += sum(2 * square((np.outer(eye[i], eye[j]) + np.outer(eye[j], eye[i])) / 2) for i, j in pairs if i != j)
    trace = square(eye)
    found = (2 * whole + trace) / (dim * (dim + 2)), trace / dim**2
    if along is None:
        return found
    units = [tangent.T @ column / np.linalg.norm(tangent.T @ column) for column in along.T]
    return *found, float(np.mean([square(np.outer(u, u)) for u in units]))
