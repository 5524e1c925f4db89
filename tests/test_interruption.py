"""Ctrl-C while members train one after another: those that have learnt something are kept, the others are not."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_iris
from sklearn.preprocessing import scale
from torch import nn

import tikas
from tikas import LadderClassifier, LadderRegressor
from tikas.cli import main
from tikas.experiments import run
from tikas.training import checkpoint, groups, loop
from tikas.training.fleet import Fleet

IRIS, SPECIES = scale(load_iris().data), load_iris().target
SEEN = np.where(np.arange(150) % 3 == 0, SPECIES, -1)
AN_EPOCH, A_MEMBER = 3, 9
"""Updates."""


def ensemble(kind=LadderClassifier, **settings):
    """Three members of three epochs of three updates."""
    usual = {"network": (8,), "epochs": 3, "learning_rate": 0.05, "batch_size": 50, "random_state": 4, "n_members": 3}
    return kind(**{**usual, **settings})


@pytest.fixture
def one_by_one(monkeypatch):
    monkeypatch.setattr(groups, "free_bytes", lambda _: 0)


@pytest.fixture
def press_ctrl_c(monkeypatch):
    """Have Ctrl-C pressed once, after so many updates from now."""
    plain, left = Fleet.update, []

    def update(*arguments):
        if left:
            left[0] -= 1
            if left[0] < 0:
                left.clear()
                raise KeyboardInterrupt
        return plain(*arguments)

    monkeypatch.setattr(Fleet, "update", update)
    return left.append


def pressed_once(function: Callable[..., object]) -> Callable[..., object]:
    """The function, but that Ctrl-C comes when it is first called."""
    presses = [KeyboardInterrupt]

    def pressed(*arguments: object) -> object:
        while presses:
            raise presses.pop()
        return function(*arguments)

    return pressed


def press_at_once(*_):
    raise KeyboardInterrupt


def fit_until_ctrl_c(model, message, y=SEEN):
    with pytest.warns(UserWarning, match=message) as caught:
        model.fit(IRIS, y)
    assert [warning.filename for warning in caught] == [__file__]
    return model


@pytest.mark.usefixtures("one_by_one")
class TestAnEnsemble:
    def test_keeps_the_members_that_finished_an_epoch(self, press_ctrl_c):
        press_ctrl_c(A_MEMBER + AN_EPOCH + 1)
        model = fit_until_ctrl_c(ensemble(), r"after 1 to 3 of 3 epochs; 2 of 3 members are kept as they were then")
        assert model.seeds_ == [4, 5]
        assert [(line["member"], line["epoch"]) for line in model.history_] == [(0, 1), (0, 2), (0, 3), (1, 1)]
        assert model.n_iter_ == 3
        first = ensemble(n_members=1).fit(IRIS, SEEN).predict_proba(IRIS)
        second = LadderClassifier.from_fitted(model.as_fitted())
        second.ladders_ = second.ladders_[1:]
        assert_allclose(model.predict_proba(IRIS), (first + second.predict_proba(IRIS)) / 2, rtol=1e-12)
        assert_array_equal(model.transduction_[SEEN < 0], model.predict(IRIS)[SEEN < 0])

    def test_is_saved_pickled_and_brought_back(self, press_ctrl_c, tmp_path):
        press_ctrl_c(A_MEMBER + AN_EPOCH)
        model = fit_until_ctrl_c(ensemble(), r"2 of 3 members are kept")
        again = tikas.load(model.save(tmp_path / "model"))
        assert (again.n_members, again.seeds_, again.history_, again.n_iter_) == (2, [4, 5], model.history_, 3)
        for same in (again, pickle.loads(pickle.dumps(model))):
            assert_array_equal(same.predict_proba(IRIS), model.predict_proba(IRIS))

    def test_may_be_left_with_one_member(self, press_ctrl_c):
        press_ctrl_c(A_MEMBER + 1)
        model = fit_until_ctrl_c(ensemble(), r"after 3 of 3 epochs; 1 of 3 members is kept as it was then")
        alone = ensemble(n_members=1).fit(IRIS, SEEN)
        assert_array_equal(model.predict_proba(IRIS), alone.predict_proba(IRIS))

    def test_of_modules_or_values_does_the_same(self, press_ctrl_c):
        press_ctrl_c(2 * A_MEMBER)
        model = fit_until_ctrl_c(ensemble(network=nn.Linear(4, 3)), r"2 of 3 members are kept")
        assert np.isfinite(model.predict_proba(IRIS)).all()
        press_ctrl_c(A_MEMBER)
        values = fit_until_ctrl_c(ensemble(LadderRegressor), r"1 of 3 members is kept", IRIS[:, 0])
        assert_array_equal(
            values.predict(IRIS), ensemble(LadderRegressor, n_members=1).fit(IRIS, IRIS[:, 0]).predict(IRIS)
        )

    def test_goes_on_with_the_members_that_it_has_left(self, press_ctrl_c):
        press_ctrl_c(A_MEMBER + AN_EPOCH)
        model = fit_until_ctrl_c(ensemble(), r"Fit again for a whole run, or with n_members=2 and warm_start=True")
        with pytest.raises(ValueError, match=r"with 2 members; now there are .* and 3\. Keep all three as they were"):
            model.set_params(warm_start=True).fit(IRIS, SEEN)
        model.set_params(n_members=2).fit(IRIS, SEEN)
        epochs = [[line["epoch"] for line in model.history_ if line["member"] == member] for member in (0, 1)]
        assert epochs == [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4]]
        assert model.n_iter_ == 6

    def test_that_goes_on_keeps_every_member_since_all_have_learnt_before(self, press_ctrl_c):
        model = ensemble(warm_start=True).fit(IRIS, SEEN)
        last = model.ladders_[2].state_dict()
        press_ctrl_c(A_MEMBER + AN_EPOCH)
        fit_until_ctrl_c(model, r"after 0 to 3 of 3 epochs; the model is kept as it was then\. .* with warm_start=True")
        assert len(model.ladders_) == 3
        assert all((tensor == last[name]).all() for name, tensor in model.ladders_[2].named_parameters())
        assert model.n_iter_ == 6


@pytest.mark.parametrize("warm_start", [False, True])
def test_where_no_epoch_was_finished_the_old_model_stays(warm_start, press_ctrl_c):
    model = ensemble(warm_start=warm_start)
    press_ctrl_c(AN_EPOCH - 1)
    with pytest.raises(KeyboardInterrupt, match="before an epoch was finished"):
        model.fit(IRIS, SEEN)
    assert vars(model) == model.get_params()
    before = model.fit(IRIS, SEEN).predict_proba(IRIS)
    press_ctrl_c(0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(IRIS[:100], SEEN[:100] % 3)
    assert_array_equal(model.predict_proba(IRIS), before)
    assert model.n_iter_ == 3


class TestTheCommandLine:
    FLAGS = ("train", "--network", "16", "--epochs", "2", "--quiet", "--output", "m.safetensors")
    UPDATES = 2 * 12

    @pytest.fixture(autouse=True)
    def _in_a_folder_of_its_own(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)

    @pytest.mark.usefixtures("one_by_one")
    def test_shows_and_saves_the_members_that_finished_an_epoch(self, press_ctrl_c, capsys):
        press_ctrl_c(2 * self.UPDATES + 5)
        assert main([*self.FLAGS, "--members", "4"]) == 130
        captured = capsys.readouterr()
        assert captured.err == (
            "tikas: interrupted; the figures are of what was trained until then, by 2 of 4 members\n"
        )
        assert "model saved to m-interrupted.safetensors" in captured.out
        model = tikas.load("m-interrupted.safetensors")
        assert model.seeds_ == [0, 1]
        shown = float(captured.out.split("±")[0].split()[-1])
        x, y = tikas.data.sources.load("digits").test_x, tikas.data.sources.load("digits").test_y
        errors = []
        for ladder in model.ladders_:
            model.ladders_ = [ladder]
            errors.append(100 * np.mean(model.predict(x).astype(int) != y))
        assert shown == pytest.approx(np.mean(errors), abs=0.01)

    @pytest.mark.usefixtures("one_by_one")
    @pytest.mark.parametrize(
        ("updates", "members", "made"),
        [(UPDATES - 5, 1, "1 of 2"), (2 * UPDATES - 5, 2, "1 to 2 of 2"), (UPDATES + 5, 2, "2"), (1000, 1, "2")],
        ids=["one epoch", "one member more", "one member", "all"],
    )
    def test_tells_how_many_epochs_were_made(self, updates, members, made, press_ctrl_c, capsys):
        press_ctrl_c(updates)
        main([*self.FLAGS, "--members", str(members), "--no-baseline"])
        assert capsys.readouterr().out.splitlines()[0].strip() == f"digits, 50 labels, 16, {made} epochs"

    @pytest.mark.usefixtures("one_by_one")
    def test_tells_that_the_baseline_made_fewer_epochs(self, press_ctrl_c, capsys):
        press_ctrl_c(2 * self.UPDATES - 5)
        assert main(list(self.FLAGS)) == 130
        assert "digits, 50 labels, 16, 1 to 2 of 2 epochs" in capsys.readouterr().out

    @pytest.mark.usefixtures("one_by_one")
    def test_shows_the_error_of_held_out_rows_that_were_not_to_be_measured_yet(self, press_ctrl_c, capsys):
        """After seven epochs, and after the last one: the first member had that, and the second one of two."""
        an_epoch = 10
        press_ctrl_c(2 * an_epoch + an_epoch + 5)
        assert main([*self.FLAGS, "--members", "3", "--validation", "200"]) == 130
        model = tikas.load("m-interrupted.safetensors")
        assert [(line["member"], line["epoch"]) for line in model.history_] == [(0, 1), (0, 2), (1, 1)]
        errors = [line["validation_error"] for line in model.history_ if "validation_error" in line]
        assert len(errors) == 2
        assert f"{np.mean(errors):.2f} ± {np.std(errors, ddof=1):.2f} %" in capsys.readouterr().out

    def test_says_so_where_no_epoch_was_finished(self, press_ctrl_c, capsys):
        press_ctrl_c(5)
        assert main(list(self.FLAGS)) == 130
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err == ("tikas: interrupted before an epoch was finished, so that there is no model to keep\n")
        assert list(Path().iterdir()) == []

    def test_ends_after_the_ladder_where_ctrl_c_came_once_its_epochs_were_over(self, monkeypatch, capsys):
        """While it was calibrated: there is little left to do for the ladder, but the baseline is not wanted."""
        monkeypatch.setattr(loop, "_finish", pressed_once(loop._finish))
        assert main(list(self.FLAGS)) == 130
        captured = capsys.readouterr()
        assert captured.out.count(" %") == 1
        assert "model saved to m.safetensors" in captured.out
        assert captured.err == "tikas: interrupted; the figures are of what was trained until then\n"

    def test_keeps_the_ladder_where_ctrl_c_came_while_it_was_measured(self, monkeypatch, capsys):
        monkeypatch.setattr(run, "error_of", press_at_once)
        assert main([*self.FLAGS, "--members", "2"]) == 130
        captured = capsys.readouterr()
        assert captured.out == "model saved to m.safetensors\n"
        assert captured.err == (
            "tikas: interrupted before the ladder was measured, so that it has no figures; it is saved as it was "
            "trained\n"
        )
        model = tikas.load("m.safetensors")
        assert (model.seeds_, model.n_iter_) == ([0, 1], 2)

    def test_tells_a_ladder_that_was_cut_short_and_not_measured_either_by_its_name(
        self, press_ctrl_c, monkeypatch, capsys
    ):
        monkeypatch.setattr(run, "error_of", press_at_once)
        press_ctrl_c(self.UPDATES - 5)
        assert main(list(self.FLAGS)) == 130
        assert capsys.readouterr().out == "model saved to m-interrupted.safetensors\n"
        assert tikas.load("m-interrupted.safetensors").n_iter_ == 1

    def test_keeps_the_ladder_where_ctrl_c_came_while_it_was_saved(self, monkeypatch, capsys):
        monkeypatch.setattr(checkpoint, "replace_file", pressed_once(checkpoint.replace_file))
        assert main(list(self.FLAGS)) == 130
        assert capsys.readouterr().out == "model saved to m.safetensors\n"
        assert tikas.load("m.safetensors").n_iter_ == 2

    def test_shows_the_ladder_where_the_baseline_was_not_measured(self, monkeypatch, capsys):
        measure, measured = run.error_of, []

        def pressed(*arguments: object) -> object:
            measured.append(arguments)
            return measure(*arguments) if len(measured) <= 2 else press_at_once()

        monkeypatch.setattr(run, "error_of", pressed)
        assert main(list(self.FLAGS)) == 130
        captured = capsys.readouterr()
        assert captured.out.count(" %") == 1
        assert "model saved to m.safetensors" in captured.out

    def test_shows_the_ladder_where_the_baseline_had_not_begun(self, press_ctrl_c, capsys):
        press_ctrl_c(self.UPDATES + 5)
        assert main(list(self.FLAGS)) == 130
        captured = capsys.readouterr()
        assert captured.out.count(" %") == 1
        assert "model saved to m.safetensors" in captured.out
        assert captured.err == "tikas: interrupted; the figures are of what was trained until then\n"
        assert tikas.load("m.safetensors").n_iter_ == 2
