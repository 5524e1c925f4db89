"""Which package may import which (DESIGN.md), what is declared, and what `import tikas` and the command line load."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import tikas

SRC, ROOT = Path(tikas.__file__).parent, Path(__file__).parents[1]
PACKAGES = ["model", "distributed", "data", "training", "estimators", "io", "export", "report", "paper", "cli"]
"""Each may import itself and those before it."""
EXCEPTIONS = {("estimators.base", "io"), ("estimators.base", "export"), ("estimators.base", "report")}
"""Methods of estimators import `tikas.io`, `tikas.export` and `tikas.report`, which import the estimators."""
DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn"}
"""Names on the package index that differ from those in imports."""
HEAVY = ["torch", "sklearn", "pandas", "scipy", "matplotlib", "rich"]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


def all_imports_of(path: Path) -> set[str]:
    """All that a file imports, at module level or in a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import tikas by its full name"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def imports_of(path: Path) -> set[str]:
    """All modules of tikas that a file imports, without the prefix ``tikas.``."""
    return {name.removeprefix("tikas.") for name in all_imports_of(path) if name.startswith("tikas.")}


def declared(*extras: str) -> dict[str, Requirement]:
    """The dependencies of pyproject.toml and those of some extras, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    requirements = [Requirement(line) for group in groups for line in group]
    return {requirement.name: requirement for requirement in requirements}


MODULES = ("distributed.py", "io.py", "export.py")
FILES = [path for path in sorted(SRC.rglob("*.py")) if path.parent != SRC or path.name in MODULES]


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


def test_the_exceptions_are_needed() -> None:
    needed = {"io.save", "export.to_onnx", "report.representation.html_of_fit"}
    assert needed <= imports_of(SRC / "estimators" / "base.py")


def test_exactly_the_declared_dependencies_are_imported() -> None:
    modules = {name.split(".")[0] for path in SRC.rglob("*.py") for name in all_imports_of(path)}
    imported = {DISTRIBUTIONS.get(name, name) for name in modules - {"tikas", *sys.stdlib_module_names}}
    required, optional = set(declared()), set(declared("images", "plots", "parquet", "tune", "onnx", "dev"))
    assert required <= imported <= required | optional


def test_the_oldest_versions_that_are_tested_are_the_oldest_that_are_declared() -> None:
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    for name, requirement in declared("images", "plots", "parquet").items():
        (floor,) = requirement.specifier
        assert floor.operator == ">=", requirement
        assert Version(floor.version) == Version(pinned[name]), requirement


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
