"""The referee's checks on finished models, as a run and as a page."""

import io

import pytest
import torch
from rich.console import Console

from anisoscope import cli, cross_fit
from anisoscope.errors import BrokenRuleError
from anisoscope.evidence.referee_checks import paired_captured, paired_energy, verify
from anisoscope.jobs.progress_display import JobLines
from anisoscope.report.make import make_report
from anisoscope.store.run import open_run
from anisoscope.study.setting_fields import made_of
from anisoscope.study.verify.verify_settings import Verification
from anisoscope.study.verify.verify_study import planned, verified
from models.snapshots import letters, save, tiny

FAST = {"sequences": 16, "length": 24, "rank": 4, "layers": 2, "resamples": 99, "proxies": ("pca", "semi_nmf")}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    where = tmp_path_factory.mktemp("verify")
    settings = made_of(Verification, FAST | {"text": letters(where), "threads": 1, "device": "cpu"})
    models = [str(save(tiny(name), where / name)) for name in ("llama", "bert")]
    run = verified(models, settings, JobLines(Console(file=io.StringIO())), out=where / "run")
    return run, models, settings


def test_both_models_have_every_check_and_the_page_answers(ran):
    run, _, _ = ran
    rows = open_run(run.path).table().to_pylist()
    for model in ("llama", "bert"):
        own = [r for r in rows if r["model"] == model]
        assert {r["layer"] for r in own} == {0, 2, None}
        assert {r["variant"] for r in own} >= {
            "proxy", "anisotropy", "paired", "paired-anisotropy", "normal", "refit", "curvature", "settling",
        }  # fmt: skip
        assert {r["proxy"] for r in own if r["variant"] == "settling"} == {"pca", "semi_nmf"}
        (row,) = (r for r in own if r["variant"] == "settling" and r["proxy"] == "pca")
        assert row["note"].split("of ")[1].startswith("2 layers")
    page = make_report([run.path])
    assert "bert (held out)" in page
    assert page.index("llama: ") < page.index("bert (held out)")
    assert "random directions of equal rank are not shown to do worse" in page


def test_paired_differences_are_of_the_same_sequences():
    """Two proxies of one cloud vary together: their difference is known better than either alone."""
    generator = torch.Generator().manual_seed(0)
    size = torch.randn(40, 1, 1, generator=generator).mul(0.8).exp()
    x, g = (torch.randn(40, 12, 10, generator=generator) * torch.linspace(3, 0.5, 10) * size for _ in range(2))
    side = torch.arange(40) % 2
    first, second = (cross_fit(x, g, method=m, rank=3, folds=side, resamples=99) for m in ("svd", "pca"))
    found, same = paired_energy(first, second), paired_energy(first, first)
    assert found.value == pytest.approx(first.enrichment["haar"].value / second.enrichment["haar"].value)
    assert found.se < 0.5 * first.enrichment["haar"].se
    assert (same.value, same.low, same.high) == pytest.approx((1, 1, 1))
    shares = paired_captured(first, second)
    assert shares.value == pytest.approx(first.captured - second.captured)
    assert shares.low <= shares.value <= shares.high
    table = verify(x, g, ranks=[2], methods=("svd",), resamples=99)
    assert not table.select("paired")


def test_wrong_use_is_told_before_work(ran, tmp_path, capsys):
    _, models, settings = ran
    with pytest.raises(BrokenRuleError, match="a quarter of the width, 4"):
        planned(models, settings.model_copy(update={"rank": 6}))
    with pytest.raises(SystemExit) as stop:
        cli.main(["verify", str(tmp_path / "none")])
    assert stop.value.code in (1, 2)
    assert "none" in capsys.readouterr().err
    cli.main(["verify", models[0], "--held-out", models[1], "--rank", "4", "--length", "24", "--dry-run",
              "--text", settings.text])  # fmt: skip
    assert capsys.readouterr().out.count("memory:") == 2
