"""Inside scikit-learn: searches with unlabeled rows, scorers, meta-estimators with `as_supervised`, and tensors."""

import pickle
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    BaggingRegressor,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, f1_score, get_scorer
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    StratifiedKFold,
    TunedThresholdClassifierCV,
    cross_val_score,
    cross_validate,
    learning_curve,
)
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier, OutputCodeClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from sklearn.semi_supervised import SelfTrainingClassifier

from tikas import (
    LabeledKFold,
    LabeledShuffleSplit,
    LadderClassifier,
    LadderRegressor,
    as_supervised,
    labeled_scorer,
)

RAW, SPECIES = load_iris().data, load_iris().target
IRIS, NAMES = scale(RAW), load_iris().target_names
LABELED = np.arange(150) % 3 == 0
PARTIAL = np.where(LABELED, SPECIES, -1)
DIABETES, PROGRESSION = scale(load_diabetes().data), load_diabetes().target
SOME = np.where(np.arange(442) % 2, np.nan, PROGRESSION)
QUICK: dict[str, Any] = {
    "network": (8,),
    "costs": 0.1,
    "epochs": 10,
    "learning_rate": 0.05,
    "batch_size": 50,
    "random_state": 0,
}


def classifier(**settings: Any) -> LadderClassifier:
    return LadderClassifier(**{**QUICK, **settings})


def regressor(**settings: Any) -> LadderRegressor:
    return LadderRegressor(**{**QUICK, "epochs": 5, **settings})


def supervised(**settings: Any) -> Any:
    return classifier(**settings).as_supervised(IRIS[~LABELED])


class TestSearches:
    @pytest.mark.parametrize("scoring", ["f1_macro", "neg_log_loss", None])
    def test_plain_scoring_works_with_labeled_folds(self, scoring):
        scores = cross_val_score(classifier(), IRIS, PARTIAL, cv=LabeledKFold(2), scoring=scoring, error_score="raise")
        folds = LabeledKFold(2).split(IRIS, PARTIAL)
        expected = []
        for train, test in folds:
            model = classifier().fit(IRIS[train], PARTIAL[train])
            expected.append(get_scorer(scoring or "accuracy")(model, IRIS[test], SPECIES[test]))
        assert_array_equal(scores, expected)

    def test_grid_search_of_a_pipeline(self):
        pipeline = make_pipeline(StandardScaler(), classifier())
        grid = {"ladderclassifier__noise": [0.1, 0.3]}
        search = GridSearchCV(pipeline, grid, cv=LabeledKFold(2), scoring="accuracy").fit(RAW, PARTIAL)
        assert search.best_score_ > 0.6
        assert search.best_estimator_[-1].classes_.tolist() == [0, 1, 2]

    @pytest.mark.parametrize("missing", [np.nan, None])
    def test_unlabeled_rows_may_be_nan_or_none(self, missing):
        y = np.where(LABELED, NAMES[SPECIES] if missing is None else SPECIES, missing)
        search = GridSearchCV(classifier(), {"noise": [0.1]}, cv=LabeledKFold(2), error_score="raise").fit(IRIS, y)
        assert len(search.classes_) == 3

    def test_learning_curve_needs_no_shuffling(self):
        sizes, _, scores = learning_curve(
            classifier(epochs=5, batch_size=20),
            IRIS,
            PARTIAL,
            cv=LabeledKFold(2),
            train_sizes=[0.2, 1.0],
            error_score="raise",
        )
        assert sizes.tolist() == [25, 125]
        assert np.isfinite(scores).all()

    def test_regression(self):
        scores = cross_val_score(
            regressor(), DIABETES, SOME, cv=LabeledKFold(2), scoring="neg_mean_absolute_error", error_score="raise"
        )
        assert np.isfinite(scores).all()
        folds = LabeledShuffleSplit(1, test_size=50, random_state=0)
        search = GridSearchCV(regressor(), {"noise": [0.1]}, cv=folds, error_score="raise").fit(DIABETES, SOME)
        assert search.cv_results_["split0_test_score"][0] > 0.1

    def test_sample_weight_is_sliced_and_routed(self):
        weights = np.where(PARTIAL == 1, 5.0, 1.0)
        plain = GridSearchCV(classifier(), {"noise": [0.1]}, cv=LabeledKFold(2)).fit(
            IRIS, PARTIAL, sample_weight=weights
        )
        with sklearn.config_context(enable_metadata_routing=True):
            requesting = classifier().set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
            routed = GridSearchCV(requesting, {"noise": [0.1]}, cv=LabeledKFold(2)).fit(
                IRIS, PARTIAL, sample_weight=weights
            )
        assert_array_equal(routed.predict_proba(IRIS), plain.predict_proba(IRIS))
        assert not np.array_equal(routed.predict_proba(IRIS), classifier().fit(IRIS, PARTIAL).predict_proba(IRIS))


class TestLabeledScorer:
    def test_unlabeled_rows_of_test_parts_are_left_out(self):
        result = cross_validate(
            classifier(), IRIS, PARTIAL, cv=2, scoring=labeled_scorer(["accuracy", "f1_macro"]), return_estimator=True
        )
        for number, (_, test) in enumerate(StratifiedKFold(2).split(IRIS, PARTIAL)):
            known = test[LABELED[test]]
            assert len(known) < len(test)
            predicted = result["estimator"][number].predict(IRIS[known])
            assert result["test_accuracy"][number] == accuracy_score(SPECIES[known], predicted)
            assert result["test_f1_macro"][number] == f1_score(SPECIES[known], predicted, average="macro")

    @pytest.mark.parametrize("name", ["f1_weighted", "neg_log_loss", "roc_auc_ovo", "top_k_accuracy"])
    def test_names_of_metrics(self, name):
        model = classifier().fit(IRIS, PARTIAL)
        found = labeled_scorer(name)(model, IRIS, PARTIAL)
        assert found == get_scorer(name)(model, IRIS[LABELED], SPECIES[LABELED])

    def test_labels_of_any_kind_and_frames(self):
        y = np.where(LABELED, NAMES[SPECIES], None)
        frame = pd.DataFrame(IRIS, columns=list("abcd"))
        model = classifier().fit(frame, y)
        expected = f1_score(NAMES[SPECIES][LABELED], model.predict(frame[LABELED]), average="macro")
        assert labeled_scorer("f1_macro")(model, frame, y) == expected
        assert labeled_scorer()(model, frame, y) == model.score(frame, y)

    def test_sample_weight_is_that_of_the_labeled_rows(self):
        model, weights = classifier(epochs=3).fit(IRIS, PARTIAL), np.linspace(0, 1, 150)
        found = labeled_scorer("accuracy")(model, IRIS, PARTIAL, sample_weight=weights)
        assert found == model.score(IRIS, PARTIAL, sample_weight=weights)
        with sklearn.config_context(enable_metadata_routing=True):
            requesting = labeled_scorer(get_scorer("accuracy").set_score_request(sample_weight=True))
        assert requesting.get_metadata_routing().score.requests == {"sample_weight": True}

    def test_minus_one_is_a_value_of_a_regression(self):
        model, y = regressor().fit(DIABETES, SOME), np.where(np.arange(442) < 20, -1.0, SOME)
        assert labeled_scorer("r2")(model, DIABETES, y) == pytest.approx(model.score(DIABETES, y))

    def test_it_can_be_pickled(self):
        model = classifier(epochs=3).fit(IRIS, PARTIAL)
        scorer = labeled_scorer("accuracy")
        assert pickle.loads(pickle.dumps(scorer))(model, IRIS, PARTIAL) == scorer(model, IRIS, PARTIAL)


META_CLASSIFIERS: dict[str, Any] = {
    "CalibratedClassifierCV": lambda model: CalibratedClassifierCV(model, cv=2),
    "BaggingClassifier": lambda model: BaggingClassifier(model, n_estimators=2, random_state=0),
    "VotingClassifier": lambda model: VotingClassifier([("ladder", model), ("linear", LogisticRegression())]),
    "StackingClassifier": lambda model: StackingClassifier([("ladder", model)], cv=2),
    "OneVsRestClassifier": OneVsRestClassifier,
    "OneVsOneClassifier": OneVsOneClassifier,
    "OutputCodeClassifier": lambda model: OutputCodeClassifier(model, code_size=2, random_state=0),
    "AdaBoostClassifier": lambda model: AdaBoostClassifier(model, n_estimators=2),
    "GridSearchCV": lambda model: GridSearchCV(model, {"estimator__noise": [0.1, 0.3]}, cv=2),
    "Pipeline": lambda model: make_pipeline(StandardScaler(), model),
}
TAKE_MINUS_ONE = [
    "CalibratedClassifierCV",
    "BaggingClassifier",
    "VotingClassifier",
    "StackingClassifier",
    "OneVsRestClassifier",
    "OneVsOneClassifier",
    "OutputCodeClassifier",
]


class TestSupervised:
    def test_it_learns_what_the_estimator_learns_from_both(self):
        model = supervised().fit(IRIS[LABELED], SPECIES[LABELED])
        both = classifier().fit(
            np.concatenate([IRIS[LABELED], IRIS[~LABELED]]), np.concatenate([SPECIES[LABELED], np.full(100, -1)])
        )
        assert_array_equal(model.predict_proba(IRIS), both.predict_proba(IRIS))
        assert_array_equal(model.decision_function(IRIS), both.decision_function(IRIS))
        assert_array_equal(model.predict_log_proba(IRIS), both.predict_log_proba(IRIS))
        assert model.score(IRIS, SPECIES) == both.score(IRIS, SPECIES)
        assert (model.n_features_in_, model.classes_.tolist()) == (4, [0, 1, 2])

    @pytest.mark.parametrize("name", META_CLASSIFIERS)
    def test_meta_estimators_work_without_minus_one(self, name):
        model = META_CLASSIFIERS[name](supervised()).fit(IRIS[LABELED], SPECIES[LABELED])
        assert model.classes_.tolist() == [0, 1, 2]
        assert model.score(IRIS, SPECIES) > 0.8

    @pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # by scikit-learn, before its error
    @pytest.mark.parametrize("name", TAKE_MINUS_ONE)
    def test_without_it_meta_estimators_take_minus_one_for_a_class_and_refuse_nan(self, name):
        model = META_CLASSIFIERS[name](classifier(epochs=1, batch_size=20))
        if name == "OutputCodeClassifier":
            with pytest.raises(ValueError, match="one class only"):
                model.fit(IRIS, PARTIAL)
        else:
            assert -1 in model.fit(IRIS, PARTIAL).classes_
        with pytest.raises(ValueError, match="NaN"):
            model.fit(IRIS, np.where(LABELED, SPECIES, np.nan))

    @pytest.mark.parametrize("kind", [BaggingRegressor, StackingRegressor, TransformedTargetRegressor])
    def test_without_it_meta_regressors_refuse_nan(self, kind):
        model = regressor(epochs=1)
        meta = kind([("ladder", model)]) if kind is StackingRegressor else kind(model)
        with pytest.raises(ValueError, match="NaN"):
            meta.fit(DIABETES, SOME)
        voting = VotingRegressor([("ladder", model)]).fit(DIABETES, SOME)
        assert_array_equal(voting.predict(DIABETES), model.fit(DIABETES, SOME).predict(DIABETES))

    def test_self_training_adds_labels_to_rows_that_are_held_twice(self):
        model = SelfTrainingClassifier(supervised()).fit(IRIS, PARTIAL)
        assert model.score(IRIS, SPECIES) > 0.8

    @pytest.mark.parametrize("kind", [FixedThresholdClassifier, TunedThresholdClassifierCV])
    def test_thresholds_of_two_classes(self, kind):
        y = SPECIES[LABELED] > 1
        model = kind(supervised(), **({"threshold": 0.2} if kind is FixedThresholdClassifier else {"cv": 2}))
        assert model.fit(IRIS[LABELED], y).score(IRIS, SPECIES > 1) > 0.7

    def test_several_outputs(self):
        y = np.column_stack([SPECIES == 0, SPECIES == 1])[LABELED]
        model = MultiOutputClassifier(supervised()).fit(IRIS[LABELED], y)
        assert (model.predict(IRIS)[:, 0] == (SPECIES == 0)).mean() > 0.9

    @pytest.mark.parametrize(
        "meta",
        [
            lambda model: BaggingRegressor(model, n_estimators=2, random_state=0),
            lambda model: VotingRegressor([("ladder", model), ("linear", Ridge())]),
            lambda model: StackingRegressor([("ladder", model)], cv=2),
            lambda model: TransformedTargetRegressor(model, func=np.log, inverse_func=np.exp),
            lambda model: GridSearchCV(model, {"estimator__noise": [0.1]}, cv=2),
        ],
        ids=["Bagging", "Voting", "Stacking", "TransformedTarget", "GridSearchCV"],
    )
    def test_regressors(self, meta):
        labeled = np.arange(442) % 2 == 0
        model = meta(regressor().as_supervised(DIABETES[~labeled])).fit(DIABETES[labeled], PROGRESSION[labeled])
        assert model.score(DIABETES, PROGRESSION) > 0.2

    def test_a_wrapped_pipeline_prepares_unlabeled_rows_too(self):
        pipeline = make_pipeline(StandardScaler(), classifier())
        model = as_supervised(pipeline, RAW[~LABELED]).fit(RAW[LABELED], SPECIES[LABELED])
        order = np.concatenate([np.flatnonzero(LABELED), np.flatnonzero(~LABELED)])
        expected = pipeline.fit(RAW[order], PARTIAL[order])
        assert_allclose(model.predict_proba(RAW), expected.predict_proba(RAW), rtol=1e-6)
        weighted = clone(model).fit(RAW[LABELED], SPECIES[LABELED], np.where(SPECIES[LABELED] == 1, 9.0, 1.0))
        assert weighted.predict_proba(RAW)[:, 1].mean() > model.predict_proba(RAW)[:, 1].mean()
        nested = GridSearchCV(model, {"estimator__ladderclassifier__noise": [0.1]}, cv=2)
        assert nested.fit(RAW[LABELED], SPECIES[LABELED]).best_score_ > 0.7

    def test_parameters_and_clones(self):
        model = supervised()
        assert is_classifier(model)
        assert is_regressor(regressor().as_supervised(DIABETES))
        assert model.get_params()["estimator__noise"] == classifier().noise
        copied = clone(model.set_params(estimator__noise=0.7))
        assert copied.estimator.noise == 0.7
        assert copied.estimator is not model.estimator
        assert copied.X_unlabeled is model.X_unlabeled
        fitted = pickle.loads(pickle.dumps(copied.fit(IRIS[LABELED], SPECIES[LABELED])))
        assert_array_equal(fitted.predict(IRIS), copied.predict(IRIS))

    @pytest.mark.parametrize(
        "y",
        [NAMES[SPECIES], SPECIES > 0, SPECIES.astype(float), np.where(SPECIES > 0, 1, -1), SPECIES.astype(np.uint8)],
        ids=["text", "booleans", "floats", "signs", "unsigned"],
    )
    def test_labels_of_any_kind(self, y):
        model = supervised().fit(IRIS[LABELED], y[LABELED])
        assert model.classes_.tolist() == np.unique(y).tolist()
        predicted = model.predict(IRIS)
        assert (predicted == y).mean() == model.score(IRIS, y) > 0.8

    def test_frames_and_arrays_may_be_mixed(self):
        names = ["a", "b", "c", "d"]
        frame = pd.DataFrame(IRIS, columns=names)
        above, below, y = frame[LABELED], frame[~LABELED], SPECIES[LABELED]
        expected = supervised().fit(IRIS[LABELED], y).predict_proba(IRIS)
        for X, unlabeled in (
            (above, below[["d", "c", "b", "a"]]),
            (above, below.to_numpy()),
            (above.to_numpy(), below),
            (above, torch.from_numpy(IRIS[~LABELED])),
        ):
            model = classifier().as_supervised(unlabeled).fit(X, y)
            if X is above:
                assert model.feature_names_in_.tolist() == names
            assert_array_equal(model.predict_proba(frame if X is above else IRIS), expected)

    def test_polars_frames_and_sparse_matrices_are_stacked(self):
        class Noted(LogisticRegression):
            def fit(self, X, y, sample_weight=None):
                self.seen_ = X
                return super().fit(np.asarray(X.todense() if hasattr(X, "todense") else X), np.abs(y), sample_weight)

        frame = pl.DataFrame(IRIS, schema=["a", "b", "c", "d"])
        rows = as_supervised(Noted(), frame[:50]).fit(frame[50:], SPECIES[50:]).estimator_.seen_
        assert isinstance(rows, pl.DataFrame)
        assert rows.shape == (150, 4)
        sparse = csr_array(np.where(IRIS > 1, IRIS, 0))
        rows = as_supervised(Noted(), sparse[:50]).fit(sparse[50:], SPECIES[50:]).estimator_.seen_
        assert_array_equal(rows.todense(), np.where(IRIS > 1, IRIS, 0)[np.r_[50:150, 0:50]])

    def test_weights_are_those_of_the_labeled_rows(self):
        weights = np.where(SPECIES[LABELED] == 1, 20.0, 1.0)
        plain, weighted = (
            supervised().fit(IRIS[LABELED], SPECIES[LABELED], sample_weight=each).predict_proba(IRIS)
            for each in (None, weights)
        )
        assert weighted[:, 1].mean() > plain[:, 1].mean()


class TestScores:
    @pytest.mark.parametrize("members", [1, 3])
    def test_scores_are_log_probabilities(self, members):
        model = classifier(n_members=members, epochs=3).fit(IRIS, PARTIAL)
        logs = model.predict_log_proba(IRIS)
        assert_allclose(np.exp(logs), model.predict_proba(IRIS), rtol=1e-12)
        assert_array_equal(model.decision_function(IRIS), logs)

    def test_score_of_two_classes_is_the_log_odds_of_the_second(self):
        model = classifier(epochs=3).fit(IRIS, np.where(LABELED, SPECIES > 0, None))
        scores, probabilities = model.decision_function(IRIS), model.predict_proba(IRIS)
        assert_allclose(scores, np.log(probabilities[:, 1] / probabilities[:, 0]), rtol=1e-10)
        assert_array_equal(scores > 0, model.predict(IRIS))

    def test_log_probabilities_are_finite_where_probabilities_are_zero(self):
        model = classifier().fit(IRIS, PARTIAL)
        with torch.no_grad():
            model.ladder_.rungs[-1].gamma.fill_(1e4)
        assert model.predict_proba(IRIS).min() == 0
        assert np.isfinite(model.predict_log_proba(IRIS)).all()


class TestTensors:
    @pytest.fixture(autouse=True)
    def array_api(self, monkeypatch):
        monkeypatch.setenv("SCIPY_ARRAY_API", "1")
        try:
            with sklearn.config_context(array_api_dispatch=True):
                pass
        except ImportError as error:  # older versions of scikit-learn need another package, and a newer SciPy
            pytest.skip(str(error))

    def test_tensors_give_the_model_of_arrays(self):
        expected = classifier().fit(IRIS, PARTIAL)
        X, y = torch.from_numpy(IRIS).requires_grad_(), torch.from_numpy(PARTIAL)
        weights = torch.ones(150)
        model = classifier().fit(X, y, weights)
        assert isinstance(model.predict(X), np.ndarray)
        with sklearn.config_context(array_api_dispatch=True):
            model = classifier().fit(X, y)
            found = {name: getattr(model, name)(X) for name in ("predict", "predict_proba", "transform")}
            assert isinstance(model.transduction_, torch.Tensor)
            assert model.score(X, y, sample_weight=weights) == expected.score(IRIS, PARTIAL)
        for name, tensor in found.items():
            assert isinstance(tensor, torch.Tensor)
            assert tensor.device == X.device
            assert_array_equal(tensor.numpy(), getattr(expected, name)(IRIS))

    def test_tensors_of_a_regression_and_with_unlabeled_rows_apart(self):
        X, y = torch.from_numpy(DIABETES), torch.from_numpy(SOME)
        with sklearn.config_context(array_api_dispatch=True):
            assert isinstance(regressor().fit(X, y).predict(X), torch.Tensor)
            known = ~y.isnan()
            model = regressor().as_supervised(X[~known]).fit(X[known], y[known])
            assert isinstance(model.predict(X), torch.Tensor)

    def test_text_stays_in_numpy(self):
        y = np.where(LABELED, NAMES[SPECIES], None)
        with sklearn.config_context(array_api_dispatch=True):
            assert set(classifier().fit(torch.from_numpy(IRIS), y).predict(torch.from_numpy(IRIS))) <= set(NAMES)
