"""One writer to a run, whoever comes when, and however the one before ended."""

import multiprocessing
import os
import stat

import pytest

from anisoscope.errors import AnisoscopeError
from anisoscope.store.lock import NAME, Lock


def contender(folder, barrier, results, rounds):
    for _ in range(rounds):
        lock = Lock(folder)
        barrier.wait()
        try:
            lock.acquire()
            held = True
        except AnisoscopeError:
            held = False
        barrier.wait()  # nobody lets go before all have tried
        results.put(held)
        lock.release()
        barrier.wait()


@pytest.mark.parametrize("left", [None, "", "{", '{"pid": 1, "host": "elsewhere"}', "\x00" * 64])
def test_of_those_who_come_at_once_exactly_one_holds_it(tmp_path, left):
    """With whatever a process that was killed left in the file."""
    if left is not None:
        (tmp_path / NAME).write_text(left)
    context, number, rounds = multiprocessing.get_context("fork"), 3, 30
    barrier, results = context.Barrier(number, timeout=60), context.Queue()
    racers = [context.Process(target=contender, args=(tmp_path, barrier, results, rounds)) for _ in range(number)]
    for racer in racers:
        racer.start()
    held = [results.get(timeout=60) for _ in range(number * rounds)]
    for racer in racers:
        racer.join(60)
    assert sum(held) == rounds


def test_who_holds_it_is_said_and_who_let_go_is_not(tmp_path):
    first, second = Lock(tmp_path), Lock(tmp_path)
    first.acquire()
    with pytest.raises(AnisoscopeError, match=f"being written by process {os.getpid()}; wait for it, or stop it"):
        second.acquire()
    second.release()  # it holds nothing, and takes nothing away
    with pytest.raises(AnisoscopeError, match="being written"):
        Lock(tmp_path).acquire()
    first.release()
    assert (tmp_path / NAME).read_text() == ""
    second.acquire()
    second.release()


def test_others_may_read_the_file_as_the_user_allows(tmp_path):
    before = os.umask(0o027)
    try:
        Lock(tmp_path).acquire()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o640


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path):
    with pytest.raises(AnisoscopeError, match="cannot write in"):
        Lock(tmp_path / "nowhere" / "at all" / ("x" * 300)).acquire()
