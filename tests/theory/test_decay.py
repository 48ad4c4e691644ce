"""B_m, L_theta and violations, against plain loops and the golden numbers."""

import cmath
import json
import math
from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rope_lab.rotary import Method1, Method2, RoPE, inverse_powers
from rope_lab.theory.decay import (
    MAX_LENGTH,
    context_bound,
    gap_blocks,
    is_negative_at,
    quarter_period,
    rounding,
    score_bound,
    similarity_gap,
    violations,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "theory.json").read_text())
SPECTRA = st.lists(st.floats(0.0, 3.0), min_size=1, max_size=12)


def gap(theta, m):
    return math.fsum(math.cos(m * angle) for angle in theta)


@pytest.mark.parametrize("head_dim", [128, 64, 32])
def test_context_bound_of_plain_rope_is_golden(head_dim):
    golden = GOLDEN["L_theta_plain_rope"][f"head_dim_{head_dim}"]
    found = {base: context_bound(RoPE(base=float(base)).spectrum(head_dim, 1).theta) for base in golden}
    assert found == golden


def test_context_bound_is_not_monotone_in_the_base():
    assert context_bound(inverse_powers(5e5, 64)) == 9936
    assert context_bound(inverse_powers(1e6, 64)) == 6234


def test_violations_of_table_4_are_golden():
    golden = GOLDEN["table_4"]
    for length, count1, count2 in zip((15 * 1024, 30 * 1024), golden["method1"], golden["method2"], strict=True):
        found = violations(Method1().spectrum(128, length).theta, length)
        assert (found.count, found.intervals) == (count1, ())
        found = violations(Method2(factor=8.0, boundary_pair=44).spectrum(128, length).theta, length)
        assert found.count == count2 == sum(last - first + 1 for first, last in found.intervals)
        assert found.intervals[0][0] == golden["method2_first_negative_m"]


@given(theta=SPECTRA, distances=st.lists(st.integers(0, 3000), min_size=1, max_size=8))
def test_similarity_gap_is_the_sum_of_cosines(theta, distances):
    expected = [gap(theta, m) for m in distances]
    np.testing.assert_allclose(similarity_gap(np.array(theta), np.array(distances)), expected, rtol=0, atol=1e-12 * len(theta))


@given(theta=SPECTRA, length=st.integers(1, 700))
def test_every_distance_is_formed_and_within_the_stated_rounding(theta, length):
    blocks = list(gap_blocks(np.array(theta), length))
    assert [start for start, _ in blocks] == np.cumsum([0, *(len(values) for _, values in blocks[:-1])]).tolist()
    values = np.concatenate([values for _, values in blocks])
    assert len(values) == length + 1
    assert np.abs(values - [gap(theta, m) for m in range(length + 1)]).max() <= rounding(np.array(theta), length)


def test_no_distance_is_lost_at_the_end_of_a_block():
    for length in (4095, 4096, 4097):
        assert sum(len(values) for _, values in gap_blocks(np.ones(1), length)) == length + 1


def check_against_loop(theta, length):
    values = [gap(theta, m) for m in range(length + 1)]
    if min(abs(value) for value in values) < 1e-9:
        return  # the sign hangs on rounding; that has its own tests
    negative = [m for m, value in enumerate(values) if value < 0]
    found = violations(np.array(theta), length)
    assert found.length == length
    assert found.count == len(negative)
    assert [m for first, last in found.intervals for m in range(first, last + 1)] == negative
    assert all(later[0] - earlier[1] > 1 for earlier, later in zip(found.intervals, found.intervals[1:], strict=False))
    assert found.worst_gap == pytest.approx(min(values), abs=1e-9)
    assert found.worst_gap == pytest.approx(values[found.worst_distance], abs=1e-9)
    assert context_bound(np.array(theta), limit=length) == (negative[0] - 1 if negative else length)


@given(theta=SPECTRA, length=st.integers(1, 400))
def test_violations_and_bound_of_any_spectrum_are_those_of_a_loop(theta, length):
    check_against_loop(theta, length)


@given(base=st.floats(2.0, 1e5), pairs=st.integers(1, 16), length=st.integers(1, 3000))
def test_violations_and_bound_of_any_base_are_those_of_a_loop(base, pairs, length):
    check_against_loop(inverse_powers(base, 2 * pairs).tolist(), length)


def test_bound_looks_no_further_than_the_limit():
    theta = inverse_powers(1e4, 128)
    assert [context_bound(theta, limit=limit) for limit in (1, 1705, 1706, 1707, 9999)] == [1, 1705, 1706, 1706, 1706]
    assert context_bound(np.zeros(4), limit=MAX_LENGTH // 64) == MAX_LENGTH // 64


def test_rounding_at_a_true_zero_is_no_violation():
    # cos(m a) + cos(m (pi - a)) is 0 at every odd m and 2 cos(m a) at every even one, which first turns negative at 16.
    theta = [0.1, math.pi - 0.1]
    assert min(gap(theta, m) for m in range(1, 16, 2)) < 0  # a plain loop sees a violation
    assert context_bound(np.array(theta)) == 15


def test_a_value_within_the_stated_band_is_zero():
    quarter = np.array([math.pi / 2])  # a little less than a quarter turn: the cosine of three of them is -1.8e-16
    assert not is_negative_at(quarter, 3)
    assert is_negative_at(quarter, 2)
    assert context_bound(quarter) == 1


def cosine(angle: Decimal) -> Decimal:
    """To 50 digits, by halving the angle until the series is short."""
    halvings = 40
    angle = angle / 2**halvings
    value = sum((-1) ** k * angle ** (2 * k) / math.factorial(2 * k) for k in range(12))
    for _ in range(halvings):
        value = 2 * value * value - 1
    return value


def test_signs_lost_to_rounding_are_found_by_careful_evaluation():
    m = MAX_LENGTH - 1
    start = (math.pi * 20_000_001 - m * 0.7 % (2 * math.pi)) / m  # cos(m start) is nearly -cos(0.7 m)
    step, careful, plain = np.spacing(start), [], []
    with localcontext(prec=90):
        for k in range(-12, 13):
            theta = [0.7, start + k * step]
            exact = sum(cosine(Decimal(angle) * m) for angle in theta)
            assert abs(exact) > 1e-13  # clear of the band that counts as zero
            careful.append(is_negative_at(np.array(theta), m) == (exact < 0))
            plain.append((math.fsum(math.cos(m * angle) for angle in theta) < 0) == (exact < 0))
    assert all(careful)
    assert not all(plain)  # or the case is too easy to show anything


@given(theta=SPECTRA, m=st.integers(0, 5000))
def test_score_bound_is_the_sum_of_partial_sums(theta, m):
    partial = [cmath.exp(1j * m * theta[0])]
    for angle in theta[1:]:
        partial.append(partial[-1] + cmath.exp(1j * m * angle))
    assert float(score_bound(np.array(theta), np.array(m))) == pytest.approx(sum(abs(s) for s in partial), abs=1e-9)


def test_score_bound_starts_at_its_largest_and_decays():
    bound = score_bound(inverse_powers(1e4, 128), np.array([0, 1, 100]))
    assert bound[0] == 64 * 65 / 2
    assert bound[0] > bound[1] > 2 * bound[2]


def test_score_bound_limits_random_scores():
    rng = np.random.default_rng(0)
    theta = inverse_powers(1e4, 32)
    h = rng.normal(size=(500, 16)) + 1j * rng.normal(size=(500, 16))
    steps = np.abs(np.diff(h, axis=1, append=0)).max(axis=1)
    for m in (0, 1, 17, 400):
        scores = np.abs((h @ np.exp(1j * m * theta)).real)
        assert (scores <= steps * float(score_bound(theta, np.array(m)))).all()


def test_quarter_period():
    assert quarter_period(np.array([1.0, -0.5, 0.25])) == pytest.approx(2 * math.pi)
    assert quarter_period(np.array([1.0, 0.0])) == math.inf


BAD_THETA = {
    "empty": (np.array([]), r"theta\.shape=\(0,\) must be \(pairs,\) with at least one pair: give Spectrum\.theta"),
    "a matrix": (np.ones((2, 2)), r"theta\.shape=\(2, 2\) must be \(pairs,\)"),
    "NaN": (np.array([1.0, math.nan]), "theta has 1 entries that are not finite: frequencies are radians per token"),
    "infinite": (np.array([math.inf, -math.inf]), "theta has 2 entries that are not finite"),
}


@pytest.mark.parametrize("case", BAD_THETA)
def test_what_is_no_spectrum_is_rejected(case):
    theta, message = BAD_THETA[case]
    for function in (
        context_bound,
        quarter_period,
        lambda theta: violations(theta, 8),
        lambda theta: similarity_gap(theta, np.array(1)),
        lambda theta: score_bound(theta, np.array(1)),
    ):
        with pytest.raises(ValueError, match=message):
            function(theta)


@pytest.mark.parametrize("length", [0, -3, MAX_LENGTH + 1])
def test_a_length_that_cannot_be_scanned_is_rejected(length):
    with pytest.raises(ValueError, match=rf"length={length} must be an integer of 1 \.\. 67108864 tokens"):
        violations(np.ones(1), length)
    with pytest.raises(ValueError, match=rf"limit={length} must be an integer of 1 \.\. 67108864 tokens"):
        context_bound(np.ones(1), limit=length)
