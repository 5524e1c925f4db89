"""The notes under the paper's tables: every figure that they tell as measured is what the records hold."""

import json
import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from statistics import correlation, mean, stdev

import pytest
from scipy.stats import fisher_exact

from tikas.experiments.compare import Summary, p_value
from tikas.experiments.ledger import Ledger, recipe_key
from tikas.experiments.paper import APPENDIX, TABLES, TEXT
from tikas.experiments.readings import chosen, judge, reading, reference
from tikas.experiments.studies import STUDIES
from tikas.experiments.tasks import CELLS
from tikas.training.recipe import Recipe

RESULTS = Path(__file__).parents[1] / "results"
KINDS = ("noise", "longer", "batch", "kinds-longer", "kinds-long", "input")
INPUT_LONG = "study/conv-small-gamma-input-long/100"
OTHERS = {f"study/conv-small-gamma-{kind}/100" for kind in KINDS}
FUNCTIONS = ("leaky_relu", "gelu", "mlp", "linear", "additive")
NOT_RUN = ("study/noise/all/0.1", "study/noise/all/0.6")
CELL = {cell.name: cell for cell in CELLS}
SETTING = {setting.name: setting for setting in STUDIES}


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    return Ledger.read(RESULTS)


def errors(ledger: Ledger, recipe: Recipe) -> dict[int, float]:
    return {seed: record["test_error"] for seed, record in ledger.members(recipe_key(recipe)).items()}


def span(figures: list[float], word: str) -> str:
    return f"{min(figures):.1f} {word} {max(figures):.1f} %"


def listed(seeds: list[int]) -> str:
    return f"{', '.join(map(str, seeds[:-1]))} and {seeds[-1]}"


def assert_chosen_by(study: str, recipe: Recipe, ledger: Ledger, missing: Collection[str] = ()) -> None:
    """Of all settings of the study, this one errs least on the rows that they held out."""
    settings = [setting for setting in STUDIES if setting.study == study and setting.name not in missing]
    assert all(reading(setting, ledger) for setting in settings)
    choice = chosen(settings, ledger)
    assert choice is not None
    assert replace(choice.recipe, validation=0) == recipe


def eight_epochs() -> tuple[dict[int, float], dict[int, list[tuple[int, int]]]]:
    """Of the log that the note names: errors, and mistakes from the commonest on, by seed."""
    lines = (RESULTS / "mnist-50-labels-8-epochs-cpu.log").read_text().splitlines()
    ended = next(line for line in lines if re.match(r"\[5, ", line))
    seeds, found, _ = map(json.loads, re.findall(r"\[.*?\]", ended))
    mistakes = {
        int(line.split()[0]): [(int(true), int(said)) for true, said in re.findall(r"\((\d), (\d), \d+\)", line)]
        for line in lines
        if re.match(r"\d+ \[\(", line)
    }
    assert [line.split()[0] for line in lines if re.match(r"\d+ \[\d", line)][-1] == "8"
    return dict(zip(seeds, found, strict=True)), mistakes


def held_out(setting: str, ledger: Ledger, places: int = 3) -> str:
    """Mean and deviation over the seeds."""
    found = reading(SETTING[setting], ledger)
    assert found is not None
    return f"{found.summary.mean:.{places}f} ± {found.summary.deviation:.{places}f} %"


def once_more() -> list[float]:
    """The errors of forty seeds that were trained a second time, by seed; one fleet, by the recipe of the table."""
    records = [json.loads(line) for line in (RESULTS / "table1-full-all-again.log").read_text().splitlines()]
    assert {(record["cell"], record["members"]) for record in records} == {("table1/full/all", 40)}
    assert {recipe_key(Recipe(**record["recipe"])) for record in records} == {
        recipe_key(CELL["table1/full/all"].recipe)
    }
    assert sorted(record["seed"] for record in records) == list(range(40))
    return [record["test_error"] for record in sorted(records, key=lambda record: record["seed"])]


def told_of_all_labels(ledger: Ledger) -> list[str]:
    lines = (RESULTS / "mnist-all-labels-tf32.log").read_text().splitlines()
    earlier = {record["seed"]: record["test_error"] for record in map(json.loads, lines)}
    now = [error for _, error in sorted(errors(ledger, CELL["table1/full/all"].recipe).items())]
    first, later = now[:10], now[10:]
    again = once_more()
    assert list(earlier) == list(range(10))
    for study in ("study/full/all", "study/noise/all"):
        assert_chosen_by(study, CELL["table1/full/all"].recipe, ledger, missing=NOT_RUN)
    fast, exact = (held_out(f"study/precision/all/{kind}", ledger) for kind in ("fast", "exact"))
    published = reference(CELL["table1/full/all"], ledger, CELL)
    assert published is not None
    return [
        f"the first ten seeds end at {mean(first):.3f} ± {stdev(first):.3f} %, "
        f"worse than published (p {p_value(Summary.of(first), published):.3f}); ",
        f"run because of that, at {mean(later):.3f} ± {stdev(later):.3f} %, "
        f"a difference that chance seldom makes (p {p_value(Summary.of(first), Summary.of(later)):.3f}). ",
        f"as one fleet and by a later revision, end at {mean(again):.3f} ± {stdev(again):.3f} %, "
        f"their first ten at {mean(again[:10]):.3f} ± {stdev(again[:10]):.3f} % "
        f"(by themselves compatible with the published figure, p {p_value(Summary.of(again[:10]), published):.2f}) "
        f"and the others at {mean(again[10:]):.3f} ± {stdev(again[10:]):.3f} % "
        f"(p {p_value(Summary.of(again[:10]), Summary.of(again[10:])):.2f}; ",
        f"errors correlate by {correlation(now, again):.2f}, "
        f"those of the first ten by {correlation(first, again[:10]):.2f}. ",
        f"{fast} and {exact} over ten seeds ",
        f"seeds 0 to 9 end at {mean(earlier.values()):.3f} ± {stdev(earlier.values()):.3f} % ",
    ]


def told_of_fifty_labels(ledger: Ledger) -> list[str]:
    final, (early, mistakes) = errors(ledger, CELL["text/full/50"].recipe), eight_epochs()
    good = [error for error in final.values() if error < 1.5]
    assert sorted(final, key=final.__getitem__)[-2:] == [23, 5]
    assert mistakes[5][:2] == [(4, 9), (9, 4)]
    return [
        f"seeds 5 and 23 end at {final[5]:.1f} and {final[23]:.1f} %, ",
        f"and {len(good)} of the {len(final)} between {span(good, 'and')}. ",
        f"seed 5 is at {early[5]:.1f} % as well and takes 4 for 9 and 9 for 4 ",
        f"(seed 23 is at {early[23]:.1f} %, seeds 0 and 1 at {early[0]:.1f} and {early[1]:.1f} %; ",
    ]


def told_of_fifty_labels_with_weights_of_ours(ledger: Ledger) -> list[str]:
    cell = CELL["text/full-chosen/50"]
    assert_chosen_by("study/full-short/50", replace(cell.recipe, epochs=30), ledger)
    ended = list(errors(ledger, cell.recipe).values())
    good, bad = [error for error in ended if error < 1.5], [error for error in ended if error >= 1.5]
    return [
        f"but {len(bad)} of the {len(ended)} end between {span(bad, 'and')}, ",
        f"the others between {span(good, 'and')}",
    ]


def told_of_the_gamma_models(ledger: Ledger) -> list[str]:
    short = CELL["table2/small-gamma-short/100"]
    assert_chosen_by("study/conv-small-gamma-short/100", short.recipe, ledger)
    cells = [CELL["table2/small-gamma/100"], CELL["table2/small-gamma-chosen/100"], short]
    found = [errors(ledger, cell.recipe) for cell in cells]
    assert all(found[0].keys() == each.keys() for each in found)
    good = [seed for seed in found[0] if all(each[seed] < 0.9 for each in found)]
    bad = [seed for seed in found[0] if all(each[seed] > 1.2 for each in found)]
    best = reading(
        next(setting for setting in STUDIES if setting.name == "study/conv-small-gamma-short/100/0.2"), ledger
    )
    assert best is not None
    others = {setting: reading(setting, ledger) for setting in STUDIES if setting.study in OTHERS}
    with_five = {setting: found for setting, found in others.items() if found and len(found.errors) == 5}
    assert {setting.study for setting in with_five} == OTHERS
    assert all(setting.recipe.epochs >= 30 for setting in with_five)
    assert all(found.summary.mean > best.summary.mean for found in with_five.values())
    functions = [bad_seeds(kind, ledger) for kind in FUNCTIONS]
    after_30, after_80 = (
        held_out(f"study/conv-small-gamma-kinds-{kind}/100/input-0.5", ledger, places=2) for kind in ("longer", "long")
    )
    return [
        f"seeds {listed(good)} end below 0.9 % and seeds {listed(bad)} above 1.2 %: ",
        f"{after_30} after 30 epochs, {after_80} after 80. ",
        f"changed little: {min(functions):.2f} to {max(functions):.2f} %, "
        f"where the published setting is at {bad_seeds('as-published', ledger):.2f} % ",
    ]


def told_of_the_gamma_model_with_noisier_inputs(ledger: Ledger) -> list[str]:
    cell, study = CELL["table2/small-gamma-input/100"], INPUT_LONG
    assert_chosen_by(study, cell.recipe, ledger)
    ended = errors(ledger, cell.recipe)
    others = [error for seed, error in ended.items() if seed != 9]
    assert sorted(ended) == list(range(10))
    lighter = reading(SETTING[f"{study}/0.45-1-0.005"], ledger)
    assert lighter is not None
    return [
        f"near {held_out(f'{study}/0.45-2-0.005', ledger, places=2)} of the held-out rows; ",
        f"with a weight of 1 seed 4 is at {lighter.errors[4]:.2f} %. ",
        f"end between {min(others):.2f} and {max(others):.2f} %, {mean(others):.2f} % in the mean, ",
        f"to {ended[9]:.2f} %",
    ]


def told_of_the_gamma_model_for_longer(ledger: Ledger) -> list[str]:
    cell, before = CELL["table2/small-gamma-input-long/100"], SETTING[f"{INPUT_LONG}/0.45-2-0.005"]
    setting = SETTING["study/conv-small-gamma-input-longest/100/0.45-2-0.005"]
    assert replace(setting.recipe, validation=0) == cell.recipe == replace(before.recipe, validation=0, epochs=150)
    longer, shorter = reading(setting, ledger), reading(before, ledger)
    assert longer is not None
    assert shorter is not None
    assert longer.summary.mean < shorter.summary.mean
    ended = errors(ledger, cell.recipe)
    others = [error for seed, error in ended.items() if seed != 9]
    assert sorted(ended) == list(range(10))
    return [
        f"to {held_out(setting.name, ledger, places=2)} ",
        f"end between {min(others):.2f} and {max(others):.2f} %, {mean(others):.2f} % in the mean, ",
        f"and seed 9 at {ended[9]:.2f} %",
    ]


def bad_seeds(kind: str, ledger: Ledger) -> float:
    """The mean of the seeds that every kind of Γ-model was tried on."""
    found = reading(SETTING[f"study/conv-small-gamma-kinds/100/{kind}"], ledger)
    assert found is not None
    return mean([found.errors[1], found.errors[4]])


def told_of_the_full_conv_small(ledger: Ledger) -> list[str]:
    cell = CELL["table2/small-full/100"]
    second = replace(cell.recipe, costs=(100, *[0.1] * 8, 1), epochs=70)
    for study in ("study/conv-small-top/100", "study/conv-small-bottom/100"):
        assert_chosen_by(study, replace(second, epochs=30), ledger)
    assert_chosen_by("study/conv-small-between/100", cell.recipe, ledger)
    first = replace(cell.recipe, costs=(1000, 10, 1), epochs=100)
    ended = errors(ledger, second)
    others = [error for seed, error in ended.items() if seed not in (1, 3)]
    return [
        f"all of {cell.recipe.epochs} epochs like this cell. ",
        f"and {second.epochs} epochs, had seeds 1 and 3 end at {ended[1]:.1f} and {ended[3]:.1f} %, ",
        f"the others at {span(others, 'to')}; the first, 1000, 10, 1 and {first.epochs} epochs, ",
        f"ended at {span(list(errors(ledger, first).values()), 'to')}",
    ]


def told_of_the_autoencoder(ledger: Ledger) -> list[str]:
    verdicts, gains = {}, {}
    for cell in APPENDIX.cells:
        found, against = reading(cell, ledger), reference(cell, ledger, CELL)
        judgement = judge(found, against)
        assert found is not None
        assert against is not None
        assert judgement is not None
        verdicts[cell.attached, cell.recipe.labels] = judgement.verdict
        gains[cell.attached, cell.recipe.labels] = against.mean - found.summary.mean
    assert {verdict for (rung, _), verdict in verdicts.items() if rung == 1} == {"better"}
    assert {verdict for (rung, _), verdict in verdicts.items() if rung in (2, 3)} == {"compatible"}
    assert {verdict for (rung, _), verdict in verdicts.items() if rung in (4, 5)} == {"worse", "compatible"}
    return [f"by {gains[1, 100]:.1f} % at 100 labels and by {gains[1, 1000]:.1f} % at 1000; "]


TOLD = {
    CELL["table1/full/all"].note: told_of_all_labels,
    TEXT.note: told_of_fifty_labels,
    CELL["text/full-chosen/50"].note: told_of_fifty_labels_with_weights_of_ours,
    CELL["table2/small-gamma-short/100"].note: told_of_the_gamma_models,
    CELL["table2/small-gamma-input/100"].note: told_of_the_gamma_model_with_noisier_inputs,
    CELL["table2/small-gamma-input-long/100"].note: told_of_the_gamma_model_for_longer,
    CELL["table2/small-full/100"].note: told_of_the_full_conv_small,
    APPENDIX.note: told_of_the_autoencoder,
}
NOTES = {table.note for table in TABLES} | {cell.note for table in TABLES for cell in table.cells}


@pytest.mark.parametrize("name", ["table2/small-baseline/all", "table3/large-baseline/all"])
def test_single_runs_are_compared_by_their_errors_among_the_test_rows(name: str, ledger: Ledger) -> None:
    cell, rows = CELL[name], 10_000
    (error,) = errors(ledger, cell.recipe).values()
    assert cell.published is not None
    ours, theirs = (round(rows * share / 100) for share in (error, cell.published.mean))
    p = fisher_exact([[ours, rows - ours], [theirs, rows - theirs]]).pvalue
    assert f"{ours} and {theirs} errors in 10,000 rows are within chance by the rows alone" in cell.note
    assert f"(Fisher's exact test, p {p:.2f})" in cell.note


@pytest.mark.parametrize("note", sorted(NOTES), ids=lambda note: note[:20])
def test_every_error_in_a_note_is_that_of_the_records(note: str, ledger: Ledger) -> None:
    rest = note
    for sentence in TOLD[note](ledger) if note in TOLD else []:
        assert sentence in rest
        rest = rest.replace(sentence, "")
    assert "%" not in rest, "a figure that no record is compared with: add it above"
