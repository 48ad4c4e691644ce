"""Granularity: the golden limits, the exact values, and that the ones tend to the others."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from rope_lab.rotary import ABF, PI, inverse_powers
from rope_lab.theory.granularity import granularity, granularity_limit

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "theory.json").read_text())["granularity"]


def test_limits_are_golden():
    assert round(granularity_limit(1e4, alpha=0.25), 4) == GOLDEN["pi_alpha_quarter"]
    assert round(granularity_limit(1e4, beta=50), 4) == GOLDEN["abf_beta_50"]


@pytest.mark.parametrize(
    ("variant", "alpha", "beta"), [(PI(factor=4.0, base=1e4), 0.25, 1.0), (ABF(base=5e5), 1.0, 50.0)], ids=["interpolation", "larger base"]
)
def test_finite_values_are_the_geometric_sum_and_tend_to_the_limit(variant, alpha, beta):
    limit = granularity_limit(1e4, alpha=alpha, beta=beta)
    for head_dim in (4, 128, 2**16):
        base = 1e4 * beta
        expected = alpha * 2 / head_dim * (1 - 1 / base) / (1 - base ** (-2 / head_dim))
        assert granularity(variant.spectrum(head_dim, 1).theta) == pytest.approx(expected)
    assert granularity(variant.spectrum(2**16, 1).theta) == pytest.approx(limit, rel=3e-4)


def test_the_limit_is_its_integral():
    u = (np.arange(100_000) + 0.5) / 100_000
    assert granularity_limit(300.0, alpha=0.5, beta=7.0) == pytest.approx(float((0.5 * 2100.0**-u).mean()), rel=1e-8)


def test_granularity_is_the_angle_between_consecutive_images():
    theta = inverse_powers(1e4, 64)
    image = np.exp(1j * np.outer([7, 8], theta))
    assert granularity(theta) == pytest.approx(float(np.angle(image[1] / image[0]).mean()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"base": 1.0}, r"base=1\.0 must be a finite number above 1"),
        ({"base": 1e4, "alpha": 0.0}, r"alpha=0\.0 must be above 0 and at most 1"),
        ({"base": 1e4, "alpha": 4.0}, r"alpha=4\.0 must be above 0 and at most 1"),
        ({"base": 1e4, "beta": 0.5}, r"beta=0\.5 must be a finite number of at least 1"),
        ({"base": 1e4, "beta": math.inf}, "beta=inf must be a finite number of at least 1"),
    ],
)
def test_what_has_no_meaning_is_rejected(arguments, message):
    with pytest.raises(ValueError, match=message):
        granularity_limit(**arguments)
    with pytest.raises(ValueError, match="at least one pair"):
        granularity(np.array([]))
