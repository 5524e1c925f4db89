"""The classifier among the estimators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import _check_sample_weight

from tikas.data.labels import (
    NO_LABEL,
    as_array,
    encode_labels,
    is_unlabeled,
    label_weights,
    labels_to_compare,
    one_for_each_row,
)
from tikas.data.preprocess import check_scale
from tikas.estimators.base import LadderEstimator
from tikas.estimators.inputs import Array
from tikas.estimators.members import top_bias
from tikas.fitted import Fitted
from tikas.model.ladder import Ladder
from tikas.training.devices import without_autocast, without_default_device


@dataclass(eq=False, repr=False, kw_only=True)
class LadderClassifier(ClassifierMixin, LadderEstimator):  # type: ignore[misc]
    """A classifier that learns from a few labelled rows and many unlabelled ones.

    Parameters
    ----------
    network : sequence of int, str or rung; str; or torch.nn.Module, default=(256, 128)
        The hidden rungs from the bottom up: units of dense ones, rungs such as ``Conv(32, 5, padding="full")`` and
        ``MaxPool(2)``, or texts of them, ``"conv 32 5 full"`` and ``"max 2"``. The top follows by itself; with ``()``
        it stands on the input. Or a network of the paper by its name: ``"mlp"``, ``"conv_fc"``, ``"conv_small"``,
        ``"conv_large"``. Or a module of your own that ends in class scores, which gets the Γ-model, as
        ``"conv_pool_cnn_c"`` does: see the notes.
    preprocess : {"none", "standardize", "whiten"}, default="none"
        What is done to the rows first, fitted on those of `fit` and applied in every prediction: nothing; every column
        (of images every channel) brought to mean zero and deviation one; or contrast normalisation and ZCA whitening
        of images.
    activation : {"relu", "leaky_relu", "tanh", "gelu", "linear"}, default="relu"
        Of the hidden rungs that do not say their own.
    noise : float or tuple of float, default=0.2
        Deviation of the noise on the input and on each rung; the last one given holds for the rungs above it.
    costs : float, tuple of float or None, default=None
        Weights of the denoising costs, the input's first; the last one given holds for the rungs above it. A single
        number is the top's alone (the Γ-model); 0 leaves the supervised network. None lets them follow from the scale
        of the rows: 1000, 10 and 0.1 for pixels in [0, 1], 10, 1 and 0.1 for standardised columns. Of networks that
        begin with a convolution or pooling it makes the Γ-model: 1, or the paper's 4 for ``"conv_large"``; the paper's
        1000, 10 and 0.1 for ``"conv_fc"``.
    denoiser : {"gaussian", "mlp", "no-product", "linear", "additive"}, default="gaussian"
        The denoising function.
    epochs : int or None, default=None
        Passes over the rows. None lets them follow from network and rows: 100 for a network that begins with a
        convolution or pooling, for a module of your own, and for columns that vary as pixels in [0, 1] do, 300 for
        other columns, such as standardised ones; or more where that would be fewer than 900 updates, or fewer (but ten)
        where it would be more than 15,000. Of images a network of dense rungs takes the values as columns.
    annealed : float, default=1/3
        Share of the updates, at the end, over which the learning rate goes linearly to zero.
    learning_rate : float, default=0.005
        Of Adam.
    batch_size : int, default=100
        Rows in an update for the denoising costs.
    labeled_batch_size : int, default=50
        Labelled rows in an update.
    calibration : {"all", "labeled"}, default="all"
        Which rows the statistics for prediction come from.
    precision : {"fast", "exact"}, default="fast"
        Of the products in training. Fast ones are bf16 or TF32 on a GPU, and bf16 in long runs of dense rungs on a CPU
        that is quicker by it; exact ones are float32 everywhere. Predictions are exact in any case.
    classes : array-like, optional
        The classes, where you want each to be labelled at least once. By default those found in y.
    class_weight : dict, "balanced" or None, default=None
        How much each class's labels count.
    n_members : int, default=1
        Ladders of different seeds, trained together; their probabilities are averaged.
    warm_start : bool, default=False
        Whether `fit` goes on from the last fit's ladders, with the history and the count of epochs going on too.
    random_state : int, RandomState or None, default=None
        Decides on first weights, order and noise. With an int, members have the seeds that follow it.
    device : str, optional
        Where to train: ``"cpu"``, ``"cuda"`` or one GPU, ``"cuda:1"``; by default on the GPUs if there are any. The
        fitted ladders lie on the CPU. Images, and flat rows if they are many, are predicted on that GPU too, some
        thousand at a time; on the CPU where it is not there, as with a model from another machine.
    verbose : bool, default=False
        Whether a progress bar is shown, or where there is no terminal, a line before each fleet starts.

    Attributes
    ----------
    classes_ : ndarray
        The classes, in the order of `predict_proba`.
    transduction_ : ndarray of shape (n_samples,)
        For every row of `fit` its label, or where it had none the class predicted for it.
    history_ : list of dict
        A line an epoch: ``member``, ``epoch``, ``learning_rate``, ``total``, ``supervised``, ``denoising``,
        ``seconds``.
    ladder_, ladders_ : Ladder, list of Ladder
        The first member, and all of them; where the network is a module, what `tikas.gamma` makes of copies of it.
    input_shape_ : tuple of int
        The shape of a row, or of an image with its channels first.
    preparation_ : Whitening or Standardization or None
        What rows go through first.
    input_range_ : tuple of float or None
        The smallest and the largest value of the rows of `fit`, standardised where they are. Rows to predict that lie
        far beyond are of another scale, and warned of. None with whitening, which leaves no scale, and in a model from
        a file from before it was kept.
    recipe_ : Recipe
        What they were trained by.
    seeds_ : list of int
        The members' seeds; ``random_state=seeds_[0]`` gives the first member again, up to rounding. None in a model
        from a file of tikas' first format.
    n_features_in_, feature_names_in_, n_iter_
        As everywhere in scikit-learn; epochs are what is counted. The features of an image are its values.

    Notes
    -----
    Rows are ``(n, features)``, images ``(n, channels, height, width)`` or, if they are grey, ``(n, height, width)``. A
    network that begins with a dense rung takes images too, each as the row of its values. What was fitted on images
    also predicts rows of as many values, in the order that ``reshape`` gives them.

    A module is copied, the copy trained in single precision from the weights that it has, and X given to it as it is.
    Its noise is ``noise``, one or two (the input's, all others'), its one cost ``costs``, 1 by default; `tikas.gamma`
    says where they go. All members start from its weights and differ in order and noise. What it draws by itself, in
    dropout, follows from ``random_state`` too. All of it trains in training mode: a layer that is to stay frozen
    overrides `train`. It can be pickled, and not saved: a file without code does not bring a module back.
    ``"conv_pool_cnn_c"`` is such a module, but that every member draws its own first weights, and that it is saved.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from tikas import LadderClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> y[5:50] = y[55:100] = y[105:150] = -1  # five labels a class
    >>> X = (X - X.mean(0)) / X.std(0)
    >>> classifier = LadderClassifier(network=(32,), epochs=20, random_state=0).fit(X, y)
    >>> classifier.predict(X[:2]).tolist()
    [0, 0]

    Images, and two rungs that work on them:

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

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on all rows, and on the labels of those that have one.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, [channels,] height, width)
            Labelled and unlabelled rows together, of about unit scale.
        y : array-like of shape (n_samples,)
            Classes; -1 where there is no label, or None, NaN or ``pd.NA``.
        sample_weight : array-like of shape (n_samples,), optional
            How much each row counts, by the ratios alone. Where these are those of small whole numbers (that add up to
            no more than ten times the rows of positive weight), rows are repeated so often, and the result is that of
            repeated rows to the last digit. Other weights count labelled rows in the supervised cost. A row of weight
            zero is always as if it were not there; one that is to serve without its label is marked in y.

        Returns
        -------
        LadderClassifier
            Itself, fitted.

        Raises
        ------
        ValueError
            Where a parameter, the rows or the labels cannot be used; the message says what to do. The estimator stays
            what it was.
        TrainingDivergedError
            Where a cost of every member was no longer a finite number. Where others are left they are the model, and a
            warning says which are lost; with ``warm_start`` it stays what it was.
        KeyboardInterrupt
            Where Ctrl-C comes before an epoch is finished. Later on what was learnt until then is kept, of members that
            learnt anything, and a warning says how much that is.

        Examples
        --------
        >>> X, y = [[0.0], [0.1], [0.9], [1.0]] * 10, ["low", None, None, "high"] * 10
        >>> classifier = LadderClassifier((8,), costs=1.0, epochs=50, batch_size=20, random_state=0).fit(X, y)
        >>> classifier.transduction_[:4].tolist()
        ['low', 'low', 'high', 'high']
        """
        with without_default_device(), without_autocast(), self._all_or_nothing():
            rows = self._check_training_rows(X)
            labels = one_for_each_row(y, len(rows))
            codes, classes = encode_labels(labels, None if self.classes is None else as_array(self.classes))
            before = getattr(self, "classes_", classes)
            if self.warm_start and not np.array_equal(before, classes):
                raise ValueError(
                    f"warm_start=True: the fitted model knows the classes {before.tolist()}, and y holds "
                    f"{classes.tolist()}. Fit on labels of the same classes, or set warm_start=False."
                )
            label_weights(codes, classes, sample_weight, None)  # of all rows: no class may be left out
            places, weights = self._counted(rows, codes, sample_weight)
            counted, taken = codes[places], self._prepare(rows[places])
            check_scale(self._columns(taken), getattr(self, "feature_names_in_", None))
            weights = label_weights(counted, classes, weights, self.class_weight)
            self._train(taken, counted, counted != NO_LABEL, len(classes), weights)
            self.classes_ = classes
            predicted = self._answers_to(rows, "probabilities").argmax(1)
            self.transduction_ = classes[np.where(codes == NO_LABEL, predicted, codes)]
        return self

    @torch.no_grad()
    def _weigh_outputs(self, ladders: list[Ladder], targets: Array, weights: Array) -> None:
        """Let the top's biases start from the logarithm of each class's share of the weight, where weights differ.

        A class that weighs next to nothing has next to no gradient that could lower its score; whatever score the first
        weights gave to its rows would stay, and they would be predicted.
        """
        if np.ptp(weights) > 0:
            shares = np.bincount(targets, weights.astype(float)) / weights.sum(dtype=float)
            odds = torch.from_numpy(np.log(shares * len(shares)))
            for ladder in ladders:
                bias = top_bias(ladder)
                if bias is not None:
                    bias.add_(odds)

    def predict_proba(self, X: ArrayLike) -> Array:
        """The probability of each class, ``(n, classes)``, averaged over the members.

        Examples
        --------
        >>> X, y = [[0.0], [0.1], [0.9], [1.0]] * 10, ["low", None, None, "high"] * 10
        >>> classifier = LadderClassifier((8,), costs=1.0, epochs=3, batch_size=20, n_members=2).fit(X, y)
        >>> classifier.predict_proba([[0.05]]).sum().round(6).item()
        1.0
        """
        return self._answers(X, "probabilities")

    def predict(self, X: ArrayLike) -> Array:
        """The most probable class of each row.

        Examples
        --------
        >>> X, y = [[0.0], [0.1], [0.9], [1.0]] * 10, ["low", None, None, "high"] * 10
        >>> classifier = LadderClassifier((8,), costs=1.0, epochs=50, batch_size=20, random_state=0).fit(X, y)
        >>> classifier.predict([[0.05], [0.95]]).tolist()
        ['low', 'high']
        """
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[probabilities.argmax(1)])

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """The accuracy on the rows that have a label; those without one are left out.

        Examples
        --------
        >>> X, y = [[0.0], [0.1], [0.9], [1.0]] * 10, [0, -1, -1, 1] * 10
        >>> classifier = LadderClassifier((8,), costs=1.0, epochs=50, batch_size=20, random_state=0).fit(X, y)
        >>> classifier.score([[0.05], [0.95], [0.5]], [0, 1, -1])
        1.0
        """
        predicted = self.predict(X)
        labels = one_for_each_row(y, len(predicted))
        labeled = ~is_unlabeled(labels)
        if not labeled.any():
            raise ValueError(f"None of the {len(labels)} rows is labelled, so there is nothing to score.")
        weights = _check_sample_weight(sample_weight, predicted)[labeled]
        right = predicted[labeled] == labels_to_compare(labels[labeled], self.classes_)
        return float(np.average(right, weights=weights))

    def _meaning(self) -> dict[str, Any]:
        return {"classes": self.classes_}

    def _take_meaning(self, fitted: Fitted) -> None:
        assert fitted.classes is not None
        self.classes_ = fitted.classes
        if not np.array_equal(self.classes_, np.unique(self.classes_)):  # another fit is to keep their order
            self.classes = self.classes_.tolist()
