"""The README's examples run as they stand; its figures, and those of the engine's page, are those of the records."""

import json
import re
from itertools import takewhile
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import pytest

from tikas.experiments.ledger import Ledger, recipe_key
from tikas.experiments.paper import TABLES
from tikas.experiments.profiles import read_profile

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=["scikit-learn", "PyTorch", "a network that exists", "folds"])
def test_an_example_of_the_readme_runs(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(example, "README.md", "exec"), {})
    said = capsys.readouterr().out
    if said:
        assert float(said.split()[0]) > 0.9


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "make test" in README
    assert script.rstrip().endswith("make test")


PROSE = " ".join(README.split())
MNIST = {
    ("full ladder", "50"): "text/full/50",
    ("full ladder, our weights", "50"): "text/full-chosen/50",
    ("full ladder", "100"): "mnist-100-labels",
    ("full ladder", "1000"): "table1/full/1000",
    ("full ladder", "all"): "table1/full/all",
    ("bottom cost only", "100"): "table1/bottom/100",
    ("bottom cost only", "1000"): "table1/bottom/1000",
    ("bottom cost only", "all"): "table1/bottom/all",
    ("Γ-model", "100"): "table1/gamma/100",
    ("Γ-model", "1000"): "table1/gamma/1000",
    ("Γ-model", "all"): "table1/gamma/all",
    ("supervised baseline", "100"): "table1/baseline/100",
    ("supervised baseline", "1000"): "table1/baseline/1000",
    ("supervised baseline", "all"): "table1/baseline/all",
}
CONVOLUTIONAL = {
    ("Conv-FC, full ladder", "100"): "table2/fc/100",
    ("Conv-Small, Γ-model", "100"): "table2/small-gamma/100",
    ("Conv-Small, Γ-model, our settings", "100"): "table2/small-gamma-input-long/100",
    ("Conv-Small, full ladder", "100"): "table2/small-full/100",
    ("Conv-Small, supervised", "100"): "table2/small-baseline/100",
    ("Conv-Small, supervised", "all"): "table2/small-baseline/all",
    ("Conv-Large, Γ-model", "4000"): "table3/large-gamma/4000",
    ("Conv-Large, supervised", "4000"): "table3/large-baseline/4000",
    ("Conv-Large, supervised", "all"): "table3/large-baseline/all",
}
DIGITS = {"`SVC`, labels alone": "SVC on the labels", "`MLPClassifier`, labels alone": "MLPClassifier"}


def records(name: str) -> list[dict[str, Any]]:
    """Those of a file, or of a cell of the paper."""
    if "/" in name:
        (cell,) = (cell for table in TABLES for cell in table.cells if cell.name == name)
        return list(Ledger.of(records("paper")).members(recipe_key(cell.recipe)).values())
    return [json.loads(line) for line in (ROOT / "results" / f"{name}.jsonl").read_text().splitlines()]


def table_below(heading: str) -> list[list[str]]:
    """The lines of the first table after these words, without emphasis."""
    lines = README[README.index(heading) :].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| ---")) + 1
    rows = takewhile(lambda line: line.startswith("|"), lines[first:])
    return [[cell.strip().strip("*") for cell in row.strip("|").split("|")] for row in rows]


def spread(errors: list[float]) -> str:
    return f"{mean(errors):.2f}" + (f" ± {stdev(errors):.2f}" if len(errors) > 1 else "")


def test_the_table_of_mnist_is_that_of_the_records() -> None:
    rows = table_below("MNIST, permutation-invariant")
    assert {(name, labels) for name, labels, *_ in rows} == MNIST.keys()
    for name, labels, error, seeds, *_ in rows:
        found = records(MNIST[name, labels])
        assert (error, seeds) == (spread([record["test_error"] for record in found]), str(len(found)))
        assert {record["hardware"].removesuffix(", shared") for record in found} == {"NVIDIA H200"}


def test_seeds_that_were_worse_than_published_are_told_of() -> None:
    errors = {record["seed"]: record["test_error"] for record in records(MNIST["full ladder", "all"])}
    first, more = ([errors[seed] for seed in seeds] for seeds in (range(10), range(10, 40)))
    assert (
        f"worse than published, {spread(first)} %; thirty more, run because of that, are at {spread(more)} %" in PROSE
    )
    lines = (ROOT / "results" / "table1-full-all-again.log").read_text().splitlines()
    again = {record["seed"]: record["test_error"] for record in map(json.loads, lines)}
    ten = mean(again[seed] for seed in range(10))
    assert f"same forty once more are at {spread(again.values())} %, their first ten at {ten:.3f}:" in PROSE


def test_the_table_of_convolutional_networks_is_that_of_the_records() -> None:
    rows = table_below("With convolutions")
    assert {(name, labels) for name, _, labels, *_ in rows} == CONVOLUTIONAL.keys()
    for name, _, labels, error, seeds, _ in rows:
        found = records(CONVOLUTIONAL[name, labels])
        assert (error, seeds) == (spread([record["test_error"] for record in found]), str(len(found)))


def test_earlier_choices_of_the_full_conv_smalls_weights_are_told_as_they_ended() -> None:
    name = CONVOLUTIONAL["Conv-Small, full ladder", "100"]
    ends: dict[tuple[float, ...], list[float]] = {}
    for record in records("paper"):
        if record["cell"] == name:
            ends.setdefault(tuple(record["recipe"]["costs"]), []).append(record["test_error"])
    first, second, last = ends.values()
    assert list(ends) == [(1000.0, 10.0, 1.0), (100.0, *[0.1] * 8, 1.0), (100.0, *[0.01] * 8, 1.0)]
    assert (len(first), len(second), len(last)) == (5, 5, 10)
    assert f"after two that ended at {spread(first)} and {spread(second)} %" in PROSE


def test_earlier_choices_of_the_gamma_models_settings_are_told_as_they_ended() -> None:
    first, second, third, last = (
        [record["test_error"] for record in records(f"table2/small-gamma-{choice}/100")]
        for choice in ("chosen", "short", "input", "input-long")
    )
    assert f"after three that ended at {spread(first)}, {spread(second)} and {spread(third)} %" in PROSE
    assert f"nine of the ten seeds end below 0.8 %, one at {max(last):.2f} %" in PROSE
    assert sum(error < 0.8 for error in last) == 9


def test_the_table_of_digits_is_that_of_the_records() -> None:
    found = {record["method"]: record for record in records("digits-50-labels")}
    rows = table_below("Digits (1297 training rows")
    for method, _, error, seconds in rows:
        record = found.pop(DIGITS.get(method, method.strip("`")))
        assert error == spread(record["errors"])
        assert float(seconds) == pytest.approx(record["seconds"], abs=0.05)
        assert len(record["errors"]) == 10
    assert not found


def engine_and_rival(hardware: str) -> tuple[float, float, float]:
    """Milliseconds of an update by plain PyTorch and by the engine, and their ratio, of the last run there."""
    timed = {record["what"]: record for record in records("bench") if hardware in record["hardware"]}
    return timed["plain PyTorch"]["ms"], timed["engine"]["ms"], timed["engine"]["ratio"]


def test_the_figures_in_the_text_are_those_of_the_records() -> None:
    forty, exact = records("mnist-100-labels"), [record["test_error"] for record in records("mnist-100-labels-exact")]
    fifty = sorted(record["test_error"] for record in records("text/full/50"))
    fleet = {record["members"]: record["ms"] for record in records("fleet")}
    quick, whole = records("mnist-100-labels-10-epochs-cpu")[0], records("two-cores-mnist-100-labels")
    plain, engine, ratio = engine_and_rival("Xeon")
    plain_on_amd, engine_on_amd, ratio_on_amd = engine_and_rival("EPYC, ")
    plain_on_newer, engine_on_newer, ratio_on_newer = engine_and_rival("EPYC (family 26")
    plain_on_gpu, _, ratio_on_gpu = engine_and_rival("H200")
    for figure in (
        f"took **{forty[0]['seconds']:.0f} s together**",
        f"{fleet[40]:.3f} ms per update and seed ({fleet[10]:.3f} for ten seeds, {fleet[1]:.2f} for one)",
        f"worst of the forty is at {max(record['test_error'] for record in forty):.2f} %",
        f"the mean is {mean(record['test_error_labeled_statistics'] for record in forty):.2f} %",
        f"same forty seeds give {mean(exact):.3f} ± {stdev(exact):.3f} %: one of them ends at {max(exact):.2f} %",
        f"two of forty end at {fifty[-2]:.0f} %, and the median is {median(fifty):.2f} %",
        f"{quick['test_error']:.2f} % in {quick['seconds']:.0f} s",
        f"took two seeds {whole[0]['seconds'] / 60:.0f} minutes on the newer EPYC's two cores",
        "end at {:.2f} and {:.2f} %".format(*(record["test_error"] for record in whole)),
        f"A plain PyTorch ladder takes {plain_on_gpu:.1f} ms there, {ratio_on_gpu:.0f} times as long",
        f"{engine:.0f} ms there, that of a plain PyTorch ladder {plain:.0f}, in the median round {ratio:.1f} times",
        f"EPYC, with bf16 products, {engine_on_amd:.0f} and {plain_on_amd:.0f}, {ratio_on_amd:.1f} times",
        f"newer one (family 26) {engine_on_newer:.0f} and {plain_on_newer:.0f}, {ratio_on_newer:.1f} times",
    ):
        assert figure in PROSE


def test_what_was_learnt_of_work_beside_updates_is_in_the_records() -> None:
    page = " ".join((ROOT / "docs" / "engine.md").read_text().split())

    def measured(what: str, members: int, **settings: object) -> dict[str, Any]:
        """The first record of this, in turn unless it was beside."""
        wanted = {"what": what, "members": members, **settings}
        return next(record for record in records("lanes") if wanted.items() <= record.items())

    def update(*which: Any, **settings: object) -> float:
        return measured(*which, **settings)["replayed_update_us"]

    def levels(*which: Any, **settings: object) -> float:
        kernels = measured(*which, **settings)["kernels_us"].items()
        return sum(us for name, us in kernels if name.startswith(("climb", "descend")))

    def learning(what: str, **settings: object) -> float:
        """Adam of forty seeds, with the products of gradients, which are some of all products, or are in it."""
        kernels = measured(what, 40, lanes=0, **settings)["kernels_us"]
        others = measured("learn", 40, lanes=0)["kernels_us"]["products"]
        return kernels["learn"] if "learn" in kernels else kernels["slice"] + kernels["products"] - others

    best = "64,64,32,3,4", "64,64,64,3,4"
    later, at_once = (
        update("split, sums together", 40, lanes=2, means_in_bf16=1, **more) for more in ({"deferred": 1}, {})
    )
    for figure in (
        f"one seed {levels('learn', 1, lanes=0):.0f} µs an update instead of {levels('before', 1):.0f}",
        f"taken together, {levels('now, in turn', 1):.0f} (",
        f"it was {levels('now, in turn', 40):.0f} instead of {levels('before', 40):.0f}",
        f"one seed took {update('split', 1, lanes=2):.0f} µs instead of {update('split', 1, lanes=0):.0f}",
        *(
            f"{name} {update('split, sums together', members, lanes=2):.0f} instead of "
            f"{update('split, sums together', members, lanes=0):.0f}"
            for name, members in (("four", 4), ("ten", 10))
        ),
        f"forty {update('split', 40, lanes=2):.0f} instead of {update('split', 40, lanes=0):.0f}",
        "({:.0f} and {:.0f})".format(*(update("split", 40, lanes=2, adam=f"2048,8,{few}") for few in (132, 264))),
        f"Adam lost {100 * (later / at_once - 1):.0f} %",
        f"Triton's: {learning('learn', tile=best[0]):.0f} µs in turn where",
        f"where product and Adam took {learning('split'):.0f}",
        f"it was {learning('learn, parameters first', tile=best[1]):.0f} and {learning('split', means_in_bf16=1):.0f}",
        f"of its {update('now', 1):.0f} µs",
    ):
        assert figure in page


def test_the_figures_of_the_engines_page_are_those_of_the_records() -> None:
    page = " ".join((ROOT / "docs" / "engine.md").read_text().split())
    before, now = (
        {record["members"]: record["ms"] for record in records(f"fleet{name}")} for name in ("-before-layout", "")
    )
    in_turn = {record["members"]: record["ms"] for record in records("fleet") if record["benchmark"] == "fleet"}
    was, is_now, alone = (
        read_profile(ROOT / "results" / name).groups()
        for name in ("profile-40-seeds.txt", "profile-40-seeds.json", "profile-1-seeds.json")
    )
    up, down, back = (is_now[f"chains {way}"] for way in ("up", "down", "back"))
    levels = sum(us for kind, us in alone.items() if kind.startswith("chains"))
    exact, fast = (
        {record["seed"]: record["test_error"] for record in records(f"mnist-100-labels{name}")}
        for name in ("-exact", "")
    )
    above = [exact[seed] - fast[seed] for seed in fast]
    timed = {(record["benchmark"], record["what"]): record for record in records("bench")}
    width, depth, batch, rows = (
        timed["scaling", f"{what}: exponent"]["exponent"] for what in ("width", "depth", "batch", "rows")
    )
    measuring = {
        "digits, 1 seeds": "7",
        "digits, 4 seeds": "7",
        "digits, 4 seeds, costs 1": "7",
        "digits, 4 seeds, costs 0": "34",
        "1 seeds": "2",
        "40 seeds": "2",
    }
    during = {who: timed["evaluation", f"{who}, after every {epochs} epochs"] for who, epochs in measuring.items()}
    after = {who: timed["evaluation", f"{who}, after training"] for who in measuring}
    one, four, gammas, networks, mnist, forty = (f"{100 * of['share_of_training']:.1f} %" for of in during.values())
    *ends, end = (f"{100 * of['share_of_training']:.1f}" for of in after.values())

    def started(network: str, hardware: str = "NVIDIA H200, shared") -> str:
        """The seconds of its first start and of its second."""
        there = {record["what"]: record for record in records("bench") if record["hardware"] == hardware}
        return " and ".join(f"{there[f'{network}, {which} start']['seconds']:.1f}" for which in ("first", "second"))

    freed = {what: record for (benchmark, what), record in timed.items() if benchmark == "allocation"}
    company = [
        record["ms"] for record in records("bench") if record["what"] == "4 seeds" and "EPYC, " in record["hardware"]
    ]
    newer = {record["what"]: record for record in records("bench") if "EPYC (family 26" in record["hardware"]}
    in_half = [record["ms"] for record in records("cpu-bf16") if "EPYC" in record["hardware"]]
    masks, no_masks = (
        {record["what"]: record["ms"] for record in records("bench") if record["revision"].startswith(revision)}
        for revision in ("58a3b47", "9b0926f")
    )
    by_precision = {
        name: [record["test_error"] for record in four if record["recipe"]["precision"] == name]
        for four in [records("mnist-100-labels-4-epochs-cpu")]
        for name in ("fast", "exact")
    }
    of_half, of_exact = (f"{mean(errors):.2f} ± {stdev(errors):.2f} %" for errors in by_precision.values())
    plain_on_amd, engine_on_amd, ratio_on_amd = engine_and_rival("EPYC, ")
    whole = records("two-cores-mnist-100-labels")
    on_cpu = {record["seed"]: record["test_error"] for record in whole}
    for figure in (
        f"150 epochs of MNIST with 100 labels took two seeds {whole[0]['seconds']:.0f} s together, and seeds 0 and 1 "
        f"end at {on_cpu[0]:.2f} and {on_cpu[1]:.2f} %",
        f"those of the H200 end at {fast[0]:.2f} and {fast[1]:.2f} %",
        f"takes {engine_on_amd:.0f} ms, that of a plain PyTorch ladder (`benchmarks/eager.py`) {plain_on_amd:.0f}, in "
        f"the median round {ratio_on_amd:.1f} times as long",
        f"it is {newer['engine']['ms']:.0f} and {newer['plain PyTorch']['ms']:.0f}, {newer['engine']['ratio']:.1f} "
        f"times; a seed of four takes {newer['4 seeds']['ms']:.1f} there, and one of ten {newer['10 seeds']['ms']:.1f}",
        "took {:.1f} ms in float32, {:.1f} under autocast, {:.1f} with casts beside every product in the model, and "
        "{:.1f} with copies that the optimiser writes".format(*in_half[-4:]),
        f"four epochs end at {of_half} in bf16 and at {of_exact} in float32",
        f"Four seeds took {masks['4 seeds']:.1f} ms an update and seed, more than one seed alone "
        f"({masks['1 seed']:.1f}), and without stored masks {no_masks['4 seeds']:.1f} "
        f"(and one {no_masks['1 seed']:.1f};",
        "one dense seed took {:.1f} ms with {:.0f} new pages an update and {:.1f} with none".format(
            freed["dense, 1 seed, handed back"]["ms"],
            freed["dense, 1 seed, handed back"]["pages"],
            freed["dense, 1 seed, kept"]["ms"],
        ),
        "a seed of four {:.1f} and {:.1f}, and Conv-Small Γ {:.0f} ms".format(
            freed["dense, 4 seeds, handed back"]["ms"],
            freed["dense, 4 seeds, kept"]["ms"],
            freed["conv_small Γ, 1 seed, handed back"]["ms"],
        ),
        f"a seed of four takes {company[-1]:.1f}",
        "takes {:.0f} ms an update, {:.0f} s for 3 epochs".format(
            1000 * records("conv-small-cpu")[-1]["seconds_per_update"], records("conv-small-cpu")[-1]["seconds"]
        ),
        *(
            f"| {members} | {before[members]:.3f} | {in_turn[members]:.3f} | {now[members]:.3f} |"
            for members in (1, 10, 40)
        ),
        f"| 4 | | {in_turn[4]:.3f} | {now[4]:.3f} |",
        f"took {records('mnist-100-labels')[0]['seconds']:.0f} s with splits",
        f"test error is {mean(fast.values()):.3f} ± {stdev(fast.values()):.3f} %, the worst seed "
        f"{max(fast.values()):.2f} %",
        f"{mean(above):.3f} above bf16",
        f"standard error of that difference, seed by seed, is {stdev(above) / len(above) ** 0.5:.3f}",
        f"to the power {width:.2f}, with depth {depth:.2f} and with the batch {batch:.2f}",
        f"that of an epoch with the rows {rows:.2f}",
        f"{sum(is_now.values()):.0f} in all: Adam {is_now['optimiser']:.0f}",
        f"products {is_now['products']:.0f}; the kernels of the levels",
        f"{up + down + back:.0f} (up {up:.0f}, down {down:.0f}, back {back:.0f}); noise {is_now['noise']:.0f}",
        f"unaligned widths {was['products']:.0f}, chains of compiled kernels {was['chains']:.0f}",
        f"the rest {was['rest']:.0f}, and {was['kernels not listed']:.0f} in kernels that the record does not list",
        f"levels {levels:.0f}, products {alone['products']:.0f}, Adam {alone['optimiser']:.0f}",
        f"Adam is {100 * is_now['optimiser'] / sum(is_now.values()):.0f} % of what remains",
        f"{1000 * during['40 seeds']['seconds']:.0f} ms each time, {forty} of training; ",
        f"takes {after['40 seeds']['seconds']:.1f} s, {end} % of 150 epochs",
        f"measuring takes {one} of the training of one seed of the digits, {four} of four, {gammas} of four Γ-models "
        f"and {networks} of four networks without denoising costs (after every 34th epoch), and {mnist} of one seed",
        f"the end takes {', '.join(ends[:-1])} and {ends[-1]} % (revision",
        f"Conv-Small Γ with the GPU to itself: {started('conv_small Γ, 5 seeds', 'NVIDIA H200')} s",
        f"of the full Conv-Small: {started('conv_small full, 1 seed', 'NVIDIA H200')} s",
        f"{started('conv_fc full, 2 seeds')} s for Conv-FC, {started('conv_large Γ, 1 seed')} s for Conv-Large Γ "
        f"and {started('conv_small full, 1 seed')} s for the full Conv-Small",
        *(f"{run['mean_together']:.2f} ± {run['deviation_together']:.2f} %" for run in records("company")),
        f"{100 * timed['utilisation', '40 seeds']['utilisation']:.1f} % of the operations a second of large",
        f"with forty seeds, and {100 * timed['utilisation', '1 seed']['utilisation']:.1f} % with one",
        f"| Conv-FC | 1 | {timed['convolutions', 'conv_fc, full']['ms']:.2f} |",
        f"| Conv-Small Γ | 1 | {timed['convolutions', 'conv_small, Γ']['ms']:.2f} |",
        f"| full Conv-Small | 1 | {timed['convolutions', 'conv_small, full']['ms']:.2f} |",
        f"| Conv-Large Γ | 1 | {timed['convolutions', 'conv_large, Γ']['ms']:.2f} |",
    ):
        assert figure in page
