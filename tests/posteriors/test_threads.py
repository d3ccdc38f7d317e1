"""Posteriors are used by several threads at once, and travel to other processes whatever was asked of them before."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.methods.hessian_free import HessianFreePosterior, PreTrained
from lapwing.posteriors import Posterior
from lapwing.structures import Structure
from tests.posterior_cases import STRUCTURES, portrait, problem

KINDS: dict[str, Structure] = {
    **{name: STRUCTURES[name] for name in ("full-weights", "full-functions", "kfac", "nystrom")},
    "matrix-free": lw.MatrixFree(),
    "sampled": lw.Sampled(5),
}

THREADS, CALLS = 3, 6


class Attentive(nn.Module):
    """Attention, whose kernels are chosen for the whole process, and a buffer that is written to by every call."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.out = nn.MultiheadAttention(3, 1, batch_first=True), nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        rows = x.unflatten(-1, (1, 3))
        return self.out(self.attention(rows, rows, rows)[0].flatten(1))


@pytest.mark.parametrize("structure", KINDS)
def test_threads_that_share_a_module_get_the_answers_of_one(structure: str) -> None:
    case = problem("categorical")
    with torch.random.fork_rng():
        model = Attentive().double()
    likelihood = lw.Categorical()
    batches = [(case.x, case.y.clamp(0, 1))]
    fitted = [lw.Laplace(likelihood, structure=KINDS[structure]).fit(model, batches) for _ in range(2)]
    before, alone = portrait(model), fitted[0].predict(case.new).probs
    fused = torch.backends.cuda.flash_sdp_enabled()

    def ask(number: int) -> list[Tensor]:
        return [fitted[number % 2].predict(case.new).probs for _ in range(CALLS)]

    with ThreadPoolExecutor(THREADS) as pool:
        answers = [answer for asked in pool.map(ask, range(THREADS)) for answer in asked]
    assert len(answers) == THREADS * CALLS
    for answer in answers:
        torch.testing.assert_close(answer, alone, rtol=1e-6, atol=1e-6)
    assert portrait(model) == before and torch.backends.cuda.flash_sdp_enabled() == fused


def used(structure: str) -> tuple[Posterior, Tensor]:
    """A posterior of which everything was asked, and new inputs."""
    case = problem("gaussian")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=KINDS[structure]))
    posterior.predict(case.new, joint=True)
    posterior.sample_functions(case.new, 2)
    posterior.log_marginal()
    posterior.effective_dimension()
    posterior.sample(2)
    return posterior, case.new


@pytest.mark.parametrize("structure", KINDS)
def test_what_was_asked_before_does_not_keep_a_posterior_from_travelling(structure: str) -> None:
    posterior, new = used(structure)
    for other in (pickle.loads(pickle.dumps(posterior)), copy.deepcopy(posterior)):
        assert other.network.module is not posterior.network.module
        for answer in (lambda it: it.predict(new).outputs.mean, lambda it: it.predict(new).outputs.covariance):
            torch.testing.assert_close(answer(other), answer(posterior), rtol=1e-9, atol=1e-9)
    if structure == "sampled":
        assert torch.equal(copy.deepcopy(posterior).found.value, posterior.draws)


@pytest.mark.parametrize(
    "fits",
    [lw.hessian_free.PerPoint(), lw.hessian_free.Probed(3, 2), PreTrained()],
    ids=["points", "probes", "amortised"],
)
def test_refits_travel_too(fits: object) -> None:
    case = problem("gaussian")
    recipe = lw.HessianFree(case.likelihood, prior=lw.Isotropic(50.0), fits=fits)
    posterior: HessianFreePosterior = recipe.fit(case.model, (case.x, case.y), case.new)
    expected = posterior.predict(case.new).outputs.variance
    for other in (pickle.loads(pickle.dumps(posterior)), copy.deepcopy(posterior)):
        torch.testing.assert_close(other.predict(case.new).outputs.variance, expected, rtol=1e-9, atol=1e-9)
