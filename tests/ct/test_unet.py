"""The U-net: its sizes, its scales, and that it is a function of its seed and of every weight."""

from __future__ import annotations

import pytest
import torch

from lapwing.ct.unet import UNet, dropped
from lapwing.ground.errors import ConfigError, ShapeError
from tests.posterior_cases import refused


def made(seed: int = 0, dimensions: int = 2) -> UNet:
    generator = torch.Generator().manual_seed(seed)
    return UNet(dimensions, scales=2, channels=4, skip=3, groups=2, generator=generator)


@pytest.mark.parametrize(("dimensions", "space"), [(2, (6, 4)), (3, (4, 2, 6))])
def test_an_image_has_the_size_of_its_input_and_every_weight_has_a_part(
    dimensions: int, space: tuple[int, ...], generator: torch.Generator
) -> None:
    net = made(dimensions=dimensions)
    z = torch.randn(1, 1, *space, generator=generator)
    image = net(z)
    assert image.shape == z.shape
    (image * torch.randn(image.shape, generator=generator)).sum().backward()
    assert all(bool(p.grad is not None and p.grad.any()) for p in net.parameters())
    plain = {name for name, p in net.named_parameters() if p.ndim > 1}
    assert {"down.0.0.weight", "skips.0.weight", "up.0.0.weight", "head.weight"} <= plain


def test_it_is_a_function_of_its_generator() -> None:
    z = torch.eye(4)[None, None]
    assert torch.equal(made(1)(z), made(1)(z)) and not torch.equal(made(1)(z), made(2)(z))


def test_weights_begin_where_a_layer_keeps_the_size_of_its_input() -> None:
    """Uniform within √(3/n) of 0, n what an output sums: variance 1/n."""
    for name, weight in UNet(scales=2, generator=torch.Generator().manual_seed(0)).named_parameters():
        if weight.ndim > 1 and weight.numel() > 500:
            assert float(weight.detach().std()) * weight[0].numel() ** 0.5 == pytest.approx(1, rel=0.05), name


def test_bad_sizes_are_sentences() -> None:
    with refused(ShapeError, "sides that divide by 2"):
        made()(torch.zeros(1, 1, 5, 4))
    with refused(ShapeError, "more than one number to normalise"):
        UNet(scales=3, channels=4)(torch.zeros(1, 1, 4, 4))
    assert UNet(scales=3, channels=8)(torch.zeros(1, 1, 4, 4)).shape == (1, 1, 4, 4)
    with refused(ConfigError, "channels of at least 4"):
        UNet(channels=3)
    with refused(ConfigError, "groups=4. Got 6. Try channels=32"):
        UNet(channels=6)
    for dropout in (1.0, 2.0, -0.1):
        with refused(ConfigError, f"dropout from 0 and below 1. Got dropout={dropout}"):
            UNet(dropout=dropout)
    with refused(ConfigError, "samples of at least 1"):
        dropped(UNet(channels=4, dropout=0.5), torch.zeros(1, 1, 8, 8), 0)
    with refused(ConfigError, "a network with dropout"):
        dropped(UNet(channels=4), torch.zeros(1, 1, 8, 8), 2)


def test_channels_are_dropped_by_a_seed_and_nothing_else_is_changed(generator: torch.Generator) -> None:
    net, z = (
        UNet(scales=2, channels=4, dropout=0.5, generator=generator).eval(),
        torch.randn(1, 1, 4, 6, generator=generator),
    )
    whole, state = net(z), torch.random.get_rng_state()
    first, again, other = dropped(net, z, 3), dropped(net, z, 3), dropped(net, z, 3, seed=1)
    assert first.shape == (3, 4, 6) and torch.equal(first, again) and not torch.equal(first, other)
    assert not torch.equal(first[0], first[1]) and torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(net(z), whole) and not any(part.training for part in net.modules())
