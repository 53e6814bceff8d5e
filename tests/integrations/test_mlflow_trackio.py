"""What MLflow and Trackio hold, read back from their SQLite files: every observation, at the step that was observed.

Neither is installed by ``make``: MLflow wants an older pyarrow than ours. CONTRIBUTING.md says how these tests are run.
"""

import json
import os
import sqlite3
import sys
from pathlib import Path

import pytest
import torch

from anisoscope import Scope, SessionOptions
from anisoscope.record.metric_names import metrics
from observe.nano import NanoGPT, text, train

OBSERVED = [0, 2, 5]
SMALL = {"rank": 4, "resamples": 19, "schedule": OBSERVED, "views": ["weight"], "strict": True}
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of the packages, on being imported


def in_mlflow(database):
    """Values by name and step of the one run, as the file holds them."""
    with sqlite3.connect(database) as held:
        rows = held.execute("select key, step, value from metrics where key like 'anisoscope/%'").fetchall()
    found = {}
    for name, step, value in rows:
        assert step not in found.setdefault(name, {}), "written twice"
        found[name][step] = value
    return found


def in_trackio(database):
    with sqlite3.connect(database) as held:
        rows = held.execute("select step, metrics from metrics").fetchall()
    found = {}
    for step, content in rows:
        for name, value in json.loads(content).items():
            if name.startswith("anisoscope/"):
                assert step not in found.setdefault(name, {}), "written twice"
                found[name][step] = value
    return found


def expected(rows):
    """Names and values by step that the rows give; names are those that every tracker gets."""
    found = {}
    for step in OBSERVED:
        for name, value in metrics([row for row in rows if row["step"] == step], "layers").items():
            found.setdefault(name, {})[step] = value
    return found


def assert_holds(held, rows):
    wanted = expected(rows)
    assert set(held) == set(wanted)
    assert {"anisoscope/enrichment/haar/weight/layer_01" + end for end in ("", "/low", "/high")} <= set(held)
    for name, values in wanted.items():
        assert held[name] == pytest.approx(values, rel=1e-12), name
    key = {"view": "weight", "measure": "enrichment", "null": "haar", "layer": 1, "proxy": "pca", "timing": "rolling"}
    plain = {row["step"]: row["value"] for row in rows if all(row[name] == value for name, value in key.items())}
    assert held["anisoscope/enrichment/haar/weight/layer_01"] == pytest.approx(plain, rel=1e-12)
    assert sorted(plain) == OBSERVED


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    found = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.chdir(tmp_path)
    before = found.get_tracking_uri()
    found.set_tracking_uri(uri)
    found.set_experiment(experiment_id=found.create_experiment("test", artifact_location=f"file://{tmp_path}/files"))
    yield found
    while found.active_run() is not None:
        found.end_run()
    found.set_tracking_uri(before)


@pytest.fixture
def trackio(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    for name in [name for name in sys.modules if name.split(".")[0] == "trackio"]:
        del sys.modules[name]  # it reads its folder when it is imported
    return pytest.importorskip("trackio")


def database(trackio, tmp_path):
    (found,) = Path(os.environ["TRACKIO_DIR"]).glob("test*.db")
    return found


def test_mlflow_holds_every_observation_and_the_report(tmp_path, mlflow):
    model = NanoGPT()
    with mlflow.start_run() as run:
        session = SessionOptions(trackers=[mlflow], report=True)
        scope = Scope(model, **SMALL, steps=7, store=tmp_path / "run", session=session)
        train(model, scope, range(7))
        scope.close()
    assert_holds(in_mlflow(tmp_path / "mlflow.db"), scope.rows())
    assert [file.path for file in mlflow.MlflowClient().list_artifacts(run.info.run_id)] == ["report.html"]


@pytest.mark.parametrize("given", ["run", "module"])
def test_trackio_holds_every_observation_and_the_report(tmp_path, trackio, given):
    model = NanoGPT()
    run = trackio.init(project="test", name="one", embed=False, auto_log_cpu=False)
    session = SessionOptions(trackers=[run if given == "run" else trackio], report=True)
    scope = Scope(model, **SMALL, steps=7, store=tmp_path / "run", session=session)
    train(model, scope, range(7))
    scope.close()
    trackio.finish()
    held = database(trackio, tmp_path)
    assert_holds(in_trackio(held), scope.rows())
    with sqlite3.connect(held) as tables:
        assert tables.execute("select name, type from artifacts").fetchall() == [("anisoscope-run", "report")]


def test_trainer_reports_to_mlflow_and_trackio_at_the_observed_step(tmp_path, mlflow, trackio):
    from transformers import Trainer, TrainingArguments

    from anisoscope.integrations.transformers import ScopeCallback
    from capture.families import batch, build

    data = [{k: v[0] for k, v in batch(seed=i, sequences=3, padded=False).items()} for i in range(96)]
    arguments = TrainingArguments(
        str(tmp_path / "out"),
        max_steps=7,
        per_device_train_batch_size=12,
        report_to=["mlflow", "trackio"],
        project="test",
        logging_steps=3,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    callback = ScopeCallback(**SMALL)
    trainer = Trainer(build("gpt2"), arguments, train_dataset=data, callbacks=[callback])
    trainer.train()
    mlflow.end_run()
    assert_holds(in_mlflow(tmp_path / "mlflow.db"), callback.rows())
    assert_holds(in_trackio(database(trackio, tmp_path)), callback.rows())


def test_lightning_writes_to_mlflow_at_the_observed_step(tmp_path, mlflow):
    import lightning
    from lightning.pytorch.loggers import MLFlowLogger

    from anisoscope.integrations.lightning import ScopeCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = NanoGPT()

        def training_step(self, inputs, index):
            return self.net(*inputs)[1]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = ScopeCallback(model="net", **SMALL)
    logger = MLFlowLogger("lightning", tracking_uri=f"sqlite:///{tmp_path}/lightning.db")
    trainer = lightning.Trainer(
        max_steps=7,
        accelerator="cpu",
        callbacks=[callback],
        logger=logger,
        log_every_n_steps=50,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader([text(step) for step in range(7)], batch_size=None))
    assert_holds(in_mlflow(tmp_path / "lightning.db"), callback.rows())


def test_accelerate_stands_for_mlflow_and_trackio(tmp_path, mlflow, trackio):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, log_with=["mlflow", "trackio"])
    accelerator.init_trackers("test")
    model = NanoGPT()
    scope = Scope(model, **SMALL, session=SessionOptions(trackers=[accelerator]))
    train(model, scope, range(7))
    scope.close()
    accelerator.end_training()
    assert_holds(in_mlflow(tmp_path / "mlflow.db"), scope.rows())
    assert_holds(in_trackio(database(trackio, tmp_path)), scope.rows())
