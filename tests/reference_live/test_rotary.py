"""Rotary variants against transformers as installed, and the committed goldens against what it computes today."""

import json

import numpy as np
import pytest

from tests.golden.make_transformers_goldens import CASES, GOLDEN, ROTATION_CASES, Case, compute, rotation, spectrum
from tests.rotary.transformers_agreement import assert_same_rotation, assert_same_spectrum


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.variant}-{case.head_dim}")
def test_spectrum(case: Case):
    assert_same_spectrum(case._asdict(), *spectrum(case))


@pytest.mark.parametrize("case", ROTATION_CASES, ids=lambda case: f"{case.variant}-{case.head_dim}")
def test_rotation(case: Case):
    assert_same_rotation(case._asdict(), *rotation(case))


def test_the_committed_goldens_are_what_transformers_computes():
    committed, now = json.loads(GOLDEN.read_text()), compute()
    for kind, arrays in (("spectra", ("theta",)), ("rotations", ("q", "k"))):
        for old, new in zip(committed[kind], now[kind], strict=True):
            assert {key: old[key] for key in old if key not in arrays} == {key: new[key] for key in new if key not in arrays}
            for name in arrays:
                np.testing.assert_allclose(np.array(old[name]), np.array(new[name]), rtol=1e-6, atol=1e-5 * (kind == "rotations"))
