"""The callback in a real Trainer: the weights of a run without it, and the numbers where reporters see them."""

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from anisoscope.integrations.transformers import ScopeCallback
from capture.families import batch, build

OPTIONS = {"rank": 4, "resamples": 19, "strict": True, "schedule": 2}


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, i):
        return {name: tensor[0] for name, tensor in batch(seed=i, sequences=3, padded=False).items()}


class Reporter(TrainerCallback):
    """Stands where TensorBoard or W&B stand: before the callbacks of the user."""

    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append((state.global_step, dict(logs or {})))


def trained(folder, callback=None, *, model=None, steps=7, **arguments):
    torch.manual_seed(0)
    model = model or build("gpt2")
    args = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=12,
        max_steps=steps,
        logging_steps=2,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        seed=3,
        disable_tqdm=True,
        **arguments,
    )
    reporter = Reporter()
    trainer = Trainer(model, args, train_dataset=Data(), callbacks=[callback] if callback else [])
    trainer.callback_handler.callbacks.insert(0, reporter)
    trainer.train()
    return trainer, reporter, [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_weights_are_those_of_a_run_without_it(tmp_path, accumulate):
    arguments = {"gradient_accumulation_steps": accumulate, "max_grad_norm": 0.1}
    *_, bare = trained(tmp_path, **arguments)
    callback = ScopeCallback(**OPTIONS)
    trainer, reporter, observed = trained(tmp_path, callback, **arguments)
    assert all(torch.equal(a, b) for a, b in zip(bare, observed, strict=True))
    rows = callback.rows()
    assert {r["step"] for r in rows if r["measure"] == "energy"} == {0, 2, 4, 6}
    assert {r["view"] for r in rows if r["view"]} == {"representation", "weight", "embedding"}
    assert {r["step"] for r in rows if r["tensor"] == "update"} == {0, 2, 4, 6}
    assert not [r for r in rows if r["measure"] == "skipped"]
    logged = [(step, logs) for step, logs in reporter.logs if "anisoscope/enrichment/haar/median" in logs]
    assert [step for step, _ in logged] == [logs["anisoscope/step"] for _, logs in logged] == [0, 2, 4, 6]
    history = trainer.state.log_history
    assert [entry["step"] for entry in history if "anisoscope/enrichment/haar/median" in entry] == [0, 2, 4, 6]
    assert [entry["step"] for entry in history if "loss" in entry] == [2, 4, 6]  # its own logs are all there
    assert {r["timing"] for r in rows if r["timing"]} == {"rolling", "anchored"}  # the length of training is known
    assert "training_step" not in vars(trainer)


def test_every_micro_batch_is_counted(tmp_path):
    callback = ScopeCallback(**OPTIONS)
    trained(tmp_path, callback, steps=1, gradient_accumulation_steps=2)
    (row,) = [
        r for r in callback.rows() if r["measure"] == "energy" and r["view"] == "representation" and not r["layer"]
    ]
    assert row["n"] == 2 * 12 * 9


def test_an_exception_in_the_step_removes_every_hook(tmp_path):
    class Failing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.calls = build("gpt2"), 0

        def forward(self, input_ids, attention_mask=None, labels=None):
            self.calls += 1
            output = self.inner(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
            if self.calls == 3:
                raise KeyError("in the model")
            return {"loss": output.loss}

    model = Failing()
    with pytest.raises(KeyError, match="in the model"):
        trained(tmp_path, ScopeCallback(**(OPTIONS | {"schedule": 1})), model=model)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_second_training_starts_anew(tmp_path):
    callback = ScopeCallback(**OPTIONS)
    trained(tmp_path, callback, steps=3)
    first = len(callback.rows())
    trained(tmp_path, callback, steps=3)
    assert len(callback.rows()) == first
