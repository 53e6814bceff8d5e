"""Jobs for the pool; workers of Ray import this module."""

import os
import signal
import sys
import time
from pathlib import Path

from anisoscope.errors import AnisoscopeError, broken
from anisoscope.jobs.job_pool import report


class Notes:
    """An overseer that remembers."""

    def __init__(self):
        self.names, self.starts, self.said, self.ends, self.failures = [], [], [], [], []

    def begun(self, names):
        self.names += names

    def started(self, name):
        self.starts.append(name)

    def progressed(self, name, share, text):
        self.said.append((name, share, text))

    def ended(self, outcome):
        self.ends.append(outcome.task.name)

    def failed_once(self, name, why):
        self.failures.append((name, why))


def after(seconds, value):
    time.sleep(seconds)
    return value


def products(seed):
    import numpy as np
    import scipy.linalg
    import torch

    generator = torch.Generator().manual_seed(seed)
    x_NN = torch.randn(300, 300, generator=generator) / 17
    y_NN = x_NN
    for _ in range(20):
        y_NN = torch.tanh(y_NN @ x_NN + x_NN.sum(0))
    values = np.asarray(scipy.linalg.svdvals((np.asarray(y_NN) @ np.asarray(x_NN)).astype(np.float64)))
    return y_NN.numpy().tobytes(), values.tobytes(), torch.get_num_threads(), os.getpid()


def tally(path):
    """How many times it was called with this path, this one included; many processes may ask."""
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return len(Path(path).read_text().splitlines())


def fails_until(path, times, value):
    if tally(path) <= times:
        raise RuntimeError("not yet\nand a second line")
    return value


def breaks_a_rule(path):
    tally(path)
    raise broken("rank must be at most 63", 128, "lower --rank")


def finds_no_file(path):
    tally(path)
    raise AnisoscopeError("weights.bin is damaged; fetch it again")


def exits(path):
    tally(path)
    sys.exit(3)


def kills_itself(path, times):
    if tally(path) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def says(pause):
    for step in (1, 2):
        report(step / 4, f"layer {step}")
        time.sleep(pause)
    return "said"


def span(seconds):
    began = time.time()
    time.sleep(seconds)
    return began, time.time()


class DeadWire:
    """What jobs speak to, dead from the start."""

    def __init__(self):
        os._exit(1)

    def may_begin(self, number): ...

    def tell(self, number, share, text): ...

    def news(self): ...

    def close(self): ...


class OddError(Exception):
    """Cannot be pickled and read back: its constructor wants more than its message."""

    def __init__(self, what, code):
        super().__init__(f"{what} ({code})")


def fails_oddly():
    raise OddError("odd", 7)


def cannot_travel():
    return (step for step in range(3))


def once_there(file, value):
    """The value, once another job has made the file."""
    until = time.monotonic() + 60
    while not os.path.exists(file) and time.monotonic() < until:
        time.sleep(0.02)
    return value


def making(file, value):
    """The value, after making the file."""
    with open(file, "w"):
        return value
