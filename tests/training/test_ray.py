"""`LadderClassifier.fit` in the workers of Ray Train: pip install 'tikas[cluster]'."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.preprocessing import scale

import tikas
from tikas import LadderClassifier

ROWS, LABELS = scale(load_iris().data).astype(np.float32), load_iris().target
SETTINGS = {"network": (8,), "epochs": 5, "batch_size": 30, "random_state": 0, "device": "cpu"}


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
def test_two_workers_of_ray_train_learn_what_one_process_learns(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="needs the extra cluster")
    train = pytest.importorskip("ray.train", reason="needs the extra cluster")
    torch_trainer = pytest.importorskip("ray.train.torch")

    path, rows, labels, settings = tmp_path / "model.safetensors", ROWS, LABELS, SETTINGS

    def train_loop() -> None:
        assert torch.distributed.get_world_size() == 2
        model = LadderClassifier(**settings).fit(rows, labels)
        if train.get_context().get_world_rank() == 0:
            model.save(path)

    ray.init(num_cpus=2, include_dashboard=False)
    try:
        scaling = train.ScalingConfig(num_workers=2)
        run = train.RunConfig(storage_path=str(tmp_path / "ray"))
        torch_trainer.TorchTrainer(train_loop, scaling_config=scaling, run_config=run).fit()
    finally:
        ray.shutdown()
    expected = LadderClassifier(**SETTINGS).fit(ROWS, LABELS).predict_proba(ROWS)
    np.testing.assert_allclose(tikas.load(path).predict_proba(ROWS), expected, atol=1e-6)
