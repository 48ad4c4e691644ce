"""Greedy decoding through the cache equals a full forward pass at every step, for every position encoding."""

import numpy as np
import pytest

from rope_lab.model.generate import generate
from rope_lab.rotary import AbstractPositionEncoding, Scaled
from tests.model.small import logits, model, tokens
from tests.rotary.examples import ALL, example


def without_cache(graph, params, prompts: np.ndarray, num_tokens: int) -> np.ndarray:
    rows = prompts
    for _ in range(num_tokens):
        best = np.asarray(logits(graph, params, rows)[:, -1].argmax(-1)).astype(np.int32)
        rows = np.concatenate([rows, best[:, None]], axis=1)
    return rows[:, prompts.shape[1] :]


SCALED = Scaled(encoding=example("dynamic_ntk"), log_n_length=3, temperature_length=4, temperature_scale=0.5)


@pytest.mark.parametrize("encoding", [*map(example, ALL), SCALED], ids=[*ALL, "scaled"])
def test_cached_decoding_equals_full_forwards(encoding: AbstractPositionEncoding):
    graph, params = model(encoding, query_key_norm=True)
    prompts = tokens(3, 11)
    want = without_cache(graph, params, prompts, 6)
    np.testing.assert_array_equal(generate(graph, params, prompts, 6), want)
    assert len({tuple(row) for row in want}) == 3  # rows differ, so a mixed-up batch would show
    assert len(set(want.ravel().tolist())) > 5  # and the text is no constant


def test_cached_decoding_with_layers_that_take_no_positions():
    graph, params = model(example("rope"), num_layers=3, nope_every=2)
    prompts = tokens(2, 11)
    np.testing.assert_array_equal(generate(graph, params, prompts, 6), without_cache(graph, params, prompts, 6))


def test_one_token_of_prompt_is_enough():
    graph, params = model(example("rope"))
    np.testing.assert_array_equal(generate(graph, params, tokens(2, 1), 5), without_cache(graph, params, tokens(2, 1), 5))
