"""Tables come back as they were written, and runs are told apart in them."""

from pathlib import Path

import numpy as np

from rope_lab.runs import ProbeResult
from rope_lab.tables import accuracies, bucket_rows, final_rows, read_table, write_table


def test_numbers_come_back_as_numbers_and_names_as_text(tmp_path: Path):
    """A column is text if one value of it is, an empty one included."""
    rows = [{"run": "a", "start": "1e4", "step": 1, "loss": 0.125}, {"run": "b, c", "start": "", "step": 20, "loss": -3.0}]
    write_table(tmp_path / "rows.csv", rows)
    assert read_table(tmp_path / "rows.csv") == rows


def test_the_last_row_of_each_run_counts():
    rows = [{"run": "a", "step": 1}, {"run": "b", "step": 1}, {"run": "a", "step": 2}]
    assert final_rows(rows) == [{"run": "a", "step": 2}, {"run": "b", "step": 1}]


def test_accuracies_are_of_the_wanted_runs_and_steps_by_distance():
    def result(step: int, *accuracy: float) -> ProbeResult:
        arrays = {"edges_tokens": np.array([16, 32]), "accuracy": np.array(accuracy), "count": np.array([7, 9])}
        return ProbeResult(step, {}, arrays)

    buckets = [*bucket_rows("a", result(1, 0.5, 0.25)), *bucket_rows("a", result(2, 1.0, 0.75)), *bucket_rows("b", result(2, 0.0, 0.125))]
    assert buckets[0] == {"run": "a", "step": 1, "distance_below_tokens": 16, "accuracy": 0.5, "questions": 7}
    assert accuracies([{"run": "b", "step": 2}, {"run": "a", "step": 2}], reversed(buckets)) == ([16, 32], [[0.0, 0.125], [1.0, 0.75]])
    assert accuracies([{"run": "c", "step": 2}], buckets) == ([], [])
