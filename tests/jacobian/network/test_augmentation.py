"""Test-time augmentation: the average over views is a network as any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.baselines import PlainNetwork
from lapwing.ground.errors import ConfigError, DataError, UnsupportedError
from lapwing.jacobian.network.augmentation import TestTimeAugmentation
from tests.checker import unchecked
from tests.posterior_cases import normal, refused, seeded

X = normal(12, 1, 6, 6)
LABELS = torch.arange(12) % 3


def mirrored(x: Tensor) -> Tensor:
    return x.flip(-1)


def network() -> Any:
    def build() -> nn.Module:
        body = [nn.Conv2d(1, 2, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 4), nn.Tanh()]
        return nn.Sequential(nn.Sequential(*body), nn.Linear(4, 3))

    return seeded(build, 0).double()


def test_outputs_are_the_mean_over_the_input_and_its_views() -> None:
    model = network()
    averaged = TestTimeAugmentation(model, [mirrored, lambda x: x.transpose(-1, -2)])
    alone = [model(X), model(X.flip(-1)), model(X.transpose(-1, -2))]
    torch.testing.assert_close(averaged(X), torch.stack(alone).mean(0), rtol=1e-12, atol=1e-14)


def test_outputs_with_places_are_taken_back() -> None:
    pixels = seeded(lambda: nn.Conv2d(1, 3, 3, padding=1), 0).double()
    averaged = TestTimeAugmentation(pixels, [(mirrored, mirrored)])
    torch.testing.assert_close(averaged(X), (pixels(X) + pixels(X.flip(-1)).flip(-1)) / 2, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(averaged(X.flip(-1)), averaged(X).flip(-1), rtol=1e-12, atol=1e-14)


def test_the_posterior_is_that_of_the_averaged_jacobian() -> None:
    averaged = TestTimeAugmentation(network(), [mirrored])
    posterior = lw.Laplace(lw.Categorical(), structure=lw.Full(view="weights")).fit(averaged, (X, LABELS))
    names = [name for name, _ in averaged.named_parameters()]
    jacobians = torch.autograd.functional.jacobian(
        lambda *weights: torch.func.functional_call(averaged, dict(zip(names, weights, strict=True)), (X,)),
        tuple(value.detach() for value in averaged.parameters()),
    )
    rows = torch.cat([each.flatten(2) for each in jacobians], dim=2)
    probs = averaged(X).softmax(-1).detach()
    hessian = torch.diag_embed(probs) - probs[:, :, None] * probs[:, None, :]
    precision = torch.einsum("nci,ncd,ndj->ij", rows, hessian, rows) + torch.eye(rows.shape[2], dtype=torch.double)
    covariance = rows @ torch.linalg.inv(precision) @ rows.mT
    torch.testing.assert_close(posterior.outputs(X).covariance, covariance, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("structure", [lw.KFAC(), lw.Diagonal(), lw.LowRank(20), lw.Full()], ids=repr)
def test_what_is_predicted_is_the_same_of_every_view(structure: Any) -> None:
    averaged = TestTimeAugmentation(network(), [mirrored])
    posterior: Any = lw.Laplace(lw.Categorical(), structure=structure).fit(averaged, (X, LABELS))
    there, back = posterior.predict(X), posterior.predict(X.flip(-1))
    torch.testing.assert_close(there.probs, back.probs, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "structure", [lw.KFAC(sharing="reduce"), lw.EKFAC(), lw.Diagonal(), lw.LowRank(30), lw.Full()], ids=repr
)
def test_a_view_that_is_the_input_itself_changes_no_posterior(structure: Any) -> None:
    network = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 3), nn.Tanh(), nn.Linear(3, 3)), 0).double()
    alone, averaged = (
        lw.Laplace(lw.Categorical(), structure=structure).fit(model, (X, LABELS)).outputs(X).covariance
        for model in (network, TestTimeAugmentation(network, [lambda x: x.clone()]))
    )
    torch.testing.assert_close(averaged, alone, rtol=1e-6, atol=1e-9)


def test_kfac_takes_each_view_for_an_example_of_its_own() -> None:
    network = seeded(lambda: nn.Linear(6, 3, bias=False), 0).double()
    x = normal(12, 6)
    averaged = TestTimeAugmentation(network, [mirrored])
    posterior = lw.Laplace(lw.Categorical(), structure=lw.KFAC()).fit(averaged, (x, LABELS))
    views = torch.cat([x, x.flip(-1)])
    probs = averaged(x).softmax(-1).detach()
    of_outputs = (probs.diag_embed() - probs[:, :, None] * probs[:, None, :]).mean(0) / 4
    precision = torch.kron(of_outputs, views.mT @ views) + torch.eye(18, dtype=torch.float64)
    mean = (x + x.flip(-1)) / 2
    rows = torch.einsum("ij,np->nijp", torch.eye(3, dtype=torch.float64), mean).flatten(2)
    covariance = rows @ torch.linalg.inv(precision) @ rows.mT
    torch.testing.assert_close(posterior.outputs(x).covariance, covariance, rtol=1e-8, atol=1e-10)


def test_what_is_printed_tells_views_and_outputs_apart() -> None:
    assert "views=mirrored, output='classes'" in repr(TestTimeAugmentation(network(), [mirrored], output="classes"))
    assert "views=mirrored\n" in repr(TestTimeAugmentation(network(), [mirrored]))
    taken = repr(TestTimeAugmentation(network(), [mirrored], output=lambda returned: returned[0]))
    assert "<lambda>" in taken and " at 0x" not in taken


def test_averaged_features_give_the_last_layer_the_same_posterior_as_averaged_outputs() -> None:
    body, head = network()
    features = nn.Sequential(TestTimeAugmentation(body, [mirrored]), head)
    outputs = TestTimeAugmentation(nn.Sequential(body, head), [mirrored])
    torch.testing.assert_close(features(X), outputs(X), rtol=1e-12, atol=1e-14)
    last = lw.Laplace(lw.Categorical(), weights=lw.LastLayer()).fit(features, (X, LABELS))
    chosen = lw.Laplace(lw.Categorical(), weights=lw.LastLayer("model.1")).fit(outputs, (X, LABELS))
    torch.testing.assert_close(last.outputs(X).covariance, chosen.outputs(X).covariance, rtol=1e-8, atol=1e-12)


def test_the_input_may_have_a_name_and_the_output_be_a_part() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, pixels: Tensor) -> dict[str, Tensor]:
            return {"classes": self.inner(pixels)}

    model = Named()
    averaged = TestTimeAugmentation(model, [mirrored], output="classes")
    alone: Any = PlainNetwork(averaged).predict({"pixels": X})
    torch.testing.assert_close(alone.probs, averaged(X).softmax(-1).detach(), rtol=1e-12, atol=1e-14)


def test_a_posterior_is_loaded_for_the_same_views(tmp_path: Path) -> None:
    averaged = TestTimeAugmentation(network(), [mirrored])
    posterior: Any = lw.Laplace(lw.Categorical(), structure=lw.KFAC()).fit(averaged, (X, LABELS))
    lw.save(posterior, tmp_path / "posterior")
    again: Any = lw.load(tmp_path / "posterior", TestTimeAugmentation(network(), [mirrored]))
    torch.testing.assert_close(again.predict(X).probs, posterior.predict(X).probs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("views", "message"),
    [
        ([], "a list of views"),
        (mirrored, "a list of views"),
        (None, "a list of views"),
        ((view for view in [mirrored]), "a list of views"),
        (["mirrored"], "functions of a tensor"),
        ([(mirrored, mirrored, mirrored)], "pairs"),
    ],
)
def test_what_is_no_view_is_told(views: Any, message: str) -> None:
    with unchecked(), refused(ConfigError, message):
        TestTimeAugmentation(network(), views)


def test_a_view_that_is_drawn_is_refused_by_the_fit() -> None:
    averaged = TestTimeAugmentation(network(), [lambda x: x + torch.randn_like(x)])
    with refused(UnsupportedError, "the same outputs twice"):
        lw.Laplace(lw.Categorical()).fit(averaged, (X, LABELS))


def test_inputs_and_outputs_that_have_no_views_are_told() -> None:
    averaged = TestTimeAugmentation(nn.Bilinear(2, 2, 3), [mirrored])
    with refused(DataError, "one tensor as input"):
        averaged(torch.ones(4, 2), torch.ones(4, 2))
    pixels = TestTimeAugmentation(nn.Conv2d(1, 3, 3), [lambda x: x[..., 1:]])
    with refused(ConfigError, "takes the outputs back"):
        pixels(torch.ones(2, 1, 6, 6))
