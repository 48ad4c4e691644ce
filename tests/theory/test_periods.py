"""The periodic view, against loops and the golden numbers."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rope_lab.rotary import NTK, PI, Method2, inverse_powers
from rope_lab.theory.periods import (
    angle_ranges,
    critical_base,
    critical_dimension,
    dynamic_ntk_base,
    extrapolation_limit,
    log_scale,
    periods,
    small_base_thresholds,
    unfinished_pairs,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "theory.json").read_text())["scaling_laws"]
LLAMA = inverse_powers(1e4, 128)


def test_critical_dimension_is_golden():
    for length, base, head_dim, expected in GOLDEN["critical_dimension"]:
        assert critical_dimension(base, length, head_dim).ceiled == expected


@given(base=st.floats(2.0, 1e8), length=st.floats(1.0, 1e7), pairs=st.integers(1, 128))
def test_critical_dimension_counts_the_pairs_that_completed_a_turn(base, length, pairs):
    turned = sum(length * base ** (-2 * i / (2 * pairs)) >= 2 * math.pi for i in range(pairs))
    found = critical_dimension(base, length, 2 * pairs)
    if abs(found.unceiled - 2 * round(found.unceiled / 2)) > 1e-9:  # not a pair exactly at its turn
        assert found.ceiled == 2 * turned
        assert found.ceiled - 2 < found.unceiled <= found.ceiled


def test_small_base_thresholds_are_golden():
    assert [round(beta, 1) for beta in small_base_thresholds(4096)] == GOLDEN["beta_1_2_3_for_4096"]


def test_small_base_thresholds_are_where_the_slowest_pair_turns():
    head_dim = 2**14  # the slowest frequency is close to 1 / base
    for beta, turns in zip(small_base_thresholds(4096), (0.25, 0.5, 1.0), strict=True):
        assert unfinished_pairs(inverse_powers(beta * 0.99, head_dim), 4096, turns).size == 0
        assert unfinished_pairs(inverse_powers(beta * 1.01, head_dim), 4096, turns).size > 0


def test_extrapolation_limit_is_golden_and_the_period_of_the_critical_pair():
    critical = critical_dimension(1e4, 4096, 128).ceiled
    limit = extrapolation_limit(1e6, critical, 128)
    assert round(limit) == GOLDEN["T_extra_at_base_1e6"]
    assert limit == pytest.approx(periods(inverse_powers(1e6, 128))[critical // 2])


def test_critical_base_is_golden():
    found = critical_base(16384, base=1e4, trained_length=4096, head_dim=128)
    assert round(found.unceiled, 1) == GOLDEN["critical_base_for_16384_tuning"]
    assert found.ceiled == pytest.approx(56627.8, abs=0.1)


@given(tuning=st.floats(100.0, 1e6), base=st.floats(100.0, 1e6), trained=st.floats(50.0, 1e5), pairs=st.integers(2, 96))
def test_at_the_critical_base_the_limit_is_the_tuning_length(tuning, base, trained, pairs):
    critical = critical_dimension(base, trained, 2 * pairs)
    found = critical_base(tuning, base=base, trained_length=trained, head_dim=2 * pairs)
    if critical.unceiled < 2 * pairs:
        assert extrapolation_limit(found.unceiled, critical.unceiled, 2 * pairs) == pytest.approx(tuning)
    assert extrapolation_limit(found.ceiled, critical.ceiled, 2 * pairs) == pytest.approx(tuning)


def test_periods_and_unfinished_pairs():
    assert periods(np.array([math.pi, -0.5, 0.0])).tolist() == [2.0, 4 * math.pi, math.inf]
    for turns, first in ((1.0, 46), (0.5, 50), (0.25, 55)):
        expected = [i for i in range(64) if 4096 * 1e4 ** (-2 * i / 128) < 2 * math.pi * turns]
        assert unfinished_pairs(LLAMA, 4096, turns).tolist() == expected == list(range(first, 64))


def test_pairs_that_each_extension_leaves_out_of_distribution():
    def left_out(target):
        return angle_ranges(LLAMA, target, trained_length=4096, target_length=8 * 4096).out_of_distribution.tolist()

    assert left_out(LLAMA) == list(range(46, 64))
    assert left_out(NTK(factor=8.0).spectrum(128, 1).theta) == list(range(46, 63))  # only the last pair is fully interpolated
    assert left_out(PI(factor=8.0).spectrum(128, 1).theta) == []
    assert left_out(Method2(factor=8.0, boundary_pair=44).spectrum(128, 1).theta) == []


@given(factor=st.floats(1.0, 64.0))
def test_interpolation_shows_nothing_new_whatever_its_factor(factor):
    target = PI(factor=factor).spectrum(128, 1).theta
    assert angle_ranges(LLAMA, target, trained_length=4096, target_length=4096 * factor).out_of_distribution.size == 0


def test_angle_ranges_end_at_a_full_turn():
    found = angle_ranges(np.array([1.0, 0.01, 0.0]), np.array([0.5, -0.01, 0.0]), trained_length=100, target_length=200)
    np.testing.assert_allclose(found.trained, [2 * math.pi, 1.0, 0.0])
    np.testing.assert_allclose(found.target, [2 * math.pi, 2.0, 0.0])
    assert found.out_of_distribution.tolist() == [1]


def test_dynamic_ntk_leaves_the_base_up_to_its_length_and_interpolates_the_last_pair_beyond():
    limit = extrapolation_limit(1e6, 92, 128)
    assert dynamic_ntk_base(1e6, limit, limit, 128) == dynamic_ntk_base(1e6, 17, limit, 128) == 1e6
    stretched = inverse_powers(dynamic_ntk_base(1e6, 3 * limit, limit, 128), 128)
    assert stretched[-1] == pytest.approx(inverse_powers(1e6, 128)[-1] / 3)
    assert stretched[0] == 1.0


def test_log_scale():
    assert [log_scale(n, 4096) for n in (1, 4096)] == [1.0, 1.0]
    assert log_scale(4096**2, 4096) == pytest.approx(2.0)
    assert log_scale(65536, 4096) == pytest.approx(16 / 12)


REJECTED = {
    "length": (lambda: unfinished_pairs(LLAMA, 0), "length=0 must be a finite number above 0"),
    "turns": (lambda: unfinished_pairs(LLAMA, 1, -1.0), r"turns=-1\.0 must be a finite number above 0"),
    "base": (lambda: critical_dimension(1.0, 4096, 128), r"base=1\.0 must be a finite number above 1"),
    "head_dim": (lambda: critical_dimension(1e4, 4096, 127), "head_dim=127 must be a positive even number"),
    "trained length": (lambda: critical_dimension(1e4, math.nan, 128), "trained_length=nan must be a finite number above 0"),
    "thresholds": (lambda: small_base_thresholds(-1), "trained_length=-1 must be a finite number above 0"),
    "critical": (lambda: extrapolation_limit(1e6, 130, 128), r"critical=130 must be of 0 \.\. head_dim=128"),
    "tuning length": (
        lambda: critical_base(6, base=1e4, trained_length=4096, head_dim=128),
        "tuning_length=6 must be a finite number above 2 pi tokens: no pair completes a turn within less",
    ),
    "shapes": (
        lambda: angle_ranges(LLAMA, LLAMA[1:], trained_length=1, target_length=1),
        r"trained\.shape=\(64,\) and target\.shape=\(63,\) must be equal",
    ),
    "target length": (lambda: angle_ranges(LLAMA, LLAMA, trained_length=1, target_length=0), "target_length=0 must be a finite number"),
    "small head": (lambda: dynamic_ntk_base(1e4, 1, 1, 2), "head_dim=2 must be an even number of at least 4"),
    "one token": (lambda: log_scale(10, 1), "unscaled_length=1 must be a finite number above 1 token"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_what_has_no_meaning_is_rejected(case):
    call, message = REJECTED[case]
    with pytest.raises(ValueError, match=message):
        call()
