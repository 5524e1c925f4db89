"""Which package may import which (DESIGN.md), and what `import tikas` and the command line load."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tikas

SRC = Path(tikas.__file__).parent
PACKAGES = ["model", "data", "training", "estimators", "io", "report", "paper", "cli"]
"""Each may import itself and those before it."""
EXCEPTIONS = {("estimators.base", "io")}
"""`LadderEstimator.save` imports `tikas.io`, which imports the estimators."""
HEAVY = ["torch", "sklearn", "pandas", "scipy", "matplotlib", "rich"]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


def imports_of(path: Path) -> set[str]:
    """All modules of tikas that a file imports, at module level or in a function, without the prefix ``tikas.``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import tikas by its full name"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("tikas.") for name in found if name.startswith("tikas.")}


FILES = [path for path in sorted(SRC.rglob("*.py")) if path.parent != SRC or path.name == "io.py"]


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_a_module_imports_no_package_below_its_own(path: Path) -> None:
    name = module_name(path)
    rank = PACKAGES.index(name.split(".")[0])
    for imported in imports_of(path):
        package = imported.split(".")[0]
        if package in PACKAGES and (name, package) not in EXCEPTIONS:
            assert PACKAGES.index(package) <= rank, f"tikas.{name} imports tikas.{imported}"


def test_the_data_package_knows_nothing_of_models() -> None:
    for path in (SRC / "data").glob("*.py"):
        assert not [name for name in imports_of(path) if name.split(".")[0] == "model"], path


def test_the_only_exception_is_needed() -> None:
    assert "io.save" in imports_of(SRC / "estimators" / "base.py")


def test_every_public_name_can_be_imported() -> None:
    for name in tikas.__all__:
        assert getattr(tikas, name) is not None


@pytest.mark.parametrize("module", ["tikas", "tikas.cli"])
def test_importing_loads_no_heavy_library(module: str) -> None:
    code = f"import sys, {module}; print(*[name for name in {HEAVY} if name in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output.split() == []


@pytest.mark.parametrize(("arguments", "limit"), [(["-c", "import tikas"], 0.05), (["-m", "tikas", "--help"], 0.3)])
def test_the_package_and_its_help_start_quickly(arguments: list[str], limit: float) -> None:
    """Processor time, the least of five runs: other work on the machine is left out."""
    resource = pytest.importorskip("resource", reason="Windows does not measure the processor time of a child process")
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < limit
