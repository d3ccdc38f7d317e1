"""Lightning's callback on a tiny module: the real Trainer trains it."""

from __future__ import annotations

import copy
import csv
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from lapwing.ground.errors import ConfigError
from tests.integrations.pages import run_page
from tests.posterior_cases import refused

lightning = pytest.importorskip("lightning", reason="lightning is not installed")
pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

RECIPE = lw.Laplace(lw.Categorical(), structure=lw.KFAC())


class Module(pl.LightningModule):
    """A classifier; what it validates and predicts is done in inference mode, as Lightning does."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 3))
        self.callback: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def validation_step(self, batch: Any, index: int) -> None:
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self(x), y))

    def predict_step(self, batch: Any, index: int) -> torch.Tensor:
        assert torch.is_inference_mode_enabled()
        return self.callback.posterior.predict(batch[0]).probs

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.05)


class Silent(Module):
    """One without a forward pass."""

    forward = pl.LightningModule.forward

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([self.net])


class Keyed(Module):
    """One of batches that are mappings."""

    epochs = 0

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        return super().training_step((batch["x"], batch["y"]), index)

    def validation_step(self, batch: Any, index: int) -> None:
        super().validation_step((batch["x"], batch["y"]), index)

    def on_train_epoch_end(self) -> None:
        self.epochs += 1


@pytest.fixture
def data() -> tuple[TensorDataset, TensorDataset]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(83, 2, generator=generator)
    y = (x[:, 0] + 0.7 * torch.randn(83, generator=generator) > 0).long() + (x[:, 1] > 0.5).long()
    return TensorDataset(x[:53], y[:53]), TensorDataset(x[53:], y[53:])


def trained(
    folder: Path, callback: Any, data: Any, *, validate: bool = True, module: Any = None, **options: Any
) -> tuple[Any, Any]:
    """The module and its trainer."""
    torch.manual_seed(1)
    module = Module() if module is None else module
    module.callback = callback
    options = {"logger": False, "max_epochs": 20, **options}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")  # of few workers and of few batches
        trainer = pl.Trainer(
            default_root_dir=folder,
            accelerator="cpu",
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[callback, *options.pop("callbacks", [])],
            **options,
        )
        loaders = DataLoader(data[0], batch_size=8, shuffle=True, drop_last=True), DataLoader(data[1], batch_size=16)
        trainer.fit(module, loaders[0], loaders[1] if validate else None)
    return module, trainer


def test_the_posterior_is_that_of_all_training_data_tuned_on_the_validation_data(tmp_path: Path, data: Any) -> None:
    callback = lw.lightning.LaplaceCallback(RECIPE, network="net")
    module, _ = trained(tmp_path, callback, data)
    assert callback.posterior.totals.examples == 53  # the last five too
    assert max(callback.posterior.prior_precisions) < 1e6, "uncertainty is wanted"
    expected = lw.tune(RECIPE.fit(module.net, data[0].tensors), lw.Validation(data[1].tensors))
    x = data[1].tensors[0]
    torch.testing.assert_close(callback.posterior.predict(x).probs, expected.predict(x).probs, rtol=1e-4, atol=1e-5)
    scores = lw.evaluate(callback.posterior, data[1].tensors)
    plain = lw.evaluate(lw.baselines.PlainNetwork(module.net), data[1].tensors)
    assert callback.outcome is not None
    assert callback.outcome.after == pytest.approx(scores, rel=1e-5)
    assert callback.outcome.before == pytest.approx(plain, rel=1e-5)
    assert callback.outcome.after["nll"] <= callback.outcome.before["nll"]
    assert "nll" in str(callback.outcome) and "lower is better" in str(callback.outcome)


def test_it_is_saved_beside_the_checkpoint_and_logged(tmp_path: Path, data: Any) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger

    callback = lw.lightning.LaplaceCallback(RECIPE)
    logger = CSVLogger(tmp_path / "logs")
    checkpoints = ModelCheckpoint(dirpath=tmp_path / "checkpoints")
    _, trainer = trained(tmp_path, callback, data, logger=logger, callbacks=[checkpoints])
    file = tmp_path / "checkpoints" / "posterior.safetensors"
    again = Module()
    again.load_state_dict(torch.load(trainer.checkpoint_callback.best_model_path, weights_only=True)["state_dict"])
    x = data[1].tensors[0]
    assert torch.equal(lw.load(file, again).predict(x).probs, callback.posterior.predict(x).probs)
    rows = list(csv.DictReader((Path(logger.log_dir) / "metrics.csv").open()))
    (row,) = [row for row in rows if row.get("after/nll")]
    assert callback.outcome is not None
    assert float(row["after/ece"]) == pytest.approx(callback.outcome.after["ece"], rel=1e-4)
    assert float(row["before/nll"]) == pytest.approx(callback.outcome.before["nll"], rel=1e-4)


def test_the_module_is_left_as_it_was_and_predicts_in_inference_mode(tmp_path: Path, data: Any) -> None:
    class Before(pl.Callback):
        """Notes the state that training leaves."""

        def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
            self.weights = copy.deepcopy(pl_module.state_dict())
            self.modes = [part.training for part in pl_module.modules()]

    before = Before()
    callback = lw.lightning.LaplaceCallback(RECIPE)
    torch.manual_seed(1)
    module, trainer = trained(tmp_path, before, data, callbacks=[callback])
    module.callback = callback
    assert [part.training for part in module.modules()] == before.modes
    assert all(torch.equal(value, before.weights[name]) for name, value in module.state_dict().items())
    assert all(value.grad is None or not value.grad.is_inference() for value in module.parameters())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        (probs,) = trainer.predict(module, DataLoader(data[1], batch_size=30))
    assert torch.equal(probs, callback.posterior.predict(data[1].tensors[0]).probs)


def test_the_best_checkpoint_where_it_is_asked_for(tmp_path: Path, data: Any) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    checkpoints = ModelCheckpoint(dirpath=tmp_path, monitor="val_loss", mode="max")  # not the last one
    callback = lw.lightning.LaplaceCallback(RECIPE, best=True)
    module, _ = trained(tmp_path, callback, data, callbacks=[checkpoints])
    x = data[1].tensors[0]
    with refused(lw.LapwingError, "with other weights"):
        lw.load(tmp_path / "posterior.safetensors", module)
    best = torch.load(checkpoints.best_model_path, weights_only=True)["state_dict"]
    module.load_state_dict(best)
    assert torch.equal(
        lw.load(tmp_path / "posterior.safetensors", module).predict(x).probs, callback.posterior.predict(x).probs
    )


def test_without_validation_data_it_is_tuned_without(tmp_path: Path, data: Any) -> None:
    callback = lw.lightning.LaplaceCallback(RECIPE, method=lw.EvidenceGradient(), folder=tmp_path / "there")
    module, _ = trained(tmp_path, callback, data, validate=False, enable_checkpointing=False)
    expected = lw.tune(RECIPE.fit(module, data[0].tensors), lw.EvidenceGradient())
    assert callback.posterior.log_marginal() == pytest.approx(expected.log_marginal(), rel=1e-5)
    assert callback.outcome is not None and not callback.outcome.metrics
    assert "without validation data nothing was compared" in str(callback.outcome)
    assert (tmp_path / "there" / "posterior.safetensors").is_file()


def test_what_cannot_be_fitted_is_refused_before_training(tmp_path: Path, data: Any) -> None:
    with refused(ConfigError, "a part of the module (net)"):
        trained(tmp_path, lw.lightning.LaplaceCallback(RECIPE, network="head"), data)
    with refused(ConfigError, "a ModelCheckpoint"):
        trained(tmp_path, lw.lightning.LaplaceCallback(RECIPE, best=True), data, enable_checkpointing=False)
    with refused(ConfigError, "a network with a forward. Got Silent, which has none. Try network="):
        trained(tmp_path, lw.lightning.LaplaceCallback(RECIPE), data, module=Silent())
    with refused(ConfigError, "a network with a forward. Got ModuleList"):
        trained(tmp_path, lw.lightning.LaplaceCallback(RECIPE, network="parts"), data, module=Silent())
    with refused(ConfigError, "of type Laplace"):
        lw.lightning.LaplaceCallback(lw.Categorical())
    with refused(ConfigError, "once training has ended"):
        _ = lw.lightning.LaplaceCallback(RECIPE).posterior


def test_batches_that_are_not_known_are_refused_before_an_epoch(tmp_path: Path) -> None:
    """By one batch; with ``unpack=`` they are known."""
    rows = [{"x": torch.randn(2), "y": torch.tensor(number % 3)} for number in range(24)]
    for whose, callback in (
        ("training", lw.lightning.LaplaceCallback(RECIPE)),
        ("validation", lw.lightning.LaplaceCallback(RECIPE, train=DataLoader([(row["x"], row["y"]) for row in rows]))),
    ):
        module = Keyed()
        with refused(lw.LapwingError, "unpack"):
            trained(tmp_path / whose, callback, (rows, rows), module=module)
        assert module.epochs == 0, whose
    module = Keyed()
    callback = lw.lightning.LaplaceCallback(RECIPE, unpack=lambda batch: (batch["x"], batch["y"]))
    trained(tmp_path / "known", callback, (rows, rows), module=module, max_epochs=1)
    assert module.epochs == 1 and callback.outcome is not None and callback.outcome.metrics


def test_looking_at_a_batch_changes_nothing_of_the_training(tmp_path: Path, data: Any) -> None:
    with_callback, _ = trained(tmp_path, lw.lightning.LaplaceCallback(RECIPE), data, max_epochs=2)
    without, _ = trained(tmp_path, pl.Callback(), data, max_epochs=2)
    for one, other in zip(with_callback.parameters(), without.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        names = run_page("lightning", tmp_path)
    assert names["p"].probs.shape == (5, 3)
