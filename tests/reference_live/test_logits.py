"""Whole models against Hugging Face transformers, both run here."""

import numpy as np
import pytest

from tests.golden.make_transformers_logits import theirs
from tests.model.test_transformers import ours
from tests.model.transformers_agreement import CASES


@pytest.mark.parametrize("name", sorted(CASES))
def test_logits_are_those_of_transformers(name: str):
    np.testing.assert_allclose(ours(CASES[name]), theirs(CASES[name]), atol=2e-4)
