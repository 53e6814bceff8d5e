"""A resume keeps the number of threads of the run, or says what it cannot promise."""

import pytest
import torch

from anisoscope.record.run_provenance import provenance
from anisoscope.study.same_bits import as_begun


@pytest.fixture
def manifest():
    return provenance()


def test_the_recorded_number_of_threads_is_used_and_given_back(manifest):
    lines, before = [], torch.get_num_threads()
    manifest["machine"]["threads"] = before + 1
    with as_begun(manifest, lines.append):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    assert lines == [f"using {before + 1} torch thread(s), as at the start of the run, instead of {before}"]


def test_nothing_is_said_where_all_is_as_it_was(manifest):
    lines = []
    with as_begun(manifest, lines.append):
        pass
    assert lines == []


@pytest.mark.parametrize("threads", [None, 0, -3, "two", 10**20])
def test_what_is_not_promised_is_said_in_one_line(manifest, threads):
    manifest["machine"]["threads"] = threads
    manifest["versions"]["torch"] = "1.0"
    lines, before = [], torch.get_num_threads()
    with as_begun(manifest, lines.append):
        assert torch.get_num_threads() == before
    assert len(lines) == 1
    assert (
        "may differ in their last bits from an uninterrupted run: the number of threads at its start is not" in lines[0]
    )
    assert "torch was 1.0 and is" in lines[0]


def test_a_resumed_pair_trains_with_the_threads_of_its_run(whole, tmp_path, monkeypatch):
    """The training itself sees them, not only the context around it."""
    import shutil

    from anisoscope import open_run
    from anisoscope.study.pair import pair_study as study
    from study.jobs import Quiet

    where, *_ = whole
    out = tmp_path / "run"
    shutil.copytree(where / "run", out)
    run = open_run(out, write=True)
    threads = torch.get_num_threads() + 1
    run.update(machine=run.manifest["machine"] | {"threads": threads}, done=["decoder-0"])
    run.close("interrupted")
    seen = []

    def train(*args):
        seen.append(torch.get_num_threads())
        return False

    monkeypatch.setattr(study, "train", train)
    study.resume(out, Quiet())
    assert seen == [threads]
