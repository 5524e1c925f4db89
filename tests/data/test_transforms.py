"""Standardization and whitening against their equations, and warnings about rows of an unsuitable scale."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.torch import load, save
from sklearn import datasets
from sklearn.preprocessing import StandardScaler

from tikas.data import transforms
from tikas.data.datasets import load_dataset
from tikas.data.transforms import (
    ScaleWarning,
    Standardization,
    Transform,
    Whitening,
    check_scale,
    normalize_contrast,
    value_range,
    warn_few_rows,
    warn_other_scale,
)

# Standardization.

WINE = datasets.load_wine().data.astype(np.float32)


def test_columns_are_standardized_like_by_scikit_learn() -> None:
    found = Standardization.fit(torch.from_numpy(WINE[:100]))(torch.from_numpy(WINE))
    assert found.dtype == torch.float32
    expected = StandardScaler().fit(WINE[:100].astype(float)).transform(WINE)
    assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_large_numbers_that_vary_little_keep_their_differences() -> None:
    years = torch.arange(2_000_000.0, 2_000_010.0)[:, None]
    found = Standardization.fit(years)(years)
    assert_allclose(found[:, 0], (np.arange(10) - 4.5) / np.arange(10).std(), rtol=1e-6)


def test_a_constant_column_is_centered_but_not_scaled() -> None:
    fitted = Standardization.fit(torch.tensor([[0.1, 1.0]] * 3 + [[0.1, 5.0]]))
    assert_allclose(fitted(torch.tensor([[0.1, 2.0], [0.4, 2.0]]))[:, 0], [0, 0.3], atol=1e-6)


def test_rounding_is_not_amplified() -> None:
    rounding = torch.tensor([[0.1], [0.1 + 1e-8], [0.1 - 1e-8]])
    assert Standardization.fit(rounding)(rounding).abs().max() < 1e-6
    seconds = torch.linspace(1.7e9, 1.7e9 + 900, 200)[:, None]  # float32 has steps of 128 there
    assert Standardization.fit(seconds)(seconds).abs().max() < 3


def test_images_are_standardized_per_channel() -> None:
    images = torch.rand(50, 2, 4, 4) * torch.tensor([1.0, 100.0])[:, None, None]
    found = Standardization.fit(images)(images)
    assert_allclose(found.mean((0, 2, 3)), [0, 0], atol=1e-5)
    assert_allclose(found.std((0, 2, 3), correction=0), [1, 1], rtol=1e-5)


# Whitening.

SIDE = 8


def patches(photograph: str) -> torch.Tensor:
    """Color patches of a photograph, as bytes."""
    pytest.importorskip("PIL", reason="needs Pillow")
    rows, columns = 427 // SIDE, 640 // SIDE
    image = datasets.load_sample_image(photograph)[: rows * SIDE]
    squares = image.reshape(rows, SIDE, columns, SIDE, 3).transpose(0, 2, 4, 1, 3)
    return torch.from_numpy(squares.reshape(-1, 3, SIDE, SIDE).copy())


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return patches("china.jpg")


@pytest.fixture(scope="module")
def whitening(images: torch.Tensor) -> Whitening:
    return Whitening.fit(images)


def contrast_normalized(images: torch.Tensor) -> np.ndarray:
    """Contrast normalization in NumPy, for images that are not constant."""
    rows = images.numpy().reshape(len(images), -1).astype(np.float64)
    rows = rows - rows.mean(1, keepdims=True)
    norms = np.sqrt((rows**2).sum(1, keepdims=True))
    return np.asarray(rows * 55 * np.sqrt(rows.shape[1] / 3072) / norms)


def not_constant(images: torch.Tensor) -> torch.Tensor:
    return images[images.flatten(1).amax(1) > images.flatten(1).amin(1)]


def test_contrast_normalization_gives_an_image_of_cifar10_the_mean_zero_and_the_norm_55() -> None:
    images = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    normalized = normalize_contrast(images).double().flatten(1)
    assert normalized.mean(1).abs().max() < 1e-6
    assert_allclose(normalized.norm(dim=1), np.full(5, 55), rtol=1e-6)
    assert_allclose(normalized, contrast_normalized(images), rtol=1e-5, atol=1e-6)


def test_contrast_normalization_removes_brightness_and_contrast(images: torch.Tensor) -> None:
    images = not_constant(images)
    expected = normalize_contrast(images)
    assert_allclose(normalize_contrast(images / 255), expected, rtol=1e-4, atol=1e-5)
    assert_allclose(normalize_contrast(images * 3.0 + 100), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 255.0, -7.3])
def test_a_constant_image_becomes_zeros_even_with_rounding_errors(value: float, whitening: Whitening) -> None:
    image = torch.full((1, 3, SIDE, SIDE), value)
    assert (normalize_contrast(image) == 0).all()
    assert whitening(image).isfinite().all()
    if value:
        rounded = image.clone()
        rounded[..., ::2] = torch.nextafter(image, torch.tensor(torch.inf))[..., ::2]
        assert (normalize_contrast(rounded) == 0).all()


def test_one_gray_level_in_one_pixel_is_contrast() -> None:
    image = torch.full((1, 3, 32, 32), 1.0)
    image[0, 1, 4, 7] = 254 / 255
    normalized = normalize_contrast(image)
    assert normalized.norm().item() == pytest.approx(55, rel=1e-5)
    assert normalized.argmin() == 1 * 1024 + 4 * 32 + 7


def test_whitening_follows_its_equations(images: torch.Tensor) -> None:
    """z = (C + 0.1·I)^(-1/2) (x - μ), in NumPy with float64, by a singular value decomposition."""
    images, others = not_constant(images), not_constant(patches("flower.jpg"))
    rows = contrast_normalized(images)
    mean = rows.mean(0)
    covariance = (rows - mean).T @ (rows - mean) / len(rows)
    u, s, _ = np.linalg.svd(covariance + 0.1 * np.eye(len(covariance)))
    matrix = u @ np.diag(1 / np.sqrt(s)) @ u.T
    fitted = Whitening.fit(images)
    assert_allclose(fitted.mean.flatten(), mean, atol=1e-6)
    assert_allclose(fitted.matrix, matrix, atol=1e-5)
    assert_allclose(fitted.matrix, fitted.matrix.T, atol=1e-6)
    for given in (images, others):
        assert_allclose(fitted(given).flatten(1), (contrast_normalized(given) - mean) @ matrix, atol=1e-4)


def test_the_covariance_of_whitened_training_images_is_nearly_the_identity(
    images: torch.Tensor, whitening: Whitening
) -> None:
    rows = normalize_contrast(images).flatten(1).double()
    variances, directions = torch.linalg.eigh(torch.cov(rows.T, correction=0))
    whitened = whitening(images).flatten(1).double()
    assert whitened.mean(0).abs().max() < 1e-5
    covariance = directions.T @ torch.cov(whitened.T, correction=0) @ directions
    assert_allclose(covariance, torch.diag(variances / (variances + 0.1)), atol=1e-5)
    large = variances > 5
    assert large.sum() == 5
    assert_allclose(covariance[large][:, large], np.eye(5), atol=0.02)


def test_whitening_removes_the_correlation_of_neighboring_pixels(images: torch.Tensor, whitening: Whitening) -> None:
    def correlation(images: torch.Tensor) -> float:
        left, right = images[..., :-1].flatten().double(), images[..., 1:].flatten().double()
        return torch.corrcoef(torch.stack([left, right]))[0, 1].item()

    assert correlation(normalize_contrast(images)) > 0.7
    assert abs(correlation(whitening(images))) < 0.25
    check_scale(whitening(images).numpy())


def test_the_size_of_the_chunks_makes_no_difference(
    images: torch.Tensor, whitening: Whitening, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, fitted = whitening(images[:500]), Whitening.fit(images[:500])
    monkeypatch.setattr(transforms, "CHUNK_ROWS", 7)
    assert_allclose(whitening(images[:500]), whole, rtol=1e-4, atol=1e-5)
    assert_allclose(Whitening.fit(images[:500]).matrix, fitted.matrix, rtol=1e-4, atol=1e-5)


def test_float64_images_are_whitened_one_by_one_as_together(images: torch.Tensor, whitening: Whitening) -> None:
    together = whitening(images[:100].double())
    assert together.dtype == torch.float64
    assert_allclose(torch.cat([whitening(image[None].double()) for image in images[:100]]), together, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16])
def test_bytes_and_half_precision_become_float32_and_are_not_changed(
    dtype: torch.dtype, images: torch.Tensor, whitening: Whitening
) -> None:
    given = images[:10].to(dtype)
    before = given.clone()
    whitened = whitening(given)
    assert whitened.dtype == torch.float32
    assert torch.equal(whitened, whitening(given.float()))
    assert torch.equal(given, before)


def test_whitening_does_not_depend_on_the_memory_layout(images: torch.Tensor, whitening: Whitening) -> None:
    channels_last = images[:20].contiguous(memory_format=torch.channels_last)
    assert torch.equal(whitening(channels_last), whitening(images[:20]))
    assert_allclose(whitening(images[:20:2]), whitening(images[:20])[::2], rtol=1e-4, atol=1e-5)


# Both transforms.


@pytest.fixture(params=[Standardization, Whitening])
def fitted(request: pytest.FixtureRequest, images: torch.Tensor) -> Transform:
    transform: Transform = request.param.fit(images[:300])
    return transform


def test_zero_rows_are_transformed_to_zero_rows(fitted: Transform) -> None:
    assert fitted(torch.zeros(0, 3, SIDE, SIDE)).shape == (0, 3, SIDE, SIDE)


def test_a_transform_is_restored_from_its_tensors_exactly(fitted: Transform, images: torch.Tensor) -> None:
    restored = type(fitted).from_tensors(load(save(fitted.tensors())))
    assert torch.equal(restored(images[:50]), fitted(images[:50]))


def test_a_transform_moves_to_another_device(fitted: Transform) -> None:
    assert {tensor.device.type for tensor in fitted.to("meta").tensors().values()} == {"meta"}


def test_rows_of_another_shape_raise_an_error_with_both_shapes(fitted: Transform) -> None:
    with pytest.raises(ValueError, match=r"\(2, 8, 8, 3\).*\(n, 3, 8, 8\)"):
        fitted(torch.zeros(2, 8, 8, 3))


def test_images_too_large_to_be_whitened_raise_an_error_before_memory_is_allocated() -> None:
    with pytest.raises(ValueError, match=r"\(3, 200, 200\) .*120000.* 12288.*preprocess='none'"):
        Whitening.fit(torch.zeros(2, 1, 1, 1).expand(2, 3, 200, 200))


@pytest.mark.parametrize(
    ("fitted", "change", "named"),
    [
        (Whitening, {"mean": None}, r"Whitening; found matrix \(192, 192\) of torch.float32$"),
        (Whitening, {"other": torch.zeros(1)}, "other"),
        (Whitening, {"mean": torch.zeros(3, 4, 4)}, r"\(3, 4, 4\).*\(192, 192\)"),
        (Whitening, {"matrix": torch.zeros(192)}, r"\(192,\)"),
        (Whitening, {"matrix": torch.zeros(192, 192).double()}, "float64"),
        (Whitening, {"mean": torch.full((3, SIDE, SIDE), torch.nan)}, "finite"),
        (Standardization, {"deviation": torch.zeros(3, SIDE, SIDE).double()}, "Standardization"),
        (Standardization, {"mean": torch.zeros(3, SIDE, SIDE)}, "float32"),
        (Standardization, {"mean": torch.zeros(3, 4, 4).double()}, r"\(3, 4, 4\)"),
    ],
    indirect=["fitted"],
)
def test_tensors_of_something_else_raise_an_error(fitted: Transform, change: dict[str, Any], named: str) -> None:
    tensors = {name: tensor for name, tensor in (fitted.tensors() | change).items() if tensor is not None}
    with pytest.raises(ValueError, match=named):
        type(fitted).from_tensors(tensors)


# The scale of training rows.

NORMAL = np.random.default_rng(0).normal(size=(200, 6))


def embeddings(dimensions: int) -> np.ndarray:
    rows = np.random.default_rng(0).normal(size=(300, dimensions))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def rare_indicators() -> np.ndarray:
    return (np.random.default_rng(0).random((20_000, 60)) < np.geomspace(1e-5, 0.5, 60)).astype(np.float32)


def rarest_indicators() -> np.ndarray:
    """Most columns are one in a single row; their deviation is a hundredth of the last one's."""
    rows = np.eye(50_000, 5, dtype=np.float32)
    rows[::2, 4] = 1
    return rows


def scale_warnings(rows: Any, columns: list[str] | None = None) -> list[str]:
    with warnings.catch_warnings(record=True, action="always") as caught:
        check_scale(rows, columns)
    assert all(warning.category is ScaleWarning for warning in caught)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(lambda: load_dataset("digits")[0].rows, id="digits"),
        pytest.param(lambda: load_dataset("digits")[0].rows[:10], id="ten digits"),
        pytest.param(lambda: NORMAL, id="normal"),
        pytest.param(lambda: np.abs(NORMAL) % 1, id="between 0 and 1"),
        pytest.param(lambda: StandardScaler().fit_transform(datasets.load_breast_cancer().data), id="standardized"),
        pytest.param(lambda: datasets.load_iris().data, id="iris"),
        pytest.param(lambda: embeddings(384), id="embeddings"),
        pytest.param(lambda: embeddings(4096), id="wide embeddings"),
        pytest.param(rare_indicators, id="rare indicators"),
        pytest.param(rarest_indicators, id="rarest indicators"),
        pytest.param(lambda: np.hstack([NORMAL, np.zeros((200, 3))]), id="constant zeros"),
        pytest.param(lambda: np.hstack([NORMAL, NORMAL[:, :1] / 200, np.zeros((200, 9))]), id="mostly zeros"),
        pytest.param(lambda: np.hstack([NORMAL, 5 + NORMAL[:, :1] / 4]), id="mean of 5"),
        pytest.param(lambda: np.random.default_rng(0).integers(1, 6, (200, 10)), id="answers from 1 to 5"),
        pytest.param(lambda: datasets.make_blobs(60, 8, centers=5, random_state=0)[0], id="blobs"),
        pytest.param(lambda: datasets.make_classification(80, random_state=0)[0], id="make_classification"),
    ],
)
def test_rows_of_about_unit_size_give_no_warning(rows: Callable[[], np.ndarray]) -> None:
    check_scale(rows())  # a warning would be an error


@pytest.mark.parametrize(
    ("factor", "dtype", "divisor"), [(255, np.uint8, "255"), (255, float, "255"), (160, int, "255"), (16, int, "16")]
)
def test_the_warning_about_unscaled_pixels_names_the_number_to_divide_them_by(
    factor: int, dtype: Any, divisor: str
) -> None:
    (message,) = scale_warnings((load_dataset("digits")[0].rows * factor).astype(dtype))
    for words in (f"from 0 to {factor},", f"by {divisor},", "preprocess='standardize'"):
        assert words in message


@pytest.mark.parametrize("rows", [[[0, 0], [255, 255]], np.hstack([np.eye(64) * 255, np.zeros((64, 100))])])
def test_two_rows_and_blank_pixels_are_enough_to_recognize_pixels(rows: Any) -> None:
    (message,) = scale_warnings(np.array(rows))
    assert "from 0 to 255," in message


def test_columns_far_from_unit_size_are_named_in_the_warning() -> None:
    (message,) = scale_warnings(NORMAL * [1, 1, 5000, 1, 1, 1], ["age", "b", "income", "d", "e", "f"])
    for words in ("'income' (mean", "deviation 5", "preprocess='standardize'"):
        assert words in message
    assert "'age'" not in message
    (message,) = scale_warnings(NORMAL + np.array([0, 0, 0, 2000, 0, 0]))
    assert "X[:, 3] (mean 2e+03" in message
    assert message.count("X[:, ") == 1


def test_at_most_five_columns_are_named_in_the_warning() -> None:
    (message,) = scale_warnings(NORMAL * [100, 200, 300, 400, 500, 600])
    assert message.count("X[:, ") == 5
    assert "and 1 more" in message


def test_columns_much_smaller_than_the_largest_are_named_in_the_warning() -> None:
    (message,) = scale_warnings(NORMAL * [1, 1, 0.001, 0.001, 0.001, 0.001], list("abcdef"))
    assert "'c'" in message
    assert "'a'" not in message


def test_rows_that_hardly_vary_give_a_warning() -> None:
    (message,) = scale_warnings(NORMAL * 1e-4)
    assert "X[:, 5] (mean " not in message
    assert "and 1 more" in message
    assert "preprocess='standardize'" in message


def test_all_rows_are_measured() -> None:
    rows = np.random.default_rng(0).normal(size=(6000, 2))
    rows[5000:, 1] *= 50
    (message,) = scale_warnings(rows)
    assert "X[:, 1]" in message
    assert "X[:, 0]" not in message


def test_columns_constant_at_another_value_than_zero_are_named_in_the_warning() -> None:
    rows = np.hstack([NORMAL, np.zeros((200, 1)), np.full((200, 7), 2.5)])
    (message,) = scale_warnings(rows)
    assert "X[:, 7] (mean 2.5, deviation 0)" in message
    assert "X[:, 6]" not in message
    assert "and 2 more" in message
    (message,) = scale_warnings(rows, [f"c {i}" for i in range(14)])
    assert "'c 7' (mean 2.5" in message
    assert len(scale_warnings(np.hstack([NORMAL * 1000, np.ones((200, 1))]))) == 2


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_rows_that_are_all_the_same_raise_an_error(value: float) -> None:
    with pytest.raises(ValueError, match=r"4 columns .* 10 rows"):
        check_scale(np.full((10, 4), value))


def test_a_warning_points_to_the_line_of_the_callers_caller_and_rows_stay_unchanged() -> None:
    def fit(rows: np.ndarray) -> None:
        check_scale(rows)

    rows = NORMAL * 1000
    with pytest.warns(ScaleWarning) as caught:
        fit(rows)
    assert caught[0].filename == __file__
    assert caught[0].lineno == fit.__code__.co_firstlineno + 5
    assert_array_equal(rows, NORMAL * 1000)


# The scale of rows to predict.


def skewed(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).lognormal(sigma=1.0, size=(rows, 20))


DIGITS = tuple(part.rows for part in load_dataset("digits"))
TRAINING_AND_OTHER_ROWS = {
    "digits": DIGITS,
    "normal": (NORMAL[:60], NORMAL[60:]),
    "skewed": (skewed(100), skewed(500)),
    "indicators": (rare_indicators()[:200], rare_indicators()[200:600]),
}
both_rows = pytest.mark.parametrize(
    ("training", "others"), TRAINING_AND_OTHER_ROWS.values(), ids=TRAINING_AND_OTHER_ROWS
)


@both_rows
def test_other_rows_of_the_same_scale_give_no_warning(training: np.ndarray, others: np.ndarray) -> None:
    training_range = value_range(training, "none")
    assert training_range is not None
    warn_other_scale(others, training_range)
    warn_other_scale(1.5 * others, training_range)
    for row in range(len(others)):
        warn_other_scale(others[row : row + 1], training_range)


@pytest.mark.parametrize("rows", [1, 3, 200])
@both_rows
def test_rows_of_another_scale_give_a_warning(training: np.ndarray, others: np.ndarray, rows: int) -> None:
    training_range = value_range(training, "none")
    assert training_range is not None
    with pytest.warns(ScaleWarning, match=f"{training_range[1]:.3g}") as caught:
        warn_other_scale(255 * others[:rows], training_range, stacklevel=1)
    assert [warning.filename for warning in caught] == [__file__]


def test_images_that_cover_a_tiny_part_of_the_training_range_give_a_warning() -> None:
    training, others = DIGITS
    with pytest.warns(ScaleWarning, match=r"to 0\.0039.* to 1:"):
        warn_other_scale(others / 255, (0.0, 1.0))
    warn_other_scale(np.zeros_like(training[:5]), (0.0, 1.0))  # blank ones are not of another scale


def test_the_column_of_another_scale_is_named_in_the_warning() -> None:
    rows = NORMAL.copy()
    rows[:, 2] = 170 + 10 * rows[:, 2]
    training_range = value_range(NORMAL, "standardize")
    assert training_range == (NORMAL.min(), NORMAL.max())
    with pytest.warns(ScaleWarning, match="standardized .* to 19.*'height'"):
        warn_other_scale(rows, training_range, ["a", "b", "height", "d", "e", "f"], standardized=True)
    rows = NORMAL.copy()
    rows[:90, 2] = 1e6  # less than half of the rows
    warn_other_scale(rows, training_range)


@pytest.mark.parametrize("shift", [-1000, 1000])
def test_rows_on_either_side_of_the_training_range_give_a_warning(shift: int) -> None:
    with pytest.warns(ScaleWarning, match=f"from {(NORMAL + shift).min():.3g} to".replace("+", r"\+")):
        warn_other_scale(NORMAL + shift, (-3.9, 3.1))


def test_a_single_row_may_be_farther_outside_than_many() -> None:
    rows = np.full((20, 3), 6.0)  # five times the width of the range beyond it
    warn_other_scale(rows[:1], (0.0, 1.0))
    with pytest.warns(ScaleWarning, match="6"):
        warn_other_scale(rows, (0.0, 1.0))


def test_the_range_includes_that_of_earlier_rows_and_whitened_rows_have_none() -> None:
    assert value_range(np.array([[0.25, 2.0]]), "none", earlier=(0.0, 1.0)) == (0, 2)
    assert value_range(np.array([[-1.0, 0.5]]), "none", earlier=(0.0, 1.0)) == (-1, 1)
    assert value_range(NORMAL, "whiten") is None


def test_fewer_rows_than_a_batch_give_a_warning() -> None:
    warn_few_rows(100, 100)
    with pytest.warns(UserWarning, match="99 rows .* 100.*batch_size.*99") as caught:
        warn_few_rows(99, 100, stacklevel=1)
    assert caught[0].filename == __file__
