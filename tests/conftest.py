"""Settings of the whole suite."""

import pytest
import torch
from hypothesis import settings

# One thread: the networks of the tests are small, and threads that wait for each other are slower than one.
torch.set_num_threads(1)

# The same examples in every run, so that a change fails for what it changed.
settings.register_profile("deterministic", derandomize=True, deadline=None)
settings.load_profile("deterministic")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the pictures of reports empty, for tests of their words: drawing takes most of the time."""
    from tikas.report import model
    from tikas.report.page import Picture

    def no_picture(_draw: object, alt: str, caption: str = "", _size: object = None) -> Picture:
        return Picture("data:image/png;base64,", alt, caption, 100, 100)

    monkeypatch.setattr(model, "draw", no_picture)
    monkeypatch.setattr(model, "draw_figure", no_picture)
