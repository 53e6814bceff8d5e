"""The peers, reached in their own environment through a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np


class Peers:
    """A process of the peers' environment, kept warm over all questions."""

    def __init__(self, python: str, threads: int = 2):
        libraries = ("OMP", "OPENBLAS", "MKL", "NUMBA")
        environment = os.environ | {f"{name}_NUM_THREADS": str(threads) for name in libraries}
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name("peer_server.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
        )  # fmt: skip
        self._folder = tempfile.TemporaryDirectory()

    def put(self, x: np.ndarray, name: str) -> str:
        """Hand over an array; the answer is its file."""
        path = f"{self._folder.name}/{name}.npy"
        np.save(path, x)
        return path

    def ask(self, **request: str):
        """Ask one question; an error comes back as its text."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        reply = json.loads(self._process.stdout.readline())
        return reply.get("ok", reply.get("error"))

    def close(self) -> None:
        """Let the process end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._folder.cleanup()
