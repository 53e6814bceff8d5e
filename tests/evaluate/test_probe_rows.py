"""The probe's rows, with and without first positions, are those of a search each."""

import torch

from anisoscope.capture.sites import SiteKey
from anisoscope.evaluate.row_builders import probe_rows
from anisoscope.geometry import selections
from anisoscope.geometry.dimension import two_nn
from anisoscope.observe.statistics import Observation
from anisoscope.stats.reservoir import Reservoir


def test_one_search_serves_both_selections(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 20, 8, generator=generator)
    x[:, 0] += 5
    x[3, 4] = x[2, 0]  # a copy whose original is a first position
    tokens = torch.randint(0, 50, (30, 20), generator=generator)
    kept = Reservoir.of_sequences(x, tokens, rows=1000, seed=0, whole=False)
    searches, nearest = [], selections.nearest
    monkeypatch.setattr(selections, "nearest", lambda x, k: searches.append(len(x)) or nearest(x, k))
    rows = probe_rows(Observation(0, {}, probe={SiteKey(2): kept}), 4096)
    assert len(searches) == 1
    assert [r["subset"] for r in rows if r["measure"] == "two_nn"] == ["all", "no-first"]
    sample = kept.sample()
    for row in rows:
        own = sample.values if row["subset"] == "all" else sample.values[sample.positions > 0]
        expected = two_nn(own)
        assert (row["value"], row["low"], row["high"], row["n"]) == (
            expected.value,
            expected.low,
            expected.high,
            expected.n,
        )
        assert row["note"] == f"{expected.n} unique rows, fewer than 4096"
    assert [r["n"] for r in rows] == [599, 570]
