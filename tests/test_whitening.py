"""Images come out of contrast normalisation and whitening with the values that the equations give."""

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from sklearn.datasets import load_sample_image

from tikas.data import whitening
from tikas.data.preprocess import check_scale
from tikas.data.whitening import Whitening, normalize_contrast

SIDE = 8


def patches(name):
    pytest.importorskip("PIL", reason="needs Pillow")
    photograph = load_sample_image(name)[: 427 // SIDE * SIDE]
    squares = photograph.reshape(427 // SIDE, SIDE, 640 // SIDE, SIDE, 3).transpose(0, 2, 4, 1, 3)
    return torch.from_numpy(squares.reshape(-1, 3, SIDE, SIDE).copy())


@pytest.fixture(scope="module")
def images():
    """Colour patches of a photograph, as bytes."""
    return patches("china.jpg")


@pytest.fixture(scope="module")
def other_images():
    return patches("flower.jpg")


@pytest.fixture(scope="module")
def fitted(images):
    return Whitening.fit(images)


def contrast_by_numpy(images):
    rows = images.numpy().reshape(len(images), -1).astype(np.float64)
    rows = rows - rows.mean(1, keepdims=True)
    norms = np.sqrt((rows**2).sum(1, keepdims=True))
    return rows * 55 * np.sqrt(rows.shape[1] / 3072) / norms


def varied(images):
    """Those that are not a single colour."""
    return images[images.flatten(1).amax(1) > images.flatten(1).amin(1)]


def test_an_image_of_cifar_10s_size_gets_the_mean_zero_and_the_norm_55():
    images = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    normalized = normalize_contrast(images).double().flatten(1)
    assert normalized.mean(1).abs().max() < 1e-6
    torch.testing.assert_close(normalized.norm(dim=1), torch.full((5,), 55.0).double(), rtol=1e-6, atol=0)
    np.testing.assert_allclose(normalized, contrast_by_numpy(images), rtol=1e-5, atol=1e-6)


def test_neither_brightness_nor_contrast_matters(images):
    images = varied(images)
    expected = normalize_contrast(images)
    torch.testing.assert_close(normalize_contrast(images / 255), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(normalize_contrast(images * 3.0 + 100), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 1.0, 255.0, -7.3])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (5,)])
def test_an_image_of_one_value_becomes_zeros(shape, value, fitted):
    image = torch.full((1, *shape), value)
    assert (normalize_contrast(image) == 0).all()
    rounded = torch.nextafter(image, torch.tensor(torch.inf)).where(torch.rand(image.shape) < 0.5, image)
    if value:
        assert (normalize_contrast(rounded) == 0).all(), "rounding is no contrast"
    assert fitted(torch.full((1, 3, SIDE, SIDE), value)).isfinite().all()


def test_one_grey_level_in_one_pixel_is_contrast():
    image = torch.full((1, 3, 32, 32), 1.0)
    image[0, 1, 4, 7] = 254 / 255
    normalized = normalize_contrast(image)
    assert normalized.norm().item() == pytest.approx(55, rel=1e-5)
    assert normalized.argmin() == 1 * 1024 + 4 * 32 + 7


def test_images_are_whitened_as_the_equations_say(images, other_images, fitted):
    """z = (C + 0.1·I)^(−1/2) (x − μ), here in NumPy's double precision, by way of a matrix square root."""
    images, other_images = varied(images), varied(other_images)
    rows = contrast_by_numpy(images)
    mean = rows.mean(0)
    covariance = (rows - mean).T @ (rows - mean) / len(rows)
    u, s, _ = np.linalg.svd(covariance + 0.1 * np.eye(len(covariance)))
    matrix = u @ np.diag(1 / np.sqrt(s)) @ u.T
    fitted = Whitening.fit(images)
    np.testing.assert_allclose(fitted.mean.flatten(), mean, atol=1e-6)
    np.testing.assert_allclose(fitted.matrix, matrix, atol=1e-5)
    for given in (images, other_images):
        whitened = (contrast_by_numpy(given) - mean) @ matrix
        np.testing.assert_allclose(fitted(given).flatten(1), whitened, atol=1e-4)


def test_whitened_training_images_have_nearly_the_identity_as_their_covariance(images, fitted):
    rows = normalize_contrast(images).flatten(1).double()
    variances, directions = torch.linalg.eigh(torch.cov(rows.T, correction=0))
    whitened = fitted(images).flatten(1).double()
    assert whitened.mean(0).abs().max() < 1e-5
    along_directions = directions.T @ torch.cov(whitened.T, correction=0) @ directions
    torch.testing.assert_close(along_directions, torch.diag(variances / (variances + 0.1)), rtol=0, atol=1e-5)
    large = variances > 5
    assert large.sum() == 5
    identity = torch.eye(int(large.sum()), dtype=torch.float64)
    torch.testing.assert_close(along_directions[large][:, large], identity, rtol=0, atol=0.02)


def test_the_matrix_is_symmetric(fitted):
    torch.testing.assert_close(fitted.matrix, fitted.matrix.T, rtol=0, atol=1e-6)


def test_whitened_photographs_lose_their_neighbours_likeness(images, fitted):
    def likeness(images):
        left, right = images[..., :-1].flatten().double(), images[..., 1:].flatten().double()
        return torch.corrcoef(torch.stack([left, right]))[0, 1]

    assert likeness(normalize_contrast(images)) > 0.7
    assert likeness(fitted(images)).abs() < 0.25


def test_whitened_images_are_of_the_size_that_a_ladder_expects(images, fitted):
    check_scale(fitted(images).numpy())


def test_images_are_taken_in_chunks_without_a_difference(images, fitted, monkeypatch):
    whole = fitted(images[:500])
    monkeypatch.setattr(whitening, "CHUNK_ROWS", 7)
    torch.testing.assert_close(fitted(images[:500]), whole, rtol=1e-4, atol=1e-5)
    in_chunks = Whitening.fit(images[:500])
    monkeypatch.undo()
    torch.testing.assert_close(in_chunks.matrix, Whitening.fit(images[:500]).matrix, rtol=1e-4, atol=1e-5)


def test_in_double_precision_an_image_does_not_depend_on_its_company(images, fitted):
    together = fitted(images[:300].double())
    assert together.dtype == torch.float64
    alone = torch.cat([fitted(image[None].double()) for image in images[:300]])
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", [torch.uint8, torch.float16, torch.bfloat16])
def test_bytes_and_half_precision_come_out_in_single_precision(images, fitted, kind):
    given = images[:10].to(kind)
    before = given.clone()
    whitened = fitted(given)
    assert whitened.dtype == torch.float32
    torch.testing.assert_close(whitened, fitted(given.float()), rtol=0, atol=0)
    assert (given == before).all()


def test_images_that_are_not_contiguous_are_whitened_all_the_same(images, fitted):
    given = images[:20].contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(fitted(given), fitted(images[:20]), rtol=0, atol=0)
    torch.testing.assert_close(fitted(images[:20:2]), fitted(images[:20])[::2], rtol=1e-4, atol=1e-5)


def test_no_images_are_no_images(fitted):
    assert fitted(torch.zeros(0, 3, SIDE, SIDE)).shape == (0, 3, SIDE, SIDE)


def test_a_fit_comes_back_from_its_tensors(images, fitted):
    back = Whitening.from_tensors(load(save(fitted.tensors())))
    assert torch.equal(back(images[:50]), fitted(images[:50]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": None}, "has the tensors mean and matrix; these are matrix"),
        ({"other": torch.zeros(1)}, "these are matrix, mean, other"),
        ({"mean": torch.zeros(3, 4, 4)}, r"images \(3, 4, 4\) has no matrix of \(192, 192\)"),
        ({"matrix": torch.zeros(192)}, r"no matrix of \(192,\)"),
        ({"matrix": torch.zeros(192, 192).double()}, "in single precision"),
        ({"mean": torch.full((3, SIDE, SIDE), torch.nan)}, "finite"),
    ],
)
def test_tensors_of_something_else_are_refused(fitted, change, message):
    tensors = {name: tensor for name, tensor in {**fitted.tensors(), **change}.items() if tensor is not None}
    with pytest.raises(ValueError, match=message):
        Whitening.from_tensors(tensors)


def test_images_of_another_shape_are_refused_with_both_shapes(fitted):
    with pytest.raises(ValueError, match=r"shape \(2, 8, 8, 3\); expected \(n, 3, 8, 8\).*channels first"):
        fitted(torch.zeros(2, 8, 8, 3))


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (0, 3, 8, 8), (5, 0)])
def test_fewer_than_two_images_are_refused(shape):
    with pytest.raises(ValueError, match=r"fitted on two images or more; got images of shape"):
        Whitening.fit(torch.zeros(shape))


def test_images_too_large_to_be_whitened_are_refused_before_anything_is_allocated():
    with pytest.raises(ValueError, match=r"\(3, 200, 200\) have 120000 values each; .*up to 12288.*preprocess='none'"):
        Whitening.fit(torch.zeros(2, 1, 1, 1).expand(2, 3, 200, 200))
