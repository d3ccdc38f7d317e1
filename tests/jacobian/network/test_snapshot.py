"""What a module's tensors were, and whether they still are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.ground.errors import MismatchError
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.network.snapshot import SAMPLE, sample_of
from tests.posterior_cases import labels, normal

WIDE = 300


def network() -> nn.Sequential:
    """A body of many weights under a head of few."""
    return nn.Sequential(nn.Linear(3, WIDE), nn.Tanh(), nn.Linear(WIDE, WIDE), nn.Tanh(), nn.Linear(WIDE, 2)).double()


def fitted(model: nn.Sequential) -> lw.Posterior:
    recipe = lw.Laplace(lw.Categorical(), weights=lw.LastLayer(), structure=lw.KFAC())
    return recipe.fit(model, (normal(9, 3), labels(9, classes=2)))


def fused_step(model: nn.Sequential) -> None:
    """A step of training of which no version knows."""
    for value in model.parameters():
        value.grad = torch.ones_like(value)
    torch.optim.Adam(model.parameters(), fused=True).step()


def halve(model: nn.Sequential) -> None:
    """Written through NumPy."""
    array = model[2].weight.detach().numpy()
    array *= 0.5


def transpose(model: nn.Sequential) -> None:
    """The same memory, read in another order."""
    model[2].weight.data = model[2].weight.data.mT


class TestPredictions:
    def test_read_a_sample_of_the_weights(self, monkeypatch: pytest.MonkeyPatch) -> None:
        posterior, x, read = fitted(network()), normal(4, 3), list[int]()
        posterior.predict(x)
        array = Tensor.numpy

        def counted(tensor: Tensor, *, force: bool = False) -> object:
            read.append(tensor.nbytes)
            return array(tensor, force=force)

        monkeypatch.setattr(Tensor, "numpy", counted)
        posterior.predict(x)
        assert 0 < sum(read) < WIDE**2

    @pytest.mark.parametrize("write", [fused_step, halve, transpose])
    def test_refuse_what_no_version_tells(self, write: Callable[[nn.Sequential], None]) -> None:
        posterior, x = fitted(model := network()), normal(4, 3)
        posterior.predict(x)
        write(model)
        with pytest.raises(MismatchError, match="written to since"):
            posterior.predict(x)

    def test_go_on_after_the_same_values_were_written(self) -> None:
        posterior, x = fitted(model := network()), normal(4, 3)
        expected = posterior.predict(x)
        model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
        assert torch.equal(posterior.predict(x).logits.mean, expected.logits.mean)  # type: ignore[union-attr]
        with torch.no_grad():
            model[0].weight.add_(1.0)
        with pytest.raises(MismatchError, match="written to since"):
            posterior.predict(x)


def test_a_few_values_written_past_autograd_are_seen_in_all_bits() -> None:
    held = Network.of(model := network())
    model[2].weight.data[1, 1] = 5.0
    held.check_unchanged()
    with pytest.raises(MismatchError):
        held.check_unchanged(whole=True)


def test_a_single_value_without_a_version_is_seen() -> None:
    with torch.inference_mode():
        model = network()
    held = Network.of(model)
    held.check_unchanged()
    with torch.inference_mode():
        model[2].weight[1, 1] = 5.0
    with pytest.raises(MismatchError):
        held.check_unchanged()


def test_sparse_tensors_are_read_whole() -> None:
    model = nn.Linear(3, 2)
    model.register_buffer("graph", torch.eye(3).to_sparse())
    held = Network.of(model)
    held.check_unchanged()
    model.graph.mul_(2.0)  # type: ignore[operator]
    with pytest.raises(MismatchError):
        held.check_unchanged()


@pytest.mark.parametrize("shape", [(), (0,), (5,), (5000,), (2, 9000), (50, 60, 3, 3), (0, 4)], ids=str)
def test_a_sample_is_a_view_of_values_from_everywhere(shape: tuple[int, ...]) -> None:
    value = torch.arange(torch.Size(shape).numel()).view(shape)
    found = sample_of(value)
    assert found.numel() <= SAMPLE and found.numel() >= min(value.numel(), SAMPLE // 8)
    assert found.data_ptr() == value.data_ptr()
    if found.numel():
        assert int(found.max()) >= 0.8 * int(value.max())
