"""What a study is said to take, against what its parts add up to."""

import pytest
import torch

from anisoscope.study.estimates import Dimensions, evaluation_seconds, in_words, size_of
from anisoscope.study.model_settings import Examination, ProfileSettings
from anisoscope.study.setting_fields import made_of

CARD = Dimensions(parameters=10**6, layers=3, width=64, vocabulary=100)


def profile(**given):
    return made_of(ProfileSettings, {"device": "cpu", "threads": 1, **given})


def test_a_profile_counts_passes_layers_and_gradients():
    layers_alone = profile(gradients=False, untrained=False, batches=2)
    there = evaluation_seconds(CARD, layers_alone, rate=1e30)  # products take no time
    assert there == pytest.approx(2 * 4 * 2 * 0.07 / 1.0)  # batches, layers with the embedding, selections of tokens
    passes = size_of(CARD, layers_alone, rate=1e9, sequences=10).seconds - evaluation_seconds(
        CARD, layers_alone, rate=1e9
    )
    tokens = 2 * 10 * layers_alone.length
    assert passes == pytest.approx(1.0 + 2 * 2 * 10**6 * tokens / 1e9)


def test_proxies_at_sites_add_up_and_a_twin_doubles_them():
    given = {"views": ("representation",), "proxies": ("pca", "svd"), "batches": 1}
    with_twin, alone = (
        evaluation_seconds(CARD, profile(untrained=untrained, **given), rate=1e30) for untrained in (True, False)
    )
    site = 0.1 + 5.5e-6 * 64**2
    assert with_twin - alone == pytest.approx(4 * 2 * 0.07 + 4 * 2 * site)


def test_all_measures_take_longer_than_the_usual_ones():
    usual, every = (
        evaluation_seconds(CARD, profile(measures=which, gradients=False), rate=1e9) for which in ("usual", "all")
    )
    assert every > 1.3 * usual


def test_threads_share_the_work():
    torch_threads = torch.get_num_threads()
    one, four = (evaluation_seconds(CARD, profile(threads=n), rate=1e9) for n in (1, 4))
    assert one / four == pytest.approx(0.85 * 4)
    assert torch.get_num_threads() == torch_threads


def test_finished_weights_without_layers_of_their_own_are_judged_alone():
    settings = made_of(Examination, {"device": "cpu", "threads": 1, "views": ("weight",), "proxies": ("pca",)})
    assert evaluation_seconds(CARD, settings, rate=1e9) == pytest.approx(3 * (0.1 + 5.5e-6 * 64**2))


def test_bytes_have_a_unit_people_read():
    assert in_words(3 << 20) == "3.0 MiB"
