"""The denoising functions: values, gradients, first values and parameters. The oracle tests compare whole ladders."""

import numpy as np
import pytest
import torch

from oracle import DENOISERS as NUMPY_DENOISERS
from oracle import per_unit
from tikas import Dense, Ladder
from tikas.model.denoisers import DENOISERS, Denoiser, Gaussian

SHAPES = [(3,), (3, 2, 2)]
ROWS = {
    "gaussian": {"a": 10},
    "mlp": {"a": 4, "b": 1, "c": 4},
    "no-product": {"a": 3, "b": 1, "c": 3},
    "linear": {"a": 4},
    "additive": {"a": 9},
}


def random_denoiser(name: str, shape: tuple[int, ...]) -> Denoiser:
    denoiser = DENOISERS[name](shape).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in denoiser.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    return denoiser


def draw(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(5, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", SHAPES, ids=["dense", "maps"])
@pytest.mark.parametrize("name", DENOISERS)
def test_denoiser_computes_its_formula(name, shape):
    denoiser, corrupted, above = random_denoiser(name, shape), draw(shape, 1), draw(shape, 2)
    function, rows = NUMPY_DENOISERS[name]
    parameters = {key: per_unit(getattr(denoiser, key).detach().numpy(), corrupted.numpy()) for key in rows}
    expected = function(corrupted.numpy(), above.numpy(), **parameters)
    np.testing.assert_allclose(denoiser(corrupted, above).detach().numpy(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", SHAPES, ids=["dense", "maps"])
@pytest.mark.parametrize("name", DENOISERS)
def test_gradients_of_inputs_and_parameters_are_correct(name, shape):
    denoiser = random_denoiser(name, shape)
    inputs = (draw(shape, 1).requires_grad_(), draw(shape, 2).requires_grad_(), *denoiser.parameters())
    assert torch.autograd.gradcheck(lambda corrupted, above, *_: denoiser(corrupted, above), inputs)


@pytest.mark.parametrize("shape", SHAPES, ids=["dense", "maps"])
def test_gaussian_computes_the_same_in_its_form_for_torch_compile(shape, monkeypatch):
    denoiser, corrupted, above = random_denoiser("gaussian", shape), draw(shape, 1), draw(shape, 2)
    denoised = [denoiser(corrupted, above)]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    denoised.append(denoiser(corrupted, above))
    torch.testing.assert_close(*denoised, rtol=1e-12, atol=1e-14)
    gradients = [torch.autograd.grad(each.square().sum(), denoiser.a)[0] for each in denoised]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", DENOISERS)
def test_denoisers_start_at_zero_with_slope_one_inside_their_sigmoids(name):
    # Starting at ẑ = z̃ instead costs accuracy: NOTES.md, section 2.
    denoiser = random_denoiser(name, (3,))
    denoiser.reset()
    assert torch.equal(denoiser(draw((3,), 1), draw((3,), 2)), torch.zeros(5, 3, dtype=torch.float64))
    ones = {"gaussian": ("a", [1, 6]), "mlp": ("c", [1]), "no-product": ("c", [1]), "additive": ("a", [2, 6])}
    for key, parameter in denoiser.named_parameters():
        slopes = ones[name][1] if name in ones and ones[name][0] == key else []
        expected = [float(row in slopes) for row in range(len(parameter))]
        np.testing.assert_array_equal(parameter.detach().numpy(), np.outer(expected, np.ones(3)))


def test_gaussian_starts_with_a2_and_a7_at_one():
    denoiser = Gaussian((3,))
    denoiser.reset()
    np.testing.assert_array_equal(denoiser.a.detach()[:, 0], [0, 1, 0, 0, 0, 0, 1, 0, 0, 0])


@pytest.mark.parametrize("name", DENOISERS)
def test_denoisers_have_the_parameters_of_the_paper_for_every_unit_of_every_level(name):
    ladder = Ladder((6,), [Dense(5), Dense(4)], costs=(1, 1, 1), denoiser=name)
    shapes = {key: tuple(p.shape) for key, p in ladder.named_parameters() if "denoiser" in key}
    assert shapes == {
        f"rungs.{level}.denoiser.{key}": (rows, units)
        for level, units in enumerate((6, 5, 4))
        for key, rows in ROWS[name].items()
    }
