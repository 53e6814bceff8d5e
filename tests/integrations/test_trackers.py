"""What trackers hold, read back from what they wrote: every observation, at the step that was observed."""

import json
import struct
import time
from pathlib import Path

import pytest
import torch

from anisoscope import Scope, ScopeWarning, SessionOptions
from anisoscope.record.trackers import Trackio
from observe.nano import NanoGPT, text, train

OBSERVED = [0, 2, 5]
SMALL = {"rank": 4, "resamples": 19, "schedule": OBSERVED, "views": ["weight"], "strict": True}
NAME = "anisoscope/enrichment/haar/weight/layer_01"
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


def tensorboard(folder):
    """Scalars by name and step, from event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for path in sorted({each.parent for each in Path(folder).rglob("events.out*")}):
        events = EventAccumulator(str(path), size_guidance={"scalars": 0})
        events.Reload()
        for tag in events.Tags()["scalars"]:
            found.setdefault(tag, {}).update({event.step: event.value for event in events.Scalars(tag)})
    return found


def log_records(data):
    """Records of a file in LevelDB's log format, after W&B's own header of 7 bytes."""
    at, parts = 7, []
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:  # the rest of a block that has no room for a header
            at += room
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        if not kind:
            return
        parts.append(data[at + 7 : at + 7 + size])
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []


def wandb_records(folder):
    """History rows and metric definitions of an offline run, from its file of records."""
    from wandb.proto import wandb_internal_pb2

    (path,) = Path(folder).rglob("*.wandb")
    size, deadline = -1, time.monotonic() + 20
    while path.stat().st_size != size and time.monotonic() < deadline:  # its writer may end after finish()
        size = path.stat().st_size
        time.sleep(0.5)
    history, metrics, artefacts = [], {}, []
    for content in log_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()  # pyright: ignore[reportAttributeAccessIssue]
        record.ParseFromString(content)
        if record.HasField("history"):
            items = record.history.item
            history.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
        elif record.HasField("metric"):
            metrics[record.metric.name or record.metric.glob_name] = record.metric.step_metric
        elif record.HasField("artifact"):
            artefacts.append((record.artifact.name, record.artifact.type))
    return history, metrics, artefacts


def in_rows(rows):
    """What the rows say of one place."""
    key = {"view": "weight", "measure": "enrichment", "null": "haar", "layer": 1, "proxy": "pca", "timing": "rolling"}
    found = [row for row in rows if all(row[name] == value for name, value in key.items())]
    return {row["step"]: (row["value"], row["low"], row["high"]) for row in found}


def single(value):
    """As a 32-bit file holds it."""
    return struct.unpack("f", struct.pack("f", value))[0]


def assert_tensorboard_holds(rows, folder):
    expected, found = in_rows(rows), tensorboard(folder)
    assert sorted(expected) == OBSERVED
    for place, end in enumerate(("", "/low", "/high")):
        held = found[NAME + end]
        assert held == {step: single(values[place]) for step, values in expected.items()}
    assert list(found["anisoscope/step"]) == OBSERVED


def test_a_plain_loop_writes_to_a_summary_writer(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    model, writer = NanoGPT(), SummaryWriter(str(tmp_path))
    scope = Scope(model, **SMALL, session=SessionOptions(trackers=[writer]))
    train(model, scope, range(7))
    scope.close()
    writer.close()
    assert_tensorboard_holds(scope.rows(), tmp_path)


@pytest.fixture
def offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    return pytest.importorskip("wandb")


def test_a_plain_loop_writes_to_wandb_and_hands_over_its_report(tmp_path, offline):
    model = NanoGPT()
    run = offline.init(project="test", dir=str(tmp_path))
    session = SessionOptions(trackers=[run], report=True)
    scope = Scope(model, **SMALL, steps=7, store=tmp_path / "run", session=session)
    for step in range(7):
        with scope.step():
            loss = model(*text(step))[1]
            loss.backward()
        run.log({"loss": float(loss.detach())}, step=step)  # whoever counts steps must not be overtaken
        model.zero_grad()
    scope.close()
    run.finish()
    history, metrics, artefacts = wandb_records(tmp_path)
    ours = {row["anisoscope/step"]: row for row in history if "anisoscope/step" in row}
    expected = in_rows(scope.rows())
    assert sorted(ours) == sorted(expected) == OBSERVED
    for step, values in expected.items():
        assert tuple(ours[step][NAME + end] for end in ("", "/low", "/high")) == pytest.approx(values, rel=1e-12)
    assert metrics["anisoscope/*"] == "anisoscope/step"
    assert sum("loss" in row for row in history) == 7  # none of the host's was dropped
    assert ("anisoscope-run", "report") in artefacts
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000


def test_trainer_writes_at_the_observed_step(tmp_path, monkeypatch):
    from transformers import Trainer, TrainingArguments

    from anisoscope.integrations.transformers import ScopeCallback
    from capture.families import batch, build

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tb"))
    data = [{k: v[0] for k, v in batch(seed=i, sequences=3, padded=False).items()} for i in range(96)]
    arguments = TrainingArguments(
        str(tmp_path / "out"),
        max_steps=7,
        per_device_train_batch_size=12,
        report_to=["tensorboard"],
        logging_steps=3,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    callback = ScopeCallback(**SMALL, store=tmp_path / "run")
    Trainer(build("gpt2"), arguments, train_dataset=data, callbacks=[callback]).train()
    assert_tensorboard_holds(callback.rows(), tmp_path / "tb")
    assert list(tensorboard(tmp_path / "tb")["train/loss"]) == [3, 6]  # and the host's own are all there
    rows = callback.rows()
    assert [row["step"] for row in rows if row["measure"] == "loss"] == [2, 5]
    assert [row["step"] for row in rows if row["variant"] == "learning_rate"] == [2, 5]
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["config"]["training"]["learning_rate"] == arguments.learning_rate
    assert "output_dir" not in manifest["config"]["training"]


def test_lightning_writes_every_observation_whatever_its_interval(tmp_path):
    import lightning
    from lightning.pytorch.loggers import TensorBoardLogger

    from anisoscope.integrations.lightning import ScopeCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.save_hyperparameters({"lr": 0.1})
            self.net = NanoGPT()

        def training_step(self, inputs, index):
            return self.net(*inputs)[1]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = ScopeCallback(model="net", **SMALL, store=tmp_path / "run")
    trainer = lightning.Trainer(
        max_steps=7,
        accelerator="cpu",
        callbacks=[callback],
        logger=TensorBoardLogger(str(tmp_path / "tb")),
        log_every_n_steps=50,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader([text(step) for step in range(7)], batch_size=None))
    assert_tensorboard_holds(callback.rows(), tmp_path / "tb")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["config"]["training"]["lr"] == 0.1
    assert [row["step"] for row in callback.rows() if row["measure"] == "loss"] == list(range(7))


@pytest.mark.slow
def test_accelerate_stands_for_its_trackers_and_begin_and_end_follow_its_accumulation(tmp_path):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=tmp_path, gradient_accumulation_steps=2)
    accelerator.init_trackers("run")
    model = NanoGPT()
    batches = torch.utils.data.DataLoader([text(step) for step in range(14)], batch_size=None)
    model, optimizer, batches = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), batches)
    scope = Scope(model, **SMALL, session=SessionOptions(trackers=[accelerator]))
    for inputs in batches:
        scope.begin()
        with accelerator.accumulate(model):
            accelerator.backward(model(*inputs)[1])
            if accelerator.sync_gradients:
                scope.end()
            optimizer.step()
            optimizer.zero_grad()
    scope.close()
    accelerator.end_training()
    assert_tensorboard_holds(scope.rows(), tmp_path)
    assert {row["tokens"] for row in scope.rows() if row["step"] == 0} == {2 * 20 * 12}  # both micro-batches


class Recorder:
    def __init__(self, **methods):
        self.__dict__.update(methods)


def test_an_older_trackio_keeps_the_report_as_a_file_and_one_without_files_says_so(tmp_path):
    saved = []
    Trackio(Recorder(save=saved.append)).artefact(tmp_path / "report.html")
    assert saved == [str(tmp_path / "report.html")]
    with pytest.raises(TypeError, match="keeps no files"):
        Trackio(Recorder()).artefact(tmp_path / "report.html")


def test_a_tracker_that_fails_is_warned_of_once_and_the_others_go_on():
    def failing(step, numbers):
        raise OSError("the server is gone")

    heard = []
    model = NanoGPT()
    trackers = [failing, lambda step, numbers: heard.append((step, numbers))]
    scope = Scope(model, **SMALL, session=SessionOptions(trackers=trackers, log="medians"))
    train(model, scope, range(6))
    with pytest.warns(ScopeWarning, match="could not be logged to Function: OSError: the server is gone") as caught:
        scope.close()
    assert len([each for each in caught if each.category is ScopeWarning]) == 1
    assert [step for step, _ in heard] == OBSERVED
    assert not [name for _, numbers in heard for name in numbers if "layer_" in name]


def test_what_is_no_tracker_is_an_error_at_once():
    with pytest.raises(ValueError, match=r"a tracker must be a SummaryWriter, .* got int"):
        SessionOptions(trackers=[3])
    with pytest.raises(ValueError, match="layers"):
        SessionOptions(log="layer")
