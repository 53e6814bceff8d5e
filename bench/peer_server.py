"""Runs in the peers' own environment: takes one JSON request a line, answers one JSON line.

Requests: ``{"do": "versions"}``, ``{"do": "value" | "time", "peer": ..., "file": ...}``. A peer that raises answers
with its error, which is an answer too.
"""

# Peers are installed in an environment of their own.
# pyright: reportMissingImports=false

from __future__ import annotations

import json
import sys
import time
import warnings
from functools import cache
from importlib.metadata import version

import numpy as np

warnings.filterwarnings("ignore")


def skdim_two_nn(x):
    import skdim

    return float(skdim.id.TwoNN().fit(x).dimension_)


def skdim_two_nn_mle(x):
    import skdim

    return float(skdim.id.TwoNN(method="mle", discard_fraction=0.0).fit(x).dimension_)


def skdim_mle(x):
    import skdim

    return float(skdim.id.MLE(K=20).fit(x, n_neighbors=20).dimension_)


def dadapy_two_nn(x):
    from dadapy import Data

    return float(Data(x, verbose=False, n_jobs=2).compute_id_2NN()[0])


def dadapy_two_nn_mle(x):
    from dadapy import Data

    return float(Data(x, verbose=False, n_jobs=2).compute_id_2NN(algorithm="ml", mu_fraction=1.0)[0])


def dadapy_gride(x):
    from dadapy import Data

    return [float(v) for v in Data(x, verbose=False, n_jobs=2).return_id_scaling_gride(range_max=64)[0]]


def isoscore(x):
    from IsoScore.IsoScore import IsoScore

    return float(IsoScore(x))


def isoscore_transposed(x):
    return isoscore(np.ascontiguousarray(x.T))


def isoscore_star_identity(x):
    import torch
    from IsoScore.IsoScore import istar

    return float(istar().IsoScore_star(x, torch.eye(x.shape[1], dtype=torch.float64), 0.2))


def dadapy_overlap(pair):
    from dadapy import MetricComparisons

    return float(MetricComparisons(pair[0], verbose=False, n_jobs=2).return_data_overlap(pair[1], k=10))


PEERS = {
    f.__name__: f
    for f in (
        skdim_two_nn, skdim_two_nn_mle, skdim_mle, dadapy_two_nn, dadapy_two_nn_mle, dadapy_gride, isoscore,
        isoscore_transposed, isoscore_star_identity, dadapy_overlap,
    )
}  # fmt: skip


def overcomplete_semi_nmf(file, codes_file, iterations):
    """Seconds and relative squared error of overcomplete's multiplicative updates from given codes."""
    import torch

    update = overcomplete_update()
    x, codes = (torch.from_numpy(np.load(f)) for f in (file, codes_file))
    concepts = torch.linalg.lstsq(codes, x).solution
    update(x, codes, concepts, max_iter=3, tol=0)
    start = time.perf_counter()
    codes, concepts = update(x, codes, concepts, max_iter=iterations, tol=0)
    seconds = time.perf_counter() - start
    left = x.double() - codes.double() @ concepts.double()
    return [seconds, float(left.square().sum() / x.double().square().sum())]


@cache
def overcomplete_update():
    """Its optimiser alone: the package as a whole does not import without torchvision."""
    import importlib.util
    import types

    spec = importlib.util.find_spec("overcomplete")
    assert spec is not None, "installed with the peers"
    assert spec.submodule_search_locations is not None, "a package"
    (root,) = spec.submodule_search_locations
    for name, path in (("overcomplete", root), ("overcomplete.optimization", f"{root}/optimization")):
        module = types.ModuleType(name)
        module.__path__ = [path]
        sys.modules.setdefault(name, module)
    from overcomplete.optimization.semi_nmf import snmf_multiplicative_update

    return snmf_multiplicative_update


def answer(request):
    if request["do"] == "versions":
        names = ("scikit-dimension", "dadapy", "IsoScore", "overcomplete", "numpy", "torch")
        return {name: version(name) for name in names}
    if request["do"] == "semi_nmf":
        return overcomplete_semi_nmf(request["file"], request["codes"], int(request["iterations"]))
    act, x = PEERS[request["peer"]], np.load(request["file"])
    if request["do"] == "value":
        return act(x)
    start = time.perf_counter()
    act(x)
    return time.perf_counter() - start


def main():
    out, sys.stdout = sys.stdout, sys.stderr  # peers print; the answers must not mix with that
    for line in sys.stdin:
        try:
            reply = {"ok": answer(json.loads(line))}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:90]}"}
        print(json.dumps(reply), file=out, flush=True)


if __name__ == "__main__":
    main()
