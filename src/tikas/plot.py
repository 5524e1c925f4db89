"""Pictures of a fitted estimator: learning curves, denoising functions, reconstructions, maps and predictions.

Every function takes axes of matplotlib (``ax``) or makes a figure, and returns the axes.

Examples
--------
>>> from tikas import LadderClassifier, plot
>>> X, y = [[0.0], [0.1], [0.9], [1.0]] * 10, [0, -1, -1, 1] * 10
>>> classifier = LadderClassifier((8,), epochs=3, batch_size=20, random_state=0).fit(X, y)
>>> plot.history(classifier).get_xlabel()
'epoch'
"""

from tikas.report.plots import (
    calibration,
    confusion,
    denoisers,
    history,
    latent,
    predictions,
    reconstructions,
)

__all__ = ["calibration", "confusion", "denoisers", "history", "latent", "predictions", "reconstructions"]
