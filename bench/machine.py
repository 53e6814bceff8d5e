"""What a benchmark was made on, and how its numbers are taken."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def describe() -> dict[str, str | int]:
    import torch

    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "cpu": cpu,
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "date": date.today().isoformat(),
    }


def publish(name: str, title: str, made_by: str, lines: list[str], record: dict, folder: Path = RESULTS) -> None:
    """Write one benchmark's page and record, and print the page."""
    machine = ", ".join(f"{key} {value}" for key, value in describe().items())
    page = "\n".join([f"# {title}", "", made_by, f"Machine: {machine}.", "", *lines]) + "\n"
    folder.mkdir(exist_ok=True, parents=True)
    (folder / f"{name}.json").write_text(
        json.dumps({"machine": describe(), **record}, indent=1) + "\n", encoding="utf-8"
    )
    (folder / f"{name}.md").write_text(page, encoding="utf-8")
    print(page)


def best_of(act: Callable[[], object], repeats: int = 3) -> float:
    """Seconds of the fastest of ``repeats`` calls after one to warm up."""
    act()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return min(times)
