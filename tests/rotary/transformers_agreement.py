"""What it means to agree with transformers, shared by the committed goldens and the live comparison.

Their spectra are made in float32 (a few 1e-7 relative), and their phases are float32 products (1e-5 at the positions used).
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from rope_lab.rotary import VARIANTS, Variant
from tests.rotary.examples import LENGTH


def ours(case: dict[str, Any]) -> Variant:
    parameters = {name: tuple(value) if isinstance(value, list) else value for name, value in case["parameters"].items()}
    variant = VARIANTS[case["variant"]](**parameters)
    assert isinstance(variant, Variant)
    return variant


def assert_same_spectrum(case: dict[str, Any], theta: Any, attention_factor: float) -> None:
    spectrum = ours(case).spectrum(case["head_dim"], case["length"] or LENGTH)
    np.testing.assert_allclose(spectrum.theta, theta, rtol=1e-6, atol=0)
    np.testing.assert_allclose(spectrum.attention_factor, attention_factor, rtol=1e-6)


def rotation_inputs(head_dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries (B, H, T, D), keys with fewer heads, positions (B, T): near enough to 0 for phases that are float32 products."""
    rng = np.random.default_rng(head_dim)
    q = rng.standard_normal((1, 4, 5, head_dim)).astype(np.float32)
    k = rng.standard_normal((1, 2, 5, head_dim)).astype(np.float32)
    return q, k, np.array([[0, 1, 2, 17, 100]])


def assert_same_rotation(case: dict[str, Any], turned_q: Any, turned_k: Any) -> None:
    q, k, positions = rotation_inputs(case["head_dim"])
    variant = ours(case)
    phases = variant.phases(variant.table(case["head_dim"], LENGTH, LENGTH), jnp.asarray(positions))
    np.testing.assert_allclose(variant.queries(jnp.asarray(q), phases), turned_q, rtol=0, atol=5e-5)
    np.testing.assert_allclose(variant.keys(jnp.asarray(k), phases), turned_k, rtol=0, atol=5e-5)
