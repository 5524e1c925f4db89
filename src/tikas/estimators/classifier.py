"""`LadderClassifier`: a scikit-learn classifier."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score

from tikas.data.arrays import like, to_numpy
from tikas.data.labels import (
    NO_LABEL,
    as_array,
    as_labels,
    encode_labels,
    is_unlabeled,
    label_weights,
    one_per_row,
)
from tikas.data.sources import RowSource
from tikas.data.splits import Split
from tikas.estimators.base import Array, LadderEstimator, require_unchanged, select
from tikas.training.callbacks import fit_callbacks


@dataclass(eq=False, repr=False, kw_only=True)
class LadderClassifier(ClassifierMixin, LadderEstimator):  # type: ignore[misc]
    """A ladder network that classifies, trained on labeled and unlabeled rows together.

    Parameters
    ----------
    network : sequence of int, str or layer spec; str; or torch.nn.Module, default=(256, 128)
        The hidden layers, starting at the input: numbers of units for dense layers, specs such as
        ``Conv(32, 5, padding="full")`` and ``MaxPool(2)``, or the same as text, ``"conv 32 5 full"`` and ``"max 2"``.
        The output layer is added; with ``()`` there is no other layer. A string names a network of the paper:
        ``"mlp"``, ``"conv_fc"``, ``"conv_small"``, ``"conv_large"`` or ``"conv_pool_cnn_c"``. A module that returns
        class scores is trained as a Γ-model; see the notes.
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
    costs : float, sequence of float or None, default=None
        Weights λ of the denoising costs, input first. The last value is repeated for the layers above. A single number
        is the weight of the output layer alone (the Γ-model); 0 trains the supervised network. None derives them from
        the data: 1000, 10 and 0.1 for pixels in [0, 1], smaller ones for columns of larger variance (10, 1 and 0.1 for
        standardized columns). For a network that starts with a convolution or pooling None means 1, except for
        ``"conv_large"`` (4) and ``"conv_fc"`` (1000, 10 and 0.1), as in the paper.
    denoiser : {"gaussian", "mlp", "no-product", "linear", "additive"}, default="gaussian"
        The denoising function.
    epochs : int or None, default=None
        Passes over the rows. None means 100 for pixels in [0, 1], for images in a network that starts with a
        convolution or pooling, and for modules; 300 for other columns; but at least 10 epochs and 900 updates, and at
        most 15,000 updates.
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
        Decrease that counts for `early_stopping`: of the share of wrong rows.
    classes : array-like or None, default=None
        The classes, in the order of the columns of `predict_proba`; each must have a labeled row. None takes the sorted
        labels of y.
    class_weight : dict, "balanced" or None, default=None
        Weight of each class's labels, as elsewhere in scikit-learn.
    n_members : int, default=1
        Number of ladders with different seeds. They are trained together, and their probabilities are averaged.
    warm_start : bool, default=False
        Whether `fit` continues training the ladders of the previous `fit`.
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
    classes_ : ndarray of shape (n_classes,)
        The classes, in the order of the columns of `predict_proba`.
    transduction_ : ndarray of shape (n_samples,)
        The label of each row of `fit`: the given one, or the predicted one where none was given.
    history_ : list of dict
        One dict per epoch and member: ``member``, ``epoch``, ``learning_rate``, ``total``, ``supervised``,
        ``denoising``, ``seconds``, and ``validation_error`` where it was measured.
    ladder_ : Ladder or Gamma
        The first member.
    ladders_ : list of Ladder or of Gamma
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
    A row without a label has the label -1, None, NaN or ``pd.NA``.

    PyTorch tensors are accepted everywhere. With ``sklearn.set_config(array_api_dispatch=True)``, predictions have the
    kind and the device of X. There is no `partial_fit`: the denoising costs and the statistics for predictions need all
    rows at once; `warm_start` continues the training on the rows that it is given.

    X may be a table ``(n, features)``, also a data frame of pandas or polars with categories, dates and gaps; color
    images ``(n, channels, height, width)``; or gray images ``(n, height, width)``. A network that starts with a dense
    layer flattens images. A model fitted on images also predicts flattened ones. Sparse matrices are made dense batch
    by batch. Arrays on disk (`numpy.memmap`) of 1 GiB or more, and a `RowSource` such as
    `tikas.data.parquet.open_parquet` returns, are not loaded, but read while the members train.

    A module is copied for each member, converted to float32 and given X as it is. Training starts from the module's
    weights, so members differ only in the order of rows and in noise. `noise` has one or two values (the second for
    all noise after the input), `costs` one, 1 by default; see `tikas.gamma`. Layers that must stay frozen should
    override `train`. The fitted estimator can be pickled but not saved, since a file without code cannot restore a
    module. ``"conv_pool_cnn_c"`` is a module too, but it can be saved, and each member has its own initial weights.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from tikas import LadderClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> y[5:50] = y[55:100] = y[105:150] = -1  # keep five labels per class
    >>> X = (X - X.mean(0)) / X.std(0)
    >>> classifier = LadderClassifier(network=(32,), epochs=20, random_state=0).fit(X, y)
    >>> classifier.predict(X[:2]).tolist()
    [0, 0]

    A convolutional network on images:

    >>> from sklearn.datasets import load_digits
    >>> from tikas import Conv, MaxPool
    >>> digits = load_digits()
    >>> images, y = digits.images / 16, digits.target.copy()  # (1797, 8, 8)
    >>> y[100:] = -1
    >>> classifier = LadderClassifier([Conv(8, 3), MaxPool(2)], epochs=1, random_state=0).fit(images, y)
    >>> classifier.ladder_.shapes
    [(1, 8, 8), (8, 6, 6), (8, 3, 3), (10,)]
    """

    task = "classification"

    classes: ArrayLike | None = None
    class_weight: dict[Any, float] | str | None = None

    def fit(
        self,
        X: ArrayLike | RowSource,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        splits: Sequence[Split] | None = None,
    ) -> Self:
        """Train on all rows, and on the labels of the labeled ones.

        Parameters
        ----------
        X : array-like, sparse matrix or RowSource, (n_samples, n_features) or (n_samples, [channels,] height, width)
            Labeled and unlabeled rows, scaled to about unit size.
        y : array-like of shape (n_samples,)
            Class labels: whole numbers, strings or booleans; -1, None, NaN or ``pd.NA`` for unlabeled rows.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            Relative weight of each row's label in the supervised cost. Rows of weight zero are left out, labeled or
            not; other weights of unlabeled rows have no effect. A row of weight two is not the same as that row given
            twice, because batches are drawn at random.
        splits : sequence of Split or None, default=None
            For each member the rows whose label it learns, all rows it learns from, and the rows on which its error is
            measured during training (``validation_error`` in `history_`). None uses every label of y for every member.
            Cannot be combined with sample_weight.

        Returns
        -------
        LadderClassifier
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
        >>> from tikas import LadderClassifier
        >>> X, y = [[0.0], [0.1], [0.9], [1.0]] * 10, ["low", None, None, "high"] * 10
        >>> classifier = LadderClassifier((8,), costs=1.0, epochs=50, batch_size=20, random_state=0).fit(X, y)
        >>> classifier.transduction_[:4].tolist()
        ['low', 'low', 'high', 'high']
        """
        started = time.perf_counter()
        with self._fitting():
            recipe = self._recipe()
            checkpointer = self._checkpointer()
            seeds = self._seeds(checkpointer)
            rows = self._check_training_rows(X, recipe, sample_weight)
            labels = one_per_row(to_numpy(y), len(rows))
            codes, classes = encode_labels(labels, None if self.classes is None else as_array(self.classes))
            if self._earlier_members() is not None:
                require_unchanged("classes", self.classes_.tolist(), classes.tolist())
            selected, weights = self._select_rows(len(rows), sample_weight, splits)
            weights = label_weights(codes[selected], classes, weights, self.class_weight)
            with fit_callbacks(self.callbacks, verbose=self.verbose) as callbacks:
                recipe, build, dataset, splits = self._prepare_fit(
                    recipe, select(rows, selected), codes[selected], weights, splits, seeds, callbacks, classes
                )
                trainer = self._trainer(recipe, build, checkpointer, callbacks)
                result = trainer.fit(dataset, splits, seeds, self._earlier_members())
            self._set_result(result, recipe, seeds)
            self.training_ = self._summary(dataset, splits[0], started)
            del dataset, splits  # indices of all rows, which take memory
            self.classes_: Array = classes
            transduction = classes[codes]
            unlabeled, done = np.flatnonzero(codes == NO_LABEL), 0
            for probabilities in self._predict_chunks(rows, "probabilities", unlabeled):
                part = unlabeled[done : done + len(probabilities)]
                transduction[part] = classes[probabilities.argmax(1)]
                done += len(part)
            self.transduction_ = like(transduction, X)
        self._delete_snapshots(checkpointer)
        return self

    def predict_proba(self, X: ArrayLike | RowSource) -> Array:
        """Return the probability of each class, averaged over the members.

        Parameters
        ----------
        X : array-like, sparse matrix or RowSource, (n_samples, n_features) or (n_samples, [channels,] height, width)
            Rows with the same scale as those of `fit`.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Probabilities, with classes ordered as in ``classes_``.

        Examples
        --------
        >>> from tikas import LadderClassifier
        >>> X, y = [[0.0], [0.1], [0.9], [1.0]] * 10, ["low", None, None, "high"] * 10
        >>> classifier = LadderClassifier((8,), costs=1.0, epochs=3, batch_size=20, n_members=2).fit(X, y)
        >>> classifier.predict_proba([[0.05]]).sum().round(6).item()
        1.0
        """
        return like(self._predict(X, "probabilities"), X)

    def predict_log_proba(self, X: ArrayLike) -> Array:
        """Return the logarithm of the probability of each class, finite also where the probability is rounded to 0.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, [channels,] height, width)
            Rows with the same scale as those of `fit`.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Logarithms of `predict_proba`, with classes ordered as in ``classes_``.

        Examples
        --------
        >>> from tikas import LadderClassifier
        >>> X, y = [[0.0], [0.1], [0.9], [1.0]] * 10, ["low", None, None, "high"] * 10
        >>> classifier = LadderClassifier((8,), costs=1.0, epochs=3, batch_size=20).fit(X, y)
        >>> bool(classifier.predict_log_proba([[0.05]]).max() < 0)
        True
        """
        return like(self._predict(X, "log_probabilities"), X)

    def decision_function(self, X: ArrayLike) -> Array:
        """Return the score of each class: the logarithm of its probability; of two classes, the log-odds of the second.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, [channels,] height, width)
            Rows with the same scale as those of `fit`.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), or (n_samples,) with two classes
            Scores. The class of the largest, or the second class where the score is above 0, is predicted.

        Examples
        --------
        >>> from tikas import LadderClassifier
        >>> X, y = [[0.0], [0.1], [0.9], [1.0]] * 10, ["low", None, None, "high"] * 10
        >>> classifier = LadderClassifier((8,), costs=1.0, epochs=50, batch_size=20, random_state=0).fit(X, y)
        >>> (classifier.decision_function([[0.05], [0.95]]) > 0).tolist()  # "low" is the second class
        [True, False]
        """
        scores = self._predict(X, "log_probabilities")
        return like(scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores, X)

    def predict(self, X: ArrayLike | RowSource) -> Array:
        """Return the most probable class of each row.

        Parameters
        ----------
        X : array-like, sparse matrix or RowSource, (n_samples, n_features) or (n_samples, [channels,] height, width)
            Rows with the same scale as those of `fit`.

        Returns
        -------
        ndarray of shape (n_samples,)
            Class labels.

        Examples
        --------
        >>> from tikas import LadderClassifier
        >>> X, y = [[0.0], [0.1], [0.9], [1.0]] * 10, ["low", None, None, "high"] * 10
        >>> classifier = LadderClassifier((8,), costs=1.0, epochs=50, batch_size=20, random_state=0).fit(X, y)
        >>> classifier.predict([[0.05], [0.95]]).tolist()
        ['low', 'high']
        """
        probabilities = self._predict(X, "probabilities")
        return like(self.classes_[probabilities.argmax(1)], X)

    def score(self, X: ArrayLike | RowSource, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy on the labeled rows.

        Parameters
        ----------
        X : array-like, sparse matrix or RowSource, (n_samples, n_features) or (n_samples, [channels,] height, width)
            Rows with the same scale as those of `fit`.
        y : array-like of shape (n_samples,)
            Class labels; unlabeled rows are ignored.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            Weights of the rows.

        Returns
        -------
        float
            Fraction of labeled rows that are predicted correctly.

        Examples
        --------
        >>> from tikas import LadderClassifier
        >>> X, y = [[0.0], [0.1], [0.9], [1.0]] * 10, [0, -1, -1, 1] * 10
        >>> classifier = LadderClassifier((8,), costs=1.0, epochs=50, batch_size=20, random_state=0).fit(X, y)
        >>> classifier.score([[0.05], [0.95], [0.5]], [0, 1, -1])
        1.0
        """
        probabilities = self._predict(X, "probabilities")
        predicted = self.classes_[probabilities.argmax(1)]
        labels = one_per_row(to_numpy(y), len(predicted))
        labeled = ~is_unlabeled(labels)
        if not labeled.any():
            raise ValueError(f"None of the {len(labels)} rows is labeled, so there is nothing to score.")
        weights = None if sample_weight is None else np.asarray(to_numpy(sample_weight))[labeled]
        return float(accuracy_score(as_labels(labels[labeled]), predicted[labeled], sample_weight=weights))
