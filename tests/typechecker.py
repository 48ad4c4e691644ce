"""The run-time type checker that `conftest.py` puts on the package."""

from beartype import BeartypeConf, beartype

# An int where a float is annotated is right, by PEP 484.
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
