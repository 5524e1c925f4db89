"""Every public function shows by example what it is for."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "tikas"
KERNELS = PACKAGE / "training" / "kernels"
"""These run on a GPU, or in Triton's interpreter if it was asked for before Triton was imported: never in a doctest."""


def documented() -> dict[str, str]:
    """The docstring of every public function, by the function's name in the package."""
    functions = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if KERNELS in path.parents:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                functions[f"{path.relative_to(PACKAGE)}:{node.name}"] = ast.get_docstring(node) or ""
    return functions


def test_every_public_function_has_an_example():
    functions = documented()
    assert {"training/fit.py:fit", "model/gamma.py:gamma", "cli.py:main"} < functions.keys()
    assert [name for name, text in functions.items() if ">>> " not in text] == []


def test_no_example_is_skipped():
    assert [path.name for path in PACKAGE.rglob("*.py") if "+SKIP" in path.read_text(encoding="utf-8")] == []
