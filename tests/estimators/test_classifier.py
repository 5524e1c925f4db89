"""LadderClassifier: labels in any form, classes and their weights, splits, and what is predicted from them."""

import re

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_digits, load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from sklearn.utils.fixes import parse_version

from tikas import LadderClassifier
from tikas.data.splits import Split, split

IRIS, SPECIES = scale(load_iris().data), load_iris().target
NAMES = load_iris().target_names
LABELED = np.arange(150) % 3 == 0
PARTIAL = np.where(LABELED, SPECIES, -1)
PIXELS, DIGITS = load_digits(return_X_y=True)


def classifier(**settings):
    quick = {"network": (8,), "epochs": 3, "learning_rate": 0.05, "batch_size": 50, "random_state": 0}
    return LadderClassifier(**{**quick, **settings})


def few_labels(y, per_class, seed):
    labels = np.full(len(y), -1)
    chosen = split(y, per_class * len(np.unique(y)), seed=seed).labeled
    labels[chosen] = y[chosen]
    return labels


def test_ladder_beats_same_network_without_denoising_costs():
    gains = []
    for seed in (0, 1):
        y = few_labels(DIGITS, 5, seed)
        settings = {"network": (128, 64), "epochs": 6, "learning_rate": 0.02, "random_state": seed}
        ladder = LadderClassifier(**settings).fit(PIXELS / 16, y)
        supervised = LadderClassifier(**settings, costs=0).fit(PIXELS / 16, y)
        gains.append(ladder.score(PIXELS / 16, DIGITS) - supervised.score(PIXELS / 16, DIGITS))
    assert min(gains) > 0.012


def test_pipeline_and_grid_search_work_with_unlabeled_rows():
    search = GridSearchCV(
        make_pipeline(StandardScaler(), classifier()),
        {"ladderclassifier__noise": [0.1, 0.3], "ladderclassifier__costs": [(1.0, 0.1), 0]},
        cv=2,
    ).fit(load_iris().data, PARTIAL)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert set(search.predict(load_iris().data)) <= {0, 1, 2}


def test_probabilities_sum_to_one_and_largest_is_predicted():
    model = classifier().fit(IRIS, PARTIAL)
    probabilities = model.predict_proba(IRIS)
    assert probabilities.shape == (150, 3)
    assert probabilities.min() >= 0
    assert_allclose(probabilities.sum(1), 1, rtol=1e-12)
    assert_array_equal(model.predict(IRIS), model.classes_[probabilities.argmax(1)])


class TestLabels:
    @pytest.mark.parametrize(
        "y",
        [
            pytest.param(PARTIAL, id="minus-one"),
            pytest.param(np.where(LABELED, SPECIES, np.nan), id="nan"),
            pytest.param(np.where(LABELED, SPECIES, None), id="none"),
            pytest.param(PARTIAL.tolist(), id="list"),
            pytest.param(
                PARTIAL[:, None].tolist(), id="column", marks=pytest.mark.filterwarnings("ignore:A column-vector")
            ),
            pytest.param(pd.Series(SPECIES).astype("Int64").where(LABELED), id="nullable-integers"),
            pytest.param(np.where(LABELED, NAMES[SPECIES], None), id="text-and-none"),
            pytest.param(
                [name if known else -1 for name, known in zip(NAMES[SPECIES], LABELED, strict=True)], id="text-list"
            ),
            pytest.param(pd.Series(NAMES[SPECIES], dtype="string").where(LABELED), id="nullable-text"),
            pytest.param(pd.Series(NAMES[SPECIES], dtype="category").where(LABELED), id="categories"),
        ],
    )
    def test_form_of_labels_does_not_matter(self, y):
        model, expected = classifier().fit(IRIS, y), classifier().fit(IRIS, PARTIAL)
        assert_array_equal(model.predict_proba(IRIS), expected.predict_proba(IRIS))
        codes = {name: code for code, name in enumerate(model.classes_)}
        assert [codes[label] for label in model.predict(IRIS)] == expected.predict(IRIS).tolist()
        assert [codes[label] for label in model.transduction_] == expected.transduction_.tolist()
        assert model.score(IRIS, y) == expected.score(IRIS, PARTIAL)

    @pytest.mark.parametrize(
        "y",
        [
            SPECIES > 0,
            np.where(LABELED, SPECIES > 0, None),
            pd.Series(SPECIES > 0).astype("boolean").where(LABELED),
            [bool(species) if known else -1 for species, known in zip(SPECIES, LABELED, strict=True)],
        ],
    )
    def test_booleans_are_two_classes(self, y):
        model = classifier().fit(IRIS, y)
        assert model.classes_.dtype == model.transduction_.dtype == model.predict(IRIS).dtype == bool
        assert model.score(IRIS, y) > 0.5

    @pytest.mark.parametrize("kind", ["Int64", "UInt8"])
    def test_nullable_integers_stay_integers(self, kind):
        y = pd.Series(SPECIES, dtype=kind)
        y[::2] = pd.NA
        model = classifier().fit(IRIS, y)
        assert model.classes_.dtype.kind == "i"
        expected = classifier().fit(IRIS, np.where(y.isna(), -1, SPECIES))
        assert_array_equal(model.predict(IRIS), expected.predict(IRIS))

    def test_text_classes_are_sorted_and_predicted(self):
        centers = np.random.default_rng(0).normal(size=(3, 2)) * 3
        codes = np.arange(60) % 3
        X = scale(centers[codes] + 0.1 * np.random.default_rng(1).normal(size=(60, 2)))
        for names in (np.array(["one", "two", "three"]), np.array(["one", "two", "three"], dtype=object)):
            model = classifier(epochs=15, batch_size=20, costs=0).fit(X, names[codes])
            assert model.classes_.tolist() == ["one", "three", "two"]
            assert_array_equal(model.predict(X), names[codes])

    def test_given_classes_set_order_of_columns(self):
        model = classifier(classes=[2, 0, 1], costs=0, epochs=10).fit(IRIS, PARTIAL)
        assert model.classes_.tolist() == [2, 0, 1]
        assert model.score(IRIS, SPECIES) > 0.8
        assert_array_equal(model.predict(IRIS) == 2, model.predict_proba(IRIS).argmax(1) == 0)

    def test_transduction_keeps_labels_and_predicts_others(self):
        y = np.where(np.arange(150) == 0, 2, PARTIAL)  # one label is wrong
        model = classifier().fit(IRIS, y)
        assert_array_equal(model.transduction_[LABELED], y[LABELED])
        assert_array_equal(model.transduction_[~LABELED], model.predict(IRIS)[~LABELED])

    def test_members_average_probabilities_not_scores(self):
        model = classifier(n_members=4, epochs=1).fit(IRIS, PARTIAL)
        scores = torch.stack([ladder(torch.from_numpy(IRIS).float()) for ladder in model.ladders_]).mean(0)
        assert (scores.argmax(1).numpy() != model.predict(IRIS))[~LABELED].any()
        assert_array_equal(model.transduction_[~LABELED], model.predict(IRIS)[~LABELED])

    @pytest.mark.parametrize(
        ("y", "message"),
        [
            (np.full(150, -1), "None of the 150 rows is labeled"),
            (np.where(PARTIAL == 0, 0, -1), "one class only, 0"),
            (np.where(LABELED, SPECIES + 0.5, -1), "0.5.*LadderRegressor"),
            ([0, "one"] * 75, "int, str"),
            (["-1", "cat", "dog"] * 50, "'-1'.*None"),
            (PARTIAL[:-1], "X has 150 rows and y has 149"),
            (np.stack([PARTIAL, PARTIAL], axis=1), "should be a 1d array"),
            (None, "requires y to be passed.*-1"),
        ],
    )
    def test_invalid_labels_raise_value_error(self, y, message):
        with pytest.raises(ValueError, match=message):
            classifier().fit(IRIS, y)

    @pytest.mark.parametrize("classes", [[0, 1, 2, 3], [0, 1]])
    def test_classes_that_differ_from_labels_raise_value_error(self, classes):
        with pytest.raises(ValueError, match=rf"{re.escape(str(classes))}.*\[0, 1, 2\]"):
            classifier(classes=classes).fit(IRIS, PARTIAL)


class TestScore:
    def test_unlabeled_rows_are_ignored(self):
        model = classifier().fit(IRIS, PARTIAL)
        assert model.score(IRIS, PARTIAL) == np.mean(model.predict(IRIS)[LABELED] == SPECIES[LABELED])
        correct = model.predict(IRIS) == SPECIES
        assert model.score(IRIS, PARTIAL, sample_weight=correct) == 1
        with pytest.raises(ValueError, match="None of the 150 rows is labeled"):
            model.score(IRIS, np.full(150, -1))
        with pytest.raises(ValueError, match="X has 150 rows and y has 149"):
            model.score(IRIS, PARTIAL[:-1])

    @pytest.mark.skipif(parse_version(sklearn.__version__) < parse_version("1.9"), reason="compares them, all unequal")
    def test_text_is_not_compared_with_numbers(self):
        model = classifier().fit(IRIS, PARTIAL)
        for text in (SPECIES.astype(str), SPECIES.astype(str).tolist()):
            with pytest.raises(ValueError, match="string and number"):
                model.score(IRIS, text)
        assert model.score(IRIS, SPECIES.astype(float)) == model.score(IRIS, SPECIES.astype(object))


class TestWeights:
    def test_heavier_class_becomes_more_probable(self):
        plain = classifier().fit(IRIS, PARTIAL)
        by_class = classifier(class_weight={1: 20.0}).fit(IRIS, PARTIAL)
        assert by_class.predict_proba(IRIS)[:, 1].mean() > plain.predict_proba(IRIS)[:, 1].mean()
        by_row = classifier().fit(IRIS, PARTIAL, sample_weight=np.where(PARTIAL == 1, 20.0, 1.0))
        assert_allclose(by_row.predict_proba(IRIS), by_class.predict_proba(IRIS), atol=1e-5)

    def test_balanced_weights_raise_probability_of_rare_class(self):
        rare = np.where((PARTIAL == 1) & (np.arange(150) > 60), -1, PARTIAL)
        plain, balanced = (
            classifier(class_weight=weight, costs=0, epochs=10).fit(IRIS, rare).predict_proba(IRIS)
            for weight in (None, "balanced")
        )
        assert balanced[SPECIES == 1, 1].mean() > plain[SPECIES == 1, 1].mean()

    def test_class_weights_and_sample_weights_are_multiplied(self):
        both = classifier(class_weight={1: 2.0}).fit(IRIS, PARTIAL, sample_weight=np.where(PARTIAL == 2, 3.0, 1.0))
        by_class = classifier(class_weight={1: 2.0, 2: 3.0}).fit(IRIS, PARTIAL)
        assert_allclose(both.predict_proba(IRIS), by_class.predict_proba(IRIS), atol=1e-5)

    def test_class_of_negligible_weight_is_not_predicted(self):
        model = classifier(class_weight={0: 1e-4, 1: 1e3, 2: 1e-4}).fit(IRIS, PARTIAL)
        assert_array_equal(model.predict(IRIS), 1)

    def test_equal_weights_change_nothing(self):
        rare = np.where((PARTIAL == 1) & (np.arange(150) > 60), -1, PARTIAL)
        plain = classifier().fit(IRIS, rare).predict_proba(IRIS)
        by_row = classifier().fit(IRIS, rare, sample_weight=np.full(150, 3.0)).predict_proba(IRIS)
        by_class = classifier(class_weight=dict.fromkeys(range(3), 2)).fit(IRIS, rare).predict_proba(IRIS)
        assert_allclose(by_row, plain, atol=1e-4)
        assert_allclose(by_class, plain, atol=1e-4)

    def test_class_of_weight_zero_raises_value_error(self):
        with pytest.raises(ValueError, match=r"class 1 .* weight of 0"):
            classifier().fit(IRIS, PARTIAL, sample_weight=PARTIAL != 1)
        with pytest.raises(ValueError, match=r"class 1 .* weight of -"):
            classifier(class_weight={1: -2}).fit(IRIS, PARTIAL)


class TestSplits:
    def test_default_split_is_every_labeled_row(self):
        default = Split(np.flatnonzero(LABELED[:100]), np.arange(100), np.empty(0, np.int64))
        expected = classifier(n_members=2).fit(IRIS[:100], PARTIAL[:100])  # a later row occurs twice
        model = classifier(n_members=2).fit(IRIS[:100], PARTIAL[:100], splits=[default] * 2)
        assert_array_equal(model.predict_proba(IRIS), expected.predict_proba(IRIS))

    def test_labels_outside_the_split_are_not_learned(self):
        chosen = split(SPECIES, 12, seed=0)
        wrong = (SPECIES + 1) % 3
        wrong[chosen.labeled] = SPECIES[chosen.labeled]
        models = [classifier().fit(IRIS, y, splits=[chosen]) for y in (SPECIES, wrong)]
        assert_array_equal(models[0].predict_proba(IRIS), models[1].predict_proba(IRIS))

    def test_each_member_learns_from_its_own_split(self):
        splits = [split(SPECIES, 12, validation=30, seed=seed) for seed in (0, 1)]
        settings = {"learning_rate": 0.005, "costs": 0.1}
        model = classifier(n_members=2, **settings).fit(IRIS, SPECIES, splits=splits)
        alone = [classifier(random_state=seed, **settings).fit(IRIS, SPECIES, splits=[splits[seed]]) for seed in (0, 1)]
        expected = np.mean([each.predict_proba(IRIS) for each in alone], axis=0)
        assert_allclose(model.predict_proba(IRIS), expected, atol=1e-4)  # batched products round differently

    def test_validation_error_is_in_last_line_of_history(self):
        chosen = split(SPECIES, 12, validation=30)
        model = classifier().fit(IRIS, SPECIES, splits=[chosen])
        held_out = chosen.validation
        expected = 100 * (1 - model.score(IRIS[held_out], SPECIES[held_out]))
        assert model.history_[-1]["validation_error"] == pytest.approx(expected)

    def test_invalid_splits_raise_value_error(self):
        chosen = split(SPECIES, 12)
        with pytest.raises(ValueError, match="2 seeds, 1 splits"):
            classifier(n_members=2).fit(IRIS, SPECIES, splits=[chosen])
        with pytest.raises(ValueError, match="no label in y"):
            classifier().fit(IRIS, PARTIAL, splits=[chosen])
        with pytest.raises(ValueError, match="sample_weight and splits"):
            classifier().fit(IRIS, SPECIES, np.ones(150), splits=[chosen])
