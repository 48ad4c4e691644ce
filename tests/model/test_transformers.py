"""Our logits against those that Hugging Face transformers gave; `make reference` makes the comparison live."""

from pathlib import Path

import numpy as np
import pytest
from flax import nnx

from rope_lab.model.llama import Llama
from tests.model.small import forward, positions
from tests.model.transformers_agreement import CASES, TOKENS, Case, parameters

GOLDEN = Path(__file__).parent.parent / "golden" / "transformers_logits.npz"


def ours(case: Case) -> np.ndarray:
    graph, _ = nnx.split(nnx.eval_shape(lambda: Llama(case.config, case.encoding, nnx.Rngs(0))))
    return np.asarray(forward(graph, parameters(case.config), TOKENS, positions(*TOKENS.shape), None))


@pytest.mark.parametrize("name", sorted(CASES))
def test_logits_are_those_of_transformers(name: str):
    with np.load(GOLDEN) as golden:
        want = golden[name]
    assert np.abs(want).max() > 1
    np.testing.assert_allclose(ours(CASES[name]), want, atol=2e-4)
