"""Optax's schedules multiply its integer step count by Python floats, so steps with an optimizer need JAX's usual promotion."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def usual_promotion() -> Iterator[None]:
    with jax.numpy_dtype_promotion("standard"):
        yield
