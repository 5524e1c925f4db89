"""Pictures of a fitted estimator: learning curves, denoising functions, reconstructions, maps and predictions.

Every function takes axes of matplotlib (``ax``) or makes a figure, and returns the axes.
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
