"""Frequencies in float64: golden numbers, the references, and the laws that need no vector."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rope_lab.rotary import VARIANTS, Method2, RoPE
from tests.reference import REFERENCE
from tests.rotary.examples import BAD, EXAMPLES, EXTENDING, HEAD_DIM, LENGTH, SPECTRAL, example, plain, settings

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "rotary.json").read_text())["variants"]


@pytest.mark.parametrize("name", [name for name in SPECTRAL if name in GOLDEN])
def test_golden(name: str):
    golden = GOLDEN[name]
    parameters = dict(golden["params"])
    length = parameters.pop("length", LENGTH)
    theta, attention_factor = VARIANTS[name](**parameters).spectrum(golden["head_dim"], length)
    assert theta.dtype == np.float64
    np.testing.assert_allclose(theta, golden["theta"], rtol=1e-12, atol=0)
    assert attention_factor == pytest.approx(golden["attention_factor"], rel=1e-12)


@pytest.mark.parametrize("name", SPECTRAL)
@given(data=st.data())
def test_reference(name: str, data: st.DataObject):
    variant, parameters, head_dim = data.draw(settings(name))
    theta, attention_factor = variant.spectrum(head_dim, LENGTH)
    expected, expected_factor = REFERENCE[name](head_dim, LENGTH, **parameters)
    np.testing.assert_allclose(theta, expected, rtol=1e-12, atol=0)
    assert attention_factor == pytest.approx(expected_factor, rel=1e-12)


@pytest.mark.parametrize("name", EXTENDING)
@given(data=st.data())
def test_factor_one_is_plain_rope(name: str, data: st.DataObject):
    variant, _, head_dim = data.draw(settings(name))
    theta, attention_factor = dataclasses.replace(variant, factor=1.0).spectrum(head_dim, LENGTH)
    np.testing.assert_allclose(theta, plain(variant).spectrum(head_dim, LENGTH).theta, rtol=1e-14, atol=0)
    assert attention_factor == 1.0


@pytest.mark.parametrize("name", EXTENDING)
@given(data=st.data())
def test_an_extended_frequency_lies_between_the_interpolated_and_the_plain(name: str, data: st.DataObject):
    variant, parameters, head_dim = data.draw(settings(name))
    theta = variant.spectrum(head_dim, LENGTH).theta
    untouched = plain(variant).spectrum(head_dim, LENGTH).theta
    rounding = 1e-13
    assert (theta <= untouched * (1 + rounding)).all()
    assert (theta >= untouched / parameters["factor"] * (1 - rounding)).all()


@pytest.mark.parametrize("name", SPECTRAL)
@given(data=st.data())
def test_frequencies_never_rise(name: str, data: st.DataObject):
    variant, _, head_dim = data.draw(settings(name))
    theta = variant.spectrum(head_dim, LENGTH).theta
    assert (np.diff(theta) <= 0).all()


@given(data=st.data())
def test_method2_branches_meet_at_the_boundary(data: st.DataObject):
    variant, parameters, head_dim = data.draw(settings("method2"))
    theta = variant.spectrum(head_dim, LENGTH).theta
    p = parameters["boundary_pair"]
    # Below the boundary the ladder is geometric and starts at 1; its ratio, carried on to p, gives the interpolated branch.
    ratio = np.exp(-2 / head_dim * np.log(parameters["base"]) - np.log(parameters["factor"]) / p)
    np.testing.assert_allclose(theta[:p], ratio ** np.arange(p), rtol=1e-11)
    np.testing.assert_allclose(theta[p], ratio**p, rtol=1e-11)


def test_method2_counts_pairs_and_matches_the_papers_boundary():
    theta = Method2(factor=8, boundary_pair=44).spectrum(128, LENGTH).theta
    assert theta[44] == pytest.approx(2.2228492625e-4, rel=1e-10)
    assert theta[43] > RoPE().spectrum(128, LENGTH).theta[43] / 8 * 1.01


@pytest.mark.parametrize("name", SPECTRAL)
def test_only_a_dynamic_variant_looks_at_the_length(name: str):
    short, long = (example(name).spectrum(HEAD_DIM, length).theta for length in (16, 1 << 20))
    np.testing.assert_array_equal(short, long)


@pytest.mark.parametrize(
    ("name", "changes", "head_dim", "message"),
    [pytest.param(name, *case, id=f"{name}-{case[2].split(' ')[0]}") for name in SPECTRAL for case in BAD[name]],
)
def test_bad_parameters_are_named(name: str, changes: dict, head_dim: int, message: str):
    with pytest.raises(ValueError) as raised:
        VARIANTS[name](**{**EXAMPLES[name], **changes}).spectrum(head_dim, LENGTH)
    assert str(raised.value) == message
