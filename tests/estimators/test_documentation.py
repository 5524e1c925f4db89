"""What users read with `help`: numpydoc sections, types and examples of everything public."""

import ast
import inspect
import re
from fractions import Fraction

import pytest

import tikas
from tikas import LadderClassifier, LadderRegressor

ESTIMATORS = [LadderClassifier, LadderRegressor]


def public_methods(cls):
    """Methods of the class that tikas defines, and not scikit-learn."""
    for name, method in inspect.getmembers(cls, inspect.isfunction):
        if not name.startswith("_") and method.__module__.startswith("tikas"):
            yield name, method


def names_in_section(text, section):
    """The names of a numpydoc section ``name : type``; a line may hold several."""
    lines = re.search(rf"^{section}\n-+\n(.*?)(?=^\w+\n--|\Z)", text, re.MULTILINE | re.DOTALL)
    names = re.findall(r"^(\w[\w, ]*) : \S", lines[1], re.MULTILINE) if lines else []
    return [name for several in names for name in several.split(", ")]


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in tikas.__all__
        if inspect.isroutine(getattr(tikas, name)) or inspect.isclass(getattr(tikas, name))
    ],
)
def test_public_name_has_an_example(name):
    assert ">>> " in inspect.getdoc(getattr(tikas, name))


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_parameters_and_fitted_attributes_of_estimators_are_documented(cls):
    text = inspect.getdoc(cls)
    assert set(names_in_section(text, "Parameters")) == set(cls().get_params())
    X, y = [[0.0], [0.2], [0.8], [1.0]] * 5, [0, 1, 1, 0] * 5
    fitted = cls((2,), epochs=1, batch_size=10).fit(X, y)
    attributes = {name for name in vars(fitted) if name.endswith("_")}
    assert set(names_in_section(text, "Attributes")) == attributes | {"feature_names_in_"}


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_documented_defaults_are_the_defaults(cls):
    documented = dict(re.findall(r"^(\w+) : .*default=(.+)$", inspect.getdoc(cls), re.MULTILINE))
    parameters = cls().get_params()
    assert documented.keys() == parameters.keys()
    for name, default in documented.items():
        value = float(Fraction(default)) if "/" in default else ast.literal_eval(default)
        assert parameters[name] == value, name


@pytest.mark.parametrize(
    "method",
    [pytest.param(method, id=f"{cls.__name__}.{name}") for cls in ESTIMATORS for name, method in public_methods(cls)],
)
def test_arguments_of_methods_are_documented_with_an_example(method):
    text = inspect.getdoc(method)
    arguments = [name for name in inspect.signature(method).parameters if name != "self"]
    assert names_in_section(text, "Parameters") == arguments
    assert re.search(r"^Returns\n-------\n", text, re.MULTILINE)
    assert ">>> " in text
