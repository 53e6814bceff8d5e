"""Promises about the project as a whole."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_readme_example_runs():
    pages = ("evidence", "scope", "store", "corpora", "frequency", "curvature")
    for page in ("README.md", *(f"docs/{name}.md" for name in pages)):
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.S)
        assert blocks
        for block in blocks:
            exec(compile(block, page, "exec"), {})


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, anisoscope; print(sorted({'torch', 'numpy', 'scipy', 'sklearn', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_file_is_unpickled():
    """The rule has a gate: pickle readers may not be called without their safe switch."""
    offences = []
    for path in (ROOT / "src").rglob("*.py"):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            unsafe = "np.load(" in line and "allow_pickle=False" not in line
            unsafe |= "torch.load(" in line and "weights_only=True" not in line
            unsafe |= bool(re.search(r"\bpickle\.loads?\(|joblib\.load\(|pd\.read_pickle\(", line))
            if unsafe:
                offences.append(f"{path}:{number}: {line.strip()}")
    assert not offences


def test_processes_of_our_own_are_started_in_one_place():
    """There they are told to run no file of the working directory."""
    found = [path for path in (ROOT / "src").rglob("*.py") if "sys.executable" in path.read_text(encoding="utf-8")]
    assert {path.name for path in found} == {"own_process.py", "parquet_page.py"}
    page = (ROOT / "src/anisoscope/store/parquet_page.py").read_text(encoding="utf-8")
    assert page.count("sys.executable") == page.count("bool(sys.executable)")  # whether there is an interpreter


def test_ci_runs_make_test_and_nothing_else():
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "set ", "cd "))]
    assert commands == ["make test"]


def test_torch_is_pinned_where_everything_else_is():
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert "torch==2.13.0" in constraints.splitlines()
