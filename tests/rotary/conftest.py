"""Rotary code says which axes it broadcasts over."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def no_rank_promotion() -> Iterator[None]:
    with jax.numpy_rank_promotion("raise"):
        yield
