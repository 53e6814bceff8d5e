"""The page of a run that is still going, made anew when rows were added: ``python -m anisoscope.report.live RUN``."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from anisoscope.errors import AnisoscopeError, BrokenRuleError
from anisoscope.report.make import make_report, write_whole
from anisoscope.store.files import Folder
from anisoscope.store.recorded import MANIFEST

PAGE = "report.html"
LEAST_PAUSE = 1.0
SHARE = 0.2
"""At most this share of the time goes into making pages."""


class Follower:
    """The page of a run as it is now, made again only if the run has changed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.page: str | None = None
        self._seen: tuple[object, ...] | None = None

    def refresh(self) -> bool:
        """Make the page if rows or status are others than before; whether it was made."""
        seen = self._state()
        if seen is None or seen == self._seen:
            return False
        with contextlib.suppress(AnisoscopeError, BrokenRuleError):  # between two states: the next look will tell
            self.page = make_report([self.path], live=True, allow_damaged=True)
            self._seen = seen
            return True
        return False

    def _state(self) -> tuple[object, ...] | None:
        """What the parts and the manifest are, without reading rows; None where there is nothing yet."""
        folder = Folder(self.path)
        try:
            manifest, parts = folder.read(MANIFEST), tuple(folder.names(".parquet"))
            return (manifest, parts) if parts else None
        except (AnisoscopeError, OSError):
            return None


def follow(path: str, ended: threading.Event) -> None:
    """Write the page after every observation until told to end."""
    follower = Follower(path)
    while not ended.is_set():
        begun = time.monotonic()
        with contextlib.suppress(Exception):  # of one state of the run: the page before it stays, the next may be told
            if follower.refresh() and follower.page is not None and Folder(path).exists(MANIFEST):
                write_whole(Path(path) / PAGE, follower.page.encode())
        ended.wait(max(LEAST_PAUSE, (time.monotonic() - begun) * (1 - SHARE) / SHARE))


def main(arguments: list[str]) -> None:
    """One page, or with ``--follow`` one after another until standard input ends or a signal comes."""
    path, keeps_on = arguments[0], "--follow" in arguments
    if not keeps_on:
        write_whole(Path(path) / PAGE, make_report([path], allow_damaged=True).encode())
        return
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)
    ended = threading.Event()
    # The one who began this is gone when its end of the pipe is.
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), ended.set()), daemon=True).start()
    signal.signal(signal.SIGTERM, _leave)
    follow(path, ended)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(0)  # an exception, so that a file that is being written is taken away


if __name__ == "__main__":
    main(sys.argv[1:])
