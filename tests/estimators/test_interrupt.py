"""Ctrl-C, as a real SIGINT in a process of its own: a fit keeps what it learned, and a search ends."""

import os
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.ensemble import VotingClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tikas import LabeledKFold, LadderClassifier, LadderRegressor, as_supervised
from tikas.training.callbacks import Progress

X, SPECIES = load_iris(return_X_y=True)
Y = np.where(np.arange(150) % 3, -1, SPECIES)


def press(progress: Progress) -> None:
    """Press Ctrl-C after the third epoch."""
    if progress.epoch == 3:
        signal.raise_signal(signal.SIGINT)


def classifier(**settings: Any) -> LadderClassifier:
    quick = {"network": (8,), "preprocess": "standardize", "epochs": 10, "batch_size": 50, "random_state": 0}
    return LadderClassifier(**{**quick, "callbacks": [press], **settings})


SCRIPT = """
import signal, numpy as np
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from tikas import LabeledKFold, LadderClassifier

def tell(progress):
    if progress.epoch == 2:
        print("training", flush=True)

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the parent ignores it
X, y = load_iris(return_X_y=True)
y[::2] = -1
classifier = LadderClassifier((8,), preprocess="standardize", epochs=10**6, callbacks=[tell], random_state=0)
classifier.fit(X, y)
print(classifier.interrupted_, classifier.n_iter_ < 10**6, classifier.score(X, y) > 0)
GridSearchCV(classifier, {"noise": [0.1, 0.2]}, cv=LabeledKFold(2)).fit(X, y)
print("scored")
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_sigint_keeps_a_single_fit_and_ends_a_search() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    printed = []
    for _ in range(2):
        while (text := process.stdout.readline().strip()) not in ("training", ""):
            printed.append(text)
        process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert printed == ["True True True"]
    assert output == ""
    assert process.returncode == -signal.SIGINT
    assert "Training was interrupted after" in errors
    assert errors.strip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize(
    "fit",
    [
        lambda model: model.fit(X, Y),
        lambda model: make_pipeline(StandardScaler(), model).fit(X, Y)[-1],
        lambda model: model.as_supervised(X[Y < 0]).fit(X[Y >= 0], Y[Y >= 0]).estimator_,
        lambda model: (
            as_supervised(make_pipeline(StandardScaler(), model), X[Y < 0]).fit(X[Y >= 0], Y[Y >= 0]).estimator_[-1]
        ),
    ],
    ids=["fit", "pipeline", "as_supervised", "as_supervised pipeline"],
)
def test_a_single_fit_keeps_what_was_learned_and_says_so(fit: Any) -> None:
    with pytest.warns(UserWarning, match="interrupted after 3 of 10 epochs"):
        model = fit(classifier())
    assert (model.interrupted_, model.n_iter_) == (True, 3)


@pytest.mark.parametrize(
    "fit",
    [
        lambda model: model.set_params(on_interrupt="raise").fit(X, Y),
        lambda model: clone(model).fit(X, Y),
        lambda model: clone(make_pipeline(StandardScaler(), model)).fit(X, Y),
        lambda model: clone(model.as_supervised(X[Y < 0])).fit(X[Y >= 0], Y[Y >= 0]),
        lambda model: GridSearchCV(model, {"noise": [0.1, 0.2]}, cv=LabeledKFold(2)).fit(X, Y),
        lambda model: GridSearchCV(model, {"noise": [0.1]}, cv=LabeledKFold(2), error_score=0.0, n_jobs=1).fit(X, Y),
        lambda model: VotingClassifier([("ladder", model)]).fit(X[Y >= 0], Y[Y >= 0]),
    ],
    ids=["on_interrupt", "clone", "cloned pipeline", "cloned as_supervised", "search", "error_score", "voting"],
)
def test_what_is_scored_or_combined_raises_keyboard_interrupt(fit: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit(classifier(batch_size=25))


def test_an_estimator_that_raises_is_left_as_it_was(tmp_path: Any) -> None:
    model = classifier(on_interrupt="raise", callbacks=None).fit(X, Y)
    before = model.predict_proba(X)
    with pytest.raises(KeyboardInterrupt):
        model.set_params(callbacks=[press], random_state=1, checkpoint=tmp_path, checkpoint_every=0).fit(X, Y)
    assert np.array_equal(model.predict_proba(X), before)
    resumed = model.set_params(callbacks=None).fit(X, Y)
    expected = classifier(callbacks=None, random_state=1).fit(X, Y)
    assert np.array_equal(resumed.predict_proba(X), expected.predict_proba(X))


def test_a_regressor_does_the_same() -> None:
    settings = {"network": (8,), "preprocess": "standardize", "epochs": 5, "batch_size": 50, "callbacks": [press]}
    with pytest.warns(UserWarning, match="after 3 of 5"):
        assert LadderRegressor(**settings).fit(X, X[:, 0]).interrupted_
    with pytest.raises(KeyboardInterrupt):
        LadderRegressor(**settings, on_interrupt="raise").fit(X, X[:, 0])
