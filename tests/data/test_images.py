"""Images as arrays in one layout, and folders of image files."""

import re
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tikas.data.images import (
    as_columns,
    as_images,
    as_shaped,
    find_images,
    read_folder,
    read_images,
    warn_channels_last,
)

Image = pytest.importorskip("PIL.Image", reason="needs Pillow")

IMAGES = np.arange(2 * 3 * 8 * 8, dtype=np.float32).reshape(2, 3, 8, 8)


# Arrays.


def test_gray_images_get_a_channel_and_others_stay_as_they_are() -> None:
    assert as_images(IMAGES) is IMAGES
    np.testing.assert_array_equal(as_images(IMAGES[:, 0]), IMAGES[:, :1])


@pytest.mark.parametrize("shape", [(2, 8, 8, 1), (2, 8, 8, 3), (2, 8, 8, 4), (2, 48, 32, 1), (2, 48, 32, 2)])
def test_images_with_channels_last_raise_an_error_with_both_shapes(shape: tuple[int, ...]) -> None:
    n, height, width, channels = shape
    with pytest.raises(ValueError, match=rf"{re.escape(str(shape))}.*{re.escape(str((n, channels, height, width)))}"):
        as_images(np.zeros(shape))


@pytest.mark.parametrize("shape", [(2, 8, 100, 1), (2, 3, 3, 3), (2, 16, 5, 4), (2, 48, 1, 32)])
def test_narrow_images_are_accepted(shape: tuple[int, ...]) -> None:
    assert as_images(np.zeros(shape)).shape == shape


@pytest.mark.parametrize("shape", [(2, 8), (2, 1, 3, 8, 8)])
def test_images_have_three_or_four_dimensions(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=re.escape(str(shape))):
        as_images(np.zeros(shape))


@pytest.mark.parametrize(
    ("shape", "takes_maps", "preprocess", "warned"),
    [
        ((5, 8, 6, 3), True, "none", True),
        ((5, 8, 6, 3), False, "standardize", True),
        ((5, 8, 6, 3), False, "none", False),  # the order of the values does not matter
        ((5, 3, 8, 6), True, "none", False),
        ((5, 8, 6, 2), True, "none", False),
        ((5, 64), True, "whiten", False),
    ],
)
def test_shapes_that_may_have_their_channels_last_give_a_warning(
    shape: tuple[int, ...], takes_maps: bool, preprocess: str, warned: bool, recwarn: pytest.WarningsRecorder
) -> None:
    warn_channels_last(np.zeros(shape), takes_maps, preprocess, stacklevel=1)
    assert [warning.filename for warning in recwarn] == [__file__] * warned
    if warned:
        assert "(5, 8, 6, 3)" in str(recwarn[0].message)
        assert "(5, 3, 8, 6)" in str(recwarn[0].message)


def test_rows_are_accepted_in_their_shape_flat_and_gray() -> None:
    assert as_shaped(IMAGES, (3, 8, 8)).shape == IMAGES.shape
    np.testing.assert_array_equal(as_shaped(IMAGES.reshape(2, -1), (3, 8, 8)), IMAGES)
    np.testing.assert_array_equal(as_shaped(IMAGES[:, 0], (1, 8, 8)), IMAGES[:, :1])
    assert as_shaped(np.zeros((0, 5)), (5,)).shape == (0, 5)


@pytest.mark.parametrize(
    ("given", "shape", "named"),
    [
        ((2, 8, 8, 3), (3, 8, 8), r"\(2, 8, 8, 3\).*\(2, 3, 8, 8\).*moveaxis"),
        ((2, 8, 6), (1, 6, 8), r"\(2, 8, 6\).*\(2, 1, 6, 8\)"),
        ((2, 8, 8), (3, 8, 8), r"\(2, 8, 8\).*\(2, 3, 8, 8\)"),
        ((2, 8, 8), (64,), r"\(2, 8, 8\).*\(2, 64\)"),
    ],
)
def test_rows_of_another_shape_raise_an_error_with_both_shapes(
    given: tuple[int, ...], shape: tuple[int, ...], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        as_shaped(np.zeros(given), shape)


def test_the_columns_of_images_are_their_channels() -> None:
    np.testing.assert_array_equal(as_columns(IMAGES)[:, 1], IMAGES[:, 1].ravel())
    rows = np.zeros((5, 64))
    assert as_columns(rows) is rows
    assert len(as_columns(np.zeros((50_000, 1, 2, 2)))) == 4 * 1924  # every 26th image


# Folders.

SIZE = (6, 5)  # width, height


def make_image(mode: str = "RGB", seed: int = 0, size: tuple[int, int] = SIZE) -> Any:
    width, height = size
    shape = (height, width) if mode == "L" else (height, width, len(mode))
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def save(image: Any, path: Path, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def pixels(seed: int, mode: str = "RGB") -> np.ndarray:
    values = np.asarray(make_image(mode, seed)) / np.float32(255)
    return values[None] if mode == "L" else values.transpose(2, 0, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two dogs, a cat, an unlabeled image, and a test image."""
    for seed, name in enumerate(("dogs/b.png", "dogs/a.png", "cats/1.png", "unlabeled/x.png", "test/dogs/t.png")):
        save(make_image(seed=seed), tmp_path / name)
    return tmp_path


def test_classes_and_images_are_sorted_by_name(folder: Path) -> None:
    train, test = read_folder(folder)
    assert train.classes.tolist() == test.classes.tolist() == ["cats", "dogs"]
    assert (train.targets.tolist(), test.targets.tolist()) == ([0, 1, 1, -1], [1])
    assert train.rows.dtype == np.float32
    np.testing.assert_array_equal(train.rows, [pixels(2), pixels(1), pixels(0), pixels(3)])
    np.testing.assert_array_equal(test.rows, [pixels(4)])


def test_without_a_folder_of_test_images_there_are_no_test_rows(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(make_image(), tmp_path / name / "1.png")
    _, test = read_folder(tmp_path)
    assert (test.rows.shape, len(test)) == ((0, 3, 5, 6), 0)


@pytest.mark.parametrize("name", ["unlabelled", "Unlabeled"])
def test_the_folder_of_unlabeled_images_may_be_spelled_in_other_ways(name: str, folder: Path) -> None:
    (folder / "unlabeled").rename(folder / name)
    assert read_folder(folder)[0].targets.tolist() == [0, 1, 1, -1]


def test_hidden_files_and_those_of_archives_and_file_managers_are_ignored(folder: Path) -> None:
    for name in ("__MACOSX/cats/1.png", "test/__MACOSX/1.png", ".cache/1.png", "unlabeled/__MACOSX/1.png"):
        save(make_image(seed=9), folder / name)
    for name in (".DS_Store", "cats/.1.png", "cats/Thumbs.db", "README.txt"):
        (folder / name).write_bytes(b"no image")
    train, test = read_folder(folder)
    assert (train.classes.tolist(), len(train), len(test)) == (["cats", "dogs"], 4, 1)
    assert len(find_images(folder)) == 5


def test_links_to_folders_are_followed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    save(make_image(seed=5), elsewhere / "1.png")
    (folder / "birds").symlink_to(elsewhere)
    assert folder / "birds" / "1.png" in find_images(folder)
    assert read_folder(folder)[0].classes.tolist() == ["birds", "cats", "dogs"]


def test_image_files_are_found_at_any_depth_sorted_by_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(str(tmp_path))):
        find_images(tmp_path)
    for name in ("b.png", "a.JPG", "notes.txt", "c/d/1.webp"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [str(file.relative_to(tmp_path)) for file in find_images(tmp_path)] == ["a.JPG", "b.png", "c/d/1.webp"]


@pytest.mark.parametrize(
    ("file", "mode", "options"),
    [
        ("1.png", "RGB", {}),
        ("1.PNG", "L", {}),
        ("1.bmp", "RGB", {}),
        ("1.webp", "RGB", {"lossless": True}),
    ],
)
def test_lossless_files_are_read_exactly(file: str, mode: str, options: dict[str, Any], tmp_path: Path) -> None:
    files = [save(make_image(mode, seed), tmp_path / str(seed) / file, **options) for seed in (0, 1)]
    np.testing.assert_array_equal(read_images(files), [pixels(0, mode), pixels(1, mode)])


@pytest.mark.parametrize("suffix", [".jpg", ".jpeg", ".JPG"])
def test_photographs_are_read_and_rotated_as_their_exif_data_says(suffix: str, tmp_path: Path) -> None:
    photograph = Image.new("RGB", (16, 8))
    photograph.paste((255, 255, 255), (0, 0, 8, 8))
    upside_down = Image.Exif()
    upside_down[0x0112] = 3
    files = [save(photograph, tmp_path / f"1{suffix}", exif=upside_down), save(photograph, tmp_path / f"2{suffix}")]
    rotated, plain = read_images(files)
    assert plain.shape == (3, 8, 16)
    assert plain[..., :8].min() > 0.95
    assert plain[..., 8:].max() < 0.05
    np.testing.assert_allclose(rotated, plain[:, ::-1, ::-1], atol=0.05)


def test_black_and_white_is_gray_and_a_palette_is_color(tmp_path: Path) -> None:
    white = [save(Image.new("1", SIZE, 1), tmp_path / "1.png"), save(Image.new("L", SIZE, 255), tmp_path / "2.png")]
    np.testing.assert_array_equal(read_images(white), np.ones((2, 1, 5, 6)))
    palette = save(Image.new("RGB", SIZE, (255, 0, 51)).quantize(4), tmp_path / "3.png")
    assert read_images([palette])[0, :, 2, 2].tolist() == pytest.approx([1, 0, 0.2])


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_an_opaque_alpha_channel_is_dropped_and_a_transparent_pixel_raises_an_error(mode: str, tmp_path: Path) -> None:
    color = mode[:-1]
    image = make_image(color)
    image.putalpha(255)
    file = save(image, tmp_path / "1.png")
    np.testing.assert_array_equal(read_images([file]), [pixels(0, color)])
    image.putpixel((0, 0), (*([0] * len(color)), 254))
    save(image, file)
    with pytest.raises(ValueError, match=r"1\.png has transparent pixels"):
        read_images([file])


def test_a_transparent_color_of_a_palette_raises_an_error_if_a_pixel_has_it(tmp_path: Path) -> None:
    palette = Image.new("P", SIZE, 1)
    palette.putpalette([0, 0, 0, 9, 9, 9])
    file = save(palette, tmp_path / "1.png", transparency=bytes([0, 255]))
    np.testing.assert_allclose(read_images([file]), 9 / 255)
    save(palette, file, transparency=bytes([255, 0]))
    with pytest.raises(ValueError, match=r"1\.png has transparent pixels"):
        read_images([file])


def test_gray_of_16_bits_is_read_exactly_and_together_with_gray_of_8_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gray = np.array([[0, 1, 255], [256, 40_000, 65_535]], np.uint16)
    file = save(Image.fromarray(gray), tmp_path / "16.png")
    eight_bits = save(Image.fromarray((gray // 257).astype(np.uint8)), tmp_path / "8.png")
    both = read_images([file, eight_bits])
    np.testing.assert_array_equal(both[0, 0], gray / np.float32(65_535))
    np.testing.assert_allclose(both[0], both[1], atol=1 / 255)
    monkeypatch.setattr("PIL.ImageOps.exif_transpose", lambda _: Image.fromarray(gray.astype(np.int32)))
    np.testing.assert_array_equal(read_images([file])[0], both[0])  # the mode that older versions of Pillow give it


@pytest.mark.parametrize(
    ("image", "shape"),
    [(make_image(size=(7, 5)), "(3, 5, 7)"), (make_image(size=(5, 6)), "(3, 6, 5)"), (make_image("L"), "(1, 5, 6)")],
    ids=["wider", "higher", "gray"],
)
@pytest.mark.parametrize("name", ["dogs/b.png", "unlabeled/x.png", "test/dogs/t.png"])
def test_the_error_for_an_image_unlike_the_first_names_it_and_both_shapes(
    name: str, image: Any, shape: str, folder: Path
) -> None:
    save(image, folder / name)
    with pytest.raises(ValueError, match=rf"{name} .*{re.escape(shape)}.*cats.1\.png .*\(3, 5, 6\)"):
        read_folder(folder)


def with_height(png: bytes, height: int) -> bytes:
    """Change the height that the header of a PNG file announces, and the header's checksum."""
    header = png[12:20] + struct.pack(">I", height) + png[24:29]
    return png[:12] + header + struct.pack(">I", zlib.crc32(header)) + png[33:]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda _: b"", id="empty"),
        pytest.param(lambda _: b"text", id="text"),
        pytest.param(lambda content: content[:-200], id="truncated"),
        pytest.param(lambda content: with_height(content, 2**31 - 1), id="huge"),
        pytest.param(lambda _: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 5\n%%EndComments\n", id="postscript"),
    ],
)
def test_a_damaged_image_is_named_in_the_error(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    file = save(make_image(size=(60, 50)), tmp_path / "1.png")
    whole = file.read_bytes()
    assert with_height(whole, 50) == whole
    file.write_bytes(damage(whole))
    with pytest.raises(ValueError, match=r"1\.png cannot be read as an image"):
        read_images([file])


def test_the_first_image_of_an_animation_is_read(tmp_path: Path) -> None:
    options = {"save_all": True, "append_images": [make_image(seed=1)], "lossless": True}
    np.testing.assert_array_equal(read_images([save(make_image(), tmp_path / "1.webp", **options)]), [pixels(0)])


def test_other_pixel_modes_are_read_as_colors(tmp_path: Path) -> None:
    white = save(Image.new("CMYK", SIZE), tmp_path / "1.jpg")
    np.testing.assert_array_equal(read_images([white]), np.ones((1, 3, 5, 6)))


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("cats/notes.txt", r"cats.notes\.txt is not an image"),
        ("cats/more/1.png", "cats.more is not an image"),
        ("loose.png", r"loose\.png is not in the folder of a class"),
        ("test/loose.png", r"test.loose\.png is not in the folder of a class"),
        ("test/cows/1.png", r"test.cows is not one of the classes \(cats, dogs\)"),
        ("cows/", "cows .*no images"),
        ("test/cats/", "test.cats .*no images"),
    ],
)
def test_a_misplaced_file_or_folder_is_named_in_the_error(name: str, named: str, folder: Path) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    if name.endswith("/"):
        (folder / name).mkdir()
    else:
        (folder / name).write_bytes(b"")
    with pytest.raises(ValueError, match=named):
        read_folder(folder)


def test_a_folder_has_two_classes_or_more(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no class"):
        read_folder(tmp_path)
    for name in ("cats", "unlabeled", "test/cats"):
        save(make_image(), tmp_path / name / "1.png")
    with pytest.raises(ValueError, match="one class only, cats"):
        read_folder(tmp_path)


def test_a_path_that_is_not_a_folder_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_folder(tmp_path / "nowhere")


def test_without_pillow_the_error_names_the_extra_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"tikas\[images\]"):
        read_folder(folder)
