from __future__ import annotations

import pytest
import torch

from benchmarks.data import Split, digits
from lapwing.jacobian.network.scale_invariance import normalised
from studies.sampled.networks import FixUpBlock, Transformer, cloud, cnn, resnet
from studies.sampled.setting import FAMILIES, SIZES, inputs, network, trained

COUNTS = {
    "CNN": (14_634, 29_226, 45_874),
    "ResNet": (14_814, 26_874, 45_576),
    "Pre-ResNet": (14_854, 26_970, 45_660),
    "FixUp": (14_658, 26_662, 45_288),
    "Transformer": (15_520, 27_090, 45_900),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_networks_have_the_weights_the_source_counts(family: str) -> None:
    counts = tuple(sum(p.numel() for p in network(family, size).parameters()) for size in SIZES)
    assert counts == COUNTS[family]
    data = inputs(family, digits().head(3, 2))
    assert network(family, "small").eval()(data.x_train).shape == (3, 10)


def test_weights_follow_the_seed_and_leave_the_global_one_alone() -> None:
    state = torch.get_rng_state()
    one, same, other = (network("CNN", "small", seed).head.weight for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_all_of_the_cnn_but_its_head_is_normalised_and_so_is_the_body_of_the_pre_resnet(generator) -> None:
    x = torch.rand(20, 1, 8, 8, generator=generator)
    convolutions = [(f"body.{i}.weight", f"body.{i}.bias") for i in (0, 3, 6)]
    assert list(normalised(cnn(3, 4, 5), x).parts) == convolutions
    groups = normalised(resnet(3, 4, 5, first=True), x).parts
    free = {name for group in groups for name in group}
    left = {name for name, _ in resnet(3, 4, 5, first=True).named_parameters()} - free
    assert left == {
        "head.weight",
        "head.bias",
        "body.5.weight",
        "body.5.bias",
        "body.1.norm2.weight",
        "body.1.norm2.bias",
    }


def test_a_fixup_block_begins_as_its_shortcut(generator) -> None:
    x = torch.rand(2, 6, 5, 5, generator=generator)
    assert torch.equal(FixUpBlock(6, 2)(x), x)


def test_a_cloud_holds_the_ink_and_where_it_is() -> None:
    image = torch.zeros(2, 1, 3, 3)
    image[0, 0, 0, 2], image[0, 0, 2, 1], image[1, 0, 1, 1] = 0.5, 0.25, 1.0
    points = cloud(image)
    assert points.tolist() == [[[1, -1, 0.5], [0, 1, 0.25]], [[0, 0, 1], [0, 0, 0]]]
    assert cloud(torch.ones(1, 1, 28, 28)).shape == (1, 14 * 14, 3)


def test_the_transformer_ignores_order_and_padding(generator) -> None:
    model = Transformer(12, 6).double().eval()
    points = 0.1 + torch.rand(2, 5, 3, generator=generator, dtype=torch.float64)
    expected = model(points)
    padded = torch.cat([points.flip(1), torch.zeros(2, 3, 3, dtype=torch.float64)], dim=1)
    torch.testing.assert_close(model(padded), expected)
    assert not torch.allclose(model(points[:, :4]), expected)


def test_a_network_is_trained_once_for_the_same_data_and_recipe(tmp_path) -> None:
    data = digits().head(40, 10)
    first = trained("CNN", "small", data, name="digits", epochs=2, seed=0, kept=tmp_path)
    (path,) = tmp_path.iterdir()
    written = path.stat().st_mtime_ns
    again = trained("CNN", "small", data, name="digits", epochs=2, seed=0, kept=tmp_path)
    assert path.stat().st_mtime_ns == written
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), again.state_dict().values(), strict=True))
    fewer = Split(data.x_train[:30], data.y_train[:30], data.x_test, data.y_test)
    for other, epochs in ((data, 3), (fewer, 2)):
        trained("CNN", "small", other, name="digits", epochs=epochs, seed=0, kept=tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    unkept = trained("CNN", "small", data, name="digits", epochs=2, seed=0)
    assert torch.equal(unkept.head.weight, first.head.weight) and not unkept.training


def test_training_learns() -> None:
    data = digits().head(200, 100)
    for family in ("ResNet", "FixUp"):
        model = trained(family, "small", data, name="digits", epochs=40, seed=0)
        with torch.no_grad():
            assert (model(data.x_test).argmax(-1) == data.y_test).double().mean() > 0.6
