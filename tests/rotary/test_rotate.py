"""The one rotation: its direction, its pairing, its precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_lab.rotary import RoPE, Spectrum, cos_sin, phase_table, rotate
from tests.reference import turned
from tests.rotary.examples import HEAD_DIM, LENGTH, SPECTRAL, example

FAR = 1 << 20
ODD_SPECTRUM = Spectrum(np.array([1.0, 0.3, 0.07, 0.011]), attention_factor=1.25)


def test_a_quarter_turn_is_counter_clockwise():
    # Pair (0, 2) holds 1 + 0j; a quarter turn takes it to 0 + 1j. Pair (1, 3) holds 0 + 1j, which goes to -1 + 0j.
    x = jnp.array([1.0, 0.0, 0.0, 1.0])
    cos, sin = jnp.zeros(2), jnp.ones(2)
    np.testing.assert_array_equal(rotate(x, cos, sin), [0.0, -1.0, 1.0, 0.0])


def test_pairs_are_half_a_head_apart():
    x = np.random.default_rng(0).standard_normal(8).astype(np.float32)
    angle = np.array([0.1, 0.2, 0.3, 0.4])
    z = (x[:4] + 1j * x[4:]) * np.exp(1j * angle)
    y = rotate(jnp.asarray(x), jnp.asarray(np.cos(angle), jnp.float32), jnp.asarray(np.sin(angle), jnp.float32))
    np.testing.assert_allclose(y, np.concatenate([z.real, z.imag]), atol=1e-6)


def test_each_plane_turns_alone():
    positions = jnp.array([3])
    cos, sin = cos_sin(phase_table(ODD_SPECTRUM._replace(attention_factor=1.0), 8), positions)
    for i in range(8):
        y = np.array(rotate(jnp.eye(8)[i], cos[0], sin[0]))
        moved = {i % 4, i % 4 + 4}
        assert {j for j in range(8) if y[j] != 0} == moved


def test_the_attention_factor_scales_cosine_and_sine_once():
    positions = np.array([0, 1, 5, 1023, 1024, 40_000])
    cos, sin = cos_sin(phase_table(ODD_SPECTRUM, 65_536), jnp.asarray(positions))
    phase = positions[:, None] * ODD_SPECTRUM.theta
    np.testing.assert_allclose(cos, 1.25 * np.cos(phase), atol=2e-6)
    np.testing.assert_allclose(sin, 1.25 * np.sin(phase), atol=2e-6)
    x = np.random.default_rng(0).standard_normal((1, 1, len(positions), 8)).astype(np.float32)
    expected = turned(x, positions[None], list(ODD_SPECTRUM.theta), 1.25)
    np.testing.assert_allclose(rotate(jnp.asarray(x), cos[None, None], sin[None, None]), expected, atol=1e-5)


@pytest.mark.parametrize("name", SPECTRAL)
def test_phases_stay_exact_out_to_2_to_the_20(name: str):
    random = np.random.default_rng(0).integers(0, FAR, 2000)
    edges = [0, 1, 255, 256, 257, 1023, 1024, 1025, 2047, 2048, 131_071, 131_072, FAR - 1025, FAR - 1024, FAR - 1]
    positions = np.concatenate([edges, random])
    theta, attention_factor = example(name).spectrum(HEAD_DIM, LENGTH)
    cos, sin = jax.jit(cos_sin)(phase_table(Spectrum(theta, attention_factor), FAR), jnp.asarray(positions))
    assert cos.dtype == sin.dtype == jnp.float32
    phase = positions[:, None].astype(np.float64) * theta
    np.testing.assert_allclose(cos, attention_factor * np.cos(phase), rtol=0, atol=1e-5)
    np.testing.assert_allclose(sin, attention_factor * np.sin(phase), rtol=0, atol=1e-5)


def test_that_bound_is_out_of_reach_of_a_float32_product():
    theta = RoPE().spectrum(HEAD_DIM, LENGTH).theta
    positions = np.arange(FAR - 1000, FAR)
    product = positions[:, None].astype(np.float32) * theta.astype(np.float32)
    assert np.abs(np.cos(product.astype(np.float64)) - np.cos(positions[:, None] * theta)).max() > 1e-3


@pytest.mark.parametrize("max_position", [1, 7, 1023, 1024, 1025, 2500])
def test_a_position_outside_the_table_is_nan_never_anothers_phase(max_position: int):
    positions = np.array([-(1 << 20), -1025, -1024, -1023, -2, -1, *range(0, 8), *range(1020, 1030), 2499, 3071, 3072, 4096, 1 << 20])
    cos, sin = jax.jit(cos_sin)(phase_table(ODD_SPECTRUM, max_position), jnp.asarray(positions))
    phase = positions[:, None] * ODD_SPECTRUM.theta
    inside = (positions >= 0) & (positions < max_position)
    np.testing.assert_allclose(cos[inside], 1.25 * np.cos(phase[inside]), atol=2e-6)
    np.testing.assert_allclose(sin[inside], 1.25 * np.sin(phase[inside]), atol=2e-6)
    # Whole blocks of 1024 are tabulated, so a position in the last one may be answered, rightly.
    outside = (positions < 0) | (positions >= -(-max_position // 1024) * 1024)
    assert np.isnan(cos[outside]).all()
    assert np.isnan(sin[outside]).all()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_low_precision_is_float32_and_one_cast(dtype: jnp.dtype):
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 4, 16, 8)), dtype)
    cos, sin = cos_sin(phase_table(ODD_SPECTRUM, 4096), jnp.arange(4000, 4016)[None, None])
    y = rotate(x, cos, sin)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y.astype(jnp.float32), rotate(x.astype(jnp.float32), cos, sin).astype(dtype).astype(jnp.float32))
