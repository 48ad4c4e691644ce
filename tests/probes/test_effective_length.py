"""Effective context length against its definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rope_lab.probes.effective_length import contiguous_length, effective_length, length_scalars

LENGTHS = np.array([256, 512, 1024, 2048])


def outcomes(accuracies: list[float], trials: int) -> list[np.ndarray]:
    return [np.arange(trials) < round(accuracy * trials) for accuracy in accuracies]


def test_contiguous_and_longest_differ():
    result = effective_length(LENGTHS, outcomes([1, 0.9, 0.5, 0.88], 100), 0.85)
    assert (result.contiguous, result.longest) == (512, 2048)


@pytest.mark.parametrize(
    ("accuracies", "contiguous", "longest"),
    [([1, 1, 1, 1], 2048, 2048), ([0, 1, 1, 1], 0, 2048), ([0, 0, 0, 0], 0, 0), ([1, 1, 0, 0], 512, 512), ([0.5, 0, 0, 0], 256, 256)],
)
def test_certain_outcomes(accuracies: list[float], contiguous: int, longest: int):
    result = effective_length(LENGTHS, outcomes(accuracies, 40), 0.5 if 0.5 not in accuracies else 0.25)
    assert result[:2] == (contiguous, longest)
    assert (result.low, result.high) == (contiguous, contiguous)


def test_reaching_the_threshold_exactly_is_passing():
    assert effective_length(LENGTHS, outcomes([1, 0.5, 0.25, 0], 4), 0.5)[:2] == (512, 512)


def test_the_interval_shows_what_is_uncertain():
    """Accuracies of .86 and .84 beside a threshold of .85 are told apart by many trials, not by a hundred."""
    few = effective_length(LENGTHS, outcomes([1, 0.86, 0.84, 0], 100), 0.85)
    assert (few.contiguous, few.low, few.high) == (512, 256, 1024)
    many = effective_length(LENGTHS, outcomes([1, 0.86, 0.84, 0], 100_000), 0.85)
    assert (many.contiguous, many.low, many.high) == (512, 512, 512)
    assert effective_length(LENGTHS, outcomes([1, 0.86, 0.84, 0], 100), 0.85) == few


@pytest.mark.parametrize(
    ("accuracies", "low", "high"),
    [
        ([1, 0.90, 0, 0], 256, 512),  # a redraw fails at 512 with probability .040
        ([1, 0.92, 0, 0], 512, 512),  # .006
        ([1, 0.78, 0, 0], 256, 512),  # a redraw passes with probability .055
        ([1, 0.74, 0, 0], 256, 256),  # .006
    ],
)
def test_each_end_leaves_a_fortieth_outside(accuracies: list[float], low: int, high: int):
    result = effective_length(LENGTHS, outcomes(accuracies, 100), 0.85)
    assert (result.low, result.high) == (low, high)


def test_the_interval_covers_the_truth():
    rng = np.random.default_rng(0)
    accuracy, threshold, trials = [0.99, 0.9, 0.87, 0.6], 0.85, 400
    truth = 1024
    covered = 0
    for seed in range(100):
        drawn = [rng.random(trials) < p for p in accuracy]
        result = effective_length(LENGTHS, drawn, threshold, resamples=200, seed=seed)
        assert result.low <= result.contiguous <= result.high
        covered += result.low <= truth <= result.high
    assert covered >= 90


def test_the_bootstrap_equals_a_naive_one():
    trials = outcomes([1, 0.9, 0.5, 0.88], 12)
    rng = np.random.default_rng(1)
    redrawn = []
    for _ in range(2000):
        means = [np.mean(rng.choice(trial, len(trial))) for trial in trials]
        reached = 0
        for length, mean in zip(LENGTHS, means, strict=True):
            if mean < 0.85:
                break
            reached = length
        redrawn.append(reached)
    low, high = np.quantile(redrawn, [0.025, 0.975], method="nearest")
    result = effective_length(LENGTHS, trials, 0.85, resamples=2000)
    assert (result.low, result.high) == (low, high)
    assert low < high


def test_what_probes_report_of_a_curve():
    scalars = length_scalars(LENGTHS, outcomes([1, 0.9, 0.5, 0.88], 100), 0.85)
    assert scalars == {
        "effective_length_tokens": 512,
        "effective_length_low_tokens": 256,
        "effective_length_high_tokens": 512,
        "longest_passing_length_tokens": 2048,
        "effective_length_relative_tokens": 512,
        "effective_length_ruler_tokens": 512,
        "accuracy": pytest.approx(0.82),
        "accuracy_farthest": 0.88,
    }


@pytest.mark.parametrize(
    ("accuracies", "threshold", "absolute", "relative", "ruler"),
    [
        ([0.4, 0.35, 0.33, 0.4], 0.85, 0, 512, 0),  # of the nearest accuracy, .34 counts
        ([0.9, 0.8, 0.5, 0.4], 0.5, 1024, 1024, 256),
        ([1, 0.857, 0.855, 0.9], 0.9, 256, 256, 512),
        ([0, 0.9, 0.9, 0.9], 0.5, 0, 0, 0),  # of nothing, everything would be enough
        ([1, 1, 1, 1], 1.0, 2048, 2048, 2048),
    ],
)
def test_three_pass_marks(accuracies: list[float], threshold: float, absolute: int, relative: int, ruler: int):
    scalars = length_scalars(LENGTHS, outcomes(accuracies, 1000), threshold)
    assert scalars["effective_length_tokens"] == absolute
    assert scalars["effective_length_relative_tokens"] == relative
    assert scalars["effective_length_ruler_tokens"] == ruler


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 10)), min_size=1, max_size=6), st.floats(0, 1), st.floats(0, 1))
def test_laws(steps: list[tuple[int, int]], one: float, other: float):
    lengths = np.cumsum([step for step, _ in steps])
    trials = [np.arange(10) < successes for _, successes in steps]
    accuracy = np.array([successes / 10 for _, successes in steps])
    lenient, strict = (effective_length(lengths, trials, threshold, resamples=20) for threshold in sorted((one, other)))
    for result, threshold in ((lenient, min(one, other)), (strict, max(one, other))):
        naive = [length for length in lengths if (accuracy[lengths <= length] >= threshold).all()]
        assert result.contiguous == contiguous_length(lengths, accuracy, threshold) == max(naive, default=0)
        assert result.contiguous <= result.longest
        assert result.low <= result.high
    assert strict.contiguous <= lenient.contiguous
    assert strict.longest <= lenient.longest


@pytest.mark.parametrize(
    ("lengths", "trials", "message"),
    [
        ([], [], r"^lengths=\[\] must increase, with one array of outcomes each \(got 0\)$"),
        ([16, 16], [1, 1], r"^lengths=\[.*16.*16.*\] must increase, with one array of outcomes each \(got 2\)$"),
        ([32, 16], [1, 1], r"^lengths=\[.*32.*16.*\] must increase"),
        ([16, 32], [1], r"^lengths=\[.*16.*32.*\] must increase, with one array of outcomes each \(got 1\)$"),
        ([16, 32, 64], [1, 0, 1], r"^length 32 has no trial: ask for more queries$"),
    ],
)
def test_bad_input(lengths: list[int], trials: list[int], message: str):
    with pytest.raises(ValueError, match=message):
        effective_length(np.array(lengths), [np.ones(count, bool) for count in trials], 0.5)
