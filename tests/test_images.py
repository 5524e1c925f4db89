"""Images come to one layout, rows to the shape that is known, and data are told by their names."""

import numpy as np
import pytest

from tikas.data.images import as_columns, as_images, as_shaped
from tikas.data.kinds import DATA_SETS, kind_of
from tikas.data.sources import NAMES

IMAGES = np.arange(2 * 3 * 8 * 8, dtype=np.float32).reshape(2, 3, 8, 8)


def test_images_stay_as_they_are_and_grey_ones_get_a_channel():
    assert as_images(IMAGES) is IMAGES
    grey = as_images(IMAGES[:, 0])
    assert grey.shape == (2, 1, 8, 8)
    assert (grey[:, 0] == IMAGES[:, 0]).all()


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_square_images_with_channels_last_are_refused_with_both_shapes(channels):
    with pytest.raises(ValueError, match=rf"\(2, 8, 8, {channels}\); expected \(2, {channels}, 8, 8\).*moveaxis"):
        as_images(np.zeros((2, 8, 8, channels)))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_oblong_images_with_channels_last_are_refused_too_where_they_are_large(channels):
    with pytest.raises(ValueError, match=rf"\(2, 48, 32, {channels}\); expected \(2, {channels}, 48, 32\).*moveaxis"):
        as_images(np.zeros((2, 48, 32, channels)))


def test_maps_that_only_look_odd_are_images():
    for shape in ((2, 8, 100, 1), (2, 3, 3, 3), (2, 16, 5, 4), (2, 48, 1, 32)):
        assert as_images(np.zeros(shape)).shape == shape


@pytest.mark.parametrize("shape", [(2, 8), (2, 1, 3, 8, 8)])
def test_what_is_no_image_is_refused(shape):
    with pytest.raises(ValueError, match=r"expected images, \(n, channels, height, width\)"):
        as_images(np.zeros(shape))


def test_rows_are_taken_in_their_shape_flat_and_grey():
    assert (as_shaped(IMAGES.reshape(2, -1), (3, 8, 8)) == IMAGES).all()
    assert (as_shaped(IMAGES[:, 0], (1, 8, 8)) == IMAGES[:, :1]).all()
    assert as_shaped(np.zeros((0, 5)), (5,)).shape == (0, 5)


@pytest.mark.parametrize(
    ("given", "shape", "message"),
    [
        ((2, 8, 8, 3), (3, 8, 8), r"\(2, 8, 8, 3\).*\(2, 3, 8, 8\)\. Channels come first"),
        ((2, 8, 6), (1, 6, 8), r"\(2, 8, 6\).*\(2, 1, 6, 8\)\. Give rows"),
        ((2, 8, 8), (3, 8, 8), r"\(2, 8, 8\).*\(2, 3, 8, 8\)"),
        ((2, 8, 8), (64,), r"\(2, 8, 8\).*\(2, 64\)"),
    ],
)
def test_rows_of_another_shape_are_refused_with_both_shapes(given, shape, message):
    with pytest.raises(ValueError, match=message):
        as_shaped(np.zeros(given), shape)


def test_the_columns_of_images_are_their_channels():
    columns = as_columns(IMAGES)
    assert (columns[:, 1] == np.concatenate([image[1].ravel() for image in IMAGES])).all()
    assert len(as_columns(np.zeros((50_000, 1, 2, 2)))) == 4 * 1924  # every 26th


def test_data_are_told_by_their_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert NAMES == DATA_SETS
    for folder in ("photos", "photos.v2", "mnist"):
        (tmp_path / folder).mkdir()
    (tmp_path / "rows").touch()
    names = ("mnist", "photos", "photos.v2", "rows.csv", "rows", "some/where", "nothing")
    assert [kind_of(name) for name in names] == ["data set", "folder", "folder", "table", "table", "folder", "data set"]
