"""Random parameters against transformers' own functions, in double precision: what is compared is the formula, to 1e-6 and better.

Their float32 is good to a few 1e-7 at the committed goldens, but not at every base: `base ** x` in float32 is off by `6e-8 x ln(base)`.
"""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from rope_lab.rotary import NTK, PI, DynamicNTK, Llama3, LongRoPE, Partial, Variant, YaRN

HEAD_DIMS = st.integers(2, 128).map(lambda pairs: 2 * pairs)
BASES, FACTORS, TRAINED = st.floats(2.0, 1e9), st.floats(1.0, 128.0), st.integers(16, 1 << 17)


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """Their functions name float32 in three ways."""
    with (
        mock.patch.object(torch, "float", torch.float64),
        mock.patch.object(torch, "float32", torch.float64),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield


def theirs(kind: str, head_dim: int, trained: int = 4096, length: int | None = None, **parameters: Any) -> tuple[np.ndarray, float]:
    config = LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=trained,
        rope_parameters={"rope_type": kind, "original_max_position_embeddings": trained, **parameters},
    )
    theta, attention_factor = ROPE_INIT_FUNCTIONS[kind](config, device=torch.device("cpu"), seq_len=length)
    assert theta.dtype == torch.float64
    return theta.numpy(), float(attention_factor)


def assert_same(variant: Variant, head_dim: int, length: int, expected: tuple[np.ndarray, float]) -> None:
    theta, attention_factor = variant.spectrum(head_dim, length)
    np.testing.assert_allclose(theta, expected[0], rtol=1e-9, atol=0)
    assert attention_factor == pytest.approx(expected[1], rel=1e-12)


@given(head_dim=HEAD_DIMS, base=BASES, factor=FACTORS)
def test_linear(head_dim: int, base: float, factor: float):
    assert_same(PI(base=base, factor=factor), head_dim, 1, theirs("linear", head_dim, rope_theta=base, factor=factor))


@given(head_dim=HEAD_DIMS, base=BASES, factor=st.integers(1, 64))
def test_ntk(head_dim: int, base: float, factor: int):
    """Theirs is the dynamic type at factor 1 and a context `factor` times as long."""
    assume(head_dim > 2)
    expected = theirs("dynamic", head_dim, length=4096 * factor, rope_theta=base, factor=1.0)
    assert_same(NTK(base=base, factor=float(factor)), head_dim, 1, expected)


@given(head_dim=HEAD_DIMS, base=BASES, factor=FACTORS, trained=TRAINED, length=st.integers(1, 1 << 20))
def test_dynamic(head_dim: int, base: float, factor: float, trained: int, length: int):
    assume(head_dim > 2)
    expected = theirs("dynamic", head_dim, trained, length, rope_theta=base, factor=factor)
    assert_same(DynamicNTK(base=base, factor=factor, trained_length=trained), head_dim, length, expected)


@given(data=st.data(), head_dim=HEAD_DIMS, base=BASES, factor=FACTORS, trained=TRAINED, truncate=st.booleans())
def test_yarn(data: st.DataObject, head_dim: int, base: float, factor: float, trained: int, truncate: bool):
    betas = {"beta_fast": data.draw(st.floats(8.0, 64.0)), "beta_slow": data.draw(st.floats(0.25, 4.0))}
    # Where pair(beta_slow) < 0 or pair(beta_fast) > d - 1 their ramp turns round, and ours does not: the test below.
    assume(2 * np.pi * betas["beta_slow"] < trained < 2 * np.pi * betas["beta_fast"] * base ** (2 - 2 / head_dim))
    scales: dict[str, float] = data.draw(
        st.one_of(
            st.just({}),
            st.fixed_dictionaries({"attention_factor": st.floats(0.5, 2.0)}),
            st.fixed_dictionaries({"mscale": st.floats(0.1, 2.0), "mscale_all_dim": st.floats(0.1, 2.0)}),
        )
    )
    expected = theirs("yarn", head_dim, trained, rope_theta=base, factor=factor, truncate=truncate, **betas, **scales)
    variant = YaRN(base=base, factor=factor, trained_length=trained, truncate=truncate, **betas, **scales)
    assert_same(variant, head_dim, 1, expected)


def test_yarn_where_theirs_keeps_pairs_that_never_turned():
    """Ours is right. In 4 trained tokens no pair turns once, and the paper (section 3.2) interpolates those outright."""
    theta, _ = theirs("yarn", 64, 4, rope_theta=1e4, factor=8.0)
    plain = 1e4 ** (-2 * np.arange(32) / 64)
    np.testing.assert_allclose(theta, plain, rtol=1e-12)
    ours = YaRN(factor=8.0, trained_length=4).spectrum(64, 1).theta
    np.testing.assert_allclose(ours[1:], plain[1:] / 8, rtol=1e-12)


def test_yarn_where_theirs_divides_pairs_that_turned_often():
    """Ours is right. In 2^20 trained tokens on base 4 every pair turns over 41,000 times, and the paper keeps those as they are."""
    theta, _ = theirs("yarn", 64, 1 << 20, rope_theta=4.0, factor=8.0)
    plain = 4.0 ** (-2 * np.arange(32) / 64)
    np.testing.assert_allclose(theta, plain / 8, rtol=1e-12)
    np.testing.assert_array_equal(YaRN(factor=8.0, trained_length=1 << 20, base=4.0).spectrum(64, 1).theta, plain)


def test_yarn_with_half_of_mscale():
    """Theirs drops an mscale without its partner; a factor that was asked for and not used is an error here."""
    assert theirs("yarn", 64, rope_theta=1e4, factor=8.0, mscale=0.5)[1] == theirs("yarn", 64, rope_theta=1e4, factor=8.0)[1]
    with pytest.raises(ValueError, match="must both be finite and above 0, or both None"):
        YaRN(factor=8.0, trained_length=4096, mscale=0.5)


@given(head_dim=HEAD_DIMS, base=BASES, factor=FACTORS, trained=TRAINED, low=st.floats(0.25, 2.0), width=st.floats(0.25, 8.0))
def test_llama3(head_dim: int, base: float, factor: float, trained: int, low: float, width: float):
    bands = {"low_freq_factor": low, "high_freq_factor": low + width}
    expected = theirs("llama3", head_dim, trained, rope_theta=base, factor=factor, **bands)
    assert_same(Llama3(base=base, factor=factor, trained_length=trained, **bands), head_dim, 1, expected)


@given(data=st.data(), head_dim=HEAD_DIMS, base=BASES, factor=FACTORS, trained=TRAINED, length=st.integers(1, 1 << 20))
def test_longrope(data: st.DataObject, head_dim: int, base: float, factor: float, trained: int, length: int):
    divisors = st.lists(st.floats(0.5, 64.0), min_size=head_dim // 2, max_size=head_dim // 2).map(tuple)
    parameters: dict[str, Any] = {"short_factor": data.draw(divisors), "long_factor": data.draw(divisors), "factor": factor}
    if data.draw(st.booleans()):
        parameters["attention_factor"] = data.draw(st.floats(0.5, 2.0))
    expected = theirs("longrope", head_dim, trained, length, rope_theta=base, **{key: _plain(each) for key, each in parameters.items()})
    assert_same(LongRoPE(base=base, trained_length=trained, **parameters), head_dim, length, expected)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@given(data=st.data(), head_dim=HEAD_DIMS, base=BASES, factor=FACTORS)
def test_partial(data: st.DataObject, head_dim: int, base: float, factor: float):
    """Their proportional type, and of their linear type the ladder over the dimensions that turn."""
    pairs = data.draw(st.integers(1, head_dim // 2))
    fraction = 2 * pairs / head_dim
    # They round down, and `head_dim * fraction` may come out just below the whole number that was meant.
    assume(int(head_dim * fraction) == 2 * pairs and int(fraction * head_dim // 2) == pairs)
    proportional = Partial(fraction=fraction, layout="proportional", base=base)
    assert_same(proportional, head_dim, 1, theirs("proportional", head_dim, rope_theta=base, partial_rotary_factor=fraction))
    theta, attention_factor = theirs("linear", head_dim, rope_theta=base, factor=1.0, partial_rotary_factor=fraction)
    rotated = np.pad(theta, (0, head_dim // 2 - pairs)), attention_factor
    assert_same(Partial(fraction=fraction, layout="rotated", base=base), head_dim, 1, rotated)


def test_partial_fractions_that_are_no_whole_number():
    """Theirs rounds 19.2 dimensions down to 19, whose ten frequencies turn twenty; a user who meant 0.3125 is told here."""
    theta, _ = theirs("linear", 64, rope_theta=1e4, factor=1.0, partial_rotary_factor=0.3)
    assert len(theta) == 10
    with pytest.raises(ValueError, match="must be an even whole number"):
        Partial(fraction=0.3).spectrum(64, 1)
