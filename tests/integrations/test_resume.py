"""Trainings of hosts that stop and go on in their store, to the rows of one that was not stopped."""

import json

import pytest
import torch

from anisoscope import ScopeWarning, SessionOptions, open_run
from capture.families import batch, build
from observe.nano import NanoGPT, text

SMALL = {"rank": 4, "resamples": 19, "schedule": [0, 2, 3, 5], "views": ["weight"]}
RESUMABLE = {"session": SessionOptions(resumable=True)}
HOSTS = ["ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"]


def plain(path):
    rows = [row for row in open_run(path).table().to_pylist() if row["measure"] not in ("cost", "logged", "loss")]
    said = [{name: repr(value) for name, value in row.items() if name != "run"} for row in rows]
    return sorted(said, key=lambda row: json.dumps(row, sort_keys=True))


class StopError(Exception):
    pass


def trained(folder, store, *, stop_at=None, resume=False, **options):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from anisoscope.integrations.transformers import ScopeCallback

    class Stopping(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == stop_at:
                raise StopError

    data = [{k: v[0] for k, v in batch(seed=i, sequences=3, padded=False).items()} for i in range(144)]
    common = {"max_steps": 7, "save_steps": 3, "per_device_train_batch_size": 20, "report_to": [], "use_cpu": True}
    arguments = TrainingArguments(str(folder), disable_tqdm=True, **common)
    callback = ScopeCallback(**(SMALL | RESUMABLE | options), store=store)
    torch.manual_seed(0)
    model = build("gpt2")
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[callback, Stopping()])
    try:
        trainer.train(resume_from_checkpoint=resume or None)
    except StopError:
        callback._hosted.close(interrupted=True)  # as the end of its process would
    return callback, model


@pytest.mark.filterwarnings(*HOSTS)
def test_trainer_goes_on_in_its_store(tmp_path):
    trained(tmp_path / "a", tmp_path / "whole")
    trained(tmp_path / "b", tmp_path / "run", stop_at=6)
    assert open_run(tmp_path / "run").manifest["status"] == "interrupted"
    # The store is on the way: before, the training ended here with "holds a run already".
    trained(tmp_path / "b", tmp_path / "run", resume=True)
    assert plain(tmp_path / "run") == plain(tmp_path / "whole")
    assert open_run(tmp_path / "run").manifest["resumed"][0]["step"] in (3, 6)


@pytest.mark.slow
@pytest.mark.filterwarnings(*HOSTS)
def test_a_store_that_is_refused_does_not_end_the_training(tmp_path):
    trained(tmp_path / "a", tmp_path / "run")
    before = (tmp_path / "run" / "manifest.json").read_bytes()
    with pytest.warns(ScopeWarning, match="this training is not observed: .* a different training run"):
        callback, _ = trained(tmp_path / "b", tmp_path / "run", rank=5)
    assert callback.rows() == []
    assert (tmp_path / "run" / "manifest.json").read_bytes() == before
    with pytest.raises(Exception, match="a different training run"):
        trained(tmp_path / "c", tmp_path / "run", rank=5, strict=True)


@pytest.mark.parametrize(
    ("options", "said"), [({"rnk": 4}, "did you mean 'rank'"), ({"nulls": ("harr",)}, "did you mean 'haar'")]
)
def test_a_callback_with_wrong_options_is_an_error_before_the_training(options, said):
    from anisoscope.integrations.transformers import ScopeCallback

    with pytest.raises(ValueError, match=said):
        ScopeCallback(**options)


@pytest.mark.slow
@pytest.mark.filterwarnings(*HOSTS)
def test_lightning_keeps_the_scope_in_its_checkpoints(tmp_path):
    import lightning

    from anisoscope.integrations.lightning import ScopeCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = NanoGPT()

        def training_step(self, inputs, index):
            return self.net(*inputs)[1]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Stopping(lightning.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.global_step == 4:
                trainer.save_checkpoint(tmp_path / "at-4.ckpt")

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if trainer.global_step == 4:
                raise StopError

    def fitted(store, *callbacks, path=None):
        callback = ScopeCallback(model="net", **SMALL, **RESUMABLE, store=store)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        quiet |= {"enable_checkpointing": False, "accelerator": "cpu", "max_steps": 7}
        # One batch all the time: Lightning begins an epoch anew, and a resumed training sees other batches.
        data = torch.utils.data.DataLoader([text(0) for _ in range(7)], batch_size=None)
        lightning.Trainer(callbacks=[callback, *callbacks], **quiet).fit(Module(), data, ckpt_path=path)

    fitted(tmp_path / "whole")
    with pytest.raises(StopError):
        fitted(tmp_path / "run", Stopping())
    assert open_run(tmp_path / "run").manifest["status"] == "interrupted"
    fitted(tmp_path / "run", path=tmp_path / "at-4.ckpt")
    assert plain(tmp_path / "run") == plain(tmp_path / "whole")
