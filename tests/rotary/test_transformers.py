"""Hugging Face transformers as an independent reference, by way of numbers it computed earlier."""

import json
from pathlib import Path

import pytest

from tests.rotary.transformers_agreement import assert_same_rotation, assert_same_spectrum

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "transformers_rotary.json").read_text())


@pytest.mark.parametrize("case", GOLDEN["spectra"], ids=lambda case: f"{case['variant']}-{case['head_dim']}")
def test_spectrum(case: dict):
    assert_same_spectrum(case, case["theta"], case["attention_factor"])


@pytest.mark.parametrize("case", GOLDEN["rotations"], ids=lambda case: f"{case['variant']}-{case['head_dim']}")
def test_rotation(case: dict):
    assert_same_rotation(case, case["q"], case["k"])
