"""Hyperparameter search: an Optuna study whose trials are measured by cross-validation over the labeled rows.

The folds of a trial train as one ensemble, and so do several trials with the same network. Any number of processes may
work on one study; each resumes its own trials from snapshots after it was stopped.
"""

from __future__ import annotations

import platform
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from filelock import FileLock, Timeout

from tikas.data.datasets import Dataset
from tikas.data.splits import Split
from tikas.training.callbacks import Progress
from tikas.training.checkpoint import Checkpointer, identity_of
from tikas.training.ensemble import to_device
from tikas.training.environment import full_precision, pick_device
from tikas.training.recipe import Recipe
from tikas.training.trainer import Trainer, TrainingDivergedError, TrainingResult, error_of

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial, Trial

SEARCHED = ("network", "noise", "costs", "learning_rate")
"""Settings that can be searched."""
WIDTHS = (64, 128, 256, 512, 1024)
MAX_LAYERS = 3
NOISE = 0.05, 0.8
COST_FACTORS = 1e-3, 1e2
"""Range of each cost, relative to its default."""
RATE_FACTORS = 0.1, 4.0
"""Range of the learning rate, relative to its default."""
SEED_STEP = 1_000_003
"""Between the seeds of the samplers of two trials."""
COUNTED = "COMPLETE", "PRUNED", "RUNNING"
"""States of the trials that count. A failed one was not run: another machine took the last place, or it was lost."""
NEXT = "next.lock"
"""Locked while a process chooses the trials that it runs next."""
CREATED_SECONDS = 10
"""Longest time in which another process creates a study."""
LOST_SECONDS = 600
"""A process records at once that a trial is its own: after this time, no process runs a trial without an owner."""
IDENTITY, OWNER, RECIPE, RESULT = "identity", "owner", "recipe", "result"
"""Attributes: what the trials of a study have in common; who runs a trial, what it trains, and what was measured."""


@dataclass(frozen=True)
class SearchSpace:
    """What a study varies, around a recipe.

    Parameters
    ----------
    base : Recipe
        A complete recipe: the first trial, and every setting that is not searched.
    searched : sequence of str, default=SEARCHED
        Settings to search: "network" (1 to 3 dense layers, each half as wide as the one before), "noise" (one value for
        all levels), "costs" (of the input, the first layer and the layers above; of the output alone for a Γ-model),
        "learning_rate".

    Examples
    --------
    >>> space = SearchSpace(Recipe(network=(256, 128), noise=0.2), searched=("network", "noise"))
    >>> space.defaults()
    {'width': 256, 'layers': 2, 'noise': 0.2}
    >>> space.recipe({"width": 64, "layers": 1, "noise": 0.4}).network
    (64,)
    """

    base: Recipe
    searched: Sequence[str] = SEARCHED

    @property
    def _cost_names(self) -> list[str]:
        if len(self.base.costs) == 1:
            return ["cost_output"]
        return ["cost_input", "cost_first", "cost_above"][: len(self.base.cost_per_level())]

    def defaults(self) -> dict[str, Any]:
        """Return the parameters of the base recipe, moved into their ranges."""
        values: dict[str, Any] = {}
        if "network" in self.searched:
            first = self.base.network[0] if self.base.network else WIDTHS[0]
            assert isinstance(first, int)
            layers = min(max(1, len(self.base.network)), MAX_LAYERS)
            values |= {"width": min(WIDTHS, key=lambda width: abs(width - first)), "layers": layers}
        if "noise" in self.searched:
            values["noise"] = min(max(NOISE[0], self.base.noise[0]), NOISE[1])
        if "costs" in self.searched:
            costs = self.base.costs if len(self.base.costs) == 1 else self.base.cost_per_level()
            values |= dict(zip(self._cost_names, costs, strict=False))
        if "learning_rate" in self.searched:
            values["learning_rate"] = self.base.learning_rate
        return values

    def suggest(self, trial: Trial) -> dict[str, Any]:
        """Return the parameters of a trial, chosen by its study's sampler."""
        params: dict[str, Any] = {}
        for name, value in self.defaults().items():
            if name == "width":
                params[name] = trial.suggest_categorical(name, WIDTHS)
            elif name == "layers":
                params[name] = trial.suggest_int(name, 1, MAX_LAYERS)
            elif name == "noise":
                params[name] = trial.suggest_float(name, *NOISE)
            else:
                low, high = RATE_FACTORS if name == "learning_rate" else COST_FACTORS
                params[name] = trial.suggest_float(name, low * value, high * value, log=True)
        return params

    def shape(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters in which trials that train together must agree."""
        return {name: params[name] for name in ("width", "layers") if name in params}

    def recipe(self, params: Mapping[str, Any]) -> Recipe:
        """Return the recipe of a trial, its values rounded to three digits."""
        params = {name: value if isinstance(value, int) else float(f"{value:.3g}") for name, value in params.items()}
        settings: dict[str, Any] = {name: params[name] for name in ("noise", "learning_rate") if name in params}
        if "costs" in self.searched:
            settings["costs"] = tuple(params[name] for name in self._cost_names)
        if "network" in self.searched:
            settings["network"] = tuple(params["width"] // 2**layer for layer in range(params["layers"]))
        return replace(self.base, **settings)


def fold_splits(targets: np.ndarray[Any, Any], folds: int | None = None, seed: int = 0) -> list[Split]:
    """Return a split for each fold of a cross-validation over the labeled rows, stratified by class.

    All other rows are unlabeled in every fold. Members of an ensemble have equally many rows: where a fold holds out
    one row less than another, it leaves out one more, an unlabeled one if there is any.

    Parameters
    ----------
    targets : ndarray of shape (n,)
        Class codes, -1 where unlabeled; or values, NaN where unlabeled.
    folds : int, optional
        Default: 5, or the number of labels of the rarest class if that is smaller.
    seed : int, default=0

    Examples
    --------
    >>> splits = fold_splits(np.array([0, 0, 0, 1, 1, 1, -1, -1]), folds=3)
    >>> [len(split.labeled) for split in splits], [len(split.unlabeled) for split in splits]
    ([4, 4, 4], [6, 6, 6])
    """
    from sklearn.model_selection import KFold, StratifiedKFold

    classes = np.issubdtype(targets.dtype, np.integer)
    labeled = np.flatnonzero(targets >= 0 if classes else ~np.isnan(targets))
    rarest = int(np.unique(targets[labeled], return_counts=True)[1].min()) if classes else len(labeled)
    wanted = min(5, rarest) if folds is None else folds
    if not 2 <= wanted <= rarest:
        rows = "labels of each class" if classes else "labeled rows"
        raise ValueError(
            f"A cross-validation of {max(2, wanted)} folds needs at least as many {rows}, but there are {rarest}. "
            "Label more rows, or choose fewer folds."
        )
    kind = StratifiedKFold if classes else KFold
    parts = [part for _, part in kind(wanted, shuffle=True, random_state=seed).split(labeled, targets[labeled])]
    most = max(map(len, parts))
    rng = np.random.default_rng(seed)
    splits = []
    for part in parts:
        held_out = labeled[part]
        kept = np.setdiff1d(labeled, held_out)
        unlabeled = np.setdiff1d(np.arange(len(targets)), held_out)
        if len(part) < most:
            others = np.setdiff1d(unlabeled, kept)
            dropped = rng.choice(others if len(others) else kept)
            unlabeled, kept = unlabeled[unlabeled != dropped], kept[kept != dropped]
        splits.append(Split(rng.permutation(kept), unlabeled, np.sort(held_out)))
    return splits


def open_storage(url: str) -> BaseStorage:
    """Return Optuna's storage of a URL, or of a journal file if it is a path.

    Raises ValueError if it cannot be opened, ImportError if a package for it is missing.
    """
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend, JournalRedisBackend

    shown = re.sub(r"//[^@/]*@", "//…@", url)  # without the password
    try:
        if "://" not in url:
            return JournalStorage(JournalFileBackend(url))
        if url.startswith("redis"):
            return JournalStorage(JournalRedisBackend(url))
        return RDBStorage(url)
    except ImportError as error:
        raise ImportError(f"The storage {shown} needs a package that is not installed: {error}") from error
    except Exception as error:  # of SQLAlchemy, the driver, or the file system
        reason = " ".join(str(error).split())[:200].replace(url, shown)
        raise ValueError(
            f"The storage {shown} cannot be opened ({reason}). Give a URL such as sqlite:///study.db or "
            "postgresql://user:password@host/name, or the path of a journal file."
        ) from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait for other processes with this folder, so that one of them at a time creates a study or asks for trials."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / NEXT):
        yield


def import_optuna() -> None:
    """Raise ImportError with advice if Optuna is not installed."""
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise ImportError("Tuning needs Optuna: pip install 'tikas[tune]'.") from error


def open_study(
    storage: BaseStorage, name: str, space: SearchSpace, dataset: Dataset, splits: Sequence[Split], seed: int
) -> Study:
    """Create a study, its first trial the base recipe, or continue the one of this name.

    Raises ValueError if that has other rows, labels, folds or settings.
    """
    import optuna

    first = identity_of(space.base, seed, splits[0], dataset, torch.device("cpu"), "", None)
    identity = {part: first[part] for part in ("data", "labels", "recipe")}
    identity |= {"folds": len(splits), "seed": seed, "searched": list(space.searched)}
    try:
        study = optuna.create_study(storage=storage, study_name=name, direction="minimize")
    except optuna.exceptions.DuplicatedStudyError:
        study = optuna.load_study(storage=storage, study_name=name)
        deadline = time.monotonic() + CREATED_SECONDS
        while IDENTITY not in study.user_attrs and time.monotonic() < deadline:
            time.sleep(0.1)  # another process creates it at this moment
        stored = study.user_attrs.get(IDENTITY, {})
        different = [part for part, value in identity.items() if stored.get(part) != value]
        if different:
            raise ValueError(
                f"The study {name!r} in this storage has other {', '.join(different)}. Give what it was begun with, or "
                "another name or storage for a new study."
            ) from None
        return study
    study.enqueue_trial(space.defaults())
    study.set_user_attr(IDENTITY, identity)  # last: other processes wait for it
    return study


class Measured(NamedTuple):
    """A trial of a study: its recipe and the parameters of Optuna, the error of each fold, or why it failed."""

    number: int
    recipe: Recipe
    params: Mapping[str, Any]
    errors: Sequence[float]
    failure: str
    seconds: float

    @property
    def error(self) -> float:
        """Mean over the folds; infinite if the trial failed."""
        return float(np.mean(self.errors)) if self.errors else float("inf")

    @property
    def standard_error(self) -> float:
        """Standard error of the mean over the folds."""
        return float(np.std(self.errors, ddof=1) / len(self.errors) ** 0.5) if self.errors else float("nan")


def measured_trials(study: Study) -> list[Measured]:
    """Return the finished trials, the best first."""
    found = []
    for trial in study.get_trials(deepcopy=False):
        if trial.state.is_finished() and RESULT in trial.user_attrs:
            recipe = Recipe.from_json(trial.user_attrs[RECIPE])
            found.append(Measured(trial.number, recipe, trial.params, **trial.user_attrs[RESULT]))
    return sorted(found, key=lambda each: (each.error, each.number))


class Search:
    """Runs trials of a study until it has a number of them, together with any other process that does the same.

    Parameters
    ----------
    storage : BaseStorage
        From `open_storage`.
    study : Study
        From `open_study`.
    space : SearchSpace
    dataset : Dataset
        Rows as the network takes them; the values of a regression are standardized.
    splits : sequence of Split
        A member of a trial for each; its error is measured on the validation rows.
    folder : Path
        Snapshots of the trials that run on this machine, and locks. Processes with the same folder resume each other's
        trials.
    trials : int
        Number of trials of the study, those of other processes included.
    together : int, default=1
        Number of trials, with the same network, that train as one ensemble.
    unit : float, default=1.0
        Factor of the errors: the deviation of the targets of a regression.
    seed : int, default=0
    device : str, optional
    checkpoint_every : float, default=60.0
        Seconds between two snapshots.
    """

    def __init__(
        self,
        storage: BaseStorage,
        study: Study,
        space: SearchSpace,
        dataset: Dataset,
        splits: Sequence[Split],
        folder: Path,
        *,
        trials: int,
        together: int = 1,
        unit: float = 1.0,
        seed: int = 0,
        device: str | None = None,
        checkpoint_every: float = 60.0,
    ) -> None:
        self.storage, self.study, self.space, self.dataset, self.splits = storage, study, space, dataset, splits
        self.folder, self.trials, self.together = folder, trials, together
        self.unit, self.seed, self.device, self.checkpoint_every = unit, seed, device, checkpoint_every
        self.owner = f"{platform.node()}:{folder.resolve()}"
        self._locks: dict[int, FileLock] = {}

    def next_trials(self) -> dict[int, Recipe]:
        """Return the trials to run next, by number, all with one network: unfinished ones of this folder, or new."""
        with locked(self.folder):
            return self._unfinished() or self._new()

    def _unfinished(self) -> dict[int, Recipe]:
        """Return trials that a process with this folder began and that no process runs now."""
        found: dict[int, Recipe] = {}
        for trial in self._trials("RUNNING"):
            owner = trial.user_attrs.get(OWNER)
            age = 0.0 if trial.datetime_start is None else time.time() - trial.datetime_start.timestamp()
            if owner in (None, self.owner) and RECIPE not in trial.user_attrs:
                if owner or age > LOST_SECONDS:  # the process ended while it asked for this trial
                    self._tell(trial.number, "FAIL")
            elif owner == self.owner and len(found) < self.together:
                recipe = Recipe.from_json(trial.user_attrs[RECIPE])
                if all(recipe.network == other.network for other in found.values()) and self._lock(trial.number):
                    found[trial.number] = recipe
        return found

    def _new(self) -> dict[int, Recipe]:
        """Ask for new trials. The network of the first is that of all."""
        found: dict[int, Recipe] = {}
        shape: dict[str, Any] = {}
        while len(found) < self.together and len(self._trials(*COUNTED)) < self.trials:
            # Each trial has a sampler with its own seed, so that an interrupted study continues as it would have.
            self.study.sampler = _sampler(self.seed + SEED_STEP * len(self.study.get_trials(deepcopy=False)), shape)
            trial = self.study.ask()
            trial.set_user_attr(OWNER, self.owner)
            params = self.space.suggest(trial)
            recipe = self.space.recipe(params)
            if sum(other.number < trial.number for other in self._trials(*COUNTED)) >= self.trials:
                self._tell(trial.number, "FAIL")  # another machine took the last one at the same moment
                break
            self._lock(trial.number)
            trial.set_user_attr(RECIPE, recipe.to_json())
            shape = self.space.shape(params)
            found[trial.number] = recipe
        return found

    def run(self, recipes: Mapping[int, Recipe], callbacks: Sequence[Callable[[Progress], None]] = ()) -> bool:
        """Train trials as one ensemble, and store their errors. Return False if Ctrl-C was pressed.

        Trials that were stopped stay in the study as running, and `next_trials` returns them again.
        """
        folds = len(self.splits)
        checkpointer = Checkpointer(
            self.folder,
            seconds=self.checkpoint_every,
            names=[f"trial-{number}-fold-{fold}" for number in recipes for fold in range(folds)],
            save_last=True,  # until the errors are stored
        )
        try:
            result = self._train(recipes, checkpointer, callbacks)
            if result is None or result.interrupted:
                return False
            seconds = sum(line["seconds"] for line in result.histories[0]) if result.histories else 0.0
            errors = self._errors(result)
            for position, number in enumerate(recipes):
                members = range(position * folds, (position + 1) * folds)
                failures = [result.failed[member] for member in members if member in result.failed]
                own = [] if failures else [errors[member] for member in members]
                measured = {"errors": own, "failure": "".join(failures[:1]), "seconds": seconds / len(recipes)}
                self.storage.set_trial_user_attr(self._id(number), RESULT, measured)
                self._tell(number, "COMPLETE" if own else "PRUNED", own)
                checkpointer.delete(members)
                self._locks.pop(number).release()
                self._lock_file(number).unlink()  # not where the trial is unfinished: another process may wait for it
            return True
        finally:
            while self._locks:
                self._locks.popitem()[1].release()

    def close(self) -> None:
        """Delete the folder, unless it has unfinished trials."""
        (self.folder / NEXT).unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    def _train(
        self, recipes: Mapping[int, Recipe], checkpointer: Checkpointer, callbacks: Sequence[Callable[[Progress], None]]
    ) -> TrainingResult | None:
        """Train a member for each trial and fold; None after Ctrl-C in the first epoch."""
        # Errors are measured at the end alone: folds hold out different numbers of rows, which members must not.
        splits = [replace(split, validation=split.validation[:0]) for split in self.splits] * len(recipes)
        seeds = [self.seed + fold for fold in range(len(self.splits))] * len(recipes)
        members = [recipe for recipe in recipes.values() for _ in self.splits]
        trainer = Trainer(members, self.device, callbacks, checkpointer=checkpointer)
        try:
            return trainer.fit(self.dataset, splits, seeds)
        except TrainingDivergedError as error:
            return TrainingResult(failed=dict(error.failed))
        except torch.OutOfMemoryError as error:
            return TrainingResult(failed=dict.fromkeys(range(len(members)), str(error)))
        except KeyboardInterrupt:
            return None
        except Exception:
            for number in recipes:
                self._tell(number, "FAIL")
            raise

    def _errors(self, result: TrainingResult) -> dict[int, float]:
        """Return the error of each member on the rows that its fold holds out."""
        device = pick_device(self.device)
        errors = {}
        for index, model in zip(result.indices, result.members, strict=True):
            held_out = self.splits[index % len(self.splits)].validation
            rows, targets = (torch.from_numpy(values[held_out]) for values in (self.dataset.rows, self.dataset.targets))
            if self.dataset.classes is None:
                targets = targets.unsqueeze(-1)
            with full_precision():
                errors[index] = self.unit * error_of(to_device(model, device), rows.to(device), targets.to(device))
        return errors

    def _trials(self, *states: str) -> list[FrozenTrial]:
        from optuna.trial import TrialState

        return self.study.get_trials(deepcopy=False, states=[TrialState[state] for state in states])

    def _tell(self, number: int, state: str, errors: Sequence[float] = ()) -> None:
        from optuna.trial import TrialState

        self.study.tell(number, float(np.mean(errors)) if errors else None, TrialState[state])

    def _id(self, number: int) -> int:
        """Return the id of a trial in the storage, which works on trials that another process began, too."""
        study = self.storage.get_study_id_from_name(self.study.study_name)
        return self.storage.get_trial_id_from_study_id_trial_number(study, number)

    def _lock(self, number: int) -> bool:
        """Lock a trial against other processes with this folder; return False if one of them runs it."""
        lock = FileLock(self._lock_file(number), timeout=0)
        try:
            lock.acquire()
        except Timeout:
            return False
        self._locks[number] = lock
        return True

    def _lock_file(self, number: int) -> Path:
        return self.folder / f"trial-{number}.lock"


def _sampler(seed: int, fixed: dict[str, Any]) -> BaseSampler:
    """Return the sampler of one trial, which chooses all parameters that are not fixed."""
    from optuna.exceptions import ExperimentalWarning
    from optuna.samplers import PartialFixedSampler, TPESampler

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        # A trial that runs counts as a bad one, so that those that run at the same time differ.
        sampler = TPESampler(seed=seed, constant_liar=True)
        return PartialFixedSampler(fixed, sampler) if fixed else sampler
