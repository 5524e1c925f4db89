"""A fitted classifier of images and one of a table, trained for a moment, and the rows to report on."""

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

from tikas import LadderClassifier
from tikas.report.evaluation import ReportRows

N_LEARNED = 60


@pytest.fixture(scope="session")
def digits():
    """A ladder on images with costs at all levels, and rows: 60 labels learned, 600 held out, the rest unlabeled."""
    data = load_digits()
    X, labels = (data.images / 16).astype(np.float32), data.target.astype(object)
    learned = np.arange(len(X)) < N_LEARNED
    classifier = LadderClassifier((32,), costs=(100, 1, 1), epochs=6, random_state=0, n_members=2)
    classifier.fit(X, np.where(learned, data.target, -1))
    labels[660:] = None
    return classifier, ReportRows(X, labels, learned, "labels held out")


@pytest.fixture(scope="session")
def cancer():
    """A ladder on a data frame, whose classes and columns have names that HTML must escape."""
    data = load_breast_cancer(as_frame=True)
    X = data.data.iloc[:, :9].rename(columns={"mean radius": "radius <b>&"})
    y = np.array(["<malignant>", 'benign & "fine"'], dtype=object)[data.target]
    learned = np.arange(len(X)) < N_LEARNED
    classifier = LadderClassifier((16,), preprocess="standardize", epochs=10, random_state=0)
    classifier.fit(pd.DataFrame(X), np.where(learned, y, None))
    return classifier, ReportRows(X, y, learned, "labels held out")
