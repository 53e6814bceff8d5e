"""Linear probes: what can be read off, what the control task gives, and splits that share no group."""

import numpy as np
import pytest

from anisoscope.intervene.linear_probe import Examples, probe


def test_a_label_that_is_linear_is_found_and_its_control_is_not():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((900, 6)) * [1, 5, 1, 1, 1, 100]
    labels = np.digitize(x[:, 1], [-2.0, 2.0])
    found = probe(x, Examples(labels, np.arange(900), np.arange(900) // 10))
    assert found.accuracy > 0.9
    assert found.gain > 0.45
    assert found.control < found.majority + 0.1
    assert found.selectivity == pytest.approx(found.accuracy - found.control)


def test_a_label_that_is_not_there_has_no_gain():
    rng = np.random.default_rng(1)
    found = probe(rng.standard_normal((900, 6)), Examples(rng.integers(0, 2, 900), np.arange(900), np.arange(900)))
    assert abs(found.gain) < 0.12


def test_a_control_by_type_is_read_where_vectors_are_types():
    """Vectors that only say which type they are of: both tasks are read equally well, so nothing is selective."""
    rng = np.random.default_rng(2)
    types = rng.integers(0, 12, 1200)
    x = np.eye(12)[types] + 0.01 * rng.standard_normal((1200, 12))
    labels = (types % 2).astype(int)
    found = probe(x, Examples(labels, types, np.arange(1200)))
    assert found.accuracy > 0.98
    assert found.control > 0.9
    assert abs(found.selectivity) < 0.1


def test_splits_share_no_group_and_take_all():
    examples = Examples(np.zeros(500, int), np.arange(500), np.random.default_rng(0).integers(0, 30, 500))
    parts = examples.parts(3)
    groups = [set(examples.groups[part].tolist()) for part in parts]
    assert sum(map(len, parts)) == 500
    assert sum(map(len, groups)) == len(set.union(*groups)) == 30


@pytest.mark.parametrize(
    ("n", "labels", "groups", "message"),
    [
        (40, 2, 40, "needs 60"),
        (100, 1, 100, "one label only"),
        (100, 2, 3, "need 5"),
    ],
)
def test_too_little_is_told(n, labels, groups, message):
    numbers = np.arange(n)
    with pytest.raises(ValueError, match=message):
        probe(np.zeros((n, 2)), Examples(numbers % labels, numbers, numbers % groups))


def test_labels_of_another_length_are_told():
    with pytest.raises(ValueError, match="equally many"):
        Examples(np.zeros(3), np.zeros(4), np.zeros(3))
