"""Nobody can add a variant and forget its tests."""

import pytest

from rope_lab.rotary import VARIANTS
from tests.reference import REFERENCE
from tests.rotary.examples import ALL, BAD, EXAMPLES, fields


@pytest.mark.parametrize("table", [EXAMPLES, BAD, REFERENCE], ids=["EXAMPLES", "BAD", "REFERENCE"])
def test_every_variant_has_its_entry(table: dict):
    assert sorted(table) == sorted(VARIANTS)


@pytest.mark.parametrize("name", ALL)
def test_an_example_sets_every_field(name: str):
    assert set(EXAMPLES[name]) == fields(name)


def test_a_bad_value_is_listed_for_every_field():
    for name in ALL:
        tried = {field for changes, _, _ in BAD[name] for field in changes}
        assert tried == fields(name) - {"truncate"}, name  # both values of a truth value are good
