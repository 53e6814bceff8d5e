"""The notebooks are what their pages say, are notebooks, and run from their first cell to their last."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMES = ("own_loop", "trainer", "checkpoints")


def made():
    spec = importlib.util.spec_from_file_location("notebooks_made", ROOT / "docs" / "notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.made()


def test_they_are_up_to_date():
    """Else: python docs/notebooks.py."""
    there = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert there == made()


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "trainer" else n for n in NAMES])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_every_cell_runs(name, capsys):
    found = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert (found["nbformat"], {cell["cell_type"] for cell in found["cells"]}) == (4, {"markdown", "code"})
    space = {"__name__": "__main__"}
    for cell in found["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec(compile(cell["source"], f"{name}:{cell['id']}", "exec"), space)
    assert capsys.readouterr().out
