import io
import pickle
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from anisoscope import AnisoscopeError
from anisoscope.data import cloud_files as clouds
from anisoscope.data.cloud_files import open_cloud

X = np.random.default_rng(0).normal(size=(1000, 5)).astype(np.float32)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(clouds, "CHUNK_BYTES", 5 * 4 * 300)  # four chunks, the last one short


def write(folder, name, array):
    path = folder / name
    if name.endswith(".npy"):
        np.save(path, array)
    elif name.endswith(".npz"):
        np.savez_compressed(path, x=array)
    elif name.endswith(".safetensors"):
        save_file({"x": torch.from_numpy(array)}, path)
    elif name.endswith(".parquet"):
        pq.write_table(pa.table({f"c{i}": array[:, i] for i in range(array.shape[1])}), path)
    else:
        np.savetxt(path, array, delimiter=",", header="a,b,c,d,e", comments="")
    return path


@pytest.mark.parametrize("suffix", clouds.SUFFIXES)
def test_every_format_gives_the_same_rows(tmp_path, suffix):
    cloud = open_cloud(write(tmp_path, f"x{suffix}", X))
    parts = list(cloud.chunks())
    np.testing.assert_allclose(torch.cat(parts).numpy(), X, rtol=1e-6)
    assert cloud.rows in (1000, None)
    if suffix in (".npy", ".npz", ".safetensors"):
        assert [len(part) for part in parts] == [300, 300, 300, 100]


def test_other_layouts(tmp_path):
    np.save(tmp_path / "f.npy", np.asfortranarray(X))
    np.savez(tmp_path / "f.npz", x=np.asfortranarray(X))
    np.save(tmp_path / "big.npy", X.astype(">f8"))
    (tmp_path / "bare.csv").write_text("1,2\n3,4.5\n5,6\n")
    (tmp_path / "whole.csv").write_text("a,b,name\n1,2,x\n3,4,y\n")
    pq.write_table(pa.table({"id": [1, 2], "v": [[1.0, 2.0], [3.0, 4.0]]}), tmp_path / "v.parquet")
    save_file({"h": torch.from_numpy(X).bfloat16()}, tmp_path / "b.safetensors")
    for name in ("f.npy", "f.npz", "big.npy"):
        np.testing.assert_allclose(torch.cat(list(open_cloud(tmp_path / name).chunks())).float().numpy(), X, rtol=1e-6)
    assert next(open_cloud(tmp_path / "bare.csv").chunks()).tolist() == [[1, 2], [3, 4.5], [5, 6]]
    assert next(open_cloud(tmp_path / "whole.csv").chunks()).tolist() == [[1, 2], [3, 4]]
    assert next(open_cloud(tmp_path / "v.parquet").chunks()).tolist() == [[1, 2], [3, 4]]
    assert next(open_cloud(tmp_path / "b.safetensors").chunks()).dtype == torch.bfloat16


def test_nothing_is_left_out_in_silence(tmp_path):
    (tmp_path / "bom.csv").write_bytes(b"\xef\xbb\xbf1,2\n3,4\n5,6\n")
    assert len(next(open_cloud(tmp_path / "bom.csv").chunks())) == 3
    (tmp_path / "mixed.csv").write_text("a,name\n1,anna\n2,bert\n")
    assert open_cloud(tmp_path / "mixed.csv").left_out == ("name",)
    assert open_cloud(tmp_path / "mixed.csv", columns=("a",)).left_out == ()
    pq.write_table(pa.table({"id": [1, 2], "v": [1.0, 2.0]}), tmp_path / "ids.parquet")
    assert open_cloud(tmp_path / "ids.parquet").left_out == ("id",)


def test_keys_and_columns_pick(tmp_path):
    np.savez(tmp_path / "two.npz", a=X, b=2 * X)
    np.testing.assert_array_equal(torch.cat(list(open_cloud(tmp_path / "two.npz", key="b").chunks())), 2 * X)
    table = write(tmp_path, "t.parquet", X)
    picked = torch.cat(list(open_cloud(table, columns=("c3", "c1")).chunks()))
    np.testing.assert_array_equal(picked, X[:, [3, 1]])


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def test_no_pickle_is_ever_loaded(tmp_path):
    np.save(tmp_path / "o.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "o.npz", x=np.array([[Bomb()]], dtype=object))
    (tmp_path / "p.npy").write_bytes(pickle.dumps(Bomb()))
    with zipfile.ZipFile(tmp_path / "p.npz", "w") as archive:
        archive.writestr("x.npy", pickle.dumps(Bomb()))
    for name in ("o.npy", "o.npz"):
        with pytest.raises(ValueError, match="pickled objects, which are never loaded"):
            open_cloud(tmp_path / name)
    for name in ("p.npy", "p.npz"):
        with pytest.raises((ValueError, AnisoscopeError), match="cannot be read"):
            open_cloud(tmp_path / name)


@pytest.mark.parametrize("suffix", clouds.SUFFIXES)
@pytest.mark.parametrize("damage", ["truncated", "text", "empty"])
def test_damaged_files_are_named(tmp_path, suffix, damage):
    path = write(tmp_path, f"x{suffix}", X)
    whole = path.read_bytes()
    bad = {"truncated": whole[: len(whole) // 2], "text": b"this is not\na table of, numbers\n", "empty": b""}
    path.write_bytes(bad[damage])
    if suffix == ".csv" and damage == "truncated":
        # Half a table of text is a shorter table, unless its last line is cut before the last column.
        path.write_bytes(whole[: whole.rindex(b",", 0, len(whole) // 2)])
    with pytest.raises(AnisoscopeError, match=path.name):
        list(open_cloud(path).chunks())


def test_a_zip_cut_inside_a_member_is_named(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1000, 5)})
    path = tmp_path / "short.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue() + X[:10].tobytes())
    with pytest.raises(AnisoscopeError, match="x says 20,000 bytes and holds 200"):
        list(open_cloud(path).chunks())


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda f: f / "none.npy", {}, "must exist"),
        (lambda f: f, {}, "not be a directory"),
        (lambda f: write(f, "x.npy", X).rename(f / "x.txt"), {}, "must end in one of"),
        (lambda f: write(f, "x.npy", X), {"key": "a"}, "--key goes with"),
        (lambda f: write(f, "x.npy", X), {"columns": ("a",)}, "--columns goes with"),
        (lambda f: write(f, "x.npy", X[0]), {}, r"shape \(N, D\), D ≥ 1, got shape \(5,\)"),
        (lambda f: write(f, "x.npy", X.astype(int)), {}, "floating-point dtype, got int64"),
        (lambda f: write(f, "x.npy", X[:, :0]), {}, "D ≥ 1"),
        (lambda f: _float8(f), {}, "floating-point dtype"),
        (lambda f: write(f, "x.safetensors", X.astype(int)), {}, "floating-point dtype"),
        (lambda f: write(f, "x.npz", X), {"key": "y"}, "must be one of x, got y; did you mean x"),
        (lambda f: write(f, "x.parquet", X), {"columns": ("c9",)}, "did you mean c"),
        (lambda f: _csv(f, "name\nanna\n"), {}, "columns of real numbers"),
        (lambda f: _csv(f, "a,name\n1,anna\n"), {"columns": ("name",)}, "must hold real numbers"),
        (lambda f: _csv(f, "a,b\n1,2\n,4\n"), {}, "no missing values"),
        (lambda f: _csv(f, "a,b\n1,2\n3\n"), {}, "cannot be read as .csv"),
        (lambda f: _ragged(f), {}, "one length"),
        (lambda f: _two(f), {}, "holds 2 arrays, so --key must name one"),
    ],
)
def test_wrong_use_is_named(tmp_path, make, options, message):
    with pytest.raises((ValueError, AnisoscopeError), match=message):
        list(open_cloud(make(tmp_path), **options).chunks())


def _csv(folder, text):
    (folder / "t.csv").write_text(text)
    return folder / "t.csv"


def _ragged(folder):
    pq.write_table(pa.table({"v": [[1.0], [2.0, 3.0]]}), folder / "r.parquet")
    return folder / "r.parquet"


def _float8(folder):
    save_file({"x": torch.ones(9, 3).to(torch.float8_e4m3fn)}, folder / "f8.safetensors")
    return folder / "f8.safetensors"


def _two(folder):
    np.savez(folder / "two.npz", a=X, b=X)
    return folder / "two.npz"
