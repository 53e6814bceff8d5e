"""Makes ``notebooks/*.ipynb`` from the pages and texts here: ``python docs/notebooks.py``; a test runs their cells."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]

TRAINER = [
    "# The scope in transformers' Trainer\n\nThe callback finds what `report_to` names and resumes with checkpoints.",
    """import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from anisoscope import SessionOptions, open_run
from anisoscope.integrations.transformers import ScopeCallback

torch.manual_seed(0)
folder = tempfile.mkdtemp()
model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=2))
data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 100, (256, 16))]
arguments = TrainingArguments(
    folder + "/out",
    max_steps=6,
    per_device_train_batch_size=24,
    report_to=[],
    use_cpu=True,
    save_steps=3,
    logging_steps=2,
)
options = {"rank": 4, "schedule": [0, 2, 5], "resamples": 99, "store": folder + "/run"}
callback = ScopeCallback(**options, session=SessionOptions(resumable=True))
Trainer(model, arguments, train_dataset=data, callbacks=[callback]).train()""",
    "What it saw, and the settings of the training beside it.",
    """run = open_run(folder + "/run")
rows = run.rows()
print(rows[rows["measure"] == "pooled_enrichment"][["step", "view", "null", "value", "low", "high"]].to_string())
print(run.manifest["config"]["training"]["learning_rate"])""",
]

CHECKPOINTS = [
    "# Checkpoints that exist already\n\nA tiny history is made here; yours are folders that `save_pretrained` wrote.",
    """import tempfile
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
folder = Path(tempfile.mkdtemp())
model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(21):
    if step in (0, 10, 20):
        model.save_pretrained(folder / f"checkpoint-{step}")
    ids = torch.randint(0, 100, (24, 16))
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()""",
    "Every tensor is hashed first: equal weights under two labels, or damaged files, are found before curves.",
    """from anisoscope.study.checkpoints.histories import checked, origins_of

origins, expected = origins_of([str(path) for path in sorted(folder.glob("checkpoint-*"))])
history = checked(origins, expected=expected)
for one in history.checkpoints:
    print(one.label, one.weights.digest[:12])
print(history.findings or "nothing found against them")""",
    "Then each is measured on one text. Here by hand; `anisoscope checkpoints` does it with every null.",
    """from anisoscope import cross_fit

ids = torch.randint(0, 100, (24, 16))
for one in history.checkpoints:
    model = GPT2LMHeadModel.from_pretrained(folder / one.label)
    out = model(input_ids=ids, labels=ids, output_hidden_states=True)
    hidden = out.hidden_states[1]
    gradient = torch.autograd.grad(out.loss, hidden)[0]
    found = cross_fit(hidden.detach(), gradient, method="pca", rank=4, nulls=("haar", "axes"), resamples=99)
    print(one.label, {null: str(estimate) for null, estimate in found.enrichment.items()})""",
]


def cells_of(page):
    """Text and Python of a page in turn; consoles stay text."""
    parts = re.split(r"```python\n(.*?)```\n?", (ROOT / page).read_text(encoding="utf-8"), flags=re.S)
    return [part.strip("\n") for part in parts]


def notebook(parts):
    """Text and code in turn, as nbformat 4."""
    cells = []
    for number, part in enumerate(parts):
        if part.strip():
            kind = "code" if number % 2 else "markdown"
            extra = {"execution_count": None, "outputs": []} if kind == "code" else {}
            cells.append({"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": part} | extra)
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    made = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def made():
    """All notebooks by name."""
    return {
        "own_loop": notebook(cells_of("docs/tutorial-own-loop.md")),
        "trainer": notebook(TRAINER),
        "checkpoints": notebook(CHECKPOINTS),
    }


if __name__ == "__main__":
    (ROOT / "notebooks").mkdir(exist_ok=True)
    for name, content in made().items():
        (ROOT / "notebooks" / f"{name}.ipynb").write_text(content, encoding="utf-8")
