"""Figures: readable, with the same bytes for the same content, and without claims of the paper where it has none."""

import sys
from itertools import pairwise

import numpy as np
import pytest

from tikas.paper.figures import Errors, Timing, plot_error_against_seconds, plot_errors

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure

RANDOM = np.random.default_rng(0)
NARROW, WIDE = RANDOM.uniform(1.0, 1.2, 10).tolist(), RANDOM.lognormal(1.5, 1.0, 40).tolist()
ROWS = {
    "Ladder, full": {"100": Errors(NARROW, 1.06, 0.37), "all": Errors([0.6, 0.7], 0.57, 0.02)},
    "Ladder with a cost at the bottom level alone, without noise": {"100": Errors(WIDE, 1.09), "all": Errors([0.9])},
    "Baseline": {"100": Errors((), 25.8, 30.0), "50": Errors(WIDE)},
}
COLUMNS = ["50", "100", "all"]
TIMINGS = {
    "two cores": [Timing("5 epochs", 3.0, 0.2, 10.0, 0.5), Timing("10 epochs", 2.0, 0.1, 2.0, 1.0)],
    "a GPU": [Timing("20 epochs", 1.5, 0.1, 2.0, 1.5)],
}


@pytest.fixture
def drawn(monkeypatch):
    """Collect figures that are laid out instead of saved."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: (self.draw_without_rendering(), figures.append(self)))
    return figures


@pytest.mark.parametrize(
    "draw",
    [lambda path: plot_errors(path, COLUMNS, ROWS), lambda path: plot_error_against_seconds(path, TIMINGS)],
    ids=["errors", "seconds"],
)
def test_same_content_gives_the_same_small_file(draw, tmp_path):
    for name in ("one.svg", "other.svg"):
        draw(tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()
    assert 5_000 < (tmp_path / "one.svg").stat().st_size < 100_000


def test_there_is_a_panel_for_each_column_and_a_line_for_each_row(drawn):
    plot_errors("", COLUMNS, ROWS)
    panels = drawn[0].axes
    assert [panel.get_title().split()[0] for panel in panels] == ["50", "100", "all"]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == list(ROWS)
    assert [[text.get_text() for text in panel.texts] for panel in panels] == [[], ["missing"], []]


@pytest.mark.parametrize(
    "errors", [NARROW, WIDE, [100 * error for error in NARROW], [0.9, 1.0]], ids=["narrow", "wide", "large", "two"]
)
def test_numbers_along_the_axis_do_not_overlap(errors, drawn):
    plot_errors("", ["100"], {"Ladder": {"100": Errors(errors)}})
    (panel,) = drawn[0].axes
    low, high = panel.get_xlim()
    ticks = zip(panel.get_xticks(), panel.get_xticklabels(), strict=True)
    boxes = [label.get_window_extent() for value, label in ticks if low <= value <= high]
    assert len(boxes) >= 2
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_long_row_titles_leave_room_for_panels_and_legend(drawn):
    plot_errors("", COLUMNS, ROWS)
    widths = [panel.get_window_extent().width / drawn[0].dpi for panel in drawn[0].axes]
    assert min(widths) > 1.8  # inches
    assert drawn[0].legends[0].get_window_extent().x0 >= 0


def test_published_interval_stays_positive_on_the_logarithmic_axis(drawn):
    plot_errors("", ["100"], {"Baseline": {"100": Errors(WIDE, published=25.8, deviation=30.0)}})
    (interval,) = drawn[0].axes[0].collections
    left, right = interval.get_segments()[0][:, 0]
    assert (left, right) == (pytest.approx(0.1 * 25.8), pytest.approx(25.8 + 30.0))


@pytest.mark.parametrize(("published", "labels"), [(None, 1), (1.06, 2)])
def test_legend_names_the_paper_only_if_a_figure_of_it_is_shown(published, labels, drawn):
    plot_errors("", ["100"], {"Ladder": {"100": Errors(NARROW, published)}})
    texts = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert len(texts) == labels
    assert any("paper" in text for text in texts) == (published is not None)


def test_times_without_warm_up_are_joined_and_both_times_are_shown(drawn):
    plot_error_against_seconds("", TIMINGS)
    (axes,) = drawn[0].axes
    joined = [line.get_xydata().tolist() for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert joined == [[[0.5, 3.0], [1.0, 2.0]], [[1.5, 1.5]]]
    assert [text.get_text() for text in axes.texts] == ["5 epochs", "10 epochs", "20 epochs"]
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["two cores", "a GPU"]
    segments = [part.get_segments()[0][:, 0].tolist() for part in axes.collections]
    assert [0.5, 10.0] in segments  # from the time without warm-up to that with it


def test_without_matplotlib_the_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"matplotlib.*tikas\[plots\]"):
        plot_errors(tmp_path / "errors.svg", COLUMNS, ROWS)
    assert not list(tmp_path.iterdir())
