"""What a part holds as one number, against the same written out value by value, and whatever chunks it lies in."""

import hashlib
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anisoscope.store.digest import digest_of


def written_out(table):
    """The same by Python values."""
    found = hashlib.blake2b(f"{table.num_rows}".encode(), digest_size=16)
    for field, column in zip(table.schema, table.columns, strict=True):
        values = column.to_pylist()
        found.update(f"\0{field.name}\0{field.type}\0".encode())
        found.update(np.packbits(np.array([value is None for value in values], bool)).tobytes())
        if field.type == pa.string():
            each = [(value or "").encode() for value in values]
            found.update(np.array([len(text) for text in each], "<i8").tobytes())
            found.update(b"".join(each))
        elif pa.types.is_floating(field.type):
            found.update(np.array([value or 0.0 for value in values], "<f8").tobytes())
        elif pa.types.is_integer(field.type):
            found.update(np.array([value or 0 for value in values], "<i8").tobytes())
        else:
            found.update(repr(values).encode())
    return found.hexdigest()


def table(n=37, seed=0):
    draw = np.random.default_rng(seed)

    def holes(values):
        return [None if draw.random() < 0.3 else value for value in values]

    return pa.table(
        {
            "word": pa.array(holes([("é" * int(k)) + "x" for k in draw.integers(0, 5, n)]), pa.string()),
            "none": pa.array([None] * n, pa.string()),
            "full": pa.array([str(i) for i in range(n)]),
            "value": pa.array(holes(draw.normal(size=n).tolist()), pa.float64()),
            "odd": pa.array([float("nan"), float("inf"), *[1.0] * (n - 2)]),
            "step": pa.array(holes(draw.integers(-9, 9, n).tolist()), pa.int64()),
            "small": pa.array(holes(draw.integers(0, 9, n).tolist()), pa.int32()),
            "flag": pa.array(holes((draw.random(n) < 0.5).tolist()), pa.bool_()),
            "void": pa.nulls(n),
        }
    )


@pytest.mark.parametrize("n", [2, 7, 8, 64, 201])
def test_it_is_what_the_values_give(n):
    assert digest_of(table(n)) == written_out(table(n))


def test_no_rows_have_one_too():
    assert digest_of(table(2).slice(0, 0)) == written_out(table(2).slice(0, 0))


@pytest.mark.parametrize("cut", [1, 5, 8, 20])
def test_chunks_and_offsets_do_not_matter(cut):
    whole = table(40)
    assert digest_of(pa.concat_tables([whole.slice(0, cut), whole.slice(cut)])) == digest_of(whole)
    assert digest_of(whole.slice(cut)) == written_out(whole.slice(cut))


def test_letters_under_a_null_do_not_count():
    letters, ends = b"hidden", np.array([0, 6, 6], "<i4")
    valid = np.array([0b10], "u1")  # the first is null, though it has letters
    buffers = [pa.py_buffer(valid), pa.py_buffer(ends), pa.py_buffer(letters)]
    odd = pa.table({"word": pa.Array.from_buffers(pa.string(), 2, buffers)})
    assert odd["word"].to_pylist() == [None, ""]
    assert digest_of(odd) == digest_of(pa.table({"word": pa.array([None, ""], pa.string())}))


def test_every_value_counts():
    base = table(20)
    found = {digest_of(base)}
    for name in base.column_names:
        values = base[name].to_pylist()
        if name == "void":
            continue
        values[3] = None if values[3] is not None else {"word": "", "none": "", "flag": False}.get(name, 0)
        found.add(
            digest_of(
                base.set_column(base.column_names.index(name), name, pa.array(values, base.schema.field(name).type))
            )
        )
    assert len(found) == len(base.column_names)


def test_pandas_is_not_imported(tmp_path):
    pq.write_table(table(), tmp_path / "part.parquet")
    code = (
        "import sys\nimport pyarrow.parquet as pq\nfrom anisoscope.store.digest import digest_of\n"
        f"print(digest_of(pq.ParquetFile({str(tmp_path / 'part.parquet')!r}).read()), 'pandas' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [digest_of(table()), "False"]
