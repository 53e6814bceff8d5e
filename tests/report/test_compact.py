"""Rows of a report say what the table says, and take less than dictionaries."""

import tracemalloc

import pytest

from anisoscope.report.compact import compact_rows
from anisoscope.store.run import open_run
from report.planted import plant


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return open_run(plant(tmp_path_factory.mktemp("compact") / "run")).table().slice(0, 5000)


def test_rows_are_those_of_the_table_with_text_as_shown(table):
    plain = [{k: v.upper() if isinstance(v, str) else v for k, v in row.items()} for row in table.to_pylist()]
    assert [dict(row) for row in compact_rows(table, str.upper)] == plain
    row = next(compact_rows(table, str))
    assert (row.get("none"), row.get("none", 3), "step" in row, "none" in row) == (None, 3, True, False)
    with pytest.raises(KeyError):
        row["none"]


def test_rows_take_less_than_half_of_what_dictionaries_take(table):
    def taken(make):
        tracemalloc.start()
        kept = make()
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return size, kept

    compact, dictionaries = taken(lambda: list(compact_rows(table, str)))[0], taken(table.to_pylist)[0]
    assert compact < 0.5 * dictionaries
    assert compact < 600 * table.num_rows
