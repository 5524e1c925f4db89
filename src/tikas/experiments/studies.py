"""The searches behind the paper's settings, as studies that can be run; each point holds out 10,000 training rows.

The paper searched λ of the models with one cost over …, 0.1, 0.2, 0.5, 1, 2, 5, 10, …, noise over a few levels, the
weights of full ladders sparsely, and on CIFAR-10 the number of epochs too. Where it prints a grid, that grid is here;
where it prints none, the points are ours: around the setting that its authors chose, that one included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain, groupby

from tikas.experiments.paper import AUTOENCODER, BASELINE, LARGE_BASELINE, LARGE_GAMMA, SMALL_BASELINE
from tikas.experiments.protocol import HELD_OUT, Setting
from tikas.training.recipe import Precision, Recipe

TOP = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
BOTTOM = (500, 1000, 2000, 5000, 10_000)
RUNG_NOISES = (0.1, 0.2, 0.3, 0.45, 0.6)
BASELINE_NOISES = (0.1, 0.2, 0.3, 0.5, 0.7)
CONV_SMALL_NOISES = (0.3, 0.45, 0.6)
PRECISIONS: tuple[Precision, ...] = ("fast", "exact")
LARGE_EPOCHS = (10, 20, 40, 70)
FULL = (
    (500, 5, 0.1),
    (1000, 1, 0.01),
    (1000, 10, 0.1),
    (1000, 10, 1),
    (2000, 20, 0.1),
    (5000, 50, 0.1),
)
CONV_SMALL_FULL = ((1, 1, 1), (10, 1, 1), (100, 1, 0.1), (100, 1, 1), (1000, 10, 0.1), (1000, 10, 1))
CONV_SMALL_TOP = tuple(
    (bottom, *[between] * 8, top) for bottom, between, top in ((1, 0.1, 1), (10, 0.1, 1), (100, 0.1, 1), (100, 0.1, 10))
)
"""Near the Γ-model: ten epochs prefer weights that, after a hundred, end at twice the Γ-model's error."""
CONV_SMALL_BOTTOM = tuple((bottom, *[0.1] * 8, top) for bottom, top in ((100, 1), (1000, 0.1), (1000, 0.3), (1000, 1)))
"""Further from it: the more the input weighed, the better it was, up to the last point of the search before. Less on
top lets the labels speak longer before the top's own opinion of the other rows is set."""
CONV_SMALL_BETWEEN = tuple(
    (bottom, *[between] * 8, top)
    for bottom, between, top in ((100, 0.1, 1), (1000, 0.1, 1), (1000, 0.1, 3), (100, 0.01, 1), (1000, 0.01, 1))
)
"""All that was tried with 1 on top learns slower than the Γ-model: less on the rungs between, or more on top."""
SHORT_TOP = ((0.05,), (0.1,), (0.2,), (0.5,), (1,), (2,))
SHORT = Recipe(network=("conv_small",), epochs=30)
SMALL_GAMMA = (
    (1, 0.3, 0.002),
    (1, 0.2, 0.002),
    (1, 0.1, 0.002),
    (0.2, 0.3, 0.002),
    (0.2, 0.2, 0.002),
    (1, 0.3, 0.0005),
    (1, 0.3, 0.001),
    (1, 0.3, 0.005),
    (0.2, 0.3, 0.005),
)
"""λ, the rungs' noise and the learning rate of the Γ-model: λ alone did not decide which seeds end far off."""
SMALL_GAMMA_LONGER = (
    (1, 0.3, 0.005),
    (0.2, 0.3, 0.005),
    (1, 0.3, 0.0005),
    (1, 0.3, 0.001),
    (1, 0.1, 0.002),
    (0.2, 0.3, 0.001),
    (0.2, 0.2, 0.002),
    (0.3, 0.3, 0.002),
)
"""The best of those after ten epochs, and the best of the smaller λ. The rule had been the two best that 30 epochs were
not known of; the second, noise 0.2, was begun and given up by hand for the latter. The others came later, to fill the
last minutes of a machine, on seeds 1 and 4 alone: slower learning and weights between those that were known."""
SMALL_GAMMA_BATCHES = (100, 250, 500)
QUICK = Recipe(network=("conv_small",), costs=(1,), epochs=10)
SMALL_GAMMA_KINDS: dict[object, Recipe] = {
    "as-published": QUICK,
    "input-0.15": replace(QUICK, noise=(0.15, 0.3)),
    "input-0.5": replace(QUICK, noise=(0.5, 0.3)),
    "input-0.7": replace(QUICK, noise=(0.7, 0.3)),
    "input-1": replace(QUICK, noise=(1, 0.3)),
    "input-0.7-rungs-0.1": replace(QUICK, noise=(0.7, 0.1)),
    "input-0.7-rungs-0.45": replace(QUICK, noise=(0.7, 0.45)),
    "input-0.5-cost-0.2": replace(QUICK, noise=(0.5, 0.3), costs=(0.2,)),
    "input-0.7-cost-0.2": replace(QUICK, noise=(0.7, 0.3), costs=(0.2,)),
    "top-0.1": replace(QUICK, noise=(*[0.3] * 9, 0.1)),
    "top-0.6": replace(QUICK, noise=(*[0.3] * 9, 0.6)),
    "top-1": replace(QUICK, noise=(*[0.3] * 9, 1)),
    "between-0.1": replace(QUICK, noise=(0.3, *[0.1] * 8, 0.3)),
    "labeled-50": replace(QUICK, labeled_batch_size=50),
    "labeled-200": replace(QUICK, labeled_batch_size=200),
    "leaky_relu": replace(QUICK, activation="leaky_relu"),
    "gelu": replace(QUICK, activation="gelu"),
    "mlp": replace(QUICK, denoiser="mlp"),
    "linear": replace(QUICK, denoiser="linear"),
    "additive": replace(QUICK, denoiser="additive"),
}
"""What else a Γ-model can be told: where the noise is, how the labels come, activations, denoisers. First on
seeds 1 and 4 alone, which end far off in nearly every setting; the two best of these then get 30 epochs and all five
seeds: 0.5 on the input, and 200 labelled rows."""
SMALL_GAMMA_KINDS_LONGER: dict[object, Recipe] = {
    "labeled-200": replace(QUICK, labeled_batch_size=200, epochs=30),
    "input-0.4": replace(QUICK, noise=(0.4, 0.3), epochs=30),
    "input-0.5": replace(QUICK, noise=(0.5, 0.3), epochs=30),
}
SMALL_GAMMA_LONG: dict[object, Recipe] = {
    "input-0.45": replace(QUICK, noise=(0.45, 0.3), epochs=80),
    "input-0.5": replace(QUICK, noise=(0.5, 0.3), epochs=80),
}
"""With 0.5 on the input no seed went astray, but all learnt slowly: hence 0.4 above, and more epochs here, by hand and
not by the rule. 0.45 is the point to try next."""

SMALL_GAMMA_INPUT = (
    (0.4, 1, 0.002),
    (0.45, 1, 0.002),
    (0.45, 2, 0.002),
    (0.5, 1, 0.002),
    (0.5, 2, 0.002),
    (0.5, 5, 0.002),
    (0.45, 1, 0.005),
    (0.5, 1, 0.005),
    (0.5, 2, 0.005),
)
"""Noise on the input, λ and learning rate: with more noise than 0.4, what lets a Γ-model learn as quickly as with 0.3.
Seeds 1 and 4 went first; the two best points of those got the other three. The best of five seeds was to get
ten final ones if it was below 1.10 %, which λ = 0.2 with noise 0.3 has. None was, but with 0.45, 1, 0.005 all seeds are
at about 1.16 %, and whatever is below that has one astray."""
SMALL_GAMMA_INPUT_LONG = ((0.45, 1, 0.005), (0.45, 2, 0.005))
"""Hence 70 epochs for that, and for twice its λ, which was better by 0.1 at the lower rate. The better of the two gets
ten final seeds of 70 epochs, if it is below 1.10 %."""
SMALL_GAMMA_INPUT_LONGEST = ((0.45, 2, 0.005),)
"""It was, and all its final seeds but one ended below 0.9 %. More epochs had helped with 0.5 on the input, so the next
step was the paper's 150 for this one, and ten final seeds of these if they lowered the error of the held-out rows,
which they did."""


def study(
    name: str, points: Mapping[object, Recipe], seeds: int = 10, attached: int | None = None
) -> tuple[Setting, ...]:
    """The settings of a study, each named by what it varies.

    Examples
    --------
    >>> [setting.name for setting in study("noise/100", {0.2: Recipe(noise=0.2), 0.3: Recipe()})]
    ['study/noise/100/0.2', 'study/noise/100/0.3']
    """
    return tuple(
        Setting(f"study/{name}/{point}", replace(recipe, validation=HELD_OUT), seeds, attached)
        for point, recipe in points.items()
    )


def _costs(recipe: Recipe, weights: tuple[tuple[float, ...], ...]) -> dict[object, Recipe]:
    return {_in_short(each): replace(recipe, costs=each) for each in weights}


def _in_short(weights: tuple[float, ...]) -> str:
    """The weights from the input up, a long run of one as a product: 1-0.1x8-1."""
    runs = [(weight, len(list(run))) for weight, run in groupby(weights)]
    parts = [[f"{weight:g}x{times}"] if times > 3 else [f"{weight:g}"] * times for weight, times in runs]
    return "-".join(chain.from_iterable(parts))


def _gamma(recipe: Recipe, points: tuple[tuple[float, float, float], ...]) -> dict[object, Recipe]:
    return {
        f"{cost:g}-{noise:g}-{rate:g}": replace(recipe, costs=(cost,), noise=(0.3, noise), learning_rate=rate)
        for cost, noise, rate in points
    }


def _input_noise(recipe: Recipe, points: tuple[tuple[float, float, float], ...]) -> dict[object, Recipe]:
    """The rungs' noise stays 0.3."""
    return {
        f"{noise:g}-{cost:g}-{rate:g}": replace(recipe, costs=(cost,), noise=(noise, 0.3), learning_rate=rate)
        for noise, cost, rate in points
    }


def _rung_noise(recipe: Recipe, noises: tuple[float, ...]) -> dict[object, Recipe]:
    """The input's noise stays 0.3."""
    return {noise: replace(recipe, noise=(0.3, noise)) for noise in noises}


RECONSTRUCTION = tuple((weight, 0) for weight in (10, 100, 1000, 10_000))
ONE_TOP = tuple((weight,) for weight in TOP)
LARGE_TOP = tuple((weight,) for weight in sorted((*TOP, 4)))  # the authors chose 4, between two points of the grid
ONE_BOTTOM = tuple((weight, 0) for weight in BOTTOM)
FULL_100, FULL_1000, FULL_ALL = Recipe(), Recipe(labels=1000), Recipe(labels="all")

STUDIES = (
    *study("baseline-noise/100", _rung_noise(BASELINE, BASELINE_NOISES)),
    *study("baseline-noise/1000", _rung_noise(replace(BASELINE, labels=1000), BASELINE_NOISES)),
    *study("baseline-noise/all", _rung_noise(replace(BASELINE, labels="all"), BASELINE_NOISES)),
    *study("gamma/100", _costs(FULL_100, ONE_TOP)),
    *study("gamma/1000", _costs(FULL_1000, ONE_TOP)),
    *study("gamma/all", _costs(FULL_ALL, ONE_TOP)),
    *study("bottom/100", _costs(FULL_100, ONE_BOTTOM)),
    *study("bottom/1000", _costs(FULL_1000, ONE_BOTTOM)),
    *study("bottom/all", _costs(FULL_ALL, ONE_BOTTOM)),
    *study("full/50", _costs(Recipe(labels=50), FULL)),
    *study("full-short/50", _costs(Recipe(labels=50, epochs=30), FULL), seeds=40),  # one in twenty ends far off
    *study("full/100", _costs(FULL_100, FULL)),
    *study("full/1000", _costs(FULL_1000, FULL)),
    *study("full/all", _costs(FULL_ALL, FULL)),
    *study(
        "precision/all",
        {kind: replace(FULL_ALL, costs=(1000, 1, 0.01), precision=kind) for kind in PRECISIONS},
        seeds=20,
    ),
    *study("noise/100", _rung_noise(FULL_100, RUNG_NOISES)),
    *study("noise/1000", _rung_noise(replace(FULL_1000, costs=(2000, 20, 0.1)), RUNG_NOISES)),
    *study("noise/all", _rung_noise(replace(FULL_ALL, costs=(1000, 1, 0.01)), RUNG_NOISES)),
    *study("conv-small-noise/100", _rung_noise(SMALL_BASELINE, CONV_SMALL_NOISES)),
    *study("conv-small-gamma/100", _costs(Recipe(network=("conv_small",)), ONE_TOP)),
    *study("conv-small-gamma-short/100", _costs(SHORT, SHORT_TOP), seeds=5),
    *study("conv-small-gamma-noise/100", _rung_noise(replace(SHORT, costs=(1,)), RUNG_NOISES), seeds=5),
    *study("conv-small-gamma-quick/100", _gamma(replace(SHORT, epochs=10), SMALL_GAMMA), seeds=5),
    *study("conv-small-gamma-longer/100", _gamma(SHORT, SMALL_GAMMA_LONGER), seeds=5),
    *study("conv-small-gamma-kinds/100", SMALL_GAMMA_KINDS, seeds=5),
    *study("conv-small-gamma-kinds-longer/100", SMALL_GAMMA_KINDS_LONGER, seeds=5),
    *study("conv-small-gamma-kinds-long/100", SMALL_GAMMA_LONG, seeds=5),
    *study("conv-small-gamma-input/100", _input_noise(SHORT, SMALL_GAMMA_INPUT), seeds=5),
    *study(
        "conv-small-gamma-input-long/100",
        _input_noise(replace(SHORT, epochs=70), SMALL_GAMMA_INPUT_LONG),
        seeds=5,
    ),
    *study(
        "conv-small-gamma-input-longest/100",
        _input_noise(replace(SHORT, epochs=150), SMALL_GAMMA_INPUT_LONGEST),
        seeds=5,
    ),
    *study(
        "conv-small-gamma-batch/100",
        {rows: replace(SHORT, costs=(1,), batch_size=rows) for rows in SMALL_GAMMA_BATCHES},
        seeds=5,
    ),
    *study("conv-small-full/100", _costs(Recipe(network=("conv_small",), epochs=10), CONV_SMALL_FULL), seeds=2),
    *study("conv-small-top/100", _costs(SHORT, CONV_SMALL_TOP), seeds=3),
    *study("conv-small-bottom/100", _costs(SHORT, CONV_SMALL_BOTTOM), seeds=5),
    *study("conv-small-between/100", _costs(SHORT, CONV_SMALL_BETWEEN), seeds=5),
    *study("conv-fc/100", _costs(Recipe(network=("conv_fc",)), FULL)),
    *study("conv-large-noise/4000", _rung_noise(LARGE_BASELINE, RUNG_NOISES), seeds=4),
    *study("conv-large-epochs/4000", {n: replace(LARGE_BASELINE, epochs=n) for n in LARGE_EPOCHS}, seeds=4),
    *study("conv-large-gamma/4000", _costs(LARGE_GAMMA, LARGE_TOP), seeds=4),
    *study("autoencoder1/100", _costs(AUTOENCODER, RECONSTRUCTION), 3, attached=1),
    *study("autoencoder2/100", _costs(AUTOENCODER, RECONSTRUCTION), 3, attached=2),
    *study("autoencoder3/100", _costs(AUTOENCODER, RECONSTRUCTION), 3, attached=3),
    *study("autoencoder4/100", _costs(AUTOENCODER, RECONSTRUCTION), 3, attached=4),
    *study("autoencoder5/100", _costs(AUTOENCODER, RECONSTRUCTION), 3, attached=5),
)
