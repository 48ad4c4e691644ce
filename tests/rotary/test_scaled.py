"""Scalings of attention by the query's position, around every encoding."""

import jax.numpy as jnp
import numpy as np
import pytest

from rope_lab.rotary import RoPE, Scaled
from tests.reference import query_scale
from tests.rotary.examples import ALL, EXAMPLES, HEAD_DIM, example

SETTINGS = [
    {"log_n_length": 512},
    {"temperature_length": 700, "temperature_scale": 0.1},
    {"log_n_length": 64, "temperature_length": 1000, "temperature_scale": 0.3},
]


def encoded(encoding, x: np.ndarray, where: np.ndarray, dtype=jnp.float32):
    phases = encoding.phases(encoding.table(HEAD_DIM, 4096, 1 << 20), jnp.asarray(where))
    return encoding.queries(jnp.asarray(x, dtype), phases), encoding.keys(jnp.asarray(x, dtype), phases)


@pytest.mark.parametrize("settings", SETTINGS, ids="+".join)
@pytest.mark.parametrize("name", ALL)
def test_queries_are_scaled_and_keys_are_not(name: str, settings: dict):
    x = np.random.default_rng(0).standard_normal((2, 3, 4, HEAD_DIM))
    where = np.array([[0, 1, 62, 63], [511, 700, 4095, 1_000_000]])
    plain_q, plain_k = encoded(example(name), x, where)
    q, k = encoded(Scaled(encoding=example(name), **settings), x, where)
    scale = np.array([[query_scale(int(n), **settings) for n in row] for row in where])
    np.testing.assert_allclose(q, np.float64(plain_q) * scale[:, None, :, None], rtol=1e-6)
    np.testing.assert_array_equal(k, plain_k)


def test_the_factors_in_figures():
    table = Scaled(encoding=RoPE(), log_n_length=4096).table(HEAD_DIM, 1, 1 << 17)[1]
    np.testing.assert_array_equal(table[:4096], 1.0)
    np.testing.assert_allclose(table[[4096 * 4 - 1, (1 << 17) - 1]], [14 / 12, 17 / 12], rtol=1e-7)
    table = Scaled(encoding=RoPE(), temperature_length=8192, temperature_scale=0.1).table(HEAD_DIM, 1, 1 << 15)[1]
    np.testing.assert_array_equal(table[:8191], 1.0)
    np.testing.assert_allclose(table[[8191, 16382, 16383]], [1.0693147, 1.0693147, 1.1098612], rtol=1e-7)


@pytest.mark.parametrize("name", ["rope", "partial", "none", "xpos"])
def test_bfloat16_is_float32_and_one_cast(name: str):
    encoding = Scaled(encoding=example(name), log_n_length=16)
    x = np.asarray(jnp.asarray(np.random.default_rng(0).standard_normal((1, 2, 4, HEAD_DIM)), jnp.bfloat16), np.float32)
    where = np.array([[0, 77, 2049, 300_001]])
    low, full = encoded(encoding, x, where, jnp.bfloat16)[0], encoded(encoding, x, where)[0]
    assert low.dtype == jnp.bfloat16
    np.testing.assert_array_equal(low.astype(jnp.float32), full.astype(jnp.bfloat16).astype(jnp.float32))


def test_a_position_outside_the_table_is_nan():
    encoding = Scaled(encoding=example("none"), log_n_length=16)
    phases = encoding.phases(encoding.table(HEAD_DIM, 8, 8), jnp.array([[-1, 7, 8]]))
    q = encoding.queries(jnp.ones((1, 1, 3, HEAD_DIM)), phases)
    np.testing.assert_array_equal(np.isnan(q[0, 0, :, 0]), [True, False, True])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"log_n_length": 1}, "log_n_length=1 must be at least 2: logits are scaled by a logarithm to this base"),
        ({"temperature_length": 0, "temperature_scale": 0.1}, "temperature_length=0 must be at least 1 token"),
        ({"temperature_length": 8, "temperature_scale": 0.0}, "temperature_scale=0.0 must be a finite number above 0"),
        ({"temperature_length": 8, "temperature_scale": float("nan")}, "temperature_scale=nan must be a finite number above 0"),
        (
            {"temperature_length": 8},
            "temperature_length=8 and temperature_scale=None must both be set (8192 and 0.1 in Llama 4), or neither",
        ),
        (
            {"temperature_scale": 0.1},
            "temperature_length=None and temperature_scale=0.1 must both be set (8192 and 0.1 in Llama 4), or neither",
        ),
    ],
)
def test_bad_settings_are_named(settings: dict, message: str):
    with pytest.raises(ValueError) as raised:
        Scaled(encoding=RoPE(**EXAMPLES["rope"]), **settings)
    assert str(raised.value) == message
