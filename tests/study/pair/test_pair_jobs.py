"""The trainings of a pair as jobs: the rows of a serial run, one failure that costs itself only, and Ray."""

import io

import pytest
import torch
from rich.console import Console

from anisoscope.jobs.job_pool import JobResources
from anisoscope.jobs.progress_display import JobLines
from anisoscope.study.pair import pair_jobs
from anisoscope.study.pair.pair_study import Jobs, pair, resume
from study.jobs import Quiet, assert_same, settings

pytestmark = pytest.mark.filterwarnings("ignore")  # what transformers and accelerate have to say is theirs


def jobs(**means):
    return Jobs(JobResources(**{"threads": torch.get_num_threads()} | means), JobLines(Console(file=io.StringIO())))


@pytest.mark.slow
def test_a_training_that_fails_costs_itself_only_and_is_made_by_a_resume(whole, tmp_path, monkeypatch):
    where, serial, _ = whole
    real = pair_jobs.train

    def broken(job, *rest):
        if job.role == "encoder":
            raise RuntimeError("the machine is tired")
        return real(job, *rest)

    monkeypatch.setattr(pair_jobs, "train", broken)
    run = pair(settings(where), Quiet(), out=tmp_path / "run", jobs=jobs(retries=0))
    assert run.manifest["done"] == ["decoder-0"]
    assert "tired" in run.manifest["failed"]["encoder-0"]
    monkeypatch.setattr(pair_jobs, "train", real)
    again = resume(tmp_path / "run", Quiet(), jobs=jobs())
    assert again.finished
    assert again.manifest["failed"] == {}
    assert again.manifest["hashes"] == serial.manifest["hashes"]
    assert again.manifest["fold_seeds"] == serial.manifest["fold_seeds"]
    assert_same(where / "run", tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.slow
def test_seeds_on_ray_give_the_rows_and_weights_of_a_serial_run(tmp_path):
    pytest.importorskip("ray")
    own = settings(tmp_path).model_copy(update={"seeds": 2})
    serial = pair(own, Quiet(), out=tmp_path / "serial", jobs=jobs(threads=1))
    spread = pair(own, Quiet(), out=tmp_path / "ray", jobs=jobs(threads=1, ray="local"))
    assert spread.finished
    assert set(spread.manifest["done"]) == {"decoder-0", "encoder-0", "decoder-1", "encoder-1"}
    assert spread.manifest["hashes"] == serial.manifest["hashes"]
    assert_same(tmp_path / "serial", tmp_path / "ray")
