"""Some ninety faults put into the library one at a time, each of which the tests must notice.

    python scripts/mutants.py [--only TEXT] [--part 1/4]

A mutant is a line of mathematics, found by its text wherever it stands in ``src/``, with a sign, a factor or an axis
changed. The tests that should notice run until the first that fails; a mutant that none of them fails has survived.
The tree is changed in place and put back, also on Ctrl-C: run it in a checkout of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]

LIMIT = 900
"""Seconds after which tests are ended that a mutant keeps from ending."""


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Args:
        old: A text that stands once in ``src/``.
        new: What it becomes.
        tests: Folders or files under ``tests/`` that should notice, those that do first.
    """

    old: str
    new: str
    tests: tuple[str, ...]


def m(old: str, new: str, *tests: str) -> Mutant:
    """A mutant, shorter to write."""
    return Mutant(old, new, tests)


MUTANTS = (
    # likelihoods and priors
    m(
        "targets * torch.sigmoid(-outputs) - (1 - targets)",
        "targets * torch.sigmoid(-outputs) + (1 - targets)",
        "likelihoods/test_base.py",
    ),
    m(
        "torch.sigmoid(outputs) * torch.sigmoid(-outputs)",
        "torch.sigmoid(outputs)",
        "likelihoods",
    ),
    m(
        "torch.where(classes == index, _complement(probs), -probs)",
        "torch.where(classes == index, _complement(probs), probs)",
        "likelihoods",
    ),
    m(
        "(precision * (targets - outputs).square() + torch.log(2 * math.pi / precision))",
        "(precision * (targets - outputs).square() - torch.log(2 * math.pi / precision))",
        "likelihoods",
    ),
    m(
        "return self.weight**0.5 * self._root(outputs, targets)",
        "return self.weight * self._root(outputs, targets)",
        "laws/test_weight.py",
    ),
    m("0.5 * (precisions * residuals.square() - 1)", "0.5 * (precisions * residuals.square() + 1)", "likelihoods"),
    m("return targets - outputs.exp()", "return outputs.exp() - targets", "likelihoods"),
    m("means + noise * torch.exp(0.5 * log_variances)", "means + noise * torch.exp(log_variances)", "likelihoods"),
    m("(values[index] * relative).to(like)", "(values[index] / relative).to(like)", "priors/test_base.py"),
    m("constant.to(vector) - 0.5 * (diagonal.to(vector)", "constant.to(vector) - (diagonal.to(vector)", "priors"),
    m("return cls(weight_decay * n)", "return cls(weight_decay / n)", "priors"),
    # linalg
    m(
        "self.scale * product.reshape(block.shape) + self.shift * block",
        "self.scale * product.reshape(block.shape) - self.shift * block",
        "linalg/test_kronecker.py",
    ),
    m(
        "self._base_entries.log().sum() + m.log1p().sum()",
        "self._base_entries.log().sum() - m.log1p().sum()",
        "linalg/test_functions.py",
    ),
    m(
        "self._split_root(self._base_entries.sqrt(), 1 / (1 + (1 + m).sqrt()))",
        "self._split_root(self._base_entries.sqrt(), 1 / (2 + (1 + m).sqrt()))",
        "linalg/test_lowrank.py",
    ),
    m(
        "Estimate(exact + float(now.mean()), max(spread, rounding), samples)",
        "Estimate(exact - float(now.mean()), max(spread, rounding), samples)",
        "linalg/test_functions.py",
    ),
    m("float(now.std()) / samples**0.5", "float(now.std())", "linalg/test_functions.py"),
    m("LowRank(c**0.5 * self.factor", "LowRank(c * self.factor", "laws/test_linalg.py"),
    # the linear model
    m(
        "problem.scale**0.5 * self.data + problem.prior.root() @ self.prior",
        "problem.scale**0.5 * self.data - problem.prior.root() @ self.prior",
        "laws/test_perturbed_solves.py",
    ),
    m("problem.prior.root() @ self.prior", "problem.prior.inverse_root() @ self.prior", "linear/test_problem.py"),
    m(
        "self.log_joint(precisions, scale) - 0.5 * self.complexity",
        "self.log_joint(precisions, scale) - self.complexity",
        "tuning/test_evidence.py",
    ),
    m(
        "0.5 * scale * misfit + 0.5 * self.observations * scale.log()",
        "0.5 * scale * misfit - 0.5 * self.observations * scale.log()",
        "linear/test_evidence.py",
    ),
    m("2.0 * factor.diagonal().log().sum()", "factor.diagonal().log().sum()", "linear/test_evidence.py"),
    m("length = 2.0 * length if", "length = 0.5 * length if", "linear/solvers/test_newton.py"),
    m(
        "slope = line.slope(length) + pull + length * bend",
        "slope = line.slope(length) - pull + length * bend",
        "linear/solvers/test_newton.py",
    ),
    m("value = start if stopped is None else now.value", "value = now.value", "linear/solvers/test_sgd.py"),
    m(
        "largest, steps = max(largest, found), steps + 1",
        "largest, steps = found, steps + 1",
        "linear/solvers/test_sgd.py",
    ),
    m("-step * n / len(index)", "-step", "linear/solvers/test_dual.py"),
    m("1 - (1 - forget) ** SKIPPED", "forget", "linear/solvers/test_dual.py"),
    m("step = step / 2", "step = step / 1", "tuning/test_ascent.py"),
    m(
        "prior = (precisions[self.group] * self._relative).to(self.weights)",
        "prior = precisions[self.group].to(self.weights)",
        "tuning/test_evidence.py",
    ),
    m("rest = b - problem.precision @ start", "rest = b + problem.precision @ start", "linear/solvers/test_sgd.py"),
    m(
        "return FunctionOperator(lambda e: u @ e, lambda v: u.mT @ v",
        "return FunctionOperator(lambda e: u @ e, lambda v: -(u.mT @ v)",
        "linalg/test_lowrank.py",
    ),
    m("change = weights - model.weights if", "change = weights + model.weights if", "linear/test_gauss_newton.py"),
    m(
        "self.prior @ point.weights, self.scale * point.score",
        "self.prior @ point.weights, point.score",
        "linear/test_loss.py",
    ),
    m(
        '(root.mT @ cast("Tensor", chunk.inputs)).square()',
        '(root.mT @ cast("Tensor", chunk.inputs)).abs()',
        "laws/test_linear_models.py",
    ),
    # the network's derivatives, and sums over the data
    m(
        "return chunk.outputs + pushed if affine else pushed",
        "return chunk.outputs - pushed if affine else pushed",
        "linear/test_gauss_newton.py",
    ),
    m(
        "product = left @ self.columns.reshape(n * p, -1, t).mT",
        "product = 2 * left @ self.columns.reshape(n * p, -1, t).mT",
        "jacobian/layers/test_factors.py",
    ),
    m("out[:, inputs.numel() :] = 1.0", "out[:, inputs.numel() :] = 0.0", "jacobian/layers/test_factors.py"),
    m("k.mT / q.shape[-1] ** 0.5", "k.mT / q.shape[-1]", "jacobian/network/test_decompositions.py"),
    m("root = self.rows() * variance.sqrt()", "root = self.rows() * variance", "jacobian/layers/test_factors.py"),
    m(
        "self._right[names].decomposed, 1.0 / max(count, 1))",
        "self._right[names].decomposed)",
        "curvature/test_head.py",
    ),
    m("+= n * t\n", "+= n\n", "curvature/test_kfac.py"),
    m(
        "gain = sigma[:, None] / (tau[:, None] + sigma[:, None] * sizes)",
        "gain = sigma[:, None] / (tau[:, None] - sigma[:, None] * sizes)",
        "curvature/test_gram.py",
    ),
    m(
        "self._model.likelihood.weight * counted, misfit, score",
        "counted, misfit, score",
        "curvature/test_fold.py",
    ),
    m("variance[0] * gram.flatten(0, 1).flatten(1)", "gram.flatten(0, 1).flatten(1)", "curvature/test_gram.py"),
    # posteriors and predictions
    m(
        "return (operator.inverse_root() @ noise",
        "return (operator.root() @ noise",
        "posteriors/test_exact.py",
    ),
    m(
        "prior - seen @ seen.mT + factor @ factor.mT",
        "prior + seen @ seen.mT + factor @ factor.mT",
        "posteriors/test_nystrom.py",
    ),
    m(
        "b = self.problem.scale**0.5 * (self.problem.root @ noise)",
        "b = self.problem.root @ noise",
        "posteriors/test_solved.py",
    ),
    m("torch.maximum(self.probs, 1 - self.probs)", "self.probs", "predictive/test_distributions.py"),
    m(
        "return self.outputs.variance + self.noise",
        "return self.outputs.variance - self.noise",
        "predictive/test_distributions.py",
    ),
    m("quantile_of_normal(0.5 * (1 + level))", "quantile_of_normal(level)", "predictive/test_distributions.py"),
    m(
        "mean=by * self.mean, covariance=by**2 * self.covariance",
        "mean=by * self.mean, covariance=by * self.covariance",
        "predictive/test_predict.py",
    ),
    m(
        "exponents = moments.mean + 0.5 * moments.variance",
        "exponents = moments.mean + moments.variance",
        "predictive/test_predict.py",
    ),
    m(
        "some.covariance_rows(own).to(apart), alpha=math.pi / 4)",
        "some.covariance_rows(own).to(apart), alpha=math.pi / 8)",
        "predictive/test_links.py",
    ),
    m(
        "return moments.mean * torch.rsqrt(1 + math.pi / 8 * moments.variance)",
        "return moments.mean * torch.rsqrt(1 + moments.variance)",
        "predictive/test_links.py",
    ),
    m(
        "mass = mean + torch.logsumexp(-mean, -1, keepdim=True) - 2 * math.log(c)",
        "mass = mean + torch.logsumexp(-mean, -1, keepdim=True) - math.log(c)",
        "predictive/test_links.py",
    ),
    m(
        "reshape(size, size) + torch.diag(noise)",
        "reshape(size, size) + torch.diag(1 / noise)",
        "predictive/test_density.py",
    ),
    m(
        "float(torch.logsumexp(logs, 0)) - math.log(count)",
        "float(torch.logsumexp(logs, 0))",
        "predictive/test_density.py",
    ),
    # tuning
    m("alpha = (gamma / norms", "alpha = (2 * gamma / norms", "tuning/test_ascent.py"),
    m("((observations - total) / misfit", "((observations + total) / misfit", "tuning/test_ascent.py"),
    m("(observations / (misfit + total / scale))", "(observations / (misfit + total))", "tuning/test_ascent.py"),
    # methods
    m(
        "nll = share * self._hyper.nll(batch.outputs, batch.targets)",
        "nll = self._hyper.nll(batch.outputs, batch.targets)",
        "methods/marginal/test_log_det.py",
    ),
    m("loss = nll + 0.5 * norm", "loss = nll + norm", "methods/marginal/test_objective.py"),
    m(
        "total * (total - 1) / (n * (n - 1)) * (pairs - own)",
        "total * total / (n * n) * (pairs - own)",
        "methods/marginal/test_bound.py",
    ),
    m("torch.exp(-0.5 * self.log_precisions)", "torch.exp(-self.log_precisions)", "methods/marginal/test_bound.py"),
    m(
        "(scales - 1) * misfits - observations * scales.log()",
        "(scales - 1) * misfits + observations * scales.log()",
        "methods/marginal/test_bound.py",
    ),
    m("blocks = 0.5 * (outer + outer.mT)", "blocks = outer + outer.mT", "methods/hessian_free/test_probed.py"),
    m(
        "span = self.scales if self.minus is None else 2 * self.scales",
        "span = self.scales",
        "methods/hessian_free/test_converged.py",
    ),
    m(
        "self.value - t * self.stderr, self.value + t * self.stderr",
        "self.value - self.stderr, self.value + self.stderr",
        "methods/hessian_free/test_converged.py",
    ),
    m(
        "self.omega[:, place].to(weights)",
        "self.omega[:, : len(range(*place.indices(PIECE)))].to(weights)",
        "methods/hessian_free/test_responses.py",
    ),
    m(
        "torch.addmm(part, alpha[i], alpha[j].mT, beta=-alpha.shape[1])",
        "torch.addmm(part, alpha[i], alpha[j].mT, beta=alpha.shape[1])",
        "methods/gp/test_evidence.py",
    ),
    m("alpha[i] @ alpha[j].mT - drawn[i]", "alpha[i] @ alpha[j].mT + drawn[i]", "methods/gp/test_evidence.py"),
    m(
        "sizes + c * n * math.log(2 * math.pi)",
        "sizes + n * math.log(2 * math.pi)",
        "methods/gp/test_process.py",
    ),
    m(
        "self._quadratic_form(across) - (rest",
        "self._quadratic_form(across) + (rest",
        "methods/gp/test_process.py",
    ),
    m("across.mT @ solved + rest.mT @ slopes", "across.mT @ solved", "methods/gp/test_process.py"),
    m("*= group.noise.sqrt()[:, None]", "*= 0.0", "methods/gp/test_process.py"),
    m(
        "alpha.repeat(1, samples) + exact.to(alpha) - shift",
        "alpha.repeat(1, samples) + exact.to(alpha) + shift",
        "methods/gp/test_process.py",
    ),
    m("(1 if i == j else 2)", "1", "methods/gp/test_evidence.py"),
    m("total[j] += tile.mT @ block[i]", "total[j] += tile @ block[i]", "methods/gp/test_matrix.py"),
    m("torch.addcmul(r, r, r, value=LN2 / 3)", "torch.addcmul(r, r, r, value=LN2)", "methods/gp/test_kernels.py"),
    m("(diagonal * group.noise).double()", "diagonal.double()", "methods/gp/test_evidence.py"),
    # scores
    m(
        "gap = (self.accuracy - self.confidence).abs()",
        "gap = self.accuracy - self.confidence",
        "evaluation/metrics/test_calibration.py",
    ),
    m(
        "chance = found.accuracy * (1 - found.accuracy) / (found.count - 1)",
        "chance = found.accuracy * (1 - found.accuracy) / found.count",
        "evaluation/metrics/test_calibration.py",
    ),
    m(
        "return 0.5 * ((p - q) * (p.log() - q.log())).sum(-1)",
        "return ((p - q) * (p.log() - q.log())).sum(-1)",
        "evaluation/metrics/test_classification.py",
    ),
    m("(y - m).square() / (2 * v)", "(y - m).square() / v", "evaluation/metrics/test_regression.py"),
    m(
        "2 * density - 1 / math.sqrt(math.pi)",
        "2 * density + 1 / math.sqrt(math.pi)",
        "evaluation/metrics/test_regression.py",
    ),
    m(
        "below.double().mean() / (2 * low.numel())",
        "below.double().mean() / low.numel()",
        "evaluation/metrics/test_classification.py",
    ),
    m("- math.log(logs.shape[0])", "+ math.log(logs.shape[0])", "evaluation/metrics/test_joint.py"),
    m(
        "gap = first - second @ (left @ right)",
        "gap = first + second @ (left @ right)",
        "evaluation/metrics/test_regression.py",
    ),
)


@cache
def sources() -> dict[Path, str]:
    """The text of every file of ``src/``."""
    return {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.py"))}


def place(mutant: Mutant) -> Path | None:
    """The one file with the mutant's text; ``None`` where none has it, or it stands more than once."""
    found = [path for path, text in sources().items() if mutant.old in text]
    return found[0] if len(found) == 1 and sources()[found[0]].count(mutant.old) == 1 else None


def killer(mutant: Mutant, path: Path) -> str | None:
    """The first test to fail with the mutant in place of the line; ``None`` where all pass, or none can be run."""
    tests = [f"tests/{test}" for test in mutant.tests]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *tests]
    try:
        path.write_text(sources()[path].replace(mutant.old, mutant.new), encoding="utf-8")
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=LIMIT, text=True)
    except subprocess.TimeoutExpired:
        return "the limit of time"  # a loop that does not end is noticed too
    finally:
        path.write_text(sources()[path], encoding="utf-8")
    lines = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return lines[0] if done.returncode == 1 else None


def main() -> None:
    """Try every mutant; exit 1 if one is lost or survives."""
    parser = argparse.ArgumentParser(prog="python scripts/mutants.py", description=__doc__)
    parser.add_argument("--only", default="", help="mutants whose text has this in it")
    parser.add_argument("--part", default="1/1", help="the first quarter of them is 1/4")
    args = parser.parse_args()
    part, parts = map(int, args.part.split("/"))
    outcome = Counter[str]()
    for mutant in [mutant for mutant in MUTANTS if args.only in mutant.old][part - 1 :: parts]:
        path, start = place(mutant), time.perf_counter()
        test = path and killer(mutant, path)
        kind = "lost" if path is None else "survived" if test is None else "killed"
        outcome[kind] += 1
        seconds = time.perf_counter() - start
        print(f"{kind:8s} {seconds:4.0f} s {path and path.relative_to(ROOT)}: {mutant.old}: {test}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in outcome.items()))
    sys.exit(outcome["lost"] + outcome["survived"] > 0)


if __name__ == "__main__":
    main()
