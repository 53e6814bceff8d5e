"""Runs of schema 1 are still read: small ones, written by the last version that wrote it."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anisoscope.errors import AnisoscopeError
from anisoscope.report.make import make_report
from anisoscope.store.run import open_run
from anisoscope.store.schema import SCHEMA
from anisoscope.store.version_1 import from_version_1

HERE = Path(__file__).parent / "version_1"
KINDS = ("pair", "profile", "theory")


def raw(kind):
    """The rows as they lie on disk."""
    return [row for part in sorted((HERE / kind).glob("*.parquet")) for row in pq.read_table(part).to_pylist()]


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_read_under_the_names_of_today(kind):
    table = open_run(HERE / kind).table()
    assert table.schema.names == SCHEMA.names
    found, written = table.to_pylist(), raw(kind)
    assert len(found) == len(written)
    same = ("step", "layer", "view", "proxy", "rank", "timing", "measure", "null", "low", "high", "p", "q", "n")
    for row, old in zip(found, written, strict=True):
        assert row["subset"] == old["cloud"]
        assert row["tensor"] == old["points"]
        assert all(row[name] == old[name] for name in same)
        assert repr(row["value"]) == repr(old["value"])


def test_numbers_and_tokens_come_out_of_their_texts():
    pair = open_run(HERE / "pair").table().to_pylist()
    concepts = [r for r in pair if r["measure"] == "concept"]
    assert {r["place"] for r in concepts} == set(range(6))
    assert all(r["item"] is not None and r["token"] and r["variant"] is r["note"] is None for r in concepts)
    types = [r for r in pair if r["measure"] == "type_place"]
    assert {r["variant"] for r in types} == {"distance, plain", "distance, weighted"}
    assert {r["item"] for r in types} >= set(range(20))
    theory = open_run(HERE / "theory").table().to_pylist()
    assert all(r["radius"] > 0 for r in theory if r["measure"] in ("chord", "draw_ratio", "counter_gamma"))
    assert {r["parameter"] for r in theory if r["measure"] == "counter_gamma"} >= {0.0, 0.5, 1.0}
    assert {r["parameter"] for r in theory if r["measure"] == "attenuation"} >= {0.0, 2.0}
    assert len({r["item"] for r in theory if r["measure"] == "draw_ratio"}) == 10
    profile = open_run(HERE / "profile").table().to_pylist()
    assert all(r["floor"] > 0 for r in profile if r["measure"] == "top_share")
    assert all(r["radius"] > 0 for r in profile if r["measure"] == "gride" and r["value"] == r["value"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_is_made_of_them(kind):
    page = make_report([str(HERE / kind)])
    assert "<h1>" in page
    assert len(page) > 50_000


def test_texts_that_only_look_packed_stay_as_they_are():
    rows = [
        {"measure": "concept", "variant": "a:b", "note": "7"},
        {"measure": "type_place", "variant": "distance", "note": "x"},
        {"measure": "chord", "variant": "t=abc", "note": None},
        {"measure": "top_share", "variant": "power=2, centred", "note": "noise floor high"},
        {"measure": "loss", "variant": "train", "note": "seen at radius x"},
    ]
    table = pa.Table.from_pylist([row | {"cloud": "all", "points": None} for row in rows])
    assert [(r["variant"], r["note"]) for r in from_version_1(table).to_pylist()] == [
        (row["variant"], row["note"]) for row in rows
    ]


def test_such_a_run_cannot_be_gone_on_with(tmp_path):
    run = open_run(HERE / "pair")
    with pytest.raises(AnisoscopeError, match="was begun under schema 1"):
        run.require_current()
