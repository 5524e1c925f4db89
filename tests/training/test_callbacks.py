"""Callbacks: the progress bar on a terminal, lines now and then anywhere else, the log, and TensorBoard."""

from __future__ import annotations

import pickle
import re
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from sklearn.base import clone
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tikas import LadderClassifier, LadderRegressor, TensorBoard
from tikas.data.datasets import Dataset
from tikas.data.splits import split
from tikas.training import callbacks
from tikas.training.callbacks import Progress, progress_bar
from tikas.training.compiled import CompiledEngine
from tikas.training.engines import EagerEngine
from tikas.training.fused.engine import FusedEngine
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


def test_without_a_terminal_standard_error_gets_messages_and_a_line_now_and_then(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 10.0, 20.0, 41.0, 50.0])
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: next(clock))
    message = "starting 40 members on cuda, about 6.2 GB" * 3  # whatever its width
    with progress_bar(title="[full], 100 labels") as callback:
        callback(Progress(0, 150, [], message))
        for epoch, seconds in ((1, 9.5), (2, 8.5), (3, 7.5), (150, 6.5)):
            more = {"validation_error": 4.5} if epoch == 2 else {}
            callback(Progress(epoch, 150, [line(12.345, seconds, **more)]))
        callback.close()
    assert capfd.readouterr() == (
        "",
        f"[full], 100 labels: {message}\n"
        "[full], 100 labels: epoch 1/150, cost 12.35 (9.5), 0:24:50 left\n"
        "[full], 100 labels: epoch 3/150, cost 12.35 (7.5), error 4.50, 0:33:29 left\n"
        "[full], 100 labels: epoch 150/150, cost 12.35 (6.5), error 4.50\n",
    )


def test_the_log_gets_the_same_lines_at_level_info(caplog: pytest.LogCaptureFixture) -> None:
    rows, classes = np.random.default_rng(0).random((60, 5)), np.arange(60) % 3
    classifier = LadderClassifier((4,), epochs=2, batch_size=25)
    classifier.fit(rows, classes)
    assert caplog.records == []
    with caplog.at_level("INFO", "tikas"):
        classifier.fit(rows, classes)
    assert [record.name for record in caplog.records] == ["tikas"] * 3
    first, *epochs = (record.getMessage() for record in caplog.records)
    assert "1 member" in first
    assert [text.split(",")[0] for text in epochs] == ["training: epoch 1/2", "training: epoch 2/2"]


class Noted:
    """A callback that notes what it is given, may end the training, and is closed."""

    def __init__(self, last: int = 1000) -> None:
        self.last, self.seen, self.closed = last, [], 0

    def __call__(self, progress: Progress) -> bool:
        self.seen.append(progress)
        return progress.epoch >= self.last

    def close(self) -> None:
        self.closed += 1


def test_callbacks_of_an_estimator_see_every_epoch_and_are_closed() -> None:
    noted = Noted()
    rows, classes = np.random.default_rng(0).random((60, 5)), np.arange(60) % 3
    model = LadderClassifier((4,), epochs=3, batch_size=25, n_members=2, callbacks=[noted]).fit(rows, classes)
    assert [(progress.epoch, progress.epochs) for progress in noted.seen] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert [dict(line) for progress in noted.seen for line in progress.members if line["member"] == 1] == [
        line for line in model.history_ if line["member"] == 1
    ]
    assert noted.closed == 1


@pytest.mark.parametrize("kind", [LadderClassifier, LadderRegressor])
def test_a_callback_that_returns_true_ends_the_training(kind: Any) -> None:
    rows, classes = np.random.default_rng(0).random((60, 5)), np.arange(60) % 3
    noted = Noted(last=2)
    model = kind((4,), epochs=9, batch_size=25, callbacks=[noted, lambda _: None]).fit(rows, classes)
    assert (model.n_iter_, model.interrupted_, noted.closed) == (2, False, 1)


def test_callbacks_are_closed_if_training_fails() -> None:
    noted = Noted()

    def fail(progress: Progress) -> None:
        raise ArithmeticError(progress.epoch)

    rows, classes = np.random.default_rng(0).random((60, 5)), np.arange(60) % 3
    with pytest.raises(ArithmeticError):
        LadderClassifier((4,), epochs=2, batch_size=25, callbacks=[noted, fail]).fit(rows, classes)
    assert noted.closed == 1


def test_what_takes_long_before_the_first_epoch_is_told() -> None:
    images = np.random.default_rng(0).random((60, 1, 4, 4))
    noted = Noted()
    LadderClassifier((4,), epochs=1, batch_size=25, preprocess="whiten", callbacks=[noted]).fit(
        images, np.arange(60) % 3
    )
    assert [progress.message for progress in noted.seen[:2]] == [
        "whitening 60 images",
        next(progress.message for progress in noted.seen if "1 member" in progress.message),
    ]
    for engine in (CompiledEngine, FusedEngine):
        assert "compiling" in engine.preparation
    assert EagerEngine.preparation == ""


@pytest.mark.parametrize("members", [1, 2])
def test_tensorboard_gets_the_history_of_each_member_in_a_folder_for_each_fit(tmp_path: Path, members: int) -> None:
    rows, classes = np.random.default_rng(0).random((60, 5)), np.arange(60) % 3
    model = LadderClassifier((4,), epochs=2, batch_size=25, n_members=members, callbacks=[TensorBoard(tmp_path)])
    splits = [split(classes, 9, validation=10)] * members
    model.fit(rows, classes, splits=splits)
    clone(model).fit(rows, classes, splits=splits)
    pickle.loads(pickle.dumps(model))
    folders = sorted(path for path in tmp_path.iterdir())
    assert len(folders) == 2
    for member in range(members):
        folder = folders[0] / f"member-{member}" if members > 1 else folders[0]
        events = EventAccumulator(str(folder)).Reload()
        lines = [line for line in model.history_ if line["member"] == member]
        for tag, values in {
            "cost/total": [line["total"] for line in lines],
            "cost/supervised": [line["supervised"] for line in lines],
            "denoising/level 0": [line["denoising"][0] for line in lines],
            "learning_rate": [line["learning_rate"] for line in lines],
        }.items():
            assert [event.value for event in events.Scalars(tag)] == pytest.approx(values)
            assert [event.step for event in events.Scalars(tag)] == [1, 2]
        measured = [(line["epoch"], line["validation_error"]) for line in lines if "validation_error" in line]
        assert [(event.step, event.value) for event in events.Scalars("validation_error")] == [
            pytest.approx(each) for each in measured
        ]


def test_tensorboard_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"tikas\[tensorboard\]"):
        TensorBoard(tmp_path)(Progress(1, 2, [{"member": 0, **line(1, 1), "learning_rate": 0.1}]))


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
