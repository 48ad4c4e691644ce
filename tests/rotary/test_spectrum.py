"""Frequencies in float64: golden numbers, the references, and the laws that need no vector."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rope_lab.rotary import NTK, VARIANTS, Custom, DynamicNTK, Llama3, LongRoPE, Method2, NTKByParts, Partial, Resonance, RoPE, YaRN
from tests.reference import REFERENCE
from tests.rotary.examples import (
    ALL,
    BAD,
    DYNAMIC,
    EXAMPLES,
    EXTENDING,
    FALLING,
    HEAD_DIM,
    LENGTH,
    SPECTRAL,
    example,
    fields,
    plain,
    settings,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "rotary.json").read_text())["variants"]


@pytest.mark.parametrize("name", [name for name in SPECTRAL if name in GOLDEN])
def test_golden(name: str):
    golden = GOLDEN[name]
    parameters = dict(golden["params"])
    length = parameters.pop("length", LENGTH)
    theta, attention_factor = VARIANTS[name](**parameters).spectrum(golden["head_dim"], length)
    assert theta.dtype == np.float64
    np.testing.assert_allclose(theta, golden["theta"], rtol=1e-12, atol=0)
    assert attention_factor == pytest.approx(golden["attention_factor"], rel=1e-12)


@pytest.mark.parametrize("name", SPECTRAL)
@given(data=st.data())
def test_reference(name: str, data: st.DataObject):
    variant, parameters, head_dim = data.draw(settings(name))
    theta, attention_factor = variant.spectrum(head_dim, LENGTH)
    expected, expected_factor = REFERENCE[name](head_dim, LENGTH, **parameters)
    np.testing.assert_allclose(theta, expected, rtol=1e-12, atol=0)
    assert attention_factor == pytest.approx(expected_factor, rel=1e-12)


@pytest.mark.parametrize("name", EXTENDING)
@given(data=st.data())
def test_factor_one_is_plain_rope(name: str, data: st.DataObject):
    variant, _, head_dim = data.draw(settings(name))
    explicit = {"attention_factor": None} if "attention_factor" in fields(name) else {}
    theta, attention_factor = dataclasses.replace(variant, factor=1.0, **explicit).spectrum(head_dim, LENGTH)
    np.testing.assert_allclose(theta, plain(variant).spectrum(head_dim, LENGTH).theta, rtol=1e-14, atol=0)
    assert attention_factor == 1.0


@pytest.mark.parametrize("name", EXTENDING)
@given(data=st.data())
def test_an_extended_frequency_lies_between_the_interpolated_and_the_plain(name: str, data: st.DataObject):
    variant, parameters, head_dim = data.draw(settings(name))
    theta = variant.spectrum(head_dim, LENGTH).theta
    untouched = plain(variant).spectrum(head_dim, LENGTH).theta
    rounding = 1e-13
    assert (theta <= untouched * (1 + rounding)).all()
    assert (theta >= untouched / parameters["factor"] * (1 - rounding)).all()


@pytest.mark.parametrize("name", FALLING)
@given(data=st.data())
def test_frequencies_never_rise(name: str, data: st.DataObject):
    variant, _, head_dim = data.draw(settings(name))
    theta = variant.spectrum(head_dim, LENGTH).theta
    assert (np.diff(theta) <= 0).all()


@given(data=st.data())
def test_method2_branches_meet_at_the_boundary(data: st.DataObject):
    variant, parameters, head_dim = data.draw(settings("method2"))
    theta = variant.spectrum(head_dim, LENGTH).theta
    p = parameters["boundary_pair"]
    # Below the boundary the ladder is geometric and starts at 1; its ratio, carried on to p, gives the interpolated branch.
    ratio = np.exp(-2 / head_dim * np.log(parameters["base"]) - np.log(parameters["factor"]) / p)
    np.testing.assert_allclose(theta[:p], ratio ** np.arange(p), rtol=1e-11)
    np.testing.assert_allclose(theta[p], ratio**p, rtol=1e-11)


def test_method2_counts_pairs_and_matches_the_papers_boundary():
    theta = Method2(factor=8, boundary_pair=44).spectrum(128, LENGTH).theta
    assert theta[44] == pytest.approx(2.2228492625e-4, rel=1e-10)
    assert theta[43] > RoPE().spectrum(128, LENGTH).theta[43] / 8 * 1.01


@pytest.mark.parametrize("name", SPECTRAL)
def test_only_a_dynamic_variant_looks_at_the_length(name: str):
    short, long = (example(name).spectrum(HEAD_DIM, length).theta for length in (8, 1 << 20))
    assert np.array_equal(short, long) == (name not in DYNAMIC)


@pytest.mark.parametrize(
    ("name", "changes", "head_dim", "message"),
    # Of a path its last part: temporary folders have another name in each of pytest's workers.
    [pytest.param(name, *case, id=f"{name}-{case[2].split(' ')[0].rpartition('/')[2]}") for name in ALL for case in BAD[name]],
)
def test_bad_parameters_are_named(name: str, changes: dict, head_dim: int, message: str):
    with pytest.raises(ValueError) as raised:
        VARIANTS[name](**{**EXAMPLES[name], **changes}).table(head_dim, LENGTH, LENGTH)
    assert str(raised.value) == message


def test_a_huge_factor_or_base_overflows_nothing():
    theta = Method2(factor=1000, boundary_pair=1).spectrum(256, LENGTH).theta
    np.testing.assert_allclose(theta, [1.0, *(1e4 ** (-2 * i / 256) / 1000 for i in range(1, 128))], rtol=1e-13)
    for variant in (NTK(factor=1e300, base=1e300), Method2(factor=1e300, boundary_pair=1, base=1e300)):
        theta = variant.spectrum(4, LENGTH).theta
        np.testing.assert_allclose(theta, [1.0, 0.0], atol=1e-300)  # 1e-450 is 0
    theta = DynamicNTK(factor=1e250, trained_length=1, base=1e250).spectrum(8, 1 << 20).theta
    np.testing.assert_allclose(np.log(theta[:2]), [0.0, -0.25 * math.log(1e250) - math.log(1e250 * 2.0**20) / 3], rtol=1e-5)


@pytest.mark.parametrize("length", [1, 4095, 4096])
def test_dynamic_ntk_changes_nothing_up_to_the_trained_length(length: int):
    theta = DynamicNTK(factor=4.0, trained_length=4096).spectrum(128, length).theta
    np.testing.assert_array_equal(theta, RoPE().spectrum(128, 1).theta)


@pytest.mark.parametrize(("factor", "length", "scale"), [(1.0, 8192, 2.0), (1.0, 6144, 1.5), (2.0, 8192, 3.0), (4.0, 16384, 13.0)])
def test_dynamic_ntk_is_ntk_of_the_growth(factor: float, length: int, scale: float):
    theta = DynamicNTK(factor=factor, trained_length=4096).spectrum(128, length).theta
    np.testing.assert_allclose(theta, NTK(factor=scale).spectrum(128, 1).theta, rtol=1e-13)


def test_dynamic_variants_remember_no_earlier_length():
    for name in DYNAMIC:
        variant = example(name)
        lengths = [5, 40, 13, 4096, 14, 5]
        once = [VARIANTS[name](**EXAMPLES[name]).spectrum(HEAD_DIM, length).theta for length in lengths]
        again = [variant.spectrum(HEAD_DIM, length).theta for length in lengths]
        np.testing.assert_array_equal(once, again)


def test_yarn_attention_factor():
    def factor(**changes: float) -> float:
        return YaRN(factor=16.0, trained_length=4096, **changes).spectrum(128, 1).attention_factor

    assert factor() == pytest.approx(0.1 * math.log(16) + 1, rel=1e-15)
    assert factor(mscale=1.0, mscale_all_dim=1.0) == 1.0
    assert factor(mscale=0.707, mscale_all_dim=1.0) == pytest.approx((0.0707 * math.log(16) + 1) / (0.1 * math.log(16) + 1), rel=1e-15)
    assert factor(attention_factor=1.1) == 1.1
    assert factor(attention_factor=1.1, mscale=0.5, mscale_all_dim=1.0) == 1.1


def test_yarn_keeps_blends_and_interpolates():
    # T = 4096 at d = 128: pair 20.9 turns 32 times and pair 45.03 once, so truncated bounds are 20 and 46.
    plain_theta = RoPE().spectrum(128, 1).theta
    whole, fractional = (YaRN(factor=8.0, trained_length=4096, truncate=each).spectrum(128, 1).theta for each in (True, False))
    np.testing.assert_array_equal(whole[:21], plain_theta[:21])
    np.testing.assert_allclose(whole[46:], plain_theta[46:] / 8, rtol=1e-15)
    assert (whole[21:46] < plain_theta[21:46]).all()
    assert (whole[21:46] > plain_theta[21:46] / 8).all()
    assert whole[33] == pytest.approx(plain_theta[33] * (1 - 13 / 26 * 7 / 8), rel=1e-13)
    low, high = (64 * math.log(4096 / (2 * math.pi * turns)) / math.log(1e4) for turns in (32, 1))
    assert fractional[33] == pytest.approx(plain_theta[33] * (1 - (33 - low) / (high - low) * 7 / 8), rel=1e-13)


def test_the_ramp_of_yarn_ends_at_d_minus_1_not_at_half_of_it():
    # Every pair turns more than once in 2^20 tokens at base 100, and the pair that would turn once is number 167.
    theta = YaRN(factor=8.0, trained_length=1 << 20, base=100.0).spectrum(64, 1).theta
    low, high = math.floor(32 * math.log(2**20 / (64 * math.pi)) / math.log(100)), 63
    assert low == 59
    np.testing.assert_array_equal(theta, RoPE(base=100.0).spectrum(64, 1).theta)
    theta = YaRN(factor=8.0, trained_length=1 << 15, base=1000.0).spectrum(64, 1).theta
    low, high = math.floor(32 * math.log(2**15 / (64 * math.pi)) / math.log(1000)), 40
    ramp = (31 - low) / (high - low)
    assert theta[31] == pytest.approx(1000 ** (-62 / 64) * (1 - ramp * 7 / 8), rel=1e-13)


def test_a_yarn_ramp_never_turns_round():
    """In transformers it does: T below a turn of pair 0 leaves all pairs as they were, and T far beyond a turn of the last divides all."""
    slow = YaRN(factor=8.0, trained_length=4).spectrum(64, 1).theta
    np.testing.assert_allclose(slow[1:], RoPE().spectrum(64, 1).theta[1:] / 8, rtol=1e-15)
    fast = YaRN(factor=8.0, trained_length=1 << 20, base=4.0).spectrum(64, 1).theta
    np.testing.assert_array_equal(fast, RoPE(base=4.0).spectrum(64, 1).theta)


def test_ntk_by_parts_ramps_over_turns_and_yarn_over_pairs():
    parameters = {"factor": 8.0, "trained_length": 4096}
    by_turns, by_pairs = NTKByParts(**parameters).spectrum(128, 1).theta, YaRN(**parameters).spectrum(128, 1).theta
    plain_theta = RoPE().spectrum(128, 1).theta
    np.testing.assert_array_equal(by_turns[:21], by_pairs[:21])
    np.testing.assert_allclose(by_turns[46:], by_pairs[46:], rtol=1e-15)
    turns = 4096 * plain_theta[33] / (2 * math.pi)
    assert by_turns[33] == pytest.approx(plain_theta[33] * (1 - (32 - turns) / 31 * 7 / 8), rel=1e-13)
    assert by_turns[33] < by_pairs[33]


def test_llama3_bands_of_llama_3_2():
    theta = Llama3(factor=32.0, trained_length=8192).spectrum(64, 1).theta
    ratio = RoPE(base=500_000.0).spectrum(64, 1).theta / theta
    np.testing.assert_array_equal(ratio[:15], 1.0)
    assert ((ratio[15:18] > 1.0) & (ratio[15:18] < 32.0)).all()
    np.testing.assert_array_equal(ratio[18:], 32.0)


def test_longrope_switches_after_the_trained_length():
    parameters = {"short_factor": (1.0, 2.0), "long_factor": (4.0, 8.0), "factor": 32.0, "trained_length": 4096}
    variant = LongRoPE(**parameters)
    for length, divisors in ((1, (1, 2)), (4096, (1, 2)), (4097, (4, 8))):
        theta, attention_factor = variant.spectrum(4, length)
        np.testing.assert_allclose(theta, [1 / divisors[0], 0.01 / divisors[1]], rtol=1e-15)
        assert attention_factor == pytest.approx(1.1902380714238083, rel=1e-12)  # sqrt(1 + 5 / 12), Phi-3's
    assert LongRoPE(**parameters, attention_factor=1.5).spectrum(4, 1).attention_factor == 1.5
    assert LongRoPE(**{**parameters, "factor": 1.0}).spectrum(4, 1).attention_factor == 1.0


def test_the_two_meanings_of_partial():
    rotated = Partial(fraction=0.25).spectrum(64, 1).theta
    np.testing.assert_array_equal(rotated[:8], RoPE().spectrum(16, 1).theta)
    proportional = Partial(fraction=0.25, layout="proportional").spectrum(64, 1).theta
    np.testing.assert_array_equal(proportional[:8], RoPE().spectrum(64, 1).theta[:8])
    assert not rotated[8:].any()
    assert not proportional[8:].any()
    for layout in ("rotated", "proportional"):
        whole = Partial(fraction=1.0, layout=layout).spectrum(64, 1).theta
        np.testing.assert_array_equal(whole, RoPE().spectrum(64, 1).theta)


def test_resonance_comes_back_to_the_same_angle():
    theta = Resonance().spectrum(128, 1).theta
    wavelengths = 2 * math.pi / theta
    np.testing.assert_allclose(wavelengths, np.round(wavelengths), rtol=1e-14)
    assert wavelengths[0] == pytest.approx(6)  # of 6.283
    assert wavelengths[20] == pytest.approx(112)  # of 111.73


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_custom_reads_numpy_files_too(dtype: type, tmp_path: Path):
    theta = np.array([2, 1, 0.25, 0], dtype)
    np.save(tmp_path / "theta.npy", theta)
    np.testing.assert_array_equal(Custom(path=str(tmp_path / "theta.npy")).spectrum(8, 1).theta, theta.astype(np.float64))


def test_custom_opens_no_pickle_and_says_which_file(tmp_path: Path):
    np.save(tmp_path / "pickled.npy", np.array([1.0, None]), allow_pickle=True)
    (tmp_path / "empty.npy").touch()
    (tmp_path / "text.npy").write_text("1.0 0.5")
    for name in ("pickled", "empty", "text"):
        path = str(tmp_path / f"{name}.npy")
        with pytest.raises(ValueError, match="must hold one list of numbers: ") as raised:
            Custom(path=path).spectrum(4, 1)
        assert str(raised.value).startswith(repr(path))
        assert "\n" not in str(raised.value)
