"""What passes between a worker and whoever waits for it: the counting of tries, without a cluster."""

import pytest

pytest.importorskip("ray")

from anisoscope.errors import AnisoscopeError
from anisoscope.jobs.job_pool import JobResources, Task
from anisoscope.jobs.ray_pool import _DIED, _LOST, _on_worker, _TryAgainError, _Wire


class Asked:
    """An actor in this process: ``method.remote(…).future().result()`` calls it."""

    def __init__(self, actor):
        self.actor, self.answer = actor, None

    def __getattr__(self, name):
        method, asked = getattr(self.actor, name), self

        class Method:
            @staticmethod
            def remote(*arguments):
                asked.answer = method(*arguments)
                return asked

        return Method

    def future(self):
        return self

    def result(self, timeout):
        assert timeout > 0
        return self.answer


def fails():
    raise RuntimeError("not yet")


def breaks_a_rule():
    raise AnisoscopeError("no such file; give another")


def work():
    return 7


def test_a_try_that_died_unheard_is_a_failure_once_the_next_one_begins():
    wire = _Wire()
    assert wire.begin(3) == 1
    assert wire.news()[0] == [(3, None)]
    assert wire.begin(3) == 2
    assert wire.news()[0] == [(3, _DIED), (3, None)]


def test_a_try_that_told_why_it_failed_is_counted_once():
    wire = _Wire()
    wire.begin(3)
    wire.fail(3, "RuntimeError: not yet")
    assert wire.begin(3) == 2
    assert wire.news()[0] == [(3, None), (3, "RuntimeError: not yet"), (3, None)]
    assert wire.news()[0] == []


def test_once_closed_no_try_begins():
    wire = _Wire()
    wire.begin(1)
    assert wire.close() == [1]
    assert wire.begin(1) == wire.begin(2) == 0
    assert _on_worker(Task("late", work), JobResources(), Asked(wire), 1) is None


def test_ray_is_asked_for_another_try_until_there_is_none_left():
    wire, means = _Wire(), JobResources(retries=1)
    with pytest.raises(_TryAgainError, match="not yet"):
        _on_worker(Task("bad", fails), means, Asked(wire), 1)
    last = _on_worker(Task("bad", fails), means, Asked(wire), 1)
    assert last.why == "RuntimeError: not yet"
    assert [why for _, why in wire.news()[0]] == [None, "RuntimeError: not yet", None]


def test_wrong_input_and_success_end_at_once():
    wire, means = _Wire(), JobResources(retries=5)
    assert _on_worker(Task("rule", breaks_a_rule), means, Asked(wire), 1).why.startswith("no such file")
    assert _on_worker(Task("good", work), means, Asked(wire), 2).value == 7


def test_a_job_that_ray_would_try_for_ever_ends():
    wire, means = _Wire(), JobResources(retries=1)
    for _ in range(2):
        wire.begin(1)  # and ended by Ray for want of memory, which it does not count
    last = _on_worker(Task("large", work), means, Asked(wire), 1)
    assert last.final
    assert last.why in _LOST.values()
    assert "memory" in last.why
