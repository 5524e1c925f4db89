"""Cross-validation over the labels: folds, errors against single fits, intervals and the verdict."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import beta
from sklearn.datasets import load_diabetes, load_iris
from sklearn.preprocessing import scale

from tikas import LadderClassifier, LadderRegressor
from tikas.estimators.comparison import Comparison, Method, _folds, cross_validate

IRIS, SPECIES = scale(load_iris().data), load_iris().target
QUICK = {"network": (8,), "epochs": 4, "batch_size": 30, "learning_rate": 0.05}


@pytest.mark.parametrize(
    ("counts", "unlabeled", "folds"),
    [((7, 6), 20, 5), ((3, 3), 0, 5), ((2, 1), 9, 5), ((10, 2, 1), 1, 3), ((5,), 0, 2), ((40, 3), 2, 4)],
)
@pytest.mark.parametrize("equal_labels", [False, True])
def test_every_label_is_held_out_once_and_no_fold_lacks_a_class(
    counts: tuple[int, ...], unlabeled: int, folds: int, equal_labels: bool
) -> None:
    codes = np.random.default_rng(0).permutation(np.repeat([*range(len(counts)), -1], [*counts, unlabeled]))
    held_out, splits = _folds(codes, folds, 0, equal_labels=equal_labels)
    tested = np.sort(np.concatenate(held_out))
    alone = [code for code, count in enumerate(counts) if count == 1]
    assert tested.tolist() == np.flatnonzero((codes >= 0) & ~np.isin(codes, alone)).tolist()
    assert len({len(split.unlabeled) for split in splits}) == 1
    if equal_labels:
        assert len({len(split.labeled) for split in splits}) == 1
    for rows, split in zip(held_out, splits, strict=True):
        assert not np.intersect1d(rows, split.unlabeled).size
        assert np.isin(split.labeled, split.unlabeled).all()
        assert set(codes[split.labeled]) == set(range(len(counts)))
        assert split.fully_labeled == (unlabeled == 0)
        assert len(split.unlabeled) >= len(codes) - len(rows) - 1


def test_too_few_labels_give_no_comparison() -> None:
    assert cross_validate({"a": LadderClassifier(**QUICK)}, IRIS, [0, 1, 2] + [-1] * 147) is None


def test_errors_are_those_of_members_that_did_not_see_the_row() -> None:
    labels = np.where(np.arange(150) % 4 == 0, SPECIES, -1)
    estimators = {"ladder": LadderClassifier(**QUICK), "network": LadderClassifier(**QUICK, costs=0.0)}
    comparison = cross_validate(estimators, IRIS, labels, folds=3, seed=5)
    codes = labels.astype(np.int64)
    held_out, splits = _folds(codes, 3, 5, equal_labels=False)
    expected = np.full(150, np.nan)
    for fold, (rows, split) in enumerate(zip(held_out, splits, strict=True)):
        alone = LadderClassifier(**QUICK, random_state=5 + fold).fit(IRIS, labels, splits=[split])
        expected[rows] = alone.predict(IRIS[rows]) != SPECIES[rows]
    assert comparison.methods[0].errors.mean() == pytest.approx(np.nanmean(expected), abs=0.06)
    assert [method.name for method in comparison.methods] == ["ladder", "network"]
    assert (comparison.n_labels, comparison.folds) == (38, 3)
    assert estimators["ladder"].n_members == 1
    assert not hasattr(estimators["ladder"], "ladders_")


def test_values_are_compared_by_their_squared_errors() -> None:
    data = load_diabetes()
    values = np.where(np.arange(442) % 3 == 0, data.target, np.nan)
    frame = pd.DataFrame(scale(data.data), columns=data.feature_names)
    comparison = cross_validate({"ladder": LadderRegressor(**QUICK, n_members=2)}, frame, values, folds=3)
    (line,) = comparison.table.itertuples(index=False)
    assert comparison.n_labels == 148
    assert line.low < line.error < line.high
    assert 30 < line.error < 150
    assert comparison.verdict == ""


def test_the_interval_of_an_error_is_the_exact_binomial_one() -> None:
    comparison = Comparison((Method("a", np.repeat([1.0, 0.0], [3, 27]), 1.0),), "classification", 5)
    (line,) = comparison.table.itertuples(index=False)
    assert (line.error, line.seconds) == (10, 1)
    assert line.low == pytest.approx(100 * beta.ppf(0.025, 3, 28))
    assert line.high == pytest.approx(100 * beta.ppf(0.975, 4, 27))


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        ((0, 6), (6, 0), ": better"),
        ((6, 0), (0, 6), ": worse"),
        ((1, 3), (3, 1), "no difference"),
        ((2, 2), (2, 2), "no difference"),
    ],
)
def test_the_verdict_says_better_only_if_chance_is_unlikely(first: tuple, second: tuple, word: str) -> None:
    methods = tuple(
        Method(name, np.repeat([1.0, 0.0, 0.0], [wrong, right, 30 - wrong - right]), 1.0)
        for name, (wrong, right) in (("ladder", first), ("network", second))
    )
    assert word in Comparison(methods, "classification", 5).verdict
