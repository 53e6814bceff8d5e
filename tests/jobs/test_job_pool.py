"""Jobs one after the other and on a real local Ray: the same results, the same counting of tries."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from anisoscope.errors import AnisoscopeError
from anisoscope.jobs.job_pool import NOT_BEGUN, JobResources, Task, report, run
from study import pool_jobs as jobs
from study.pool_jobs import Notes

TESTS = str(Path(__file__).parents[1])


@pytest.fixture(scope="module")
def local_ray():
    """One start for all: what `run` finds connected it uses and leaves."""
    ray = pytest.importorskip("ray")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([TESTS, *([before] if before else [])])  # workers know no pytest
    try:
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            object_store_memory=200 * 2**20,
        )
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    yield ray
    ray.shutdown()


@pytest.fixture(params=[None, "auto"], ids=["serial", "ray"])
def where(request):
    if request.param:
        request.getfixturevalue("local_ray")
    return request.param


def test_outcomes_come_in_the_order_of_tasks_whatever_ends_first(where, tmp_path):
    notes, done = Notes(), str(tmp_path / "done")
    tasks = [Task(f"step{i}", jobs.after, (0.5 if i == 0 else 0.0, i)) for i in range(8)]
    if where:  # side by side: the first ends after the second, however busy the machine is
        tasks[:2] = [Task("step0", jobs.once_there, (done, 0)), Task("step1", jobs.making, (done, 1))]
    outcomes = run(tasks, JobResources(ray=where), notes)
    assert [o.value for o in outcomes] == list(range(8))
    assert [o.task for o in outcomes] == tasks
    assert all(o.tries == 1 and o.error is None for o in outcomes)
    assert where or outcomes[0].seconds >= 0.5
    assert notes.names == [t.name for t in tasks]
    assert sorted(notes.starts) == sorted(notes.ends) == sorted(notes.names)
    if where:
        assert notes.ends[0] != "step0"


@pytest.mark.parametrize("threads", [1, 2])
def test_here_and_on_ray_bits_are_equal(local_ray, threads):
    import torch

    before = torch.get_num_threads()
    tasks = [Task(str(seed), jobs.products, (seed,)) for seed in range(3)]
    here = [o.value for o in run(tasks, JobResources(threads=threads), Notes())]
    there = [o.value for o in run(tasks, JobResources(ray="auto", threads=threads), Notes())]
    assert [v[:3] for v in here] == [v[:3] for v in there]
    assert {v[2] for v in here} == {threads}
    assert {v[3] for v in here} == {os.getpid()}
    assert os.getpid() not in {v[3] for v in there}
    assert torch.get_num_threads() == before


def test_a_job_that_fails_once_is_tried_again_and_counted(where, tmp_path):
    notes = Notes()
    tasks = [Task("late", jobs.fails_until, (str(tmp_path / "late"), 1, 7)), Task("good", jobs.after, (0, 8))]
    late, good = run(tasks, JobResources(ray=where), notes)
    assert (late.value, late.error, late.tries) == (7, None, 2)
    assert (good.value, good.tries) == (8, 1)
    assert notes.failures == [("late", "RuntimeError: not yet")]
    assert sorted(notes.starts) == ["good", "late", "late"]
    assert sorted(notes.ends) == ["good", "late"]


def test_what_fails_for_good_says_why_in_one_line_and_the_rest_goes_on(where, tmp_path):
    tasks = [
        Task("bad", jobs.fails_until, (str(tmp_path / "bad"), 99, 7)),
        Task("odd", jobs.fails_oddly),
        Task("exit", jobs.exits, (str(tmp_path / "exit"),)),
        *(Task(f"good{i}", jobs.after, (0, i)) for i in range(3)),
    ]
    bad, odd, leaves, *good = run(tasks, JobResources(ray=where, retries=2), Notes())
    assert (bad.value, bad.error, bad.tries) == (None, "RuntimeError: not yet", 3)
    assert (odd.error, odd.tries) == ("OddError: odd (7)", 3)
    assert (leaves.error, leaves.tries) == ("SystemExit: 3", 3)
    assert [o.value for o in good] == [0, 1, 2]
    assert jobs.tally(tmp_path / "bad") == 4


def test_wrong_input_is_not_tried_again(where, tmp_path):
    notes = Notes()
    tasks = [
        Task("rule", jobs.breaks_a_rule, (str(tmp_path / "rule"),)),
        Task("file", jobs.finds_no_file, (str(tmp_path / "file"),)),
    ]
    rule, file = run(tasks, JobResources(ray=where, retries=3), notes)
    assert (rule.error, rule.tries) == ("rank must be at most 63, got 128; lower --rank", 1)
    assert (file.error, file.tries) == ("weights.bin is damaged; fetch it again", 1)
    assert jobs.tally(tmp_path / "rule") == jobs.tally(tmp_path / "file") == 2
    assert not notes.failures


@pytest.mark.slow
def test_a_killed_worker_loses_its_own_job_only(local_ray, tmp_path):
    notes = Notes()
    tasks = [
        Task("always", jobs.kills_itself, (str(tmp_path / "always"), 99)),
        Task("once", jobs.kills_itself, (str(tmp_path / "once"), 1)),
        *(Task(f"good{i}", jobs.after, (0.1, i)) for i in range(6)),
    ]
    always, once, *good = run(tasks, JobResources(ray="auto"), notes)
    assert (always.value, always.tries) == (None, 2)
    assert always.error == "its process died: killed, crashed, or out of memory"
    assert (once.value, once.tries, once.error) == ("survived", 2, None)
    assert [(o.value, o.tries) for o in good] == [(i, 1) for i in range(6)]
    assert sorted(name for name, _ in notes.failures) == ["always", "once"]


def test_once_stopped_no_job_begins_and_those_under_way_end(where, tmp_path):
    notes = Notes()
    tasks = [Task(f"step{i}", jobs.after, (0.6, i)) for i in range(12)]
    outcomes = run(tasks, JobResources(ray=where), notes, stop=lambda: bool(notes.starts))
    begun = set(notes.starts)
    assert 1 <= len(begun) <= 2
    assert [o.value for o in outcomes if o.task.name in begun] == [int(name[4:]) for name in sorted(begun)]
    rest = [o for o in outcomes if o.task.name not in begun]
    assert {(o.error, o.tries, o.value) for o in rest} == {(NOT_BEGUN, 0, None)}
    assert set(notes.ends) == begun


def test_once_stopped_a_job_that_failed_is_not_tried_again(where, tmp_path):
    notes = Notes()
    task = Task("late", jobs.fails_until, (str(tmp_path / "late"), 1, 7))
    (outcome,) = run([task], JobResources(ray=where), notes, stop=lambda: bool(notes.failures))
    tried_once = (None, "RuntimeError: not yet", 1)
    begun_before_the_stop = (7, None, 2)  # Ray begins the next try at once, and it ends
    allowed = {tried_once} if where is None else {tried_once, begun_before_the_stop}
    assert (outcome.value, outcome.error, outcome.tries) in allowed
    assert notes.ends == ["late"]


def test_progress_reaches_the_overseer(where):
    notes = Notes()
    (outcome,) = run([Task("long", jobs.says, (0.7,))], JobResources(ray=where), notes)
    assert outcome.value == "said"
    assert notes.said == [("long", 0.25, "layer 1"), ("long", 0.5, "layer 2")]


def test_progress_never_fails_a_job_and_means_nothing_outside_one():
    class Broken(Notes):
        def progressed(self, name, share, text):
            raise RuntimeError("the display is broken")

    report(0.5, "nobody listens")
    (outcome,) = run([Task("long", jobs.says, (0.0,))], JobResources(), Broken())
    assert outcome.value == "said"


def test_jobs_go_on_when_nobody_hears_them(local_ray, monkeypatch):
    from anisoscope.jobs import ray_pool

    monkeypatch.setattr(ray_pool, "_Wire", jobs.DeadWire)
    notes = Notes()
    outcomes = run([Task(str(i), jobs.says, (0.0,)) for i in range(3)], JobResources(ray="auto"), notes)
    assert [(o.value, o.tries) for o in outcomes] == [("said", 1)] * 3
    assert sorted(notes.starts) == sorted(notes.ends) == ["0", "1", "2"]


def test_jobs_on_ray_do_not_share_their_cores(local_ray):
    tasks = [Task(str(i), jobs.span, (0.2,)) for i in range(4)]
    spans = sorted(o.value for o in run(tasks, JobResources(ray="auto", threads=2), Notes()))
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


def test_what_cannot_travel_fails_alone(local_ray):
    tasks = [
        Task("from", jobs.cannot_travel),
        Task("to", jobs.after, (0, threading.Lock())),
        Task("good", jobs.after, (0, 1)),
    ]
    back, there, good = run(tasks, JobResources(ray="auto", retries=0), Notes())
    for outcome in (back, there):
        assert "pickle" in outcome.error or "serialize" in outcome.error
        assert "\n" not in outcome.error
    assert good.value == 1


def test_an_interrupt_passes_through_and_nothing_else_begins(where, tmp_path):
    class Interrupted(Notes):
        def started(self, name):
            super().started(name)
            raise KeyboardInterrupt

    tasks = [Task(f"step{i}", jobs.fails_until, (str(tmp_path / "calls"), 0, i)) for i in range(12)]
    with pytest.raises(KeyboardInterrupt):
        run(tasks, JobResources(ray=where), Interrupted())
    time.sleep(0.3)
    assert jobs.tally(tmp_path / "calls") <= 7  # serial: none; on Ray what was quicker than the interrupt


def test_an_instance_that_was_there_is_left_and_no_other_is_taken_for_it(local_ray):
    before = signal.getsignal(signal.SIGINT)
    run([Task("one", jobs.after, (0, 1))], JobResources(ray="local"), Notes())
    there = local_ray.get_runtime_context().gcs_address
    assert run([Task("one", jobs.after, (0, 1))], JobResources(ray=there), Notes())[0].value == 1
    with pytest.raises(AnisoscopeError, match=r"connected to Ray at .* cannot go to 10\.0\.0\.1:6379"):
        run([Task("one", jobs.after, (0, 1))], JobResources(ray="10.0.0.1:6379"), Notes())
    assert local_ray.is_initialized()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_machine_that_cannot_do_a_job_is_said_and_waiting_can_be_stopped(local_ray):
    notes = Notes()
    means = JobResources(ray="auto", gpus=64)
    (outcome,) = run([Task("big", jobs.after, (0, 1))], means, notes, stop=lambda: bool(notes.said))
    assert notes.said == [("big", 0.0, "waits for a machine with 1 CPU, 64 GPU")]
    assert outcome.error == NOT_BEGUN


def test_what_this_machine_does_not_have_is_an_error_at_once(local_ray, monkeypatch):
    from anisoscope.jobs import ray_pool

    monkeypatch.setattr(ray_pool, "connected", lambda means: contextlib.nullcontext(True))  # as if started here
    with pytest.raises(AnisoscopeError, match="1 CPU, 64 GPU, which this machine does not have"):
        run([Task("gpu", jobs.after, (0, 1))], JobResources(ray="local", gpus=64), Notes())


SCRIPT = """
import os, signal, sys
from anisoscope.jobs.job_pool import JobResources, Task, run
from study import pool_jobs as jobs
from study.pool_jobs import Notes

assert "ray" not in sys.modules
run([Task("here", jobs.after, (0, 1))], JobResources(), jobs.Notes())
assert "ray" not in sys.modules

wished = []
signal.signal(signal.SIGINT, lambda number, frame: wished.append(number))
class Asked(jobs.Notes):
    def started(self, name):
        os.killpg(os.getpgid(0), signal.SIGINT)  # as Ctrl-C in a terminal: every process of the group
tasks = [Task(str(i), jobs.after, (0.4, i)) for i in range(6)]
outcomes = run(tasks, JobResources(ray="local"), Asked(), stop=lambda: bool(wished))
import ray
assert not ray.is_initialized()
done = [o.value for o in outcomes if o.error is None]
assert 1 <= len(done) <= os.cpu_count(), outcomes
assert all(o.error in (None, "not begun") for o in outcomes), outcomes
print("fine")
"""


@pytest.mark.slow
def test_a_local_ray_is_started_quietly_survives_ctrl_c_and_is_gone_afterwards():
    pytest.importorskip("ray")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT],
        env=os.environ | {"PYTHONPATH": TESTS},
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "fine\n"
    assert done.stderr == ""


def test_without_ray_the_error_names_the_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "anisoscope.jobs.ray_pool", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(AnisoscopeError, match=r'pip install "anisoscope\[ray\]"'):
        run([Task("one", jobs.after, (0, 1))], JobResources(ray="local"), Notes())
    assert run([Task("one", jobs.after, (0, 1))], JobResources(), Notes())[0].value == 1


@pytest.fixture
def not_connected(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    return ray


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_that_does_not_answer_is_said_at_once(not_connected, scheme):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(AnisoscopeError, match=rf"no Ray answers at {scheme}127.0.0.1:{port}: .*ray start --head"):
        run([Task("one", jobs.after, (0, 1))], JobResources(ray=f"{scheme}127.0.0.1:{port}"), Notes())
    assert time.monotonic() - began < 15


def test_an_address_must_be_one(not_connected):
    with pytest.raises(ValueError, match=r"must be .*HOST:PORT"):
        run([Task("one", jobs.after, (0, 1))], JobResources(ray="somewhere"), Notes())


@pytest.mark.parametrize(
    ("where", "reason", "step"),
    [
        ("auto", "Could not find any running Ray instance.", 'use "local"'),
        ("ray://127.0.0.1:10001", "Ray Client requires pip package", r'pip install "ray\[client\]"'),
        ("127.0.0.1:6379", "InvalidAuthToken", "set RAY_AUTH_MODE=token"),
        ("local", "no space left", "logs are below /tmp/ray"),
    ],
)
def test_a_ray_that_cannot_be_had_is_said_with_the_next_step(not_connected, monkeypatch, where, reason, step):
    from anisoscope.jobs import ray_pool

    def init(**options):
        try:
            raise RuntimeError(f"Last connection error: {reason}")
        except RuntimeError as error:
            raise ConnectionError("Failed to connect") from error

    monkeypatch.setattr(ray_pool, "_must_answer", lambda address: None)
    monkeypatch.setattr(not_connected, "init", init)
    with pytest.raises(AnisoscopeError, match=f"no Ray at {where}: ConnectionError: Failed to connect; .*{step}"):
        run([Task("one", jobs.after, (0, 1))], JobResources(ray=where), Notes())


@pytest.mark.parametrize("wrong", [{"threads": 0}, {"retries": -1}, {"gpus": -0.5}, {"gpus": 1.5}, {"memory": 0}])
def test_means_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match="got"):
        JobResources(**wrong)


def test_two_tasks_of_one_name_are_refused_and_none_are_no_work():
    with pytest.raises(ValueError, match="names of tasks must differ, got a; rename"):
        run([Task("a", jobs.after), Task("b", jobs.after), Task("a", jobs.after)], JobResources(), Notes())
    assert run([], JobResources(ray="local"), Notes()) == []
