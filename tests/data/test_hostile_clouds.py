"""Files that say more than they hold, or hold what cannot be measured: an error before memory is taken."""

import io
import os
import time
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from anisoscope.data import enwik8
from anisoscope.data.cloud_files import open_cloud
from anisoscope.errors import AnisoscopeError
from anisoscope.study.measure.measure_study import measure_cloud


def npz(path, shape, held, fortran=False):
    """An archive whose header says one shape, with so many bytes of zeros."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": fortran, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(held))
    return path


def test_an_archive_that_holds_other_bytes_than_it_says_is_damaged(tmp_path):
    with pytest.raises(AnisoscopeError, match="x says 4,000,000,000,000 bytes and holds 1,000"):
        open_cloud(npz(tmp_path / "a.npz", (10**6, 10**6), 1000))


@pytest.mark.parametrize("fortran", [False, True])
def test_an_array_larger_than_the_machine_is_refused_before_it_is_read(tmp_path, monkeypatch, fortran):
    monkeypatch.setattr("anisoscope.machine_capacity.available_memory", lambda: 1 << 20)
    file = npz(tmp_path / "a.npz", (100, 10_000), 4_000_000, fortran)
    with pytest.raises(AnisoscopeError, match=r"needs about .* GiB, and 0\.0 are free"):
        measure_cloud(open_cloud(file).chunks())


def test_a_covariance_too_large_is_refused_before_it_is_made():
    with pytest.raises(AnisoscopeError, match=r"a covariance of 600,000 columns needs about .* GiB"):
        measure_cloud([torch.ones(3, 600_000)])


@pytest.mark.parametrize("scale", [1e-200, 1e-100, 1e100, 1e200])
def test_numbers_whose_squares_vanish_are_an_error(scale):
    x = torch.randn(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=r"the largest number must lie in 1e-70 … 1e\+70"):
        measure_cloud([x * scale])


@pytest.mark.parametrize("scale", [2.0**-200, 2.0**200])
def test_numbers_near_the_limit_give_the_same_answers(scale):
    x = torch.randn(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    one, other = measure_cloud([x]).table, measure_cloud([x * scale]).table
    for a, b in zip(one, other, strict=True):
        if a.measure != "partition_ratio":  # by its definition not of the scale's
            assert a.value == pytest.approx(b.value, rel=1e-6, nan_ok=True), (a.measure, a.variant)


def test_empty_lists_and_pipes_are_named(tmp_path):
    pq.write_table(pa.table({"v": pa.array([[], [], []], pa.list_(pa.float32()))}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="must hold numbers, got empty lists"):
        list(open_cloud(tmp_path / "a.parquet").chunks())
    for suffix in (".npy", ".npz", ".csv", ".parquet", ".safetensors"):
        os.mkfifo(tmp_path / f"pipe{suffix}")
        with pytest.raises(ValueError, match="must be a regular file"):
            open_cloud(tmp_path / f"pipe{suffix}")


SLOW = {
    "unclosed": "<ref>" * 35_000,
    "closed by others": "<ref>" * 20_000 + "</math>" * 20_000,
    "links": "[[" * 40_000 + "a" + "]]" * 40_000,
    "tables and templates": "{|\n" * 30_000 + "}}" * 30_000,
    "heading": "=" + " " * 150_000,
    "address": "[http://" + "a" * 150_000,
}


@pytest.mark.parametrize("kind", SLOW)
def test_cleaning_takes_a_time_in_proportion_to_the_text(kind):
    began = time.process_time()
    enwik8.cleaned(SLOW[kind])
    assert time.process_time() - began < 1.5
