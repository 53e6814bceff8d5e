"""A process that runs commands of anisoscope, each in a fork of itself, while the C library fails as it is told.

Started with `failing.c` loaded before the C library. A line of JSON says what to run; a line of JSON says how it ended.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import mmap
import os
import pty
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("failing.c")
SECONDS = 120.0
_TEXT = 1024


class _Orders(ctypes.Structure):
    """``struct orders`` of failing.c."""

    _fields_ = (
        ("on", ctypes.c_int),
        ("number", ctypes.c_int),
        ("error", ctypes.c_int),
        ("stays", ctypes.c_int),
        ("seen", ctypes.c_int),
        ("folder", ctypes.c_char * _TEXT),
        ("journal", ctypes.c_char * _TEXT),
    )


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its status (None if it took too long) and what it said."""

    code: int | None
    out: str
    err: str
    operations: list[str]


class Server:
    """Runs commands in which one operation on a file fails."""

    def __init__(self, process: subprocess.Popen[str], into: Path) -> None:
        self._process, self._into = process, into

    def run(
        self,
        arguments: Sequence[str],
        folder: Path,
        *,
        number: int = -1,
        error: int = 0,
        stays: bool = False,
        terminal: bool = False,
    ) -> Ended:
        """Run a command in a folder; its operation of this number under the folder fails (-1: none does).

        On a ``terminal`` all that it says is in ``out``.
        """
        journal = self._into / "journal"
        for name in ("journal", "out", "err"):
            (self._into / name).unlink(missing_ok=True)
        asked = {"arguments": list(arguments), "folder": str(folder), "journal": str(journal) if number < 0 else ""}
        asked |= {"number": number, "error": error, "stays": stays, "terminal": terminal}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        code = json.loads(self._process.stdout.readline())
        out, err = self._text("out"), self._text("err")
        operations = journal.read_text(errors="replace").splitlines() if journal.exists() else []
        return Ended(code, out, err, operations)

    def _text(self, name: str) -> str:
        path = self._into / name
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def compiled(into: Path) -> Path | None:
    """``failing.c`` as a shared library; None where there is no compiler for it."""
    library = into / "failing.so"
    command = ["cc", "-O1", "-fPIC", "-shared", "-o", str(library), str(SOURCE), "-ldl"]
    if sys.platform != "linux" or sysconfig.get_config_var("SOABI") is None:
        return None
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return library


def package() -> Path:
    """Where the package that is tested is imported from, for processes that are to test the same."""
    found = importlib.util.find_spec("anisoscope")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parents[1]


@contextlib.contextmanager
def serving(library: Path | None, into: Path, modules: Sequence[str]) -> Iterator[Server]:
    """A server that has imported what commands need; without the library no operation can fail."""
    orders = into / "orders"
    orders.write_bytes(bytes(ctypes.sizeof(_Orders)))
    here = os.environ | {"FAULTS_ORDERS": str(orders), "OMP_NUM_THREADS": "1"}
    here |= {} if library is None else {"LD_PRELOAD": str(library)}
    here |= {"PYTHONPATH": os.pathsep.join(map(str, (*Path(__file__).parents[1:3], package())))}
    here |= {"PYTHONDONTWRITEBYTECODE": "1", "TERM": "xterm-256color", "COLUMNS": "200"}
    process = subprocess.Popen(
        [sys.executable, "-m", "faults.serving", str(orders), str(into), *modules],
        env=here,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Server(process, into)
    finally:
        process.kill()  # it holds nothing but modules; taking them down in good order would cost seconds
        process.communicate()


def serve(orders_file: str, into: str, modules: Sequence[str]) -> None:
    """Run what standard input asks for."""
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with open(orders_file, "r+b") as file:
        orders = _Orders.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(_Orders)))
    for line in sys.stdin:
        asked = json.loads(line)
        child, screen = pty.fork() if asked["terminal"] else (os.fork(), -1)
        if child == 0:
            _become(asked, orders, Path(into))
        reader = threading.Thread(target=_copied, args=(screen, Path(into) / "out")) if screen >= 0 else None
        if reader is not None:
            reader.start()
        code = _waited(child)
        if reader is not None:
            reader.join()
            os.close(screen)
        orders.on = 0
        print(json.dumps(code), flush=True)


def _copied(screen: int, into: Path) -> None:
    """What a terminal is sent, until nobody has it open."""
    with into.open("wb") as file, contextlib.suppress(OSError):
        while piece := os.read(screen, 1 << 16):
            file.write(piece)


def _become(asked: dict[str, Any], orders: _Orders, into: Path) -> None:
    """Be the command: a process group of its own, the folder as the current one and for temporary files too."""
    if not asked["terminal"]:  # there the child leads a session already
        os.setpgid(0, 0)
    streams = () if asked["terminal"] else ((0, os.devnull), (1, into / "out"), (2, into / "err"))
    for number, name in streams:
        os.dup2(os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT, 0o600), number)
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
    os.chdir(asked["folder"])
    os.environ["TMPDIR"] = os.environ["HOME"] = asked["folder"]
    tempfile.tempdir = None  # it was looked up before the fork
    orders.folder, orders.journal = asked["folder"].encode(), asked["journal"].encode()
    orders.number, orders.error, orders.stays, orders.seen = asked["number"], asked["error"], asked["stays"], 0
    from anisoscope.cli import main

    code: Any = 0
    orders.on = 1
    try:
        main(asked["arguments"])
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)  # taking torch down would cost a second


def _waited(child: int) -> int | None:
    """The status of a process, a signal as a negative number; None for one that had to be killed."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)  # what it left behind
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], sys.argv[3:])
