"""What posteriors say where one process, two, or three have the data: what ``tests/laws/test_distributed.py`` runs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._decomp.decompositions_for_jvp  # noqa: F401  a third of a second to import: once, before the processes part
import torch._dynamo  # noqa: F401  seconds, likewise
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from lapwing.ground.distributed import once
from lapwing.ground.errors import ConfigError, DataError, NumericalError, UnsupportedError
from lapwing.posteriors import ExactPosterior

EXAMPLES = 22
SHOWN = 5
Part = Callable[[Tensor], Tensor]


def network(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, outputs)).double()


def refitted() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()


def examples() -> tuple[Tensor, Tensor]:
    """Inputs, and labels that a network may have drawn."""
    x = torch.randn(EXAMPLES, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x, drawn(x, 0)


def drawn(x: Tensor, seed: int) -> Tensor:
    return torch.multinomial(network(3)(x).softmax(1), 1, generator=torch.Generator().manual_seed(seed))[:, 0]


def near(model: nn.Module, x: Tensor) -> Tensor:
    """Values near the outputs of a network, where its Hessian is positive definite."""
    return model(x).detach() + 0.1 * x.sum(1, keepdim=True).sin()


def numbers(part: Part) -> dict[str, Any]:
    """Of a fit by layers, of tuning it, and of refits; ``part`` takes this process's examples of all."""
    x, _ = examples()
    held_out = lw.Validation((part(x.cos()), part(drawn(x.cos(), 2))), link="probit")
    ways = (lw.EvidenceGradient(), lw.MacKay(), lw.EM(steps=2), lw.Mixup(), held_out)
    return by_layers(part, torch.float64, ways) | by_refits(part)


def by_layers(part: Part, dtype: torch.dtype, ways: tuple[Any, ...]) -> dict[str, Any]:
    """Of a fit by layers and of tuning it."""
    x, labels = examples()
    recipe = lw.Laplace(lw.Categorical(), structure=lw.KFAC())
    fitted = recipe.fit(network(3).to(dtype), (part(x), part(labels)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lw.ConvergenceWarning)
        tuned = {type(way).__name__: lw.tune(fitted, way) for way in ways}
    found: dict[str, Any] = {}
    for name, each in {"fitted": fitted, **tuned}.items():
        found[f"KFAC, {name}, {dtype}"] = each.predict(x[:SHOWN]).logits.covariance
        found[f"evidence of KFAC, {name}, {dtype}"] = torch.tensor(float(each.log_marginal()), dtype=dtype)
    return found


REFITS: dict[str, Any] = {"inner": lw.hessian_free.NewtonCG(rtol=1e-10), "step": 1e-2}
"""How networks are refitted by a hundredth of their deviation."""


def by_refits(part: Part) -> dict[str, Any]:
    """Of refits, by every way to fit them."""
    x, _ = examples()
    y = near(refitted(), x)
    data, batches = (part(x), part(y)), [(part(a), part(b)) for a, b in zip(x.split(11), y.split(11), strict=True)]
    prior, in_sample = lw.Isotropic(20.0), lw.hessian_free.PreTrained("in_sample")
    descent = lw.hessian_free.Descent(lambda p: torch.optim.SGD(p, lr=0.1), epochs=4)
    found: dict[str, Any] = {}
    ways_to_fit: dict[str, tuple[Any, Tensor | None, dict[str, Any]]] = {
        "Newton by a millionth": (lw.hessian_free.Probed(2, 2), None, {}),
        "Newton by a hundredth": (in_sample, x[:SHOWN], REFITS),
        "descent": (in_sample, x[:SHOWN], {"inner": descent}),
    }
    for name, (fits, points, choices) in ways_to_fit.items():
        recipe = lw.HessianFree(lw.Gaussian(), prior=prior, fits=fits, **choices)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lw.ConvergenceWarning)
            posterior = recipe.fit(refitted(), batches if name == "descent" else data, points)
        found[f"refits: {name}"] = posterior.predict(x[:SHOWN] if points is not None else x).outputs.covariance
    return found


def alike(part: Part) -> dict[str, Any]:
    """Numbers that enlarge what sums round to, of eight batches: the same ones however many processes there are."""
    x, labels = examples()
    pairs = zip(*(each.tensor_split(8) for each in (x, near(refitted(), x), labels)), strict=True)
    batches, found = [batch for which, batch in enumerate(pairs) if which in part(torch.arange(8))], dict[str, Any]()
    for dtype in (torch.float64, torch.float32):
        recipe = lw.Laplace(lw.Categorical(), structure=lw.Sampled(3))
        fitted = recipe.fit(network(3).to(dtype), [(some.to(dtype), each) for some, _, each in batches])
        found[f"same batches: Sampled {dtype}"] = fitted.predict(x[:SHOWN].to(dtype)).logits.covariance
    refits = lw.HessianFree(lw.Gaussian(), prior=lw.Isotropic(20.0), fits=lw.hessian_free.Probed(2, 2))
    fitted = refits.fit(refitted(), [(some, each) for some, each, _ in batches])
    return found | {"same batches: refits": fitted.predict(x).outputs.covariance}


def told(part: Part) -> dict[str, Any]:
    """Numbers of the other structures and ways to tune, of single precision, and of the weights alone."""
    x, labels = examples()
    y = near(network(1), x)
    found = by_layers(part, torch.float32, (lw.EvidenceGradient(),))
    refits = {"prior": lw.Isotropic(20.0), **REFITS}
    uncertain = lw.hessian_free.weight_uncertainty
    found["refits: weights"] = uncertain(refitted(), (part(x), part(near(refitted(), x))), lw.Gaussian(), **refits).std
    classes = list(zip(part(x).split(4), part(labels).split(4), strict=True))

    def show(name: str, posterior: Any) -> None:
        predicted = posterior.predict(x[:SHOWN])
        found[name] = (predicted.outputs if name.startswith("values") else predicted.logits).covariance

    single = [(inputs.float(), targets) for inputs, targets in classes]
    double = (lw.Full(view="weights"), lw.Diagonal(), lw.LowRank(9), lw.MatrixFree(), lw.Sampled(3), lw.Auto())
    in_single = (lw.Diagonal(), lw.MatrixFree(), lw.Sampled(3))
    for structures, dtype, parts in ((double, torch.float64, classes), (in_single, torch.float32, single)):
        for structure in structures:
            recipe = lw.Laplace(lw.Categorical(), structure=structure)
            name, fitted = f"{type(structure).__name__} {dtype}", recipe.fit(network(3).to(dtype), parts)
            show(f"classes {name}", fitted)
            if isinstance(fitted, ExactPosterior):
                found[f"evidence {name}"] = torch.tensor(fitted.log_marginal(), dtype=dtype)
    head = lw.Laplace(lw.Categorical(), structure=lw.KFAC(), weights=lw.LastLayer()).fit(network(3), classes)
    show("classes head", head)
    show("tuned by the bound", lw.tune(head, lw.ELBO(examples=8)))
    cut = lw.Laplace(lw.Categorical(), structure=lw.KFAC(rank=1)).fit(network(3), classes)
    show("classes KFAC of low rank", cut)
    recipe = lw.Laplace(lw.Gaussian(), prior=lw.Layerwise(1.0), structure=lw.Diagonal())
    with warnings.catch_warnings():
        warnings.simplefilter("error", lw.DataWarning)  # every process has a dataset of its own: nothing counts twice
        loader = DataLoader(TensorDataset(part(x), part(y)), batch_size=4)
        show("values", lw.tune(recipe.fit(network(1), loader)))
    for structure in (lw.KFAC(), lw.LowRank(3)):
        fitted = lw.Laplace(lw.Gaussian(), structure=structure).fit(network(1), (part(x), part(y)))
        show(f"values, tuned by default, {type(structure).__name__}", lw.tune(fitted))
    rates = network(1)(x).detach() + 0.5
    counts = torch.poisson(rates.exp(), generator=torch.Generator().manual_seed(3))
    counted = lw.Laplace(lw.Poisson(), structure=lw.Full(view="weights")).fit(network(1), (part(x), part(counts)))
    chosen = lw.tune(counted, (part(x.cos()), part(counts)))
    found["counts, tuned by held-out data"] = torch.cat([chosen.prior_precisions, chosen.at_knowledge.prior_precisions])
    exact = lw.Laplace(lw.Gaussian(), prior=lw.Isotropic(20.0), curvature=lw.Hessian())
    show("values by the exact Hessian", exact.fit(network(1), (part(x), part(y))))
    solved = lw.Laplace(lw.Gaussian(), structure=lw.MatrixFree()).fit(network(1), (part(x), part(y)))
    found["diagonal"] = solved.problem.curvature.diagonal()
    found["gradient"] = lw.preconditioners.RankOne().curvature(solved.problem).dense()
    found["score"] = recipe.fit(network(1), (part(x), part(y))).totals.score
    return found


def saved(part: Part, rank: int, folder: Path) -> None:
    """A posterior is written by the first process, while the others wait."""
    x, labels = examples()
    fitted = lw.Laplace(lw.Categorical(), structure=lw.KFAC()).fit(network(3), (part(x), part(labels)))
    lw.save(fitted, folder / f"saved-by-{rank}.safetensors")
    again = lw.load(folder / "saved-by-0.safetensors", network(3), (part(x), part(labels)))
    assert torch.equal(again.predict(x).probs, fitted.predict(x).probs)


class OfFirst(Exception):
    """An error that pickle does not take."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.held = lambda: what


def fails(failure: Exception) -> None:
    raise failure


def reason(kind: type[Exception], call: Callable[[], object]) -> str:
    """What is said of a call that is refused; nothing where it is not."""
    try:
        call()
    except kind as said:
        return f"{type(said).__name__}: {said}"
    return ""


def unlike(part: Part) -> dict[str, str]:
    """What is said where processes begin with other networks, recipes or inputs, or with data that all have."""
    rank = dist.get_rank()
    x, labels = torch.arange(3.0 * EXAMPLES, dtype=torch.float64).view(-1, 3), torch.arange(EXAMPLES) % 3
    data, values = (part(x), part(labels)), (part(x), part(x[:, :1]))
    weights, buffers = network(3), network(3)
    with torch.no_grad():
        next(weights.parameters())[0] += float(rank)
    buffers.register_buffer("seen", torch.tensor(rank))
    structure = (lw.KFAC(), lw.Diagonal())[rank]
    mini = [(some, some[:, :1]) for some in part(x).split(4 + 2 * rank)]
    solved = lw.Laplace(lw.Categorical(), structure=lw.MatrixFree()).fit(network(3), data)
    fitted, held_out = lw.Laplace(lw.Categorical()).fit(network(3), data), lw.Validation(data, temperature=rank == 1)
    refits = lw.HessianFree(lw.Gaussian(), inner=lw.hessian_free.Descent(epochs=1))
    calls: dict[str, Callable[[], object]] = {
        "other weights": lambda: lw.Laplace(lw.Categorical()).fit(weights, data),
        "other buffers": lambda: lw.Laplace(lw.Categorical()).fit(buffers, data),
        "other prior": lambda: lw.Laplace(lw.Categorical(), prior=lw.Isotropic(1.0 + rank)).fit(network(3), data),
        "other noise": lambda: lw.Laplace(lw.Gaussian(1.0 + rank)).fit(network(1), values),
        "other structure": lambda: lw.Laplace(lw.Categorical(), structure=structure).fit(network(3), data),
        "other refits": lambda: lw.HessianFree(lw.Gaussian(), seed=rank).fit(network(1), values),
        "all of the data": lambda: lw.Laplace(lw.Categorical()).fit(network(3), (x, labels)),
        "other inputs": lambda: solved.predict(part(x)),
        "other method": lambda: lw.tune(fitted, (lw.EvidenceGradient(), lw.Mixup())[rank]),
        "other choices": lambda: lw.tune(fitted, held_out),
        "other mini-batches": lambda: refits.fit(network(1), mini, x[:2]),
    }
    return {name: reason(DataError, call) for name, call in calls.items()}


def refused(part: Part) -> dict[str, str]:
    """What is said of that which needs all data in one process, and of what fails in some."""
    x, labels = torch.arange(3.0 * EXAMPLES, dtype=torch.float64).view(-1, 3), torch.arange(EXAMPLES) % 3

    def fitted(structure: lw.structures.Structure, scale: float = 1.0) -> lw.Posterior:
        recipe = lw.Laplace(lw.Categorical(), structure=structure)
        return recipe.fit(network(3), (scale * part(x), part(labels)))

    calls: dict[str, tuple[type[Exception], Callable[[], object]]] = {
        "Nystrom": (UnsupportedError, lambda: fitted(lw.Nystrom(3, samples=9))),
        "Full": (UnsupportedError, lambda: fitted(lw.Full(view="functions"))),
        "Sampled": (UnsupportedError, lambda: fitted(lw.Sampled(2, solver=lw.solvers.SGD())).predict(x[:1])),
        "known to all": (Exception, lambda: once(True, partial(fails, KeyError("known to all")))),
        "known to one": (Exception, lambda: once(True, partial(fails, OfFirst("known to one")))),
        "inputs too large to square": (NumericalError, lambda: fitted(lw.KFAC(), 1e160)),
        "save": (ConfigError, lambda: lw.save(fitted(lw.MatrixFree()), f"{__file__}/posterior.safetensors")),
    }
    return {name: reason(*given) for name, given in calls.items()}


def bytes_sent(call: Callable[[], object]) -> int:
    """Bytes that processes add up while something is called."""
    seen, added = 0, dist.all_reduce

    def counting(values: Tensor) -> None:
        nonlocal seen
        seen += values.nbytes
        added(values)

    dist.all_reduce = counting
    call()
    dist.all_reduce = added
    return seen


def tuned_in_steps(part: Part, steps: int, checkpoint: Path) -> Tensor:
    """The prior precision after some steps of EM by draws, which go on from a file."""
    x = torch.randn(EXAMPLES, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    recipe = lw.Laplace(lw.Gaussian(), structure=lw.Sampled(4))
    fitted = recipe.fit(network(1), (part(x), part(x[:, :1].cos())))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lw.ConvergenceWarning)
        tuned = lw.tune(fitted, lw.EM(steps=steps, tolerance=1e-9, checkpoint=checkpoint))
    return tuned.prior.diagonal(tuned.network.uncertain, tuned.network.like)[:1]


def run(rank: int, world: int, folder: Path) -> None:
    """One process of several, which writes what it was told; of three, one is killed at last, between steps of EM."""
    timeout = timedelta(seconds=300)
    dist.init_process_group("gloo", f"file://{folder}/{world}", timeout=timeout, rank=rank, world_size=world)

    def part(values: Tensor) -> Tensor:
        return values.tensor_split(world)[rank]

    checkpoint = folder / f"em-{world}"
    found: dict[str, Any] = {"EM": tuned_in_steps(part, 2, checkpoint)}
    found |= numbers(part) | alike(part)
    if world == 2:
        saved(part, rank, folder)
        x = torch.arange(3.0 * EXAMPLES, dtype=torch.float64).view(-1, 3)
        fitted = lw.Laplace(lw.Gaussian(), structure=lw.MatrixFree()).fit(network(1), (part(x), part(x[:, :1])))
        curvature = fitted.problem.curvature
        found["bytes"] = bytes_sent(lambda: curvature @ torch.ones(curvature.shape[0], 5, dtype=torch.float64))
        found |= told(part) | {"refused": unlike(part) | refused(part)}
    torch.save(found, folder / f"{world}-{rank}.pt")
    if world == 3:
        lose_one(rank, part, checkpoint, folder)
    dist.destroy_process_group()


def lose_one(rank: int, part: Part, checkpoint: Path, folder: Path) -> None:
    """The second process is killed, and the others write what they hear of it."""
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    try:
        tuned_in_steps(part, 4, checkpoint)
    except DataError as reason:
        torch.save((str(reason), time.monotonic() - begun), folder / f"lost-{rank}.pt")
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    where, worlds = Path(sys.argv[1]), [int(each) for each in sys.argv[2:]]
    forked = multiprocessing.get_context("fork")
    who = [(rank, world) for world in worlds for rank in range(world)]
    children = {each: forked.Process(target=run, args=(*each, where)) for each in who}
    for child in children.values():
        child.start()
    found = numbers(lambda values: values) | alike(lambda values: values) | told(lambda values: values)
    found["EM"] = tuned_in_steps(lambda values: values, 4, where / "em-1")
    for child in children.values():
        child.join()
    failed = [each for each, child in children.items() if child.exitcode and each != (1, 3)]
    if failed:
        sys.exit(f"processes (rank, world) that failed: {failed}")
    for world in worlds:
        found[f"EM from {world}"] = tuned_in_steps(lambda values: values, 4, where / f"em-{world}")
    torch.save(found, where / "1-0.pt")
