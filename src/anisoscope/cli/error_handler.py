"""The outermost handler: whatever happens in a command, a user sees one line and an exit status, never a traceback."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import IO

from anisoscope.errors import AnisoscopeError, BrokenRuleError
from anisoscope.escape_text import visible

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130
SHOW = "ANISOSCOPE_TRACEBACK"


def guarded(command: Callable[[], None]) -> int:
    """Run a command; returns the exit status. With ``ANISOSCOPE_TRACEBACK`` set, errors that are not ours pass on."""
    _prepare_streams()
    with _remembered_interrupts() as asked:
        return _status_of(command, asked)


def _status_of(command: Callable[[], None], asked: threading.Event) -> int:
    try:
        command()
        sys.stdout.flush()  # a full disk or a reader that went away is noticed here, not while Python ends
    except BrokenRuleError as error:
        return _told(str(error), WRONG_USE)
    except AnisoscopeError as error:
        return _told(str(error), FAILED)
    except BrokenPipeError:  # the reader of a pipe went away, as `| head` does
        _let_go(sys.stdout)
        return FAILED
    except KeyboardInterrupt:
        return _told("interrupted", INTERRUPTED, kind="")
    except Exception as error:
        if asked.is_set():  # a library swallowed it in the middle of an import, and broke on what it then lacked
            return _told("interrupted", INTERRUPTED, kind="")
        if os.environ.get(SHOW):
            raise
        return _told(_in_a_line(error), FAILED)
    return INTERRUPTED if asked.is_set() else 0  # swallowed, or the way to end what goes on for ever, as `watch` does


@contextlib.contextmanager
def _remembered_interrupts() -> Iterator[threading.Event]:
    """Whether Ctrl-C came, also where nobody hears the exception; whoever handles it in another way still may."""
    asked = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        asked.set()
        signal.default_int_handler(number, frame)

    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ours = usual and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield asked
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _in_a_line(error: Exception) -> str:
    if isinstance(error, OSError):
        where = f" {error.filename}" if error.filename is not None else ""
        return f"cannot read or write{where}: {error.strerror or error}"
    if isinstance(error, MemoryError):
        return "there is not enough memory for this; ask for less, or use a machine with more"
    first = str(error).strip().splitlines()[:1]
    what = ": ".join((type(error).__name__, *first))
    return f"{what}; if this is a fault of anisoscope, {SHOW}=1 shows where it is"


def _told(line: str, code: int, kind: str = "error: ") -> int:
    """The line in red on a terminal; nothing that goes wrong here may hide it or take its place."""
    shown = "\n".join(map(visible, line.split("\n")))
    with contextlib.suppress(OSError, ValueError):
        painted = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        text = f"\033[31m{kind}{shown}\033[0m" if painted else f"{kind}{shown}"
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        return code
    _let_go(sys.stdout)
    return code


def _prepare_streams() -> None:
    """Give closed streams a place to write to, and let none fail for want of a letter."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us: the next file that is opened would take its number
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _let_go(stream: IO[str]) -> None:
    """What is still in the buffer goes nowhere: Python would try again while it ends, and print that it failed."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
