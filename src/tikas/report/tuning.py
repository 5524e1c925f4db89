"""The figure of a study: how important each setting was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

COLOR = "#1f5fa8"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "tikas",  # the same ids in the file every time
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def plot_importances(path: str | Path, importances: Mapping[str, float]) -> None:
    """Draw the share of the differences between trials that each parameter of a study explains, the largest first.

    Parameters
    ----------
    path : str or Path
        The SVG file to write.
    importances : mapping of str to float
        By the name of the parameter, from the largest to the smallest.

    Raises
    ------
    ImportError
        If matplotlib is not installed.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plot_importances(folder + "/importances.svg", {"noise": 0.7, "learning_rate": 0.3})
    ...     "learning rate" in Path(folder, "importances.svg").read_text()
    True
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Figures need matplotlib: pip install 'tikas[plots]'.") from error
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5, 0.6 + 0.3 * len(importances)), layout="constrained")
        axes = figure.add_subplot()
        bars = axes.barh([name.replace("_", " ") for name in importances], list(importances.values()), color=COLOR)
        axes.bar_label(bars, fmt="%.2f", padding=3)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.1 * max(importances.values(), default=1.0))
        axes.set_xlabel("importance for the cross-validated error")
        figure.savefig(path, metadata={"Date": None, "Creator": None})
