"""The wheel works without the checkout: it is built, installed into an empty folder, and runs every verb."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent


class Installed:
    """The installed `tikas` command; it runs in a folder outside the checkout."""

    def __init__(self, site: Path, folder: Path) -> None:
        self.script, self.folder = site / "bin" / "tikas", folder
        self.environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
        self.environment.pop("TIKAS_DATA", None)

    def __call__(self, *command: str | Path) -> str:
        result = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def tikas(self, *arguments: str) -> str:
        return self(sys.executable, self.script, *arguments)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    source, site, folder = (tmp_path_factory.mktemp(name) for name in ("source", "site", "empty"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    built = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(source), str(source)]
    subprocess.run([*pip, *built], check=True)
    (wheel,) = source.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    return Installed(site, folder)


def test_the_wheel_holds_the_package_its_types_and_its_notes(installed: Installed) -> None:
    site = installed.script.parent.parent
    packed = {path.relative_to(site) for path in (site / "tikas").rglob("*.*") if path.suffix != ".pyc"}
    files = {path.relative_to(ROOT / "src") for path in (ROOT / "src" / "tikas").rglob("*.*") if path.suffix != ".pyc"}
    assert packed == files
    assert Path("tikas/py.typed") in packed
    assert installed(sys.executable, "-c", "import tikas; print(tikas.__file__)").startswith(str(site))


def test_every_verb_of_the_wheel_has_help(installed: Installed) -> None:
    for verb in ("train", "predict", "report", "reproduce"):
        assert f"tikas {verb}" in installed.tikas(verb, "--help")


def test_the_wheel_trains_and_predicts(installed: Installed) -> None:
    printed = installed.tikas("train", "--epochs", "1", "--network", "16", "--quiet", "--no-baseline")
    assert "model saved to models/digits.safetensors" in printed
    np.save(installed.folder / "rows.npy", np.zeros((3, 64), np.float32))
    header, *lines = installed.tikas("predict", "models/digits.safetensors", "rows.npy").splitlines()
    assert header == "prediction,probability"
    assert len(lines) == 3
    assert {line.split(",")[0] for line in lines} <= set("0123456789")


def test_the_wheel_writes_a_report(installed: Installed) -> None:
    """From the model of the test above."""
    assert "report written to" in installed.tikas("report", "models/digits.safetensors", "--output", "page.html")
    assert "<h1>Report on digits</h1>" in (installed.folder / "page.html").read_text()


def test_the_wheel_lists_the_papers_cells(installed: Installed) -> None:
    assert "table1" in installed.tikas("reproduce", "--list")
