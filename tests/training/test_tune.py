"""The search: folds, the space around a recipe, and a study that is continued, shared and packed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tikas.data.datasets import Dataset, load_dataset
from tikas.training.recipe import SMALL, Recipe
from tikas.training.tune import Search, SearchSpace, fold_splits, measured_trials, open_storage, open_study

optuna = pytest.importorskip("optuna")

RECIPE = replace(SMALL, network=(8,), costs=(10.0, 1.0, 0.1), epochs=2, noise=0.2)
SPACE = SearchSpace(RECIPE, ("noise", "costs", "learning_rate"))


@pytest.fixture(scope="module")
def digits() -> Dataset:
    """Digits with 40 labels."""
    train = load_dataset("digits")[0]
    targets = np.where(np.arange(len(train)) < 40, train.targets, -1)
    return Dataset(train.rows[:300].reshape(300, -1), targets[:300], classes=train.classes)


def search(folder: Path, dataset: Dataset, space: SearchSpace = SPACE, name: str = "study", **settings) -> Search:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = open_storage(str(folder / "study.journal"))
    splits = fold_splits(dataset.targets, 2)
    study = open_study(storage, name, space, dataset, splits, seed=0)
    return Search(storage, study, space, dataset, splits, folder / "unfinished", **{"trials": 3, **settings})


def finish(searching: Search) -> list[list[float]]:
    """Run all trials, and return the errors of each."""
    while recipes := searching.next_trials():
        assert searching.run(recipes)
    searching.close()
    return [list(trial.errors) for trial in sorted(measured_trials(searching.study), key=lambda each: each.number)]


@pytest.mark.parametrize("unlabeled", [0, 20])
def test_each_label_is_held_out_once_and_all_folds_have_equally_many_rows(unlabeled: int) -> None:
    targets = np.array([0] * 8 + [1] * 9 + [-1] * unlabeled)
    splits = fold_splits(targets, 3, seed=1)
    assert sorted(np.concatenate([split.validation for split in splits])) == list(range(17))
    assert {len(split.unlabeled) for split in splits} == {len(targets) - 6}
    assert {split.fully_labeled for split in splits} == {unlabeled == 0}
    for split in splits:
        assert not set(split.validation) & set(split.unlabeled)
        assert set(split.labeled) <= set(split.unlabeled)
        assert set(targets[split.labeled]) == set(targets[split.validation]) == {0, 1}
    assert [len(split.labeled) for split in splits] == [17 - (len(s.validation) if unlabeled else 6) for s in splits]


def test_folds_over_values_hold_out_labeled_rows_alone() -> None:
    targets = np.array([0.5, np.nan, 1.5, 2.5, np.nan, -1.0, 3.0])
    splits = fold_splits(targets, 2)
    assert sorted(np.concatenate([split.validation for split in splits])) == [0, 2, 3, 5, 6]


def test_the_number_of_folds_follows_from_the_rarest_class() -> None:
    assert len(fold_splits(np.array([0] * 9 + [1] * 3))) == 3
    assert len(fold_splits(np.array([0] * 9 + [1] * 8))) == 5
    with pytest.raises(ValueError, match=r"2 folds .* there are 1"):
        fold_splits(np.array([0] * 9 + [1]))
    with pytest.raises(ValueError, match=r"6 folds .* there are 3"):
        fold_splits(np.array([0] * 9 + [1] * 3), 6)


@pytest.mark.parametrize(
    ("recipe", "searched", "names"),
    [
        (
            Recipe(network=(300, 150)),
            ("network", "costs"),
            ["width", "layers", "cost_input", "cost_first", "cost_above"],
        ),
        (Recipe(network=(), costs=(100, 1)), ("costs",), ["cost_input", "cost_first"]),
        (Recipe(network="conv_small", costs=1.0), ("costs", "noise"), ["noise", "cost_output"]),
    ],
)
def test_the_default_parameters_are_those_of_the_recipe(recipe: Recipe, searched, names) -> None:
    space = SearchSpace(recipe, searched)
    assert list(space.defaults()) == names
    again = space.recipe(space.defaults())
    assert again.cost_per_level() == recipe.cost_per_level()
    assert again.network == ((256, 128) if "network" in searched else recipe.network)


def test_an_interrupted_study_continues_as_it_would_have(tmp_path: Path, digits: Dataset) -> None:
    (whole := tmp_path / "whole").mkdir()
    expected = finish(search(whole, digits))
    assert [len(errors) for errors in expected] == [2, 2, 2]

    def stop(progress) -> None:
        if progress.epoch == 1:
            raise KeyboardInterrupt

    first = search(tmp_path, digits, checkpoint_every=0)
    assert first.run(first.next_trials())
    assert not first.run(first.next_trials(), [stop])
    assert [trial.state.name for trial in first.study.trials] == ["COMPLETE", "RUNNING"]
    assert len(list((tmp_path / "unfinished").glob("trial-1-fold-*.safetensors"))) == 2
    assert finish(search(tmp_path, digits)) == expected
    assert not (tmp_path / "unfinished").exists()
    assert finish(search(tmp_path, digits)) == expected  # nothing is left to do
    assert len(finish(search(tmp_path, digits, trials=4))) == 4


def test_a_trial_that_another_process_runs_is_left_to_it(tmp_path: Path, digits: Dataset) -> None:
    one, other = search(tmp_path, digits), search(tmp_path, digits)
    assert (list(one.next_trials()), list(other.next_trials())) == ([0], [1])


def test_a_trial_whose_process_ended_while_it_asked_is_replaced(tmp_path: Path, digits: Dataset) -> None:
    searching = search(tmp_path, digits)
    searching.study.ask().set_user_attr("owner", searching.owner)
    finish(searching)
    assert [trial.state.name for trial in searching.study.trials] == ["FAIL", "COMPLETE", "COMPLETE", "COMPLETE"]


def test_trials_that_train_together_have_one_network_and_the_errors_they_have_alone(
    tmp_path: Path, digits: Dataset
) -> None:
    space = replace(SPACE, searched=("network", "noise", "learning_rate"))
    searching = search(tmp_path, digits, space, trials=4, together=2)
    batches = []
    while recipes := searching.next_trials():
        batches.append(recipes)
        assert searching.run(recipes)
    assert [len(batch) for batch in batches] == [2, 2]
    for batch in batches:
        one, other = batch.values()
        assert one.network == other.network
        assert one.noise != other.noise
    alone = search(tmp_path, digits, space, "alone", trials=4)
    errors = {trial.number: trial.errors for trial in measured_trials(searching.study)}
    for number, recipe in batches[1].items():
        result = alone._train({number: recipe}, None, [])
        np.testing.assert_allclose(list(alone._errors(result).values()), errors[number], atol=5.1)  # of 20 rows, one


def test_a_study_of_other_rows_labels_or_settings_is_an_error(tmp_path: Path, digits: Dataset) -> None:
    search(tmp_path, digits)
    with pytest.raises(ValueError, match=r"'study' .* data"):
        search(tmp_path, replace(digits, rows=digits.rows * 0.5))
    with pytest.raises(ValueError, match="recipe"):
        search(tmp_path, digits, replace(SPACE, base=replace(RECIPE, epochs=3)))


def test_a_trial_that_diverges_is_pruned_with_its_reason(tmp_path: Path, digits: Dataset) -> None:
    space = replace(SPACE, base=replace(RECIPE, learning_rate=1e30), searched=("noise",))
    searching = search(tmp_path, digits, space, trials=1)
    assert finish(searching) == [[]]
    (trial,) = measured_trials(searching.study)
    assert "finite" in trial.failure
    assert searching.study.trials[0].state.name == "PRUNED"


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("nosuch://user:secret@host/name", ValueError),
        ("sqlite:////no/such/folder/study.db", ValueError),
        ("no/such/folder/study.journal", ValueError),
        ("postgresql+nosuchdriver://user:secret@host/name", ValueError),
    ],
)
def test_a_storage_that_cannot_be_opened_is_named_without_its_password(url: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="storage") as caught:
        open_storage(url)
    assert "secret" not in str(caught.value)
