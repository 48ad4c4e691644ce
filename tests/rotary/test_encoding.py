"""Laws of every position encoding, through the calls that attention makes.

Shape letters: B batch, T length, H heads, D head dim.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rope_lab.rotary import VARIANTS, AbstractPositionEncoding
from tests.reference import REFERENCE, turned
from tests.reference import encoded as reference_encoded
from tests.rotary.examples import ALL, BASED, EXAMPLES, HEAD_DIM, ISOMETRIC, LENGTH, SPECTRAL, example, settings

FAR = 1_000_000


@partial(jax.jit, static_argnames=("encoding",))
def _encoded(encoding: AbstractPositionEncoding, table, q: jax.Array, k: jax.Array, positions: jax.Array):
    phases = encoding.phases(table, positions)
    return encoding.queries(q, phases), encoding.keys(k, phases)


def encoded(encoding: AbstractPositionEncoding, q, k, positions) -> tuple[jax.Array, jax.Array]:
    """Queries and keys as attention gets them; positions have shape (B, T). One table size, so that little is compiled twice."""
    table = encoding.table(HEAD_DIM, LENGTH, max_position=1 << 20)
    return _encoded(encoding, table, jnp.asarray(q), jnp.asarray(k), jnp.asarray(positions))


def unit_vectors(shape: tuple[int, ...], seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal(shape)
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def attention_factor(name: str) -> float:
    return example(name).spectrum(HEAD_DIM, LENGTH).attention_factor if name in SPECTRAL else 1.0


@pytest.mark.parametrize("name", ISOMETRIC)
def test_queries_and_keys_match_the_reference(name: str):
    positions = np.array([[0, 1, 2, 7], [1023, 1024, 65_537, FAR]])
    q, k = unit_vectors((2, 3, 4, HEAD_DIM), 0), unit_vectors((2, 1, 4, HEAD_DIM), 1)
    got_q, got_k = encoded(example(name), q, k, positions)
    expected_q, expected_k = reference_encoded(name, q, k, positions, LENGTH, EXAMPLES[name])
    np.testing.assert_allclose(got_q, expected_q, rtol=0, atol=2e-6)
    np.testing.assert_allclose(got_k, expected_k, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ISOMETRIC)
def test_position_zero_changes_nothing_but_the_length(name: str):
    x = unit_vectors((1, 2, 1, HEAD_DIM), 0)
    q, k = encoded(example(name), x, x, np.array([[0]]))
    np.testing.assert_allclose(q, attention_factor(name) * x, rtol=1e-6)
    np.testing.assert_allclose(k, attention_factor(name) * x, rtol=1e-6)


@pytest.mark.parametrize("name", ISOMETRIC)
@given(data=st.data())
def test_norms_are_kept_up_to_the_attention_factor(name: str, data: st.DataObject):
    encoding, _, head_dim = data.draw(settings(name, head_dims=(4, 64)))
    positions = np.array([data.draw(st.lists(st.integers(0, FAR), min_size=4, max_size=4))])
    x = unit_vectors((1, 1, 4, head_dim), 0)
    phases = encoding.phases(encoding.table(head_dim, LENGTH, 1 << 20), jnp.asarray(positions))
    q = encoding.queries(jnp.asarray(x), phases)
    factor = encoding.spectrum(head_dim, LENGTH).attention_factor if name in SPECTRAL else 1.0
    np.testing.assert_allclose(np.linalg.norm(np.float64(q), axis=-1), factor, rtol=2e-6)


@pytest.mark.parametrize("name", ALL)
@given(data=st.data())
def test_scores_depend_on_the_distance_alone(name: str, data: st.DataObject):
    """For vectors of norm 1, shifting both positions by anything up to 1e6 moves a score by less than 1e-5."""
    encoding = example(name)
    distance = data.draw(st.integers(-4096, 4096))
    shifts = data.draw(st.lists(st.integers(0, FAR - 4096), min_size=3, max_size=3))
    n = np.array([[max(0, -distance), *(shift + max(0, -distance) for shift in shifts)]])
    q, k = (np.repeat(unit_vectors((1, 1, 1, HEAD_DIM), seed), 4, axis=2) for seed in (0, 1))
    queries, keys = (np.float64(encoded(encoding, x, x, at)[which]) for which, x, at in ((0, q, n + distance), (1, k, n)))
    scores = (queries * keys).sum(-1) / attention_factor(name) ** 2
    np.testing.assert_allclose(scores, scores[0, 0, 0], rtol=0, atol=1e-5)
    if name not in ISOMETRIC:
        return
    # The sign counts: it is the later of the two that turns ahead of the other.
    turned_alone = encoded(encoding, q, k, np.full((1, 4), abs(distance)))
    alone = np.float64(turned_alone[0]) * k if distance >= 0 else np.float64(turned_alone[1]) * q
    np.testing.assert_allclose(alone.sum(-1) / attention_factor(name), scores, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in BASED if name in ISOMETRIC])
def test_two_bases_in_one_process_keep_to_themselves(name: str):
    x, positions = unit_vectors((1, 1, 4, HEAD_DIM), 0), np.array([[3, 50, 700, 4095]])
    parameters = [{**EXAMPLES[name], "base": base} for base in (1e2, 1e6)]
    expected = [reference_encoded(name, x, x, positions, LENGTH, each)[0] for each in parameters]
    assert np.abs(expected[0] - expected[1]).max() > 0.1
    for which in (0, 1, 0):
        q, _ = encoded(VARIANTS[name](**parameters[which]), x, x, positions)
        np.testing.assert_allclose(q, expected[which], rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ALL)
def test_bfloat16_activations_are_float32_and_one_cast(name: str):
    positions = np.array([[0, 257, 2049, 300_001]])
    q, k = (jnp.asarray(unit_vectors((1, 2, 4, HEAD_DIM), seed), jnp.bfloat16) for seed in (0, 1))
    low = encoded(example(name), q, k, positions)
    full = encoded(example(name), q.astype(jnp.float32), k.astype(jnp.float32), positions)
    for got, expected in zip(low, full, strict=True):
        assert got.dtype == jnp.bfloat16
        np.testing.assert_array_equal(got.astype(jnp.float32), expected.astype(jnp.bfloat16).astype(jnp.float32))


def test_nope_is_the_identity_at_every_position():
    x = unit_vectors((2, 2, 3, HEAD_DIM), 0)
    q, k = encoded(example("none"), x, -x, np.array([[0, 5, 9], [1, 77, FAR]]))
    np.testing.assert_array_equal(q, x)
    np.testing.assert_array_equal(k, -x)


@pytest.mark.parametrize("name", ALL)
def test_a_variant_is_a_value(name: str):
    assert example(name) == example(name)
    assert hash(example(name)) == hash(example(name))
    with pytest.raises(AttributeError):
        example(name).base = 2.0  # pyright: ignore[reportAttributeAccessIssue]


def test_partial_leaves_the_rest_of_a_head_alone_and_turns_the_front_as_a_smaller_one():
    x, positions = unit_vectors((1, 2, 3, HEAD_DIM), 0), np.array([[1, 50, 70_001]])
    q, k = encoded(VARIANTS["partial"](fraction=0.25), x, x, positions)
    np.testing.assert_array_equal(q[..., 16:], x[..., 16:])
    np.testing.assert_array_equal(k[..., 16:], x[..., 16:])
    theta, _ = REFERENCE["rope"](16, LENGTH, base=1e4)
    np.testing.assert_allclose(q[..., :16], turned(x[..., :16], positions, theta), rtol=0, atol=2e-6)
    # Proportional: pair i is still (i, i + d / 2), so both halves have dimensions that turn and dimensions that do not.
    q, _ = encoded(VARIANTS["partial"](fraction=0.25, layout="proportional"), x, x, positions)
    still = [*range(8, 32), *range(40, 64)]
    np.testing.assert_array_equal(q[..., still], x[..., still])
    theta, _ = REFERENCE["partial"](HEAD_DIM, LENGTH, fraction=0.25, layout="proportional", base=1e4)
    np.testing.assert_allclose(q, turned(x, positions, theta), rtol=0, atol=2e-6)
