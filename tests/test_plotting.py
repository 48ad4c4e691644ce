"""What is drawn of a probe is what the probe found."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from rope_lab.plotting import loss_by_position, probe_figure


def drawn(name: str, **arrays: np.ndarray) -> Figure:
    figure = probe_figure(name, arrays)
    assert figure is not None
    assert figure.axes[0].get_title() == name
    return figure


def test_a_grid_of_lengths_and_depths_is_a_heat_map():
    accuracy = np.arange(6).reshape(2, 3) / 5
    figure = drawn(
        "needle", lengths_tokens=np.array([128, 512]), depths=np.array([0, 0.5, 1]), accuracy=accuracy, correct=np.ones((2, 3, 4))
    )
    axes, bar = figure.axes
    np.testing.assert_array_equal(axes.images[0].get_array(), accuracy.T)
    assert axes.images[0].get_clim() == (0, 1)  # the same colours at every step of a run
    assert [label.get_text() for label in axes.get_xticklabels()] == ["128", "512"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0%", "50%", "100%"]
    labels = axes.get_xlabel(), axes.get_ylabel(), bar.get_ylabel()
    assert labels == ("prompt length (tokens)", "depth of the needle (share of the prompt)", "retrieval accuracy")


def test_accuracy_by_distance_is_a_curve_at_the_middles_of_the_buckets():
    axes = drawn("kv_by_distance", edges_tokens=np.array([16, 32, 64]), accuracy=np.array([1, 0.5, 0.25]), count=np.ones(3)).axes[0]
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), [[8, 1], [24, 0.5], [48, 0.25]])
    assert axes.get_xlabel() == "distance from record to query (tokens)"


@pytest.mark.parametrize(("length", "points"), [(5, 5), (64, 16), (100, 16), (101, 16)])
def test_loss_by_position_averages_every_position_once(length: int, points: int):
    losses = np.random.default_rng(0).random(length)
    xy = np.array(drawn("perplexity", loss_by_position_nats=losses).axes[0].lines[0].get_xydata())
    assert len(xy) == points
    widths = []
    for centre, mean in xy:  # a bin begins where the one before ended, and its middle tells where it ends
        first = sum(widths)
        widths.append(round(2 * (centre - first)))
        assert mean == pytest.approx(losses[first : first + widths[-1]].mean())
    assert sum(widths) == length
    assert max(widths) - min(widths) <= 1


def test_a_line_keeps_its_label():
    axes = Figure().subplots()
    loss_by_position(axes, np.ones(16), label="base 1e2", color="C1", bins=4)
    assert [(line.get_label(), line.get_color(), len(line.get_xdata())) for line in axes.lines] == [("base 1e2", "C1", 4)]


def test_the_loss_of_the_same_tokens_is_drawn_over_their_context():
    axes = drawn(
        "context_gain", contexts_tokens=np.array([16, 64]), loss_nats=np.array([2.0, 1.5]), loss_by_block_nats=np.ones((2, 3))
    ).axes[0]
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), [[16, 2], [64, 1.5]])


def test_other_arrays_ask_for_no_figure():
    assert probe_figure("mine", {"accuracy": np.ones(3)}) is None
