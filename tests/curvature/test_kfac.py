"""Kronecker factors against explicit loops over positions, and their place in the flat vector."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.curvature import second_moments
from lapwing.curvature.blocked import BlockedCurvature
from lapwing.curvature.kfac import EXACT, KroneckerSum
from lapwing.curvature.kinds import GGN, MCFisher
from lapwing.curvature.sweep import sweep
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import ConfigError
from lapwing.jacobian.layers.capture import kind_of
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods import Categorical, Gaussian
from lapwing.linalg import BlockDiagonal, Dense, Diagonal, Kronecker
from lapwing.linalg.operators.eigenbasis import decompose
from lapwing.posteriors import WeightPosterior
from tests.cases import Case
from tests.curvature import naive, naive_kfac
from tests.curvature.naive import known, surveyed

Sharing = Literal["expand", "reduce"]

CASES = [
    "mlp",
    "multi_label",
    "lenet",
    "conv1d_same",
    "conv3d",
    "depthwise",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "upsampled_twice",
    "layer_norm",
    "group_norm",
    "batch_norm",
    "called_twice",
    "merged_rows",
    "tagger",
    "tied",
    "positions",
    "unet",
    "transformer_sequence_first",
]


def held(
    name: str, sharing: Sharing = "expand", bias: Literal["joint", "separate"] = "joint", exact: int = EXACT
) -> BlockedCurvature:
    case = known(name)
    total = KroneckerSum(case.network, sharing, bias, exact=exact)
    sweep(case.model, GGN(), total)
    return total.result()


def blocks(found: BlockedCurvature) -> dict[tuple[str, ...], Tensor]:
    assert isinstance(found.operator, BlockDiagonal)
    return {names: block.dense() for names, block in zip(found.partition, found.operator.blocks, strict=True)}


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("name", CASES)
def test_blocks_are_the_products_of_the_naive_factors(name: str, sharing: Sharing) -> None:
    case = known(name)
    expected = naive_kfac.kfac(case.case, [(case.case.inputs, case.case.targets)], sharing)
    compared = 0
    products = {layer.names for layer in case.survey.layers if kind_of(layer).kronecker}
    for names, block in blocks(held(name, sharing)).items():
        owner = names[0].rpartition(".")[0]
        if owner in expected and names in products:
            kind = "joint" if len(names) == 2 else "weight"
            torch.testing.assert_close(block, expected[owner].block(kind), rtol=1e-9, atol=1e-11)
            compared += 1
    others = [layer for layer in case.survey.layers if layer.names not in products]
    assert compared >= 1 and compared + len(case.survey.without_factors) + len(others) >= len(expected) - 1


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("name", ["mlp", "lenet", "conv_transpose2d", "tagger"])
def test_a_bias_can_have_a_block_of_its_own(name: str, sharing: Sharing) -> None:
    case = known(name)
    expected = naive_kfac.kfac(case.case, [(case.case.inputs, case.case.targets)], sharing)
    for names, block in blocks(held(name, sharing, "separate")).items():
        (parameter,) = names
        owner, _, kind = parameter.rpartition(".")
        factors = expected[owner]
        torch.testing.assert_close(block, factors.block("bias" if kind == "bias" else "weight"), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "name", ["batch_norm", "group_norm", "layer_norm", "bare_parameter", "lstm", "tied", "positions"]
)
def test_norms_and_parameters_without_a_layer_have_their_exact_block(name: str) -> None:
    case = known(name)
    exact = naive.ggn(case)
    known_layers = {
        layer.names
        for layer in case.survey.layers
        if layer.kind in ("Linear", "Convolution", "TransposedConvolution", "Embedding")
    }
    others = {names: block for names, block in blocks(held(name)).items() if names not in known_layers}
    assert others
    for names, block in others.items():
        place = torch.cat([torch.arange(case.network.size)[case.network.layout.slices[name]] for name in names])
        torch.testing.assert_close(block, exact[place][:, place], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("bias", ["joint", "separate"])
@pytest.mark.parametrize(
    "name", ["mlp", "lenet", "depthwise", "tagger", "layer_norm", "transformer_batch_first", "unet"]
)
def test_blocks_lie_where_their_parameters_do(name: str, bias: Literal["joint", "separate"]) -> None:
    """Where every factor is exact, so is the matrix: one example, one output, one position."""
    case = known(name)
    found = held(name, "expand", bias)
    assert isinstance(found.operator, BlockDiagonal) and found.operator.index is not None
    layout = case.network.layout
    for names, index in zip(found.partition, found.operator.index, strict=True):
        place = torch.cat([torch.arange(layout.size)[layout.slices[name]] for name in names])
        assert torch.equal(index.sort().values, place.sort().values)


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_one_linear_layer_seen_once_is_exact(sharing: Sharing) -> None:
    """A single example makes the Kronecker product exact, so the order of its entries shows."""
    conv = nn.Sequential(nn.Conv2d(4, 2, (2, 3), groups=2), nn.Flatten()).double()
    embedding = nn.Sequential(nn.Embedding(3, 2), nn.Flatten()).double()
    transposed = nn.Sequential(nn.ConvTranspose2d(4, 2, (3, 2), padding=(2, 1), groups=2), nn.Flatten()).double()
    linear = nn.Linear(3, 2).double()
    for model, x in (
        (conv, torch.randn(1, 4, 2, 3, dtype=torch.float64)),
        (transposed, torch.randn(1, 4, 3, 2, dtype=torch.float64)),
        (linear, torch.randn(1, 3, dtype=torch.float64)),
        (embedding, torch.tensor([[1]])),
    ):
        network = Network.of(model)
        total = KroneckerSum(network, sharing)
        y = torch.zeros(1, 2, dtype=torch.float64)
        case = Case(model, x, y, Gaussian(2.0))
        sweep(surveyed(network, case.likelihood, x, y), GGN(), total)
        _, rows = naive.jacobian(model, x)
        torch.testing.assert_close(total.result().operator.dense(), 2.0 * rows[0].mT @ rows[0])


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_sequences_of_different_lengths_weigh_as_their_positions_do(sharing: Sharing) -> None:
    case = known("tagger")
    batches = []
    for length in (3, 1):
        inputs = {"input_ids": torch.randint(1, 6, (2, length)), "attention_mask": torch.ones(2, length).long()}
        batches.append((inputs, torch.randint(0, 2, (2, length))))
    expected = naive_kfac.kfac(case.case, batches, sharing)
    total = KroneckerSum(case.network, sharing)
    sweep(replace(case.model, source=Data(batches, like=case.network.like)), GGN(), total)
    for names, block in blocks(total.result()).items():
        owner = names[0].rpartition(".")[0]
        torch.testing.assert_close(block, expected[owner].block("joint" if len(names) == 2 else "weight"))


def test_large_blocks_without_structure_keep_only_their_diagonal() -> None:
    exact = blocks(held("bare_parameter"))
    found = held("bare_parameter", exact=3)
    assert isinstance(found.operator, BlockDiagonal)
    kinds = {names: type(block) for names, block in zip(found.partition, found.operator.blocks, strict=True)}
    assert kinds == {("layer.weight", "layer.bias"): Kronecker, ("scale",): Dense, ("matrix",): Diagonal}
    torch.testing.assert_close(found.operator.blocks[2].diagonal(), exact[("matrix",)].diagonal())


def test_a_large_tied_table_has_the_diagonal_of_both_uses() -> None:
    case = known("tied")
    found = held("tied", exact=14)
    table = dict(zip(found.partition, found.operator.blocks, strict=True))[("embed.weight",)]  # type: ignore[attr-defined]
    place = case.network.layout.slices["embed.weight"]
    assert isinstance(table, Diagonal)
    torch.testing.assert_close(table.diagonal(), naive.ggn(case).diagonal()[place], rtol=1e-9, atol=1e-11)


def test_embeddings_have_a_diagonal_input_factor() -> None:
    found = held("tagger")
    assert isinstance(found.operator, BlockDiagonal)
    table = found.operator.blocks[found.partition.index(("embed.weight",))]
    assert isinstance(table, Kronecker) and table.right.ndim == 1
    assert float(table.right[0]) == 0.0 and float(table.right.sum()) * float(table.scale) == pytest.approx(1.0)


def test_a_table_that_is_never_looked_up_has_no_curvature() -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(3, 2, padding_idx=0), nn.Linear(2, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.table(tokens).sum(1))

    tokens, labels = torch.zeros(3, 2, dtype=torch.long), torch.tensor([0, 1, 0])
    network = Network.of(Padded())
    total = KroneckerSum(network)
    sweep(surveyed(network, Categorical(), tokens, labels), GGN(), total)
    diagonal = total.result().operator.diagonal()
    assert torch.equal(diagonal[:6], torch.zeros(6)) and bool(torch.isfinite(diagonal).all())


def test_sampled_factors_are_unbiased(generator: torch.Generator) -> None:
    case, repeats = known("mlp"), 100
    exact = held("mlp").operator.dense()
    draws = []
    for _ in range(repeats):
        total = KroneckerSum(case.network)
        sweep(case.model, MCFisher(), total, generator=generator)
        draws.append(total.result().operator.dense())
    stacked = torch.stack(draws)
    errors = stacked.std(0) / repeats**0.5
    assert bool(((stacked.mean(0) - exact).abs() <= 4.5 * errors + 1e-12).all())


def test_single_weights_cannot_be_uncertain() -> None:
    case = known("mlp")
    with pytest.raises(ConfigError, match="Full or Diagonal"):
        KroneckerSum(Network(case.case.model, ("0.weight",), torch.tensor([0])))


class Wide(nn.Module):
    """A layer of each kind whose factors have more rows than few examples fill."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(5, 13), nn.Linear(13, 17)
        self.conv, self.norm = nn.Conv1d(17, 15, 3, padding=1), nn.BatchNorm1d(15)
        self.head = nn.Linear(15, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        h = torch.tanh(self.mix(self.embed(tokens)))
        return self.head(torch.tanh(self.norm(self.conv(h.mT))).mean(-1))


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_what_few_examples_leave_empty_is_held_in_low_rank(sharing: Sharing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions, evidence and draws are those of the whole factors; one chunk after another or all at once."""
    model, generator = Wide().double().eval(), torch.Generator().manual_seed(0)
    tokens, labels = torch.randint(5, (3, 2), generator=generator), torch.tensor([0, 1, 1])

    def fit(batch: int) -> WeightPosterior:
        recipe = lw.Laplace(lw.Categorical(), structure=lw.KFAC(sharing))
        loader = list(zip(tokens.split(batch), labels.split(batch), strict=True))
        found = recipe.fit(model, loader)
        assert isinstance(found, WeightPosterior)
        return found

    few, again = fit(3), fit(1)
    monkeypatch.setattr(second_moments.MomentSum, "add", lambda self, moment, share: self.add_total(moment.total()))
    monkeypatch.setattr(second_moments, "decompose_nonzero", decompose)
    dense = fit(3)
    ranks = [block.bases[1].values.shape[-1] for block in factored(few) if block.bases[1].others]
    assert min(ranks) >= 2 and len(ranks) >= 3 and not any(block.bases[1].others for block in factored(dense))
    x = torch.tensor([[4, 0], [1, 1], [3, 2]])
    for found in (few, again):
        torch.testing.assert_close(found.outputs(x).covariance, dense.outputs(x).covariance, rtol=1e-8, atol=1e-12)
        joint = (found.outputs(x, joint=True).covariance, dense.outputs(x, joint=True).covariance)
        torch.testing.assert_close(*joint, rtol=1e-8, atol=1e-12)
        assert found.log_marginal() == pytest.approx(dense.log_marginal(), rel=1e-8)
        assert found.effective_dimension() == pytest.approx(dense.effective_dimension(), rel=1e-8)
        root = found.precision.operator.inverse_root()
        v = torch.randn(found.network.size, 2, generator=generator, dtype=torch.float64)
        torch.testing.assert_close(root @ (root.T @ v), dense.precision.operator.solve(v), rtol=1e-8, atol=1e-10)


def factored(posterior: WeightPosterior) -> list[Kronecker]:
    assert isinstance(posterior.curvature.operator, BlockDiagonal)
    return [block for block in posterior.curvature.operator.blocks if isinstance(block, Kronecker)]


def test_a_fit_decomposes_and_nothing_after_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens, labels = Wide().eval(), torch.tensor([[0, 1], [2, 3], [4, 4]]), torch.tensor([0, 1, 1])
    posterior = lw.Laplace(lw.Categorical(), structure=lw.KFAC()).fit(model, (tokens, labels))
    for name in ("eigh", "eigvalsh", "svd", "qr"):
        monkeypatch.delattr(torch.linalg, name)
    lw.save(posterior, tmp_path / "wide.safetensors")
    for found in (posterior, lw.load(tmp_path / "wide.safetensors", model)):
        assert torch.equal(found.predict(tokens).probs, posterior.predict(tokens).probs)
        assert found.log_marginal() == posterior.log_marginal()
        draws = [each.sample(2, generator=torch.Generator().manual_seed(0)) for each in (found, posterior)]
        assert torch.equal(*draws)


def test_leading_pairs_of_wide_factors_err_by_what_is_stated(caplog: pytest.LogCaptureFixture) -> None:
    """The trace is kept, and no variance is off by more than the slack allows; with all pairs nothing is."""
    model = nn.Sequential(nn.Linear(19, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    x = torch.randn(60, 19, dtype=torch.float64) * torch.linspace(-2, 1, 19, dtype=torch.float64).exp()
    data = (x, torch.arange(60) % 2)

    def fit(rank: int | None) -> WeightPosterior:
        found = lw.Laplace(lw.Categorical(), structure=lw.KFAC(rank=rank), prior=lw.Isotropic(2.0)).fit(model, data)
        assert isinstance(found, WeightPosterior)
        return found

    exact, few, all_pairs = fit(None), fit(5), fit(20)
    assert "leading eigenpairs" in caplog.text and "too small, in 1 / weight²" in repr(few)
    assert exact.precision_error == all_pairs.precision_error == (0.0, 0.0) and "too small" not in repr(exact)
    assert factored(few)[0].bases[1].values.shape == (5,)
    more, less = few.precision_error
    assert 0 < more < less
    torch.testing.assert_close(few.curvature.operator.trace(), exact.curvature.operator.trace())
    v = torch.randn(exact.network.size, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ratio = (v * few.precision.operator.solve(v)).sum(0) / (v * exact.precision.operator.solve(v)).sum(0)
    assert 1 / (1 + more / 2.0) < float(ratio.min()) < 0.999 and float(ratio.max()) < 1 + less / 2.0
    top = few.precision.operator.dense() - exact.precision.operator.dense()
    values = torch.linalg.eigvalsh(top)
    assert -less <= float(values[0]) < 0 < float(values[-1]) <= more
    assert float(few.effective_dimension()) == pytest.approx(float(exact.effective_dimension()), rel=0.1)
