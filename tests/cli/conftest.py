"""Every test of the command line runs in an empty folder."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from tikas.cli import main

Run = Callable[..., int]


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIKAS_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")  # tables are printed without line breaks


@pytest.fixture
def run() -> Run:
    """Run a command in this process and return its exit code."""

    def run_command(*arguments: str) -> int:
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        return int(stop.value.code or 0)

    return run_command


@pytest.fixture
def photos() -> Path:
    """A folder with images of zeros and ones: twenty of each class, ten unlabeled, and ten of each class for tests."""
    root = Path("photos.v2")
    digits = load_digits()
    for code, name in enumerate(("zero", "one")):
        images = (255 / 16 * digits.images[digits.target == code]).astype(np.uint8)
        folders = [name] * 20 + ["unlabeled"] * 5 + [f"test/{name}"] * 10
        for number, folder in enumerate(folders):
            (root / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[number]).save(root / folder / f"{name}{number:02}.png")
    return root
