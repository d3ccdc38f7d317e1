"""A small network and its exact evidence, from dense matrices that automatic differentiation makes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import lapwing as lw
from lapwing.likelihoods import Likelihood
from lapwing.methods.marginal import MarginalLikelihood
from lapwing.priors import Prior
from tests.posterior_cases import labels, mlp, normal

SIZE = 6
TARGETS: dict[str, Tensor] = {"gaussian": normal(SIZE, 2, seed=1), "categorical": labels(SIZE, classes=3)}
PRIORS: dict[str, Prior] = {"isotropic": lw.Isotropic(1.7), "layerwise": lw.Layerwise((0.4, 2.5))}
LIKELIHOODS: dict[str, Likelihood] = {"gaussian": lw.Gaussian((2.0, 5.0)), "categorical": lw.Categorical()}


def case(name: str) -> tuple[nn.Module, Likelihood, Tensor, Tensor]:
    """Network, likelihood, inputs and targets of six examples."""
    return mlp(2 if name == "gaussian" else 3), LIKELIHOODS[name], normal(SIZE, 3), TARGETS[name]


def marginal_of(name: str, prior: Prior, **options: Any) -> tuple[MarginalLikelihood, Tensor, Tensor]:
    """The whole loss from the first epoch on, for all data as one batch."""
    model, likelihood, x, y = case(name)
    options = {"data_size": SIZE, "warm_up": 0, "settle": 0, "updates": lw.marginal.ByGradient()} | options
    return MarginalLikelihood(model, likelihood, prior, **options), x, y


def dense(marginal: MarginalLikelihood, x: Tensor, y: Tensor, ratio: Any = None) -> Tensor:
    """``-log p(y)`` of equation 3.5 with everything dense, differentiable in weights and hyper-parameters."""
    model = marginal.model.eval()
    params = dict(model.named_parameters())
    theta = torch.cat([value.flatten() for value in params.values()])
    outputs = model(x)
    jacobians = jacrev(lambda values: functional_call(model, values, (x,)))(params)
    jacobian = torch.cat([part.flatten(2) for part in jacobians.values()], dim=-1)
    reference = marginal._hyper.reference
    log_alpha, log_noise = marginal.hyperparameters()
    layer = torch.tensor([0] * 16 + [1] * (len(theta) - 16)) if len(log_alpha) == 2 else torch.zeros_like(theta).long()
    precision = log_alpha.exp()[layer]
    scale = log_noise.exp()
    ggn = torch.einsum("nad,nab,nbe->de", jacobian, scale * reference.hessian(outputs, y), jacobian)
    log_det = torch.logdet(ggn + torch.diag(precision)) if ratio is None else ratio(ggn, precision)
    if isinstance(reference, lw.Gaussian):
        noise = scale * torch.tensor(reference.precision, dtype=torch.float64)
        nll = 0.5 * (noise * (y - outputs).square() - torch.log(noise / (2 * math.pi))).sum()
    else:
        nll = nn.functional.cross_entropy(outputs, y, reduction="sum")
    log_prior = 0.5 * (torch.log(precision / (2 * math.pi)) - precision * theta.square()).sum()
    return nll - log_prior - 0.5 * len(theta) * math.log(2 * math.pi) + 0.5 * log_det


def gradients(loss: Tensor, marginal: MarginalLikelihood) -> list[Tensor]:
    """In every weight and every hyper-parameter that requires one."""
    params = [p for p in [*marginal.model.parameters(), *marginal.hyperparameters()] if p.requires_grad]
    return list(torch.autograd.grad(loss, params, allow_unused=True, materialize_grads=True))
