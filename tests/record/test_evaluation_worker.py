"""The threads that judge: whatever happens there, the training goes on."""

from functools import partial

from anisoscope.observe.statistics import Observation
from anisoscope.record.evaluation_worker import Worker


def test_a_judge_that_fails_does_not_stop_the_training(capfd):
    """More observations than may wait: if the thread had ended, the fourth would wait for ever."""
    judged = []

    def judge(observed):
        judged.append(observed.step)
        if observed.step in (0, 2):
            raise SystemExit("even recording failed")

    worker = Worker(lambda observed: partial(judge, observed), pending=1)
    for step in range(6):
        worker.submit(Observation(step, {}))
    assert worker.drain(timeout=60) == []
    worker.stop()
    assert judged == list(range(6))
    assert capfd.readouterr().err.count("SystemExit: even recording failed") == 2
