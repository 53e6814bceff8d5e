"""The ledger in the docs says what the code says."""

import json
import re

import pytest
from bench import conformance

STORED = json.loads((conformance.DOCS / "conformance-peers.json").read_text(encoding="utf-8"))
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def same(a, b):
    """Equal up to the rounding of printed numbers, which may fall either way on another machine."""
    if NUMBER.sub("#", a) != NUMBER.sub("#", b):
        return False
    return all(
        float(x) == pytest.approx(float(y), rel=2e-3, abs=1e-6)
        for x, y in zip(NUMBER.findall(a), NUMBER.findall(b), strict=True)
    )


def test_the_page_is_up_to_date():
    written = (conformance.DOCS / "conformance.md").read_text(encoding="utf-8").splitlines()
    computed = conformance.page(STORED).splitlines()
    assert len(written) == len(computed)
    for a, b in zip(written, computed, strict=True):
        assert same(a, b), f"{a}\n{b}\nrun `make conformance`"


def test_the_comparison_would_notice():
    assert not same("| x | 0.5 |", "| x | 0.51 |")
    assert not same("| x | 0.5 |", "| y | 0.5 |")


def test_every_cloud_keeps_close_to_its_law():
    """Isotropy within sampling error of the closed form; dimension low by the known bias at most."""
    loose = {"two_nn", "two_nn mle", "levina_bickel", "gride"}
    for name, cloud in conformance.CLOUDS.items():
        if name == "few rows":
            continue  # there to show the bias
        x = cloud.array()
        for measure, law in cloud.truth.items():
            got = conformance.OURS[measure](x)
            assert got == pytest.approx(law, rel=0.12 if measure in loose or "share" in measure else 0.06, abs=5e-3), (
                name, measure,
            )  # fmt: skip


def test_stored_answers_carry_the_versions_asked_for():
    assert STORED["versions"]["scikit-dimension"] == "0.5.0"
    assert STORED["versions"]["dadapy"] == "0.3.4"
    assert STORED["versions"]["IsoScore"] == "2.0.1"
    assert set(STORED["answers"]) == set(conformance.CLOUDS)
