"""The tests, laid out as the package is. Shared helpers: `reference.py` (independent formulas), `golden/` (numbers)."""
