"""The progress bar shows epoch, costs and error on a terminal; anywhere else what a fleet needs is told in a line."""

import re
from io import StringIO

import numpy as np
import pytest
import torch
from rich.console import Console

from tikas.data.splits import split
from tikas.data.streams import Examples
from tikas.training.fit import Progress, fit
from tikas.training.progress import figures, last_error, progress_bar
from tikas.training.recipe import Recipe


def line(total: float, supervised: float, **more: float) -> dict:
    return {"epoch": 3, "total": total, "supervised": supervised, "denoising": [0.1, 0.2], "seconds": 0.5, **more}


def terminal(**changes) -> Console:
    return Console(**{"file": StringIO(), "force_terminal": True, "width": 120, "color_system": None, **changes})


def shown_on(console: Console) -> str:
    """What was written, without the codes that move the cursor."""
    return re.sub(r"\x1b\[[0-9?]*[a-zA-Z]", "", console.file.getvalue())


def test_nothing_is_shown_when_not_asked_for():
    console = terminal()
    with progress_bar(shown=False, console=console) as on_epoch:
        assert on_epoch is None
    assert console.file.getvalue() == ""


def test_a_file_or_pipe_is_told_what_a_fleet_needs_and_of_no_epoch(capfd):
    """The console that is used when none is given: pytest's capture is no terminal."""
    doing = "getting ready: 40 members, about 6.2 of 139 GB " * 3  # however wide
    with progress_bar(title="[full], 100 labels") as on_epoch:
        on_epoch(Progress(0, 150, [], doing))
        on_epoch(Progress(1, 150, [line(12.345, 0.6789, validation_error=4.5)]))
    assert capfd.readouterr() == ("", f"[full], 100 labels: {doing}\n")


def test_a_terminal_sees_epoch_costs_and_validation_error():
    console = terminal()
    with progress_bar(title="digits, 50 labels", console=console) as on_epoch:
        on_epoch(Progress(3, 150, [line(12.345, 0.6789, validation_error=4.5)]))
    shown = shown_on(console)
    assert "digits, 50 labels" in shown
    assert re.search(r"\b3/150\b", shown)
    assert "cost 12.35 (0.68), error 4.50" in shown


def test_eighty_columns_are_enough():
    console = terminal(width=80)
    with progress_bar(console=console) as on_epoch:
        on_epoch(Progress(3, 150, [line(12.345, 0.6789, validation_error=4.5)]))
    assert "3/150" in shown_on(console)
    assert "cost 12.35 (0.68), error 4.50" in shown_on(console)
    assert re.search(r"error 4\.50 +(-:--:--|\d:\d\d:\d\d)", shown_on(console))  # the time left is still on the line
    assert "…" not in shown_on(console)


def test_without_held_out_rows_no_validation_error_is_shown():
    console = terminal()
    with progress_bar(console=console) as on_epoch:
        on_epoch(Progress(1, 2, [line(12.345, 0.6789)]))
    assert "cost 12.35 (0.68)" in shown_on(console)
    assert "error" not in shown_on(console)
    assert "nan" not in shown_on(console).lower()


def test_time_left_is_shown():
    console = terminal()
    with progress_bar(console=console) as on_epoch:
        on_epoch(Progress(1, 2, [line(1.0, 1.0)]))
        on_epoch(Progress(2, 2, [line(1.0, 1.0)]))
    assert re.search(r"-:--:--|\d:\d\d:\d\d", shown_on(console))


def test_a_fleet_shows_the_means_of_its_members():
    progress = Progress(1, 2, [line(10.0, 1.0, validation_error=3.0), line(20.0, 2.0, validation_error=5.0)])
    assert figures(progress, last_error(progress, None)) == "cost 15 (1.5), error 4.00"


def last_shown(*told: Progress) -> str:
    """The bar's figures when it was told all of these."""
    console = terminal()
    with progress_bar(console=console) as on_epoch:
        for progress in told:
            on_epoch(progress)
    return re.findall(r"cost [\d.]+ \([\d.]+\)(?:, error [\d.]+)?", shown_on(console))[-1]


def test_the_last_known_error_is_shown_until_another_is_measured():
    measured, not_measured = line(4.0, 1.0, validation_error=4.5), line(5.0, 1.0)
    assert last_shown(Progress(4, 8, [measured]), Progress(5, 8, [not_measured])) == "cost 5 (1), error 4.50"
    again = line(8.0, 1.0, validation_error=3.5)
    assert last_shown(Progress(4, 8, [measured]), Progress(8, 8, [again])) == "cost 8 (1), error 3.50"


def test_the_error_of_an_earlier_fleet_is_not_shown_beside_the_costs_of_the_next():
    ended, ready = Progress(8, 16, [line(8.0, 1.0, validation_error=3.5)]), Progress(8, 16, [], "getting ready")
    assert last_shown(ended, ready, Progress(9, 16, [line(9.0, 1.0)])) == "cost 9 (1)"


@pytest.mark.parametrize("validation", [0, 10])
def test_training_moves_the_bar_to_its_last_epoch(validation):
    classes = np.arange(60) % 3
    rows = torch.rand(60, 5, generator=torch.Generator().manual_seed(0))
    recipe = Recipe(data="array", network=(4,), batch_size=25, epochs=3)
    chosen = split(classes, 9, validation=validation)
    console = terminal()
    with progress_bar(console=console) as on_epoch:
        examples = Examples(rows, torch.from_numpy(classes), 3)
        trained = fit(examples, [chosen], recipe, [0], device="cpu", on_epoch=on_epoch)
    last = trained.histories[0][-1]
    shown = shown_on(console)
    assert "3/3" in shown
    assert f"cost {last['total']:.4g} ({last['supervised']:.2g})" in shown
    assert ("error" in shown) == (validation > 0)
    if validation:
        assert f", error {last['validation_error']:.2f}" in shown


def test_the_bar_leaves_a_clean_line_when_training_fails():
    console = terminal()

    def fails() -> None:
        with progress_bar(console=console) as on_epoch:
            on_epoch(Progress(1, 2, [line(1.0, 1.0)]))
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fails()
    assert console.file.getvalue().endswith("\x1b[2K")  # the bar's line is wiped
    assert "\x1b[?25h" in console.file.getvalue()  # and the cursor is back
