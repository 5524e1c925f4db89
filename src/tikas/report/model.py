"""The report on a fitted estimator: what it is, how good it is, what it learned, and how to train it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from tikas.estimators.base import LadderEstimator
from tikas.model.specs import RungSpec, rung_text
from tikas.report import plots
from tikas.report.denoising import DenoisingFunction, denoising_functions, reconstructed
from tikas.report.evaluation import Evaluation, ReportRows, evaluate, validation_text
from tikas.report.page import Facts, Listing, Page, Picture, Pictures, Section, Table, Text, draw, draw_figure, image
from tikas.training.summary import MeasuredError

MAX_WRONG_IMAGES, MAX_WRONG_ROWS, MAX_WRONG_COLUMNS = 18, 12, 8
MAX_TABLE_CLASSES, MAX_BARS = 50, 40
MIN_CALIBRATED = 40
"""Fewest rows for a calibration curve."""
WITH_ROWS = "rows: tikas report MODEL --data FILE"


def model_page(
    estimator: LadderEstimator,
    name: str,
    rows: ReportRows | None = None,
    *,
    compared: Mapping[str, MeasuredError] | None = None,
    method: plots.Method = "pca",
) -> Page:
    """Return the report on a fitted estimator.

    Parameters
    ----------
    estimator : LadderClassifier or LadderRegressor
        Fitted.
    name : str
        What to call the model.
    rows : ReportRows, optional
        Without them, all that needs rows is left out, and the page says so.
    compared : mapping of str to MeasuredError, optional
        Errors of other models on the same rows, by name.
    method : {"pca", "tsne"}, default="pca"
        How the map of rows is made.

    Examples
    --------
    >>> from tikas import LadderClassifier
    >>> X, y = [[0.0], [0.1], [0.9], [1.0]] * 10, ["low", None, None, "high"] * 10
    >>> classifier = LadderClassifier((8,), epochs=5, batch_size=20, random_state=0).fit(X, y)
    >>> page = model_page(classifier, "heights")
    >>> page.title, [section.title for section in page.sections]  # doctest: +NORMALIZE_WHITESPACE
    ('Report on heights', ['How good it is', 'What it was trained on', 'How it learned', 'What its layers learned',
     'Run it again'])
    """
    evaluation = None if rows is None else evaluate(estimator, rows)
    error = _error(estimator, evaluation)
    sections = [_quality(estimator, evaluation, error, compared or {})]
    if evaluation is not None and len(evaluation.judged):
        sections.append(_wrong_rows(evaluation))
    if evaluation is not None and evaluation.n_unlabeled:
        sections.append(_unlabeled(evaluation))
    sections += [_data(estimator, evaluation), _learning(estimator), _layers(estimator, evaluation)]
    if evaluation is not None and estimator.task == "classification":
        sections.append(_map(evaluation, method))
    sections.append(_run_again(estimator))
    return Page(f"Report on {name}", _verdict(estimator, evaluation, error), _facts(estimator), sections)


# The verdict


def _error(estimator: LadderEstimator, evaluation: Evaluation | None) -> MeasuredError | None:
    """Return the error to show: that on the rows of the report, else the one measured when the model was trained."""
    measured: MeasuredError | None = estimator.training_.error
    if evaluation is None or evaluation.error is None:
        return measured
    if measured is not None and evaluation.rows.source == measured.source and measured.rows >= evaluation.error.rows:
        return measured  # on all these rows, of which the report may have taken some
    return evaluation.error


def _verdict(estimator: LadderEstimator, evaluation: Evaluation | None, error: MeasuredError | None) -> list[str]:
    """Return what the model is and how good it is, in sentences."""
    training, classification = estimator.training_, estimator.task == "classification"
    if error is None:
        first = "How good this model is has not been measured: there are no labeled rows that it did not learn from."
        if measured := validation_text(estimator):
            first = f"How good this model is has only been measured in training: an error of {measured}."
    elif classification:
        wrong = round(error.value * error.rows / 100)
        first = f"Wrong on {wrong:,} of {error.rows:,} {error.source}: an error of {error.text()}."
    else:
        first = f"On {error.rows:,} {error.source} it is off by {error.text()}, as root mean square."
    what = "It predicts a value"
    if classification:
        names = plots.class_names(estimator)
        listed = ", ".join(names) if len(names) <= 10 else f"{', '.join(names[:9])}, …"
        what = f"It tells {len(names)} classes apart ({listed})"
    second = f"{what} and learned from {training.rows:,} rows, {training.labeled:,} of them labeled."
    sentences = [first, second]
    if evaluation is not None and evaluation.error is not None:
        if not evaluation.rows.surely_new:
            sentences.append(
                f"The {evaluation.rows.source} are taken for new ones. If the model learned from some of them, its "
                "error on new rows is higher than this."
            )
        trivial = evaluation.trivial_error
        guess = "the most frequent class" if classification else "the mean"
        sentences.append(f"Always guessing {guess} has an error of {trivial.text()}.")
    if estimator.interrupted_:
        sentences.append("The training was stopped early.")
    return sentences


def _facts(estimator: LadderEstimator) -> Facts:
    training = estimator.training_
    values = [
        ("Learned from", f"{training.rows:,} rows"),
        ("Labels", f"{training.labeled:,}"),
        ("Network", _network(estimator)),
        ("Trained in", f"{_duration(training.seconds)}, {estimator.n_iter_:,} epochs"),
    ]
    if len(estimator.ladders_) > 1:
        values.append(("Members", f"{len(estimator.ladders_)}, their predictions averaged"))
    return Facts(values)


def _network(estimator: LadderEstimator) -> str:
    """Return the sizes of the network from the input to the output."""
    sizes = ["×".join(map(str, shape)) for shape in estimator.ladder_.shapes]
    return " – ".join(sizes) if len(sizes) <= 9 else f"{sizes[0]} – … ({len(sizes) - 2} layers) – {sizes[-1]}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


# How good it is


def _quality(
    estimator: LadderEstimator,
    evaluation: Evaluation | None,
    error: MeasuredError | None,
    compared: Mapping[str, MeasuredError],
) -> Section:
    title = "How good it is"
    errors = {} if error is None else {"this model": error}
    errors |= compared
    if evaluation is not None and evaluation.error is not None:
        errors[_trivial_name(estimator)] = evaluation.trivial_error
    blocks: list[Any] = []
    if errors:
        header = ["model", "error" if estimator.task == "classification" else "root mean square error", "on"]
        lines = [[name, each.text(), f"{each.rows:,} {each.source}"] for name, each in errors.items()]
        blocks.append(Table("Errors on rows whose labels were not learned", header, lines, text_columns=3))
    if evaluation is None or evaluation.error is None:
        reason = "No rows were given."
        if evaluation is not None:
            reason = "All labels of the given rows were learned, so they do not tell how good the model is on others."
        blocks.append(Text(f"{reason} Mistakes, calibration and a map need labeled {WITH_ROWS}."))
        return Section(title, blocks)
    if estimator.task == "regression":
        values = evaluation.targets[evaluation.judged]
        r2 = 1 - np.square(evaluation.predicted - values).sum() / np.square(values - values.mean()).sum()
        alt = f"Known against predicted values of {len(values):,} rows; R² is {r2:.3f}."
        caption = f"Each point is a row; on the line, the prediction is right. R² = {r2:.3f}."
        blocks.append(
            Pictures([draw(lambda ax: plots.draw_predicted_values(ax, values, evaluation.predicted), alt, caption)])
        )
        return Section(title, blocks)
    pictures = [_confusion(evaluation)] if (evaluation.targets[evaluation.judged] >= 0).any() else []
    if len(evaluation.judged) >= MIN_CALIBRATED:
        pictures.append(_calibration(evaluation))
    blocks.append(Pictures(pictures))
    if len(evaluation.judged) < MIN_CALIBRATED:
        count = len(evaluation.judged)
        blocks.append(Text(f"{count} labeled rows are too few for a calibration curve, which takes {MIN_CALIBRATED}."))
    blocks.append(_by_class(evaluation))
    return Section(title, blocks)


def _trivial_name(estimator: LadderEstimator) -> str:
    return "always the most frequent class" if estimator.task == "classification" else "always the mean"


def _confusion(evaluation: Evaluation) -> Picture:
    names = plots.class_names(evaluation.estimator)
    targets = evaluation.targets[evaluation.judged]
    wrong = ~evaluation.correct & (targets >= 0)
    pairs = Counter(zip(targets[wrong].tolist(), evaluation.predicted[wrong].tolist(), strict=True)).most_common(5)
    listed = ", ".join(f"{names[label]} taken for {names[code]} ({count})" for (label, code), count in pairs)
    caption = f"Most frequent mistakes: {listed}." if pairs else "There are no mistakes."
    side = float(np.clip(2.2 + 0.3 * len(names) + 0.05 * max(map(len, names)), 3.2, 7.0))
    return draw(
        lambda ax: plots.draw_confusion(ax, targets, evaluation.predicted, names),
        f"Confusion matrix of {len(targets):,} rows and {len(names)} classes. {caption}",
        f"Rows by label and predicted class. {caption}",
        (side + 0.4, side),
    )


def _calibration(evaluation: Evaluation) -> Picture:
    correct, confidence = evaluation.correct, evaluation.probabilities.max(1)
    bins = np.array_split(np.argsort(confidence), plots.calibration_bins(len(correct)))
    gap = sum(len(each) * abs(correct[each].mean() - confidence[each].mean()) for each in bins) / len(correct)
    means = f"{100 * confidence.mean():.1f} % on average, and {100 * correct.mean():.1f} % are right"
    caption = f"The predicted classes have a probability of {means}. By bins they differ by {100 * gap:.1f} points."
    return draw(
        lambda ax: plots.draw_calibration(ax, correct, confidence),
        f"Calibration curve. {caption}",
        f"How often the predicted class is right, by its probability. {caption}",
    )


def _by_class(evaluation: Evaluation) -> Table:
    """Return the table of classes: labels learned, rows, how many are found, and how many predictions are right."""
    names, counts = plots.class_names(evaluation.estimator), evaluation.estimator.training_.class_counts
    targets, predicted = evaluation.targets[evaluation.judged], evaluation.predicted
    lines = []
    for code, name in enumerate(names):
        here, named = targets == code, predicted == code
        found = "–"
        if here.any():
            share = MeasuredError.of_classes("", int((predicted[here] == code).sum()), int(here.sum()))
            found = f"{share.value:.0f} % ({share.low:.0f} to {share.high:.0f})"
        right = f"{100 * (targets[named] == code).mean():.0f} %" if named.any() else "–"
        lines.append([name, f"{counts[code]:,}", f"{here.sum():,}", found, right])
    lines = sorted(lines, key=lambda line: -int(line[2].replace(",", "")))[:MAX_TABLE_CLASSES]
    lines.sort(key=lambda line: names.index(line[0]))
    header = ["class", "labels learned", "rows", "found", "right"]
    more = f", the {MAX_TABLE_CLASSES} most frequent" if len(names) > MAX_TABLE_CLASSES else ""
    caption = (
        f"Classes on the {evaluation.source}{more}. Found: rows of the class that are predicted as such, with 95 % "
        "interval. Right: predictions of the class that are right."
    )
    return Table(caption, header, lines)


# Single rows


def _wrong_rows(evaluation: Evaluation) -> Section:
    classification = evaluation.estimator.task == "classification"
    title = "Its surest mistakes" if classification else "Its largest errors"
    shape = evaluation.estimator.input_shape_
    images = plots.is_image(shape)
    chosen = evaluation.surest_wrong(MAX_WRONG_IMAGES if images else MAX_WRONG_ROWS)
    if not chosen:
        return Section(title, [Text(f"It made no mistake on the {len(evaluation.judged):,} {evaluation.source}.")])
    about = "Rows that it got wrong with the highest probability" if classification else "Rows it was farthest from"
    note = f"{about}: look whether their labels are right, and what they have in common. Rows are counted from 1."
    if images:
        return Section(title, [Text(note), Pictures([_wrong_image(evaluation, *each) for each in chosen], small=True)])
    columns = _columns(evaluation)[:MAX_WRONG_COLUMNS]
    header = ["row", "label", "predicted", *(["probability"] if classification else []), *columns]
    lines = []
    for position, row in chosen:
        line = [f"{row + 1}", evaluation.label_text(row), evaluation.predicted_text(position)]
        if classification:
            line.append(f"{100 * evaluation.probabilities[position].max():.0f} %")
        values = np.asarray(plots.take(evaluation.rows.X, [row])).ravel()[: len(columns)]
        lines.append([*line, *map(_cell, values.tolist())])
    return Section(title, [Text(note), Table(about, header, lines, text_columns=3)])


def _wrong_image(evaluation: Evaluation, position: int, row: int) -> Picture:
    shape = evaluation.estimator.input_shape_
    values = np.asarray(plots.take(evaluation.rows.X, [row]), np.float32)[0]
    scale = (0.0, 1.0) if values.min() >= 0 and values.max() <= 1 else (float(values.min()), float(values.max()) + 1e-6)
    label, predicted = evaluation.label_text(row), evaluation.predicted_text(position)
    words = f"label {label}, predicted {predicted}"
    if evaluation.estimator.task == "classification":
        words += f" ({100 * evaluation.probabilities[position].max():.0f} %)"
    return image(plots.as_picture(values, shape, scale), f"Row {row + 1}: {words}", f"Row {row + 1}: {words}")


def _columns(evaluation: Evaluation) -> list[str]:
    names = getattr(evaluation.rows.X, "columns", None)
    if names is not None:
        return [str(name) for name in names]
    count = int(np.prod(np.shape(evaluation.rows.X)[1:]))
    return [f"column {number}" for number in range(1, count + 1)]


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# Unlabeled rows


def _unlabeled(evaluation: Evaluation) -> Section:
    predicted, count = evaluation.predicted_unlabeled, evaluation.n_unlabeled
    some = f"{len(predicted):,} of the {count:,}" if len(predicted) < count else f"the {count:,}"
    title = "What it predicts for unlabeled rows"
    if evaluation.estimator.task == "regression":
        known = evaluation.targets[~np.isnan(evaluation.targets)]
        low, middle, high = np.quantile(predicted, [0.05, 0.5, 0.95])
        caption = f"Of {some} unlabeled rows, 90 % are between {low:.4g} and {high:.4g}; the median is {middle:.4g}."
        picture = draw(
            lambda ax: plots.draw_values(ax, predicted, known), f"Distribution of predicted values. {caption}", caption
        )
        return Section(title, [Pictures([picture])])
    names = plots.class_names(evaluation.estimator)
    labels = np.array(evaluation.estimator.training_.class_counts)
    counts = np.bincount(predicted, minlength=len(names))
    kept = np.sort(np.argsort(-counts, kind="stable")[:MAX_BARS])
    shares = [f"{names[code]} {100 * counts[code] / counts.sum():.0f} %" for code in np.argsort(-counts)[:12]]
    text = f"Predicted for {some} unlabeled rows: {', '.join(shares)}."
    picture = draw(
        lambda ax: plots.draw_classes(
            ax, {"predicted, unlabeled rows": counts[kept], "labels learned": labels[kept]}, [names[k] for k in kept]
        ),
        f"Bars of the share of each class. {text}",
        text,
        (4.8, 1.3 + 0.28 * len(kept)),
    )
    note = (
        "Classes that are predicted much more or less often than they are labeled may be right, or a sign that labels "
        "are missing for some kind of row."
    )
    return Section(title, [Text(note), Pictures([picture])])


# Training


def _data(estimator: LadderEstimator, evaluation: Evaluation | None) -> Section:
    training = estimator.training_
    values = [
        ("Rows learned from", f"{training.rows:,}"),
        ("Labels used", f"{training.labeled:,}"),
        ("Labeled rows held out", f"{training.validation:,}"),
        ("Columns" if len(estimator.input_shape_) == 1 else "Images", " × ".join(map(str, estimator.input_shape_))),
    ]
    if training.data:
        values.insert(0, ("Data", training.data))
    if training.target:
        values.insert(1, ("Target", training.target))
    blocks: list[Any] = [Facts(values)]
    if training.read:
        blocks += [Text("What was read:"), Listing(training.read_lines)]
    if training.class_counts and (evaluation is None or evaluation.error is None):  # else in the table of classes
        lines = [
            [name, f"{count:,}"]
            for name, count in zip(plots.class_names(estimator), training.class_counts, strict=True)
        ]
        more = f", the first {MAX_TABLE_CLASSES}" if len(lines) > MAX_TABLE_CLASSES else ""
        blocks.append(Table(f"Labels of each class{more}", ["class", "labels"], lines[:MAX_TABLE_CLASSES]))
    names = [str(name) for name in getattr(estimator, "feature_names_in_", ())]
    if names:
        listed = ", ".join(names[:100]) + (f" and {len(names) - 100} more" if len(names) > 100 else "")
        blocks.append(Text(f"Names of the columns: {listed}."))
    return Section("What it was trained on", blocks)


def _learning(estimator: LadderEstimator) -> Section:
    first, last = _mean_costs(estimator, 0), _mean_costs(estimator, -1)
    lines = [[title, f"{first[name]:.4g}", f"{last[name]:.4g}"] for name, title in plots.cost_names(estimator).items()]
    ends = ", ".join(f"{title} from {one} to {other}" for title, one, other in lines)
    alt = f"Learning curves over {estimator.n_iter_} epochs, on a logarithmic scale: {ends}."
    caption = "Costs of each epoch; a denoising cost counts with the factor in brackets."
    if measured := validation_text(estimator):
        caption += f" The validation error is {measured}."
    picture = draw(lambda ax: plots.draw_history(ax, estimator), alt, caption, (4.8, 4.4))
    table = Table("Costs of the first and the last epoch", ["cost", "first", "last"], lines)
    return Section("How it learned", [Pictures([picture]), table])


def _mean_costs(estimator: LadderEstimator, index: int) -> dict[str, float]:
    """Return the mean of each cost over the members, in the first (0) or the last (-1) epoch of each."""
    members = {line["member"] for line in estimator.history_}
    lines = [[line for line in estimator.history_ if line["member"] == member][index] for member in members]
    return {
        name: float(np.mean([plots.history_value(line, name) for line in lines]))
        for name in plots.cost_names(estimator)
    }


def _layers(estimator: LadderEstimator, evaluation: Evaluation | None) -> Section:
    title = "What its layers learned"
    blocks: list[Any] = []
    X = None if evaluation is None else plots.take(evaluation.rows.X, _spread(evaluation, 1000))
    try:
        functions = denoising_functions(estimator, X)
    except ValueError as error:  # a supervised network
        return Section(title, [Text(str(error))])
    about = (
        "Each layer learned to remove noise: from a noisy value z̃ and the signal u of the layer above, it estimates "
        "the clean value. Solid lines are the learned functions of one unit, for a low, a median and a high u."
    )
    if X is None:
        about += f" Here they are those of the first unit; a typical unit and the optimal functions need {WITH_ROWS}."
    else:
        about += (
            " It is the unit with the median error. Dotted lines are the best possible functions for the distribution "
            "of these rows. A layer with a small weight need not follow them: it is free to carry what others need."
        )
    if len(estimator.ladders_) > 1:
        about += " Drawn is the first member."
    blocks.append(Text(about))
    if X is not None:
        lines = [
            [each.level, f"{each.units}", f"{each.noisy_error:.3g}", f"{each.denoised_error:.3g}"] for each in functions
        ]
        header = ["level", "units", "noisy", "denoised"]
        blocks.append(Table("Mean squared distance to the clean value", header, lines))
    blocks.append(Pictures([_denoiser(each) for each in functions]))
    blocks += _reconstructions(estimator, X)
    return Section(title, blocks)


def _spread(evaluation: Evaluation, most: int) -> Any:
    """Return evenly spread rows, in random order, so that rows of all classes are among the first."""
    count = len(evaluation.rows.labels)
    return np.random.default_rng(0).permutation(np.linspace(0, count - 1, min(count, most)).astype(int))


def _denoiser(function: DenoisingFunction) -> Picture:
    alt = f"Learned denoising function of the level {function.level}, unit {function.unit}"
    if function.optimal is not None:
        gaps = [function.learned[label] - optimal for label, optimal in function.optimal.items()]
        known = np.concatenate(gaps)[~np.isnan(np.concatenate(gaps))]
        if len(known):
            distance = np.sqrt(np.square(known).mean())
            alt += f", beside the optimal one; they are {distance:.2g} apart, as root mean square"
        else:
            alt += "; these rows are too few to estimate the optimal one"
    caption = f"{function.level[:1].upper()}{function.level[1:]}, {function.units:,} units"
    return draw(lambda ax: plots.draw_denoiser(ax, function), f"{alt}.", caption, (4.2, 3.2))


def _reconstructions(estimator: LadderEstimator, X: Any) -> list[Any]:
    if X is None:
        return [Text(f"Reconstructions under rising noise need {WITH_ROWS}.")]
    try:
        rows = reconstructed(estimator, X)
    except ValueError as error:  # a Γ-model
        return [Text(str(error))]
    errors = [
        [
            f"{each.factor * float(estimator.ladder_.rungs[0].noise):.2g}",
            f"{float((each.noisy - each.clean).square().mean().sqrt()):.3g}",
            f"{float((each.denoised - each.clean).square().mean().sqrt()):.3g}",
        ]
        for each in rows
    ]
    listed = "; ".join(f"noise {noise}: {noisy} becomes {denoised}" for noise, noisy, denoised in errors)
    alt = f"Noisy rows and their reconstructions. Root mean square distance to the clean rows, at {listed}."
    if plots.is_image(estimator.input_shape_):
        caption = "The same rows with more and more noise, and what the decoder makes of them."

        def draw_on(figure: Any) -> None:
            plots.draw_reconstructed_images(figure.subplots(2 * len(rows)), estimator, rows)

        height, width = estimator.input_shape_[1:]
        ratio = min(1.5, height / width)
        picture = draw_figure(draw_on, alt, caption, (4.8, 0.3 + 2 * len(rows) * 0.48 * ratio))
    else:
        caption = "Distance to the clean rows before and after the decoder."
        picture = draw(lambda ax: plots.draw_reconstruction_errors(ax, estimator, rows), alt, caption, (4.2, 3.2))
    return [Text("Reconstructions of the input under rising noise."), Pictures([picture])]


def _map(evaluation: Evaluation, method: plots.Method) -> Section:
    estimator, chosen = evaluation.estimator, evaluation.mapped()
    X = plots.take(evaluation.rows.X, chosen)
    codes = evaluation.targets[chosen]
    predicted = estimator.predict_proba(X).argmax(1)
    latents = estimator.transform(X)
    names = plots.class_names(estimator)
    wrong = int(((codes != -1) & (codes != predicted)).sum())
    kinds = f"{(codes != -1).sum():,} labeled and {(codes == -1).sum():,} unlabeled ones; {wrong:,} labels differ"
    how = "their principal components" if method == "pca" else "t-SNE"
    caption = (
        f"{len(chosen):,} rows, {kinds} from the prediction (×). Colors are predicted classes. The latent values of "
        f"the output layer are shown by {how}."
    )
    picture = draw(
        lambda ax: plots.draw_map(ax, latents, predicted, codes, names, method),
        f"Map of rows. {caption}",
        caption,
        (4.8, 4.6),
    )
    return Section("Map of the rows", [Pictures([picture])])


# How to train it again


def _run_again(estimator: LadderEstimator) -> Section:
    training = estimator.training_
    if training.command:
        blocks: list[Any] = [Text("The command:"), Text(training.command, code=True)]
    else:
        blocks = [Text("In Python:"), Text(f"{_expression(estimator)}.fit(X, y)", code=True)]
    values = [("Seeds", ", ".join(map(str, estimator.seeds_))), ("Hardware", training.hardware)]
    values += sorted(training.versions.items())
    recipe = [[name, _setting(value)] for name, value in vars(estimator.recipe_).items()]
    blocks += [Facts(values), Table("All settings", ["setting", "value"], recipe, text_columns=2)]
    return Section("Run it again", blocks)


def _expression(estimator: LadderEstimator) -> str:
    """Return the constructor with the settings of the recipe that differ from the defaults."""
    fresh = type(estimator)()
    settings = {
        name: value
        for name, value in vars(estimator.recipe_).items()
        if name != "task" and value != getattr(fresh, name)
    }
    settings |= {"n_members": len(estimator.ladders_), "random_state": estimator.seeds_[0]}
    if settings["n_members"] == 1:
        del settings["n_members"]
    listed = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    return f"{type(estimator).__name__}({listed})"


def _setting(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(rung_text(each) if isinstance(each, RungSpec) else f"{each}" for each in value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
