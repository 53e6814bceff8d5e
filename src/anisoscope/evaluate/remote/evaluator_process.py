"""The process of an evaluator: ``python -m anisoscope.evaluate.remote.evaluator_process FD [PLUGIN …]``.

It ends when the other side of the connection does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from multiprocessing.connection import Connection

import torch

from anisoscope.errors import AnisoscopeError, BrokenRuleError
from anisoscope.evaluate.evaluator import Evaluator
from anisoscope.evaluate.remote.serialization import receive, send
from anisoscope.plugins import load_plugins

_NICE = 10


def serve(connection: Connection) -> None:
    """Answer until the other side is gone."""
    judge = Evaluator(receive(connection))
    while True:
        what, args = receive(connection)
        try:
            answer = "fine", getattr(judge, what)(*args)
        except BrokenRuleError as error:
            answer = "rule", str(error)
        except AnisoscopeError as error:
            answer = "fault", str(error)
        except Exception as error:
            answer = "fault", f"{type(error).__name__}: {error}"
        del args
        send(connection, answer)


def _modest() -> None:
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)  # of this thread alone


def main() -> None:
    """Serve the connection whose number was given."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the training's to handle
    os.nice(_NICE)
    _modest()
    load_plugins(sys.argv[2:])
    with contextlib.suppress(EOFError, OSError):
        serve(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()
