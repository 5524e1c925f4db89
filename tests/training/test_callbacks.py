"""The progress bar: epoch, costs and validation error on a terminal, messages alone anywhere else."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tikas.data.datasets import Dataset
from tikas.data.splits import split
from tikas.training.callbacks import Progress, progress_bar
from tikas.training.recipe import Recipe
from tikas.training.trainer import Trainer


def line(total: float, supervised: float, **more: float) -> dict[str, Any]:
    return {"epoch": 3, "total": total, "supervised": supervised, "denoising": [0.1, 0.2], "seconds": 0.5, **more}


def terminal(width: int = 120) -> Console:
    return Console(file=StringIO(), force_terminal=True, width=width, color_system=None)


def shown_on(console: Console) -> str:
    """Return what was written, without the codes that move the cursor."""
    return re.sub(r"\x1b\[[0-9?]*[a-zA-Z]", "", console.file.getvalue())


def show(*seen: Progress, width: int = 120, title: str = "training") -> str:
    console = terminal(width)
    with progress_bar(console=console, title=title) as callback:
        for progress in seen:
            callback(progress)
    return shown_on(console)


def test_no_bar_is_drawn_if_none_is_asked_for() -> None:
    console = terminal()
    with progress_bar(shown=False, console=console) as callback:
        assert callback is None
    assert console.file.getvalue() == ""


def test_without_a_terminal_standard_error_gets_messages_and_no_epochs(capfd: pytest.CaptureFixture[str]) -> None:
    message = "starting 40 members on cuda, about 6.2 GB" * 3  # whatever its width
    with progress_bar(title="[full], 100 labels") as callback:
        callback(Progress(0, 150, [], message))
        callback(Progress(1, 150, [line(12.345, 0.6789, validation_error=4.5)]))
    assert capfd.readouterr() == ("", f"[full], 100 labels: {message}\n")


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_epoch_costs_error_and_time_left(width: int) -> None:
    shown = show(Progress(3, 150, [line(12.345, 0.6789, validation_error=4.5)]), width=width, title="digits")
    assert "digits" in shown
    assert re.search(r"\b3/150\b", shown)
    assert re.search(r"cost 12\.35 \(0\.68\), error 4\.50 +(-:--:--|\d:\d\d:\d\d)", shown)
    assert "…" not in shown


def test_a_message_is_shown_before_the_first_epoch() -> None:
    assert "starting 2 members" in show(Progress(0, 150, [], "starting 2 members"))


@pytest.mark.parametrize(
    ("seen", "last"),
    [
        ([Progress(1, 2, [line(12.345, 0.6789)])], "cost 12.35 (0.68)"),
        (
            [Progress(1, 2, [line(10, 1, validation_error=3.0), line(20, 2, validation_error=5.0)])],
            "cost 15 (1.5), error 4.00",
        ),
        (
            [Progress(4, 8, [line(4, 1, validation_error=4.5)]), Progress(5, 8, [line(5, 1)])],
            "cost 5 (1), error 4.50",
        ),
        (
            [
                Progress(4, 8, [line(4, 1, validation_error=4.5)]),
                Progress(8, 8, [line(8, 1, validation_error=3.5)]),
            ],
            "cost 8 (1), error 3.50",
        ),
        (
            [
                Progress(8, 16, [line(8, 1, validation_error=3.5)]),
                Progress(8, 16, [], "starting 2 members"),
                Progress(9, 16, [line(9, 1)]),
            ],
            "cost 9 (1)",
        ),
    ],
    ids=["no validation", "mean of the members", "not measured again", "measured again", "next group"],
)
def test_the_last_figures_are_the_mean_costs_and_the_newest_error_of_the_group(seen: list[Progress], last: str) -> None:
    assert re.findall(r"cost [\d.]+ \([\d.]+\)(?:, error [\d.]+)?", show(*seen))[-1] == last


@pytest.mark.parametrize("validation", [0, 10])
def test_training_moves_the_bar_to_its_last_epoch(validation: int) -> None:
    classes, console = np.arange(60) % 3, terminal()
    rows = np.random.default_rng(0).random((60, 5), dtype=np.float32)
    recipe = Recipe(network=(4,), batch_size=25, epochs=3)
    with progress_bar(console=console) as callback:
        trainer = Trainer(recipe, device="cpu", callbacks=[callback])
        result = trainer.fit(
            Dataset(rows, classes, classes=np.arange(3)), [split(classes, 9, validation=validation)], [0]
        )
    last, shown = result.histories[0][-1], shown_on(console)
    assert "3/3" in shown
    assert f"cost {last['total']:.4g} ({last['supervised']:.2g})" in shown
    if validation:
        assert f", error {last['validation_error']:.2f}" in shown
    else:
        assert "error" not in shown


def test_the_bar_is_removed_if_training_fails() -> None:
    console = terminal()
    with pytest.raises(ArithmeticError), progress_bar(console=console) as callback:  # noqa: PT012
        callback(Progress(1, 2, [line(1, 1)]))
        raise ArithmeticError
    assert console.file.getvalue().endswith("\x1b[2K")  # its line is cleared
    assert "\x1b[?25h" in console.file.getvalue()  # and the cursor is visible again
