"""The callback in a real Lightning run."""

import csv

import lightning
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from anisoscope.integrations.lightning import ScopeCallback
from capture.families import batch, build

OPTIONS = {"rank": 4, "resamples": 19, "strict": True, "schedule": 2}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


class Module(lightning.LightningModule):
    def __init__(self, fail_at=None):
        super().__init__()
        self.net, self.fail_at = build("gpt2"), fail_at

    def training_step(self, inputs, index):
        loss = self.net(**inputs).loss
        if index == self.fail_at:
            raise KeyError("in the module")
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def fitted(folder, callback=None, *, fail_at=None, **options):
    torch.manual_seed(0)
    module = Module(fail_at)
    trainer = lightning.Trainer(
        max_steps=7,
        accelerator="cpu",
        callbacks=[callback] if callback else [],
        logger=CSVLogger(folder),
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    torch.manual_seed(1)
    data = [batch(seed=i, sequences=12) for i in range(14)]
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=None))
    return trainer, [p.detach().clone() for p in module.parameters()], module


@pytest.mark.parametrize("accumulate", [1, 2])
def test_weights_are_those_of_a_run_without_it(tmp_path, accumulate):
    options = {"accumulate_grad_batches": accumulate, "gradient_clip_val": 0.1}
    _, bare, _ = fitted(tmp_path, **options)
    callback = ScopeCallback(model="net", **OPTIONS)
    trainer, observed, _ = fitted(tmp_path, callback, **options)
    assert all(torch.equal(a, b) for a, b in zip(bare, observed, strict=True))
    rows = callback.rows()
    assert {r["step"] for r in rows if r["measure"] == "energy"} == {0, 2, 4, 6}
    assert {r["step"] for r in rows if r["tensor"] == "update"} == {0, 2, 4, 6}
    (first,) = [
        r for r in rows if (r["step"], r["layer"], r["measure"], r["view"]) == (0, 0, "energy", "representation")
    ]
    assert first["n"] == sum(int(batch(seed=i, sequences=12)["attention_mask"].sum()) for i in range(accumulate))
    with open(f"{trainer.logger.log_dir}/metrics.csv") as file:
        logged = [row for row in csv.DictReader(file) if row.get("anisoscope/enrichment/haar/median")]
    assert [int(row["step"]) for row in logged] == [float(row["anisoscope/step"]) for row in logged] == [0, 2, 4, 6]
    assert "anisoscope/enrichment/haar/median" in trainer.callback_metrics


def test_an_exception_removes_every_hook(tmp_path, monkeypatch):
    callback, made = ScopeCallback(model="net", **(OPTIONS | {"schedule": 1})), []
    monkeypatch.setattr(Module, "on_train_start", lambda self: made.append(self.net))
    with pytest.raises(KeyError, match="in the module"):
        fitted(tmp_path, callback, fail_at=3)
    (model,) = made
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert {row["step"] for row in callback.rows()} == {0, 1, 2}
