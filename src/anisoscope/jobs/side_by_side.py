"""Independent computations side by side, each on one thread.

Matrices of a layer are small: two threads at one of them mostly wait for each other, all the more on a machine that
does other work too. Two layers at a time, a thread each, keep both cores busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from threadpoolctl import threadpool_limits

Apply = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]


@contextmanager
def side_by_side(threads: int) -> Iterator[Apply]:
    """A ``map`` over so many threads: results come in order, each as soon as it and those before it are there.

    >>> with side_by_side(2) as apply:
    ...     list(apply(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    pool = ThreadPoolExecutor(threads, "anisoscope", initializer=_one_thread)
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)  # an error or Ctrl-C waits for what is under way, not for all the rest


def _one_thread() -> None:
    """Both limits are of this thread alone."""
    torch.set_num_threads(1)
    threadpool_limits(1, user_api="openmp")  # k-means of scikit-learn
