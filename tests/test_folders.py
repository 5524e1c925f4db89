"""A folder of images is a data set; whatever in it is not like the rest is named."""

import struct
import sys

import numpy as np
import pytest

from tikas.data.folders import find_images, read_folder, read_images

Image = pytest.importorskip("PIL.Image", reason="needs Pillow")

SIZE = (6, 5)  # wide, high


def picture(mode="RGB", seed=0, size=SIZE):
    width, height = size
    shape = (height, width) if mode == "L" else (height, width, len(mode))
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8), mode)


def save(image, path, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


@pytest.fixture
def folder(tmp_path):
    """Two dogs, a cat, an image without a label, and a test image."""
    for seed, name in enumerate(("dogs/b.png", "dogs/a.png", "cats/1.png", "unlabeled/x.png", "test/dogs/t.png")):
        save(picture(seed=seed), tmp_path / name)
    return tmp_path


def pixels(seed, mode="RGB"):
    values = np.asarray(picture(mode, seed)) / np.float32(255)
    return values[None] if mode == "L" else values.transpose(2, 0, 1)


def test_classes_and_images_come_in_the_order_of_their_names(folder):
    data = read_folder(folder)
    assert data.classes == ("cats", "dogs")
    assert data.train_y.tolist() == [0, 1, 1, -1]
    assert data.test_y.tolist() == [1]
    assert data.train_x.dtype == np.float32
    np.testing.assert_array_equal(data.train_x, [pixels(2), pixels(1), pixels(0), pixels(3)])
    np.testing.assert_array_equal(data.test_x, [pixels(4)])


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".webp", ".PNG"])
def test_each_kind_of_file_is_read_to_the_pixel(tmp_path, suffix):
    options = {"lossless": True} if suffix == ".webp" else {}
    for seed, name in enumerate("ab"):
        save(picture(seed=seed), tmp_path / name / f"1{suffix}", **options)
    np.testing.assert_array_equal(read_folder(tmp_path).train_x, [pixels(0), pixels(1)])


@pytest.mark.parametrize("suffix", [".jpg", ".jpeg", ".JPG"])
def test_photographs_are_read(tmp_path, suffix):
    for grey, name in ((0, "a"), (255, "b")):
        save(Image.new("RGB", SIZE, (grey,) * 3), tmp_path / name / f"1{suffix}")
    x = read_folder(tmp_path).train_x
    assert x.shape == (2, 3, 5, 6)
    assert x[0].max() < 0.02
    assert x[1].min() > 0.98


def test_grey_images_have_one_channel(tmp_path):
    for seed, name in enumerate("ab"):
        save(picture("L", seed), tmp_path / name / "1.png")
    np.testing.assert_array_equal(read_folder(tmp_path).train_x, [pixels(0, "L"), pixels(1, "L")])


def test_black_and_white_is_grey_and_a_palette_is_colour(tmp_path):
    save(Image.new("1", SIZE, 1), tmp_path / "a" / "1.png")
    save(Image.new("L", SIZE, 255), tmp_path / "b" / "1.png")
    assert read_folder(tmp_path).train_x.min() == 1
    for name in ("a", "b"):
        save(Image.new("RGB", SIZE, (255, 0, 51)).quantize(4), tmp_path / name / "1.png")
    assert read_folder(tmp_path).train_x[0, :, 2, 2].tolist() == pytest.approx([1, 0, 0.2])


def test_without_test_images_there_are_no_test_rows(tmp_path):
    for name in ("a", "b"):
        save(picture(), tmp_path / name / "1.png")
    data = read_folder(tmp_path)
    assert data.test_x.shape == (0, 3, 5, 6)
    assert data.test_y.shape == (0,)


@pytest.mark.parametrize("name", ["unlabelled", "Unlabeled", "UNLABELLED"])
def test_images_without_a_label_may_be_spelled_either_way_and_with_capitals(folder, name):
    (folder / "unlabeled").rename(folder / name)
    data = read_folder(folder)
    assert data.classes == ("cats", "dogs")
    assert data.train_y.tolist() == [0, 1, 1, -1]


def test_what_an_archive_leaves_behind_is_no_class(folder):
    for name in ("__MACOSX/cats/1.png", "test/__MACOSX/1.png", ".cache/1.png", "unlabeled/__MACOSX/1.png"):
        save(picture(seed=9), folder / name)
    data = read_folder(folder)
    assert data.classes == ("cats", "dogs")
    assert (len(data.train_x), len(data.test_x)) == (4, 1)
    assert len(find_images(folder)) == 5


def test_folders_that_are_linked_to_are_read_and_found(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    save(picture(seed=5), elsewhere / "1.png")
    (folder / "birds").symlink_to(elsewhere)
    (folder / "loop").symlink_to(folder)
    assert folder / "birds" / "1.png" in find_images(folder)
    assert len(find_images(folder)) == 6
    (folder / "loop").unlink()
    assert read_folder(folder).classes == ("birds", "cats", "dogs")


def test_hidden_files_and_loose_texts_are_passed_over(folder):
    for name in (".DS_Store", "cats/.1.png", "cats/Thumbs.db", "README.txt"):
        (folder / name).write_bytes(b"no image")
    (folder / ".git").mkdir()
    assert len(read_folder(folder).train_x) == 4


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_an_opaque_alpha_channel_is_dropped_and_a_transparent_one_refused(tmp_path, mode):
    bare = mode[:-1]
    for seed, name in enumerate("ab"):
        image = picture(bare, seed)
        image.putalpha(255)
        save(image, tmp_path / name / "1.png")
    np.testing.assert_array_equal(read_folder(tmp_path).train_x, [pixels(0, bare), pixels(1, bare)])
    image.putpixel((0, 0), (*([0] * len(bare)), 254))
    save(image, tmp_path / "b" / "1.png")
    with pytest.raises(ValueError, match=r"b.1\.png is transparent in places.*alpha_composite"):
        read_folder(tmp_path)


def test_a_transparent_colour_of_a_palette_is_refused(tmp_path):
    for name in ("a", "b"):
        palette = Image.new("P", SIZE, 1)
        palette.putpalette([0, 0, 0, 9, 9, 9])
        save(palette, tmp_path / name / "1.png", transparency=bytes([255, 0 if name == "b" else 255]))
    with pytest.raises(ValueError, match=r"b.1\.png is transparent in places"):
        read_folder(tmp_path)


def test_a_photograph_is_turned_as_its_camera_says(tmp_path):
    upright = Image.new("RGB", (16, 8))
    upright.paste((255, 255, 255), (0, 0, 8, 8))
    turned = Image.Exif()
    turned[0x0112] = 3  # upside down
    save(upright, tmp_path / "a" / "1.jpg", exif=turned)
    save(upright, tmp_path / "b" / "1.jpg")
    a, b = read_folder(tmp_path).train_x
    np.testing.assert_allclose(a, b[:, ::-1, ::-1], atol=0.05)


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (picture(size=(7, 5)), r"in colour, 7 wide and 5 high, \(3, 5, 7\)"),
        (picture(size=(5, 6)), r"in colour, 5 wide and 6 high, \(3, 6, 5\)"),
        (picture("L"), r"grey, 6 wide and 5 high, \(1, 5, 6\)"),
    ],
)
@pytest.mark.parametrize("where", ["dogs/b.png", "unlabeled/x.png", "test/dogs/t.png"])
def test_the_first_image_that_differs_is_named_with_both_shapes(folder, where, odd, said):
    save(odd, folder / where)
    message = rf"{where} is {said}, but .*cats.1\.png is in colour, 6 wide and 5 high, \(3, 5, 6\).*Image\.resize"
    with pytest.raises(ValueError, match=message):
        read_folder(folder)


@pytest.mark.parametrize("content", [b"", b"text", "truncated", "header", "postscript"])
def test_a_damaged_image_is_named(folder, content):
    file = folder / "dogs" / "b.png"
    whole = save(picture(size=(60, 50)), folder.parent / "whole.png").read_bytes()
    content = {
        "truncated": whole[:-200],
        "header": whole[:20] + struct.pack(">I", 2**31 - 1) + whole[24:],
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 5\n%%EndComments\n",
    }.get(content, content)
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"dogs.b\.png cannot be read as an image \(.*fresh copy"):
        read_folder(folder)


def test_an_animation_is_refused(folder):
    save(picture(), folder / "dogs" / "c.webp", save_all=True, append_images=[picture(seed=1)])
    with pytest.raises(ValueError, match=r"dogs.c\.webp holds more than one picture"):
        read_folder(folder)


def test_sixteen_bits_of_grey_are_read_to_the_pixel_and_go_with_eight(tmp_path):
    grey = np.array([[0, 1, 255], [256, 40_000, 65_535]], np.uint16)
    save(Image.fromarray(grey), tmp_path / "a" / "1.png")
    save(Image.fromarray((grey // 257).astype(np.uint8)), tmp_path / "b" / "1.png")
    sixteen, eight = read_folder(tmp_path).train_x
    np.testing.assert_array_equal(sixteen[0], grey / np.float32(65_535))
    np.testing.assert_allclose(sixteen, eight, atol=1 / 255)


def test_sixteen_bits_in_the_mode_of_older_pillows_are_the_same(tmp_path, monkeypatch):
    grey = np.array([[0, 65_535]], np.uint16)
    file = save(Image.fromarray(grey), tmp_path / "1.png")
    monkeypatch.setattr("PIL.ImageOps.exif_transpose", lambda _: Image.fromarray(grey.astype(np.int32)))
    assert read_images([file]).tolist() == [[[[0.0, 1.0]]]]


def test_a_grey_of_sixteen_bits_that_stands_for_nothing_is_refused_where_it_is_found(tmp_path):
    file = tmp_path / "1.png"
    for transparency in (7, 9):
        save(Image.fromarray(np.array([[0, 9]], np.uint16)), file, transparency=transparency)
        if transparency == 7:
            assert read_images([file]).shape == (1, 1, 1, 2)
    with pytest.raises(ValueError, match=r"1\.png is transparent in places"):
        read_images([file])


def test_other_modes_are_refused_with_what_to_do_before_converting(folder):
    save(Image.new("CMYK", SIZE), folder / "dogs" / "c.jpg")
    message = r"dogs.c\.jpg has pixels of the mode 'CMYK'; expected 8 or 16 bits of grey.*'F' to 0…255 before"
    with pytest.raises(ValueError, match=message):
        read_folder(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cats/notes.txt", r"cats.notes\.txt is of a kind that is not read; expected \.png, \.jpg"),
        ("cats/more/1.png", r"cats.more is a folder within the folder of a class"),
        ("loose.png", r"loose\.png lies outside of the folders of the classes.*Expected a folder for each class"),
        ("test/loose.png", r"test.loose\.png lies outside"),
        ("test/cows/1.png", r"test.cows is none of the classes \(cats, dogs\)"),
    ],
)
def test_what_lies_in_the_wrong_place_is_named(folder, name, message):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"")
    with pytest.raises(ValueError, match=message):
        read_folder(folder)


def test_a_folder_without_images_is_named(folder):
    (folder / "cows").mkdir()
    with pytest.raises(ValueError, match=r"cows holds no images"):
        read_folder(folder)
    (folder / "cows").rmdir()
    (folder / "test" / "dogs" / "t.png").unlink()
    with pytest.raises(ValueError, match=r"test.dogs holds no images"):
        read_folder(folder)
    (folder / "test" / "dogs").rmdir()
    with pytest.raises(ValueError, match=r"test has no folder of a class \(cats, dogs\)"):
        read_folder(folder)


def test_a_folder_needs_two_classes(tmp_path):
    with pytest.raises(ValueError, match=r"holds no class; there must be two or more.*Expected a folder for each"):
        read_folder(tmp_path)
    save(picture(), tmp_path / "cats" / "1.png")
    save(picture(), tmp_path / "unlabeled" / "1.png")
    with pytest.raises(ValueError, match=r"holds one class, cats; there must be two or more"):
        read_folder(tmp_path)


def test_what_is_no_folder_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere does not exist"):
        read_folder(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match=r"file is no folder\. Expected a folder for each class"):
        read_folder(tmp_path / "file")


def test_without_pillow_its_installation_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'tikas\[images\]'"):
        read_folder(folder)
