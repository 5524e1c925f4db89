"""A small folder of images, for the tests of those who read one."""

from pathlib import Path

import numpy as np
from PIL import Image

from tikas.data.sources import load


def save_digits(folder: Path) -> None:
    """Zeros and ones: twenty of each with their class, ten without, and ten of each for tests."""
    digits = load("digits")
    for number, name in enumerate(("zero", "one")):
        images = (255 * digits.train_x[digits.train_y == number][:40, 0]).astype(np.uint8)
        places = [name] * 20 + ["unlabeled"] * 10 + [f"test/{name}"] * 10
        for place, (image, part) in enumerate(zip(images, places, strict=True)):
            (folder / part).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / part / f"{name}{place:02}.png")
