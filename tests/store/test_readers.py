"""Other tools read the parts of a run straight away, and null and NaN stay two things there."""

import math

import duckdb
import polars as pl
import pytest

from anisoscope.store.run import create_run
from anisoscope.store.schema import COLUMNS

PARTS = {
    3: [
        {"step": 3, "layer": 1, "measure": "energy", "value": 0.25, "note": 'a "note", with\nlines \u202e and [red]'},
        {"step": 3, "layer": 2, "measure": "energy", "value": math.nan, "note": "undefined"},
        {"step": 3, "measure": "skipped", "note": ""},
    ],
    20: [{"step": 20, "layer": 2**62, "measure": "energy", "value": math.inf, "low": -math.inf}],
}
EXPECTED = [{name: {"run": "run", **row}.get(name) for name in COLUMNS} for rows in PARTS.values() for row in rows]


@pytest.fixture
def parts(tmp_path):
    with create_run(tmp_path / "run") as run:
        for rows in PARTS.values():
            run.write("a", rows)
        run.write_tensors("proxies-3", {})  # lies beside the parts and must not be taken for one
    return str(tmp_path / "run" / "rows-*.parquet")


def same(found, expected):
    """Equal as it stands in the part: NaN is NaN, null is null."""
    if isinstance(expected, float) and math.isnan(expected):
        return isinstance(found, float) and math.isnan(found)
    return found == expected and type(found) is type(expected)


def require_same(found):
    found = sorted(found, key=lambda row: (row["step"], row["layer"] is None, row["layer"] or 0))
    assert len(found) == len(EXPECTED)
    for row, expected in zip(found, EXPECTED, strict=True):
        assert [name for name in COLUMNS if not same(row[name], expected[name])] == []


def test_duckdb_reads_the_parts(parts):
    query = duckdb.sql(f"select * from '{parts}'")
    assert query.columns == list(COLUMNS)
    require_same([dict(zip(query.columns, row, strict=True)) for row in query.fetchall()])
    kinds = "value is null", "isnan(value)", "note = ''"
    counts = ", ".join(f"count(*) filter ({kind})" for kind in kinds)
    assert duckdb.sql(f"select {counts} from '{parts}'").fetchall() == [(1, 1, 1)]
    largest = duckdb.sql(f"select measure, max(layer) from '{parts}' where step = 20 group by measure").fetchall()
    assert largest == [("energy", 2**62)]


def test_polars_reads_the_parts(parts):
    frame = pl.scan_parquet(parts).collect()
    assert frame.columns == list(COLUMNS)
    require_same(frame.to_dicts())
    assert frame["value"].null_count() == 1
    assert frame["value"].is_nan().sum() == 1
    assert frame.schema["seed"] == pl.Int64  # a column that is null in every row keeps its type
    assert frame.schema["q"] == pl.Float64
