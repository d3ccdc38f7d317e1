"""Some ninety faults put into the library one at a time, each of which the tests must notice.

    python scripts/mutants.py [--only TEXT] [--part 1/4]

A mutant is an expression or a statement of mathematics in one function, with a sign, a factor or an axis changed. It is
found by its syntax, however its lines are broken. The tests that should notice run until the first that fails; a mutant
that none of them fails has survived. The tree is changed in place and put back, also on Ctrl-C: run it in a checkout of
its own.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "lapwing"

LIMIT = 900
"""Seconds after which tests are ended that a mutant keeps from ending."""


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Args:
        where: A file below ``src/lapwing/`` and a function in it, ``file.py:Class.method``.
        old: An expression or statement that stands once in this function.
        new: What it becomes.
        tests: Folders or files under ``tests/`` that should notice, those that do first.
    """

    where: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The file."""
        return SOURCE / self.where.partition(":")[0]

    @property
    def function(self) -> str:
        """The function, with the classes and functions around it."""
        return self.where.partition(":")[2]


def m(where: str, old: str, new: str, *tests: str) -> Mutant:
    """A mutant, shorter to write."""
    return Mutant(where, old, new, tests)


MUTANTS = (
    # likelihoods and priors
    m(
        "likelihoods/elementwise.py:Bernoulli._score",
        "targets * torch.sigmoid(-outputs) - (1 - targets) * torch.sigmoid(outputs)",
        "targets * torch.sigmoid(-outputs) + (1 - targets) * torch.sigmoid(outputs)",
        "likelihoods/test_base.py",
    ),
    m(
        "likelihoods/elementwise.py:Bernoulli._diagonal",
        "torch.sigmoid(outputs) * torch.sigmoid(-outputs)",
        "torch.sigmoid(outputs)",
        "likelihoods",
    ),
    m(
        "likelihoods/categorical.py:Categorical._score",
        "torch.where(classes == index, _complement(probs), -probs)",
        "torch.where(classes == index, _complement(probs), probs)",
        "likelihoods",
    ),
    m(
        "likelihoods/gaussian.py:Gaussian._nll",
        "(precision * (targets - outputs).square() + torch.log(2 * math.pi / precision)).sum",
        "(precision * (targets - outputs).square() - torch.log(2 * math.pi / precision)).sum",
        "likelihoods",
    ),
    m(
        "likelihoods/base.py:Likelihood.root",
        "return self.weight**0.5 * self._root(outputs, targets)",
        "return self.weight * self._root(outputs, targets)",
        "laws/test_weight.py",
    ),
    m(
        "likelihoods/gaussian.py:HeteroscedasticGaussian._score",
        "0.5 * (precisions * residuals.square() - 1)",
        "0.5 * (precisions * residuals.square() + 1)",
        "likelihoods",
    ),
    m(
        "likelihoods/elementwise.py:Poisson._score",
        "return targets - outputs.exp()",
        "return outputs.exp() - targets",
        "likelihoods",
    ),
    m(
        "likelihoods/gaussian.py:HeteroscedasticGaussian.draw",
        "means + noise * torch.exp(0.5 * log_variances)",
        "means + noise * torch.exp(log_variances)",
        "likelihoods",
    ),
    m(
        "priors/base.py:Prior.diagonal",
        "(values[index] * relative).to(like)",
        "(values[index] / relative).to(like)",
        "priors/test_base.py",
    ),
    m(
        "priors/base.py:Prior.energy",
        "0.5 * (self.precisions(layout).to(norms) * norms).sum()",
        "(self.precisions(layout).to(norms) * norms).sum()",
        "priors",
    ),
    m(
        "priors/isotropic.py:Isotropic.from_weight_decay",
        "return cls(weight_decay * n)",
        "return cls(weight_decay / n)",
        "priors",
    ),
    # linalg
    m(
        "linalg/operators/kronecker.py:Kronecker._matmat",
        "self.scale * product.reshape(block.shape) + self.shift * block",
        "self.scale * product.reshape(block.shape) - self.shift * block",
        "linalg/operators/test_kronecker.py",
    ),
    m(
        "linalg/operators/low_rank.py:LowRank.logdet",
        "self._base_entries.log().sum() + m.log1p().sum()",
        "self._base_entries.log().sum() - m.log1p().sum()",
        "linalg/test_log_determinant.py",
    ),
    m(
        "linalg/operators/low_rank.py:LowRank.root",
        "self._split_root(self._base_entries.sqrt(), 1 / (1 + (1 + m).sqrt()))",
        "self._split_root(self._base_entries.sqrt(), 1 / (2 + (1 + m).sqrt()))",
        "linalg/operators/test_low_rank.py",
    ),
    m(
        "linalg/log_determinant.py:log_determinant.estimate",
        "Estimate(exact + float(now.mean()), max(error, rounding), samples)",
        "Estimate(exact - float(now.mean()), max(error, rounding), samples)",
        "linalg/test_log_determinant.py",
    ),
    m(
        "linalg/log_determinant.py:log_determinant.estimate",
        "float(now.std()) / samples**0.5",
        "float(now.std())",
        "linalg/test_log_determinant.py",
    ),
    m(
        "linalg/operators/low_rank.py:LowRank._affine",
        "LowRank(c**0.5 * self.factor, Diagonal(c * self._added + s))",
        "LowRank(c * self.factor, Diagonal(c * self._added + s))",
        "laws/test_linalg.py",
    ),
    # the linear model
    m(
        "linear/perturbation.py:Perturbation.right_hand_side",
        "problem.scale**0.5 * self.data + problem.prior.root() @ self.prior",
        "problem.scale**0.5 * self.data - problem.prior.root() @ self.prior",
        "laws/test_perturbed_solves.py",
    ),
    m(
        "linear/perturbation.py:Perturbation.right_hand_side",
        "problem.prior.root() @ self.prior",
        "problem.prior.inverse_root() @ self.prior",
        "linear/test_problem.py",
    ),
    m(
        "linear/evidence.py:LogEvidence.log_marginal",
        "self.log_joint(alpha, s) - 0.5 * self.complexity.log_det_ratio(alpha, s)",
        "self.log_joint(alpha, s) - self.complexity.log_det_ratio(alpha, s)",
        "tuning/test_evidence.py",
    ),
    m(
        "linear/evidence.py:LogEvidence.log_likelihood",
        "at_one - 0.5 * scale * misfit + 0.5 * self.observations * scale.log()",
        "at_one - 0.5 * scale * misfit - 0.5 * self.observations * scale.log()",
        "linear/test_evidence.py",
    ),
    m(
        "linear/log_det_ratio.py:log_det_one_plus",
        "2.0 * factor.diagonal().log().sum()",
        "factor.diagonal().log().sum()",
        "linear/test_log_det_ratio.py",
    ),
    m(
        "linear/mode/newton.py:search",
        "length = 2.0 * length if high == math.inf else (low + high) / 2",
        "length = 0.5 * length if high == math.inf else (low + high) / 2",
        "linear/mode/test_newton.py",
    ),
    m(
        "linear/mode/newton.py:search",
        "slope = line.slope(length) + pull + length * curvature",
        "slope = line.slope(length) - pull + length * curvature",
        "linear/mode/test_newton.py",
    ),
    m(
        "linear/nesterov.py:settle",
        "value = start if leg.stopped is None else leg.now.value",
        "value = leg.now.value",
        "linear/solvers/stochastic/test_sgd.py",
    ),
    m(
        "linear/solvers/stochastic/sgd.py:SGD.choose_step",
        "largest = max(largest, bound)",
        "largest = bound",
        "linear/solvers/stochastic/test_sgd.py",
    ),
    m(
        "linear/solvers/stochastic/dual.py:SDD._descend",
        "-step * n / len(index)",
        "-step",
        "linear/solvers/stochastic/test_dual.py",
    ),
    m(
        "linear/solvers/stochastic/dual.py:_Path.__init__",
        "1 - (1 - forget) ** SKIPPED",
        "forget",
        "linear/solvers/stochastic/test_dual.py",
    ),
    m("tuning/gradient.py:newton_on_conditions", "step = step / 2", "step = step / 1", "tuning/test_gradient.py"),
    m(
        "linear/evidence.py:NewtonStep.step",
        "prior = (precisions[self.group] * self._relative).to(self.weights)",
        "prior = precisions[self.group].to(self.weights)",
        "tuning/test_evidence.py",
    ),
    m(
        "linear/solvers/stochastic/sgd.py:SGD.resumed",
        "rest = b - problem.precision @ start",
        "rest = b + problem.precision @ start",
        "linear/solvers/stochastic/test_sgd.py",
    ),
    m(
        "linalg/operators/low_rank.py:LowRank.root",
        "return FunctionOperator(lambda e: u @ e, lambda v: u.mT @ v, (u.shape[0], u.shape[1]), u)",
        "return FunctionOperator(lambda e: u @ e, lambda v: -(u.mT @ v), (u.shape[0], u.shape[1]), u)",
        "linalg/operators/test_low_rank.py",
    ),
    m(
        "linear/gauss_newton.py:outputs_at",
        "change = weights - model.weights if affine else weights",
        "change = weights + model.weights if affine else weights",
        "linear/test_gauss_newton.py",
    ),
    m(
        "linear/mode/loss.py:Loss.gradient",
        "score = self.scale * point.score",
        "score = point.score",
        "linear/mode/test_loss.py",
    ),
    m(
        "linear/model.py:Matrix.diagonal",
        '(root.mT @ cast("Tensor", chunk.inputs)).square()',
        '(root.mT @ cast("Tensor", chunk.inputs)).abs()',
        "laws/test_linear_models.py",
    ),
    # the network's derivatives, and sums over the data
    m(
        "linear/gauss_newton.py:outputs_at",
        "return chunk.outputs + pushed if affine else pushed",
        "return chunk.outputs - pushed if affine else pushed",
        "linear/test_gauss_newton.py",
    ),
    m(
        "jacobian/layers/linear.py:OuterProducts.matrices",
        "product = left @ self.columns.reshape(n * p, -1, t).mT",
        "product = 2 * left @ self.columns.reshape(n * p, -1, t).mT",
        "jacobian/layers/test_base.py",
    ),
    m(
        "jacobian/layers/convolution.py:patches",
        "out[:, inputs.numel() :] = 1.0",
        "out[:, inputs.numel() :] = 0.0",
        "jacobian/layers/test_base.py",
    ),
    m(
        "jacobian/network/decompositions.py:attend",
        "q @ k.mT / q.shape[-1] ** 0.5",
        "q @ k.mT / q.shape[-1]",
        "jacobian/network/test_decompositions.py",
    ),
    m(
        "jacobian/layers/base.py:Factor.covariance",
        "root = self.rows() * variance.sqrt()",
        "root = self.rows() * variance",
        "jacobian/layers/test_base.py",
    ),
    m(
        "curvature/kfac.py:KroneckerSum._blocks",
        "mean = 1.0 / max(self._count[names], 1)",
        "mean = 1.0",
        "curvature/test_kfac.py",
    ),
    m(
        "curvature/ekfac.py:_turned_diagonal",
        "own + v.square()",
        "own - v.square()",
        "curvature/test_ekfac.py",
    ),
    m(
        "linalg/operators/chain.py:KroneckerChain._factors",
        "matrices[i] - psi @ between.mT",
        "matrices[i] + psi @ between.mT",
        "linalg/operators/test_chain.py",
    ),
    m(
        "linalg/operators/kronecker.py:Kronecker.pooled",
        "1 / self.scale + 1 / other.scale",
        "1 / self.scale",
        "laws/test_more_data.py",
    ),
    m(
        "priors/base.py:Prior.deviation",
        "vector - mean",
        "vector + mean",
        "priors/test_base.py",
    ),
    m(
        "jacobian/layers/linear.py:OuterProducts.input_moment",
        "ColumnMoment(columns, n * self.positions)",
        "ColumnMoment(columns, n)",
        "curvature/test_kfac.py",
    ),
    m(
        "curvature/quadratic_forms.py:quadratic_forms",
        "block[:, :, end - start :] += pairs[:, end:, start:end].mT",
        "block[:, :, end - start :] -= pairs[:, end:, start:end].mT",
        "curvature/test_quadratic_forms.py",
    ),
    m(
        "curvature/contractions.py:low_rank",
        "gain = sigma[:, None] / (tau[:, None] + sigma[:, None] * sizes)",
        "gain = sigma[:, None] / (tau[:, None] - sigma[:, None] * sizes)",
        "curvature/test_tangent_kernel.py",
    ),
    m(
        "curvature/fold.py:Fold.totals",
        "Totals(tuple(parts), self._model.likelihood.weight * counted, misfit, score)",
        "Totals(tuple(parts), counted, misfit, score)",
        "curvature/test_fold.py",
    ),
    m(
        "jacobian/layers/linear.py:OuterProducts.gram",
        "variance[0] * gram.flatten(0, 1).flatten(1)",
        "gram.flatten(0, 1).flatten(1)",
        "curvature/test_tangent_kernel.py",
    ),
    # posteriors and predictions
    m(
        "ground/precision.py:Precision.operand",
        "wide(x) if self.products == WIDE else x.to(self.products)",
        "wide(x)",
        "posteriors/test_rounding.py",
    ),
    m(
        "posteriors/rounding.py:warn_of_products",
        "LARGEST * epsilon * largest / prior",
        "LARGEST * epsilon * largest * prior",
        "posteriors/test_rounding.py",
    ),
    m(
        "curvature/tangent_features.py:TangentFeatures._widened",
        "self.model.precision.products == WIDE and like.dtype != WIDE",
        "self.model.precision.products == WIDE and like.dtype == WIDE",
        "laws/test_float32_networks.py",
    ),
    m(
        "posteriors/weight_space.py:WeightPosterior._deviations",
        "return (operator.inverse_root() @ epsilon.to(operator.device, operator.dtype)).to(weights)",
        "return (operator.root() @ epsilon.to(operator.device, operator.dtype)).to(weights)",
        "posteriors/test_weight_space.py",
    ),
    m(
        "posteriors/nystrom.py:Compression.moments",
        "prior - prior_factor @ prior_factor.mT + factor @ factor.mT",
        "prior + prior_factor @ prior_factor.mT + factor @ factor.mT",
        "posteriors/test_nystrom.py",
    ),
    m(
        "posteriors/matrix_free.py:MatrixFreePosterior.effective_dimension",
        "b = self.problem.scale**0.5 * (self.problem.root @ noise)",
        "b = self.problem.root @ noise",
        "posteriors/test_matrix_free.py",
    ),
    m(
        "predictive/distributions/multilabel.py:MultiLabel.confidence",
        "torch.maximum(self.probs, 1 - self.probs)",
        "self.probs",
        "predictive/distributions/test_base.py",
    ),
    m(
        "predictive/distributions/regression.py:Regression.variance",
        "return self.outputs.variance + self.noise",
        "return self.outputs.variance - self.noise",
        "predictive/distributions/test_base.py",
    ),
    m(
        "predictive/distributions/regression.py:Regression.interval",
        "quantile_of_normal(0.5 * (1 + level))",
        "quantile_of_normal(level)",
        "predictive/distributions/test_base.py",
    ),
    m(
        "moments/outputs.py:Normal.scaled",
        "replace(self, mean=by * self.mean, covariance=by**2 * self.covariance, factor=factor)",
        "replace(self, mean=by * self.mean, covariance=by * self.covariance, factor=factor)",
        "likelihoods/test_predictive.py",
    ),
    m(
        "moments/marginals.py:expected_exp",
        "exponents = mean + 0.5 * variance",
        "exponents = mean + variance",
        "likelihoods/test_predictive.py",
    ),
    m(
        "predictive/links.py:pairwise.of_pairs",
        "torch.sub(apart, some.covariance_rows(own).to(apart), alpha=math.pi / 4)",
        "torch.sub(apart, some.covariance_rows(own).to(apart), alpha=math.pi / 8)",
        "predictive/test_links.py",
    ),
    m(
        "predictive/links.py:_damped",
        "return moments.mean * torch.rsqrt(1 + math.pi / 8 * moments.variance)",
        "return moments.mean * torch.rsqrt(1 + moments.variance)",
        "predictive/test_links.py",
    ),
    m(
        "predictive/links.py:_log_concentration",
        "mass = mean + torch.logsumexp(-mean, -1, keepdim=True) - 2 * math.log(c)",
        "mass = mean + torch.logsumexp(-mean, -1, keepdim=True) - math.log(c)",
        "predictive/test_links.py",
    ),
    m(
        "likelihoods/negative_binomial.py:NegativeBinomial._diagonal",
        "torch.sigmoid(outputs + log(self.dispersion))",
        "torch.sigmoid(outputs - log(self.dispersion))",
        "likelihoods/test_base.py",
    ),
    m(
        "likelihoods/student_t.py:StudentT._diagonal",
        "(self.df + 1) / (self.df + 3)",
        "(self.df + 1) / self.df",
        "likelihoods/test_base.py",
    ),
    m(
        "likelihoods/student_t.py:StudentT.scale_derivatives",
        "of_loss = 1 - (self.df + 1) * far",
        "of_loss = 1 - self.df * far",
        "likelihoods/test_student_t.py",
    ),
    m(
        "predictive/scale_mixtures.py:_log_mixture",
        "variance[some] + (2 * math.log(scale) - u).exp()",
        "variance[some] + (2 * math.log(scale) + u).exp()",
        "predictive/test_scale_mixtures.py",
    ),
    m(
        "gp/robust_mode.py:RobustPoint.downhill",
        "self.u + length * vectors[:, 0]",
        "self.u + length * vectors[:, 1]",
        "gp/test_robust_mode.py",
    ),
    m(
        "gp/student_t.py:StudentTGPPosterior.gradient",
        "by_scale = -of_loss.sum() - 0.5 * bent + moved",
        "by_scale = -of_loss.sum() - 0.5 * bent",
        "gp/test_student_t.py",
    ),
    m(
        "predictive/distributions/overdispersed.py:OverdispersedCounts.noise_variance",
        "self.rates.variance + self.mean.square()",
        "self.mean.square()",
        "predictive/distributions/test_overdispersed.py",
    ),
    m(
        "likelihoods/gaussian.py:Gaussian.exact_log_joint",
        "wide(outputs.covariance).reshape(size, size) + torch.diag(noise)",
        "wide(outputs.covariance).reshape(size, size) + torch.diag(1 / noise)",
        "likelihoods/test_density.py",
    ),
    m(
        "likelihoods/density.py:log_joint",
        "float(torch.logsumexp(logs, 0)) - math.log(count)",
        "float(torch.logsumexp(logs, 0))",
        "likelihoods/test_density.py",
    ),
    # tuning
    m(
        "tuning/fixed_point.py:fixed_point",
        "alpha = (gamma / norms.clamp_min(least)).clamp(*BOUNDS)",
        "alpha = (2 * gamma / norms.clamp_min(least)).clamp(*BOUNDS)",
        "tuning/test_fixed_point.py",
    ),
    m(
        "tuning/fixed_point.py:fixed_point",
        "((observations - total) / misfit.clamp_min(least)).clamp",
        "((observations + total) / misfit.clamp_min(least)).clamp",
        "tuning/test_fixed_point.py",
    ),
    m(
        "tuning/fixed_point.py:fixed_point",
        "(observations / (misfit + total / scale)).clamp",
        "(observations / (misfit + total)).clamp",
        "tuning/test_fixed_point.py",
    ),
    # methods
    m(
        "methods/marginal/objective.py:MarginalLikelihood.loss",
        "nll = share * self._hyper.nll(batch.outputs, batch.targets)",
        "nll = self._hyper.nll(batch.outputs, batch.targets)",
        "methods/marginal/test_log_det.py",
    ),
    m(
        "methods/marginal/objective.py:MarginalLikelihood.loss",
        "loss = nll + 0.5 * norm",
        "loss = nll + norm",
        "methods/marginal/test_objective.py",
    ),
    m(
        "methods/marginal/bound.py:_both",
        "total * (total - 1) / (n * (n - 1)) * (pairs - own)",
        "total * total / (n * n) * (pairs - own)",
        "methods/marginal/test_bound.py",
    ),
    m(
        "methods/marginal/hyper.py:LearnedHyperparameters.deviations",
        "torch.exp(-0.5 * self.log_precisions)",
        "torch.exp(-self.log_precisions)",
        "methods/marginal/test_bound.py",
    ),
    m(
        "methods/marginal/hyper.py:LearnedHyperparameters.nll",
        "(scales - 1) * misfits - observations * scales.log()",
        "(scales - 1) * misfits + observations * scales.log()",
        "methods/marginal/test_bound.py",
    ),
    m(
        "methods/hessian_free/probed.py:ProbedCovariance.of",
        "blocks = 0.5 * (outer + outer.mT)",
        "blocks = outer + outer.mT",
        "methods/hessian_free/test_probed.py",
    ),
    m(
        "methods/hessian_free/responses.py:Responses._difference",
        "span = self.scales if self.minus is None else 2 * self.scales",
        "span = self.scales",
        "methods/hessian_free/test_converged.py",
    ),
    m(
        "methods/hessian_free/probed.py:Variances.interval",
        "self.value - t * self.stderr, self.value + t * self.stderr",
        "self.value - self.stderr, self.value + self.stderr",
        "methods/hessian_free/test_converged.py",
    ),
    m(
        "methods/hessian_free/regularisers.py:OutputSums.pull",
        "self.omega[:, place].to(weights)",
        "self.omega[:, : len(range(*place.indices(PIECE)))].to(weights)",
        "methods/hessian_free/test_responses.py",
    ),
    m(
        "gp/regression/evidence.py:_exact_weight.weight",
        "torch.addmm(part, alpha[i], alpha[j].mT, beta=-alpha.shape[1])",
        "torch.addmm(part, alpha[i], alpha[j].mT, beta=alpha.shape[1])",
        "gp/tuning/test_evidence.py",
    ),
    m(
        "gp/regression/evidence.py:_drawn_weight.weight",
        "alpha[i] @ alpha[j].mT - drawn[i] @ drawn[j].mT",
        "alpha[i] @ alpha[j].mT + drawn[i] @ drawn[j].mT",
        "gp/tuning/test_evidence.py",
    ),
    m(
        "gp/regression/evidence.py:log_density",
        "float((rest * wide(alpha)).sum()) + sizes + c * n * math.log(2 * math.pi)",
        "float((rest * wide(alpha)).sum()) + sizes + n * math.log(2 * math.pi)",
        "gp/regression/test_posterior.py",
    ),
    m(
        "gp/regression/covariance.py:Covariance.variance",
        "self._quadratic_form(across) - (rest * slopes).sum(0)",
        "self._quadratic_form(across) + (rest * slopes).sum(0)",
        "gp/regression/test_posterior.py",
    ),
    m(
        "gp/regression/covariance.py:Covariance.joint",
        "gram(self.kernel, new) - across.mT @ solved + rest.mT @ slopes",
        "gram(self.kernel, new) - across.mT @ solved",
        "gp/regression/test_posterior.py",
    ),
    m(
        "gp/regression/posterior.py:GPPosterior.draw_functions",
        "noise[:, group.columns(samples * c, c)] *= group.noise.sqrt()[:, None]",
        "noise[:, group.columns(samples * c, c)] *= 0.0",
        "gp/regression/test_posterior.py",
    ),
    m(
        "gp/regression/posterior.py:GPPosterior.draw_functions",
        "alpha.repeat(1, samples) + exact.to(alpha) - drawn_alpha",
        "alpha.repeat(1, samples) + exact.to(alpha) + drawn_alpha",
        "gp/regression/test_posterior.py",
    ),
    m(
        "gp/kernels/matrix.py:weighted_gradient",
        "matrix.kernel.gradient(x[i], x[j], weight(i, j)) * (1 if i == j else 2)",
        "matrix.kernel.gradient(x[i], x[j], weight(i, j)) * 1",
        "gp/tuning/test_evidence.py",
    ),
    m(
        "gp/kernels/matrix.py:KernelMatrix._tiled_product",
        "total[j] += tile.mT @ block[i]",
        "total[j] += tile @ block[i]",
        "gp/kernels/test_matrix.py",
    ),
    m(
        "gp/kernels/stationary.py:_matern",
        "torch.addcmul(r, r, r, value=LN2 / 3)",
        "torch.addcmul(r, r, r, value=LN2)",
        "gp/kernels/test_base.py",
    ),
    m(
        "gp/kernels/hamming.py:Hamming.gradient",
        "rate * (weighted * differs).sum()",
        "(weighted * differs).sum()",
        "gp/kernels/test_hamming.py",
    ),
    m(
        "gp/kernels/rational_quadratic.py:RationalQuadratic.gradient",
        "part / (1 + part) - logarithm",
        "part - logarithm",
        "gp/kernels/test_distances.py",
    ),
    m(
        "ct/whitened.py:whitened",
        "sinogram / std",
        "sinogram",
        "ct/test_whitened.py",
    ),
    m(
        "gp/regression/evidence.py:GroupGradient.of",
        "wide(diagonal * group.noise)",
        "wide(diagonal)",
        "gp/tuning/test_evidence.py",
    ),
    # scores
    m(
        "metrics/calibration.py:Reliability.error",
        "gap = (self.accuracy - self.confidence).abs()",
        "gap = self.accuracy - self.confidence",
        "metrics/test_calibration.py",
    ),
    m(
        "metrics/calibration.py:debiased_ece",
        "chance = found.accuracy * (1 - found.accuracy) / (found.count - 1).clamp(min=1)",
        "chance = found.accuracy * (1 - found.accuracy) / found.count.clamp(min=1)",
        "metrics/test_calibration.py",
    ),
    m(
        "metrics/classification.py:symmetric_kl",
        "return 0.5 * ((p - q) * (p.log() - q.log())).sum(-1)",
        "return ((p - q) * (p.log() - q.log())).sum(-1)",
        "metrics/test_classification.py",
    ),
    m(
        "metrics/regression.py:gaussian_nll",
        "(y - m).square() / (2 * v)",
        "(y - m).square() / v",
        "metrics/test_regression.py",
    ),
    m(
        "metrics/regression.py:crps",
        "2 * density - 1 / math.sqrt(math.pi)",
        "2 * density + 1 / math.sqrt(math.pi)",
        "metrics/test_regression.py",
    ),
    m(
        "metrics/classification.py:_ranks",
        "wide(twice) / 2",
        "wide(twice)",
        "metrics/test_classification.py",
    ),
    m(
        "metrics/calibration.py:equal_mass",
        "p * (1 - p) / count + z**2 / (4 * count**2)",
        "p * (1 - p) / count - z**2 / (4 * count**2)",
        "metrics/test_calibration.py",
    ),
    m(
        "comparison/paired.py:_stderr",
        "float(values.std()) / math.sqrt(n)",
        "float(values.std()) / n",
        "comparison/test_paired.py",
    ),
    m(
        "metrics/joint.py:_joint",
        "torch.logsumexp(total, 0) - math.log(logs.shape[0])",
        "torch.logsumexp(total, 0) + math.log(logs.shape[0])",
        "metrics/test_joint.py",
    ),
    m(
        "metrics/regression.py:gaussian_wasserstein",
        "gap = first - second @ (left @ right)",
        "gap = first + second @ (left @ right)",
        "metrics/test_regression.py",
    ),
)


def mutated(mutant: Mutant) -> str | None:
    """The text of the file with the fault in it; ``None`` where its place is not there, or there more than once."""
    if not mutant.path.exists():
        return None
    source = mutant.path.read_text(encoding="utf-8")
    wanted = syntax(mutant.old)
    places = [
        node
        for function in functions(ast.parse(source), mutant.function)
        for node in ast.walk(function)
        if ast.dump(node) == wanted
    ]
    return replaced(source, places[0], mutant.new) if len(places) == 1 else None


def syntax(text: str) -> str:
    """An expression or statement without its places."""
    (statement,) = ast.parse(text).body
    return ast.dump(statement.value if isinstance(statement, ast.Expr) else statement)


def functions(tree: ast.AST, name: str) -> list[ast.AST]:
    """The functions of a name, such as ``Class.method`` or ``function.inner``."""
    found = [tree]
    for part in name.split("."):
        found = [
            node
            for around in found
            for node in ast.walk(around)
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == part and node is not around
        ]
    return found


def replaced(source: str, node: ast.AST, text: str) -> str:
    """A source with another text in place of a node, whose columns are counted in bytes."""
    assert isinstance(node, (ast.expr, ast.stmt))
    assert node.end_lineno is not None and node.end_col_offset is not None
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
    return before.decode() + text + after.decode()


def killer(mutant: Mutant, faulty: str) -> str | None:
    """The first test to fail with the mutant in its place; ``None`` where all pass, or none can be run."""
    tests = [f"tests/{test}" for test in mutant.tests]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *tests]
    sound = mutant.path.read_text(encoding="utf-8")
    try:
        mutant.path.write_text(faulty, encoding="utf-8")
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=LIMIT, text=True)
    except subprocess.TimeoutExpired:
        return "the limit of time"  # a loop that does not end is noticed too
    finally:
        mutant.path.write_text(sound, encoding="utf-8")
    lines = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return lines[0] if done.returncode == 1 else None


def main() -> None:
    """Try every mutant; exit 1 if one is lost or survives."""
    parser = argparse.ArgumentParser(prog="python scripts/mutants.py", description=__doc__)
    parser.add_argument("--only", default="", help="mutants whose place or text has this in it")
    parser.add_argument("--part", default="1/1", help="the first quarter of them is 1/4")
    args = parser.parse_args()
    part, parts = map(int, args.part.split("/"))
    outcome = Counter[str]()
    chosen = [mutant for mutant in MUTANTS if args.only in f"{mutant.where}: {mutant.old}"]
    for mutant in chosen[part - 1 :: parts]:
        start = time.perf_counter()
        faulty = mutated(mutant)
        test = None if faulty is None else killer(mutant, faulty)
        kind = "lost" if faulty is None else "survived" if test is None else "killed"
        outcome[kind] += 1
        seconds = time.perf_counter() - start
        print(f"{kind:8s} {seconds:4.0f} s {mutant.where}: {mutant.old}: {test}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in outcome.items()))
    sys.exit(outcome["lost"] + outcome["survived"] > 0)


if __name__ == "__main__":
    main()
