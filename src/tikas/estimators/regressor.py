"""`LadderRegressor`: a scikit-learn regressor."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from tikas.data.arrays import like, to_numpy
from tikas.data.labels import mean_and_deviation, one_per_row, regression_values, warn_minus_one
from tikas.data.sources import RowSource
from tikas.data.splits import Split
from tikas.estimators.base import Array, LadderEstimator, select
from tikas.training.callbacks import fit_callbacks


@dataclass(eq=False, repr=False, kw_only=True)
class LadderRegressor(RegressorMixin, LadderEstimator):  # type: ignore[misc]
    """A ladder network that predicts a number, trained on labeled and unlabeled rows together.

    Targets are standardized for training, and predictions are returned on the scale of the targets.

    Parameters
    ----------
    network : sequence of int, str or layer spec; or str, default=(256, 128)
        The hidden layers, starting at the input: numbers of units for dense layers, specs such as
        ``Conv(32, 5, padding="full")`` and ``MaxPool(2)``, or the same as text, ``"conv 32 5 full"`` and ``"max 2"``.
        The output layer is added; with ``()`` there is no other layer. A string names a network of the paper:
        ``"mlp"``, ``"conv_fc"``, ``"conv_small"`` or ``"conv_large"``.
    preprocess : {"auto", "none", "columns", "pixels", "standardize", "whiten"}, default="auto"
        Transformation that `fit` fits to the rows and every prediction applies. ``"columns"`` encodes the columns of a
        table by what they hold: numbers are imputed and standardized, categories and booleans become one column for
        each value, dates become parts; identifiers, constants and free text are left out. ``"pixels"`` divides all
        values by 255, or by the largest. ``"standardize"`` scales each column (of images, each channel) to mean 0 and
        deviation 1. ``"whiten"`` applies contrast normalization and ZCA whitening to images. ``"auto"`` is
        ``"columns"`` for a table with gaps or with columns that are not numbers; for numbers it is ``"none"`` where
        they are about as large as the noise, and else ``"pixels"`` or ``"standardize"``. A module gets X as it is.
    columns : dict or None, default=None
        What columns of a table hold, by name, where it should not be found out: ``"number"``, ``"category"``,
        ``"boolean"``, ``"date"`` or ``"ignored"``.
    activation : {"relu", "leaky_relu", "tanh", "gelu", "linear"}, default="relu"
        Activation of the hidden layers whose spec names none.
    noise : float or sequence of float, default=0.2
        Standard deviation of the noise added to the input and to each layer. The last value is repeated for the layers
        above.
    costs : float, sequence of float or None, default=(1.0, 0.1)
        Weights λ of the denoising costs, input first. The last value is repeated for the layers above. A single number
        is the weight of the output layer alone; 0 trains the supervised network. None means the default.
    denoiser : {"gaussian", "mlp", "no-product", "linear", "additive"}, default="gaussian"
        The denoising function.
    epochs : int or None, default=None
        Passes over the rows. None means 100 for pixels in [0, 1] and for images in a network that starts with a
        convolution or pooling, 300 for other columns; but at least 10 epochs and 900 updates, and at most 15,000
        updates.
    annealed : float, default=1/3
        Fraction of the updates, at the end, during which the learning rate decreases linearly to zero.
    learning_rate : float, default=0.005
        Learning rate of Adam.
    batch_size : int, default=100
        Rows of an update for the denoising costs.
    labeled_batch_size : int, default=50
        Labeled rows of an update.
    calibration : {"all", "labeled"}, default="all"
        Rows from which the normalization statistics for predictions are computed after training.
    precision : {"fast", "exact"}, default="fast"
        Precision of matrix products during training. ``"fast"`` allows bf16 and TF32 where they are faster,
        ``"exact"`` uses float32 everywhere. Predictions never use reduced precision.
    early_stopping : bool, default=False
        Whether to hold out labeled rows, keep the weights of the smallest error on them, and end the training when no
        member's error has decreased by `tol` for `n_iter_no_change` epochs. The learning rate still follows `epochs`.
    validation_fraction : float, default=0.1
        Share of the labeled rows that `early_stopping` holds out, others for each member.
    n_iter_no_change : int, default=10
        Epochs without a decrease after which `early_stopping` ends the training.
    tol : float, default=1e-4
        Decrease that counts for `early_stopping`: of the root mean squared error of standardized targets.
    n_members : int, default=1
        Number of ladders with different seeds. They are trained together, and their predictions are averaged.
    warm_start : bool, default=False
        Whether `fit` continues training the ladders of the previous `fit`. The scale of the targets is kept.
    checkpoint : path, Checkpointer or None, default=None
        Folder for snapshots of the training. If `fit` is stopped (by Ctrl-C, SIGTERM, or because the process died), the
        same call on the same data continues from the newest one, with the same result as without the stop. A finished
        `fit` deletes its snapshots; those of a `Checkpointer` are left to its owner.
    checkpoint_every : float, default=60.0
        Seconds between two snapshots; 0 means after every epoch.
    on_interrupt : {"keep", "raise"}, default="keep"
        What Ctrl-C does after the first epoch. ``"keep"`` ends the training, keeps what was learned and warns.
        ``"raise"`` leaves the estimator as it was and raises KeyboardInterrupt. So does every clone, whatever it is set
        to: searches and meta-estimators fit clones, and must not score one that was cut.
    random_state : int, RandomState or None, default=None
        Determines initial weights, order of rows and noise. Member ``i`` has the seed ``random_state + i`` if this is
        an int.
    device : str or None, default=None
        Where to train: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``. None uses a GPU if there is one. The fitted ladders are
        moved to the CPU. Images and large tables are predicted on that GPU too, if it is available then.
    verbose : bool, default=False
        Whether to show a progress bar with epoch, costs, validation error and time left; where standard error is no
        terminal, lines with the same, now and then. The logger ``"tikas"`` gets these lines at level INFO anyway.
    callbacks : sequence of callable or None, default=None
        Each is called with a `tikas.training.callbacks.Progress` before the first epoch and after every epoch:
        ``epoch``, ``epochs``, ``members`` (the newest line of `history_` of each) and ``message``. Returning True ends
        the training. A method ``close`` is called at the end. `tikas.TensorBoard` is one.

    Attributes
    ----------
    transduction_ : ndarray of shape (n_samples,)
        The target of each row of `fit`: the given one, or the predicted one where none was given.
    target_mean_ : float
        Mean of the targets of `fit`.
    target_deviation_ : float
        Standard deviation of the targets of `fit`, or 1 if they are all equal.
    history_ : list of dict
        One dict per epoch and member: ``member``, ``epoch``, ``learning_rate``, ``total``, ``supervised``,
        ``denoising``, ``seconds``, and ``validation_error`` (of standardized targets) where it was measured.
    ladder_ : Ladder
        The first member.
    ladders_ : list of Ladder
        All members.
    input_shape_ : tuple of int
        Shape of a row; of an image ``(channels, height, width)``, of a table the number of values after its encoding.
    preprocess_ : str
        The value of `preprocess` that was used; of ``"auto"``, what was chosen.
    encoder_ : ColumnEncoder or None
        The fitted encoding of the columns of a table: `encoder_.columns` has the kind of each and the fitted values.
    preparation_ : Standardization, PixelScaling, Whitening or None
        The fitted transformation of numbers.
    input_range_ : tuple of float or None
        Smallest and largest value of the rows of `fit` after `preprocess`. Predictions warn about rows far outside.
        None after whitening.
    recipe_ : Recipe
        All hyperparameters of the fit, including those derived from the data.
    seeds_ : list of int
        The seed of each member.
    n_features_in_ : int
        Number of values of a row.
    feature_names_in_ : ndarray of str
        Column names, if X was a data frame with string names.
    n_iter_ : int
        Number of epochs trained.
    interrupted_ : bool
        Whether Ctrl-C ended the training early.
    training_ : TrainingSummary
        Numbers of rows and labels, duration, hardware and versions of the fit.

    Notes
    -----
    A row without a target has the target NaN, None or ``pd.NA``; -1 is a value.

    PyTorch tensors are accepted everywhere. With ``sklearn.set_config(array_api_dispatch=True)``, predictions have the
    kind and the device of X. There is no `partial_fit`: the denoising costs and the statistics for predictions need all
    rows at once; `warm_start` continues the training on the rows that it is given.

    X may be a table ``(n, features)``, also a data frame of pandas or polars with categories, dates and gaps; color
    images ``(n, channels, height, width)``; or gray images ``(n, height, width)``. A network that starts with a dense
    layer flattens images. A model fitted on images also predicts flattened ones. Sparse matrices are made dense batch
    by batch. Arrays on disk (`numpy.memmap`) of 1 GiB or more, and a `RowSource` such as
    `tikas.data.parquet.open_parquet` returns, are not loaded, but read while the members train.

    Examples
    --------
    >>> import numpy as np
    >>> from tikas import LadderRegressor
    >>> X = np.random.default_rng(0).normal(size=(300, 4))
    >>> y = X @ [1.0, -2.0, 0.5, 0.0]
    >>> y[50:] = np.nan  # keep 50 targets
    >>> regressor = LadderRegressor(network=(32,), epochs=30, random_state=0).fit(X, y)
    >>> regressor.predict(X[:3]).shape
    (3,)
    """

    task = "regression"

    costs: float | Sequence[float] | None = (1.0, 0.1)

    def fit(
        self,
        X: ArrayLike | RowSource,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        splits: Sequence[Split] | None = None,
    ) -> Self:
        """Train on all rows, and on the targets of the labeled ones.

        Parameters
        ----------
        X : array-like, sparse matrix or RowSource, (n_samples, n_features) or (n_samples, [channels,] height, width)
            Labeled and unlabeled rows, scaled to about unit size.
        y : array-like of shape (n_samples,)
            Numbers; NaN, None or ``pd.NA`` for unlabeled rows.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            Relative weight of each row's target in the supervised cost. Rows of weight zero are left out, labeled or
            not; other weights of unlabeled rows have no effect. A row of weight two is not the same as that row given
            twice, because batches are drawn at random.
        splits : sequence of Split or None, default=None
            For each member the rows whose target it learns, all rows it learns from, and the rows on which its error is
            measured during training (``validation_error`` in `history_`). None uses every target of y for every member.
            Cannot be combined with sample_weight.

        Returns
        -------
        LadderRegressor
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter, X, y or sample_weight is invalid. The estimator is left unchanged by all errors.
        TrainingDivergedError
            If the costs of all members became infinite or NaN; with ``warm_start=True``, those of any member.
            Otherwise diverged members are left out with a warning.
        KeyboardInterrupt
            If Ctrl-C was pressed before the first epoch was complete, or if `on_interrupt` is ``"raise"`` or this is a
            clone. Otherwise training ends with a warning and the estimator is fitted as far as it got.

        Examples
        --------
        >>> from tikas import LadderRegressor
        >>> X, y = [[0.0], [0.5], [1.0]] * 10, [0.0, None, 2.0] * 10
        >>> regressor = LadderRegressor((8,), epochs=40, batch_size=30, random_state=0).fit(X, y)
        >>> bool(0.5 < regressor.transduction_[1] < 1.5)
        True
        """
        started = time.perf_counter()
        with self._fitting():
            recipe = self._recipe()
            checkpointer = self._checkpointer()
            seeds = self._seeds(checkpointer)
            rows = self._check_training_rows(X, recipe, sample_weight)
            values = regression_values(one_per_row(to_numpy(y), len(rows)))
            warn_minus_one(values)
            selected, weights = self._select_rows(len(rows), sample_weight, splits)
            learned = values[selected]
            if splits is not None:
                learned = values[np.unique(np.concatenate([split.labeled for split in splits]))]
            learned = learned[~np.isnan(learned)]
            if not len(learned):
                raise ValueError(f"None of the {len(rows)} rows has a target (other than NaN) and a positive weight.")
            if self._earlier_members() is None:
                self.target_mean_, self.target_deviation_ = mean_and_deviation(learned)
            standardized = ((values - self.target_mean_) / self.target_deviation_).astype(np.float32)
            with fit_callbacks(self.callbacks, verbose=self.verbose) as callbacks:
                recipe, build, dataset, splits = self._prepare_fit(
                    recipe, select(rows, selected), standardized[selected], weights, splits, seeds, callbacks
                )
                trainer = self._trainer(recipe, build, checkpointer, callbacks)
                result = trainer.fit(dataset, splits, seeds, self._earlier_members())
            self._set_result(result, recipe, seeds)
            self.training_ = self._summary(dataset, splits[0], started)
            del dataset, splits  # indices of all rows, which take memory
            transduction = values.copy()
            unlabeled, done = np.flatnonzero(np.isnan(values)), 0
            for outputs in self._predict_chunks(rows, "outputs", unlabeled):
                part = unlabeled[done : done + len(outputs)]
                transduction[part] = self._to_values(outputs)
                done += len(part)
            self.transduction_ = like(transduction, X)
        self._delete_snapshots(checkpointer)
        return self

    def _to_values(self, outputs: Array) -> Array:
        """Return standardized outputs ``(n, 1)`` on the scale of the targets, ``(n,)``."""
        return outputs[:, 0] * self.target_deviation_ + self.target_mean_

    def predict(self, X: ArrayLike | RowSource) -> Array:
        """Return the predicted value of each row, averaged over the members.

        Parameters
        ----------
        X : array-like, sparse matrix or RowSource, (n_samples, n_features) or (n_samples, [channels,] height, width)
            Rows with the same scale as those of `fit`.

        Returns
        -------
        ndarray of shape (n_samples,)
            Values.

        Examples
        --------
        >>> from tikas import LadderRegressor
        >>> X, y = [[0.0], [0.5], [1.0]] * 10, [0.0, None, 2.0] * 10
        >>> regressor = LadderRegressor((8,), epochs=40, batch_size=30, random_state=0).fit(X, y)
        >>> regressor.predict([[0.1], [0.9]]).shape
        (2,)
        """
        return like(self._to_values(self._predict(X, "outputs")), X)

    def score(self, X: ArrayLike | RowSource, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the coefficient of determination R² on the labeled rows.

        Parameters
        ----------
        X : array-like, sparse matrix or RowSource, (n_samples, n_features) or (n_samples, [channels,] height, width)
            Rows with the same scale as those of `fit`.
        y : array-like of shape (n_samples,)
            Numbers; unlabeled rows are ignored.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            Weights of the rows.

        Returns
        -------
        float
            R² of the predictions.

        Examples
        --------
        >>> from tikas import LadderRegressor
        >>> X, y = [[0.0], [0.5], [1.0]] * 10, [0.0, None, 2.0] * 10
        >>> regressor = LadderRegressor((8,), epochs=40, batch_size=30, random_state=0).fit(X, y)
        >>> regressor.score(X, y) > 0.5
        True
        """
        predicted = self._to_values(self._predict(X, "outputs"))
        values = regression_values(one_per_row(to_numpy(y), len(predicted)))
        labeled = ~np.isnan(values)
        weights = None if sample_weight is None else np.asarray(to_numpy(sample_weight))[labeled]
        return float(r2_score(values[labeled], predicted[labeled], sample_weight=weights))
