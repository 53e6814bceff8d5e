import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from anisoscope import Directions, Reservoir, TokenCounts
from anisoscope.stats.hashing import mix, sequence_keys


def batch(b=12, t=5, d=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 50, (b, t), generator=generator)
    lengths = torch.randint(1, t + 1, (b,), generator=generator)
    mask = torch.arange(t) < lengths[:, None]
    return torch.randn(b, t, d, generator=generator), tokens, mask


def assert_same(a: Reservoir, b: Reservoir):
    for name in ("values", "tokens", "sequences", "positions"):
        assert torch.equal(getattr(a.sample(), name), getattr(b.sample(), name)), name


@given(st.lists(st.integers(0, 11), min_size=0, max_size=4), st.booleans(), st.integers(5, 40), st.randoms())
def test_membership_depends_on_content_not_on_order_or_parts(cuts, whole, rows, random):
    x, tokens, mask = batch()
    one = Reservoir.of_sequences(x, tokens, mask=mask, rows=rows, seed=3, whole=whole)
    order = list(range(12))
    random.shuffle(order)
    bounds = [0, *sorted(cuts), 12]
    parts = []
    for start, stop in itertools.pairwise(bounds):
        i = order[start:stop]
        parts.append(Reservoir.of_sequences(x[i], tokens[i], mask=mask[i], rows=rows, seed=3, whole=whole))
    random.shuffle(parts)
    total = parts[0]
    for part in parts[1:]:
        total = total.merge(part)
    assert_same(total, one)


def test_whole_sequences_are_complete_and_fit():
    x, tokens, mask = batch(b=40)
    sample = Reservoir.of_sequences(x, tokens, mask=mask, rows=23, seed=1).sample()
    lengths = dict(zip(sequence_keys(tokens, mask, seed=1).tolist(), mask.sum(1).tolist(), strict=True))
    found = {key: int((sample.sequences == key).sum()) for key in sample.sequences.tolist()}
    assert 0 < sum(found.values()) <= 23
    assert found == {key: lengths[key] for key in found}
    for key in found:
        assert sample.positions[sample.sequences == key].tolist() == list(range(lengths[key]))


def test_padding_on_either_side_changes_no_key():
    tokens = torch.tensor([[7, 8, 9, 0, 0], [0, 0, 7, 8, 9], [0, 7, 8, 9, 0]])
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [0, 1, 1, 1, 0]]).bool()
    keys = sequence_keys(tokens, mask, seed=0)
    assert len(set(keys.tolist())) == 1
    assert sequence_keys(torch.tensor([[9, 8, 7]]), None, seed=0) != keys[0]
    assert sequence_keys(torch.tensor([[7, 8, 9]]), None, seed=1) != keys[0]


def test_sampling_is_uniform():
    stream = torch.arange(200.0).reshape(200, 1)
    hits = np.zeros(200)
    for seed in range(400):
        hits[Reservoir.of_rows(stream, rows=20, seed=seed).sample().positions.numpy()] += 1
    assert stats.chisquare(hits).pvalue > 1e-3
    shared = [
        len(
            set(Reservoir.of_rows(stream, rows=20, seed=s).sample().positions.tolist())
            & set(Reservoir.of_rows(stream, rows=20, seed=s + 1).sample().positions.tolist())
        )
        for s in range(200)
    ]
    assert abs(np.mean(shared) - 2.0) < 0.35  # neighbouring seeds draw independently: 20·20/200


def test_the_hash_is_splitmix64():
    def reference(value, seed):
        m = (1 << 64) - 1
        z = (value + (seed + 1) * 0x9E3779B97F4A7C15) & m
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & m
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & m
        return z ^ (z >> 31)

    values = [0, 1, 2**62 + 3, -1, -(2**63)]
    got = mix(torch.tensor(values), seed=5).tolist()
    assert [g % 2**64 for g in got] == [reference(v % 2**64, 5) for v in values]


def test_state_round_trip_and_guards():
    x, tokens, mask = batch()
    kept = Reservoir.of_sequences(x, tokens, mask=mask, rows=9, seed=2)
    assert_same(Reservoir.from_state(kept.state()), kept)
    with pytest.raises(ValueError, match="share seed=2"):
        kept.merge(Reservoir.of_sequences(x, tokens, mask=mask, rows=9, seed=3))
    with pytest.raises(ValueError, match="room for one whole sequence"):
        Reservoir.of_sequences(x, tokens, rows=4)
    with pytest.raises(ValueError, match="at least 1 row"):
        Reservoir.of_rows(x[0], rows=0)
    with pytest.raises(ValueError, match=r"\(B, T, D\)"):
        Reservoir.of_sequences(x, tokens[:, 1:], rows=9)


def test_token_counts_count_what_was_seen():
    tokens = torch.tensor([[1, 1, -100], [3, 0, 0]])
    mask = torch.tensor([[True, True, False], [True, True, False]])
    counts = TokenCounts.of(tokens, vocabulary=5, mask=mask)
    assert counts.counts.tolist() == [1, 2, 0, 1, 0]
    assert int(counts.merge(TokenCounts.empty(5)).total) == 4
    assert torch.equal(TokenCounts.from_state(counts.state()).counts, counts.counts)
    with pytest.raises(ValueError, match="must lie in 0…4"):
        TokenCounts.of(tokens, vocabulary=5)
    with pytest.raises(ValueError, match="integers"):
        TokenCounts.of(torch.ones(3), vocabulary=5)
    with pytest.raises(ValueError, match="shape of the tokens"):
        TokenCounts.of(tokens, vocabulary=5, mask=mask[0])
    with pytest.raises(ValueError, match="share the vocabulary"):
        counts.merge(TokenCounts.empty(6))
    with pytest.raises(ValueError, match="at least 1"):
        TokenCounts.empty(0)


def test_directions_keep_those_of_tiny_and_huge_rows():
    x = torch.tensor([[3e-40, 4e-40], [3e30, 4e30], [0.0, 0.0]])
    directions = Directions.of(x)
    torch.testing.assert_close(directions.units.mean, torch.tensor([0.6, 0.8], dtype=torch.float64), rtol=1e-4, atol=0)
    assert int(directions.zeros) == 1
    assert float(Directions.empty(2).merge(directions).units.count) == 2
