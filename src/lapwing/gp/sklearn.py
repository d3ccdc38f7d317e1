"""A Gaussian process as a scikit-learn regressor, which chooses its hyper-parameters itself."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from lapwing.gp.recipe import GP
from lapwing.gp.regression.posterior import SMALL, GPPosterior
from lapwing.gp.tuning.subsets import Subset
from lapwing.ground.errors import ConvergenceWarning, check_positive, warn
from lapwing.ground.precision import wide
from lapwing.tuning import tune

logger = logging.getLogger(__name__)

PART = Subset()
"""How hyper-parameters of many observations are looked for."""


class GPRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Gaussian process regression with a Matérn 3/2 kernel, one length-scale a dimension, and learnt noise.

    Inputs and targets are standardised, hyper-parameters start where a function varies once over the data, and are
    chosen by the evidence: of all observations up to 2,000, else by ``Subset``; each output has a noise of its own.
    Predictions are in the units of the targets, the noise included; ``posterior_`` is the process of standardised
    inputs and targets.

    Args:
        kernel: A kernel for standardised inputs and targets, or a tuple of one an output; ``None`` for the Matérn.
        mean: ``"zero"``, ``"constant"`` or ``"linear"``.
        solver: As for ``GP``.
        tune: Whether hyper-parameters are chosen, or how, such as ``gp.Subset(size=8000)``.
        samples: Functions from which variances are read where the solver is not exact.
        dtype: ``torch.float32`` for data and solves in single precision, which take half of the memory and resolve no
            noise much below a thousandth of the targets' standard deviation; ``None`` for float64.
        seconds: What ``fit`` may take where it would take longer; ``None`` for any time. The default search of hyper-
            parameters has half of it, in which it takes fewer steps, and iterative solves the rest, which end there and
            warn how far they are. What is exact, for up to 16,384 distinct inputs, is never cut short.
        random_state: Of everything random.
        progress: Whether steps and solves show a bar; ``None`` for after two seconds, in a terminal or notebook.

    Warns:
        ConvergenceWarning: If the seconds were too few.

    Example:
        >>> x = np.linspace(0, 6, 40)[:, None]
        >>> regressor = GPRegressor().fit(x, np.sin(x[:, 0]))
        >>> mean, std = regressor.predict(np.array([[3.0]]), return_std=True)
        >>> bool(abs(mean[0] - 0.1411) < 0.01)
        True
    """

    def __init__(
        self,
        kernel: Any = None,
        *,
        mean: Any = "constant",
        solver: Any = "auto",
        tune: Any = True,
        samples: Any = 64,
        dtype: Any = None,
        seconds: Any = 600.0,
        random_state: Any = 0,
        progress: Any = None,
    ) -> None:
        self.kernel = kernel
        self.mean = mean
        self.solver = solver
        self.tune = tune
        self.samples = samples
        self.dtype = dtype
        self.seconds = seconds
        self.random_state = random_state
        self.progress = progress

    def fit(self, X: Any, y: Any) -> GPRegressor:
        """Standardise, choose hyper-parameters, and solve.

        Args:
            X: Inputs ``[n, p]``.
            y: Targets ``[n]`` or ``[n, c]``.
        """
        inputs: Any
        started = time.perf_counter()
        if self.seconds is not None:
            check_positive("seconds", self.seconds, "600.0")
        inputs, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        self._flat = y.ndim == 1
        self._input_scale: Any = StandardScaler().set_output(transform="default")
        self._target_scale: Any = StandardScaler().set_output(transform="default")
        dtype = self.dtype or torch.float64
        x = torch.as_tensor(self._input_scale.fit_transform(inputs)).to(dtype)
        y = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        targets = torch.as_tensor(self._target_scale.fit_transform(y)).to(dtype)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        progress = None if self.progress is None else bool(self.progress)
        recipe = GP(
            self.kernel,
            mean=self.mean,
            solver=self.solver,
            samples=self.samples,
            dtype=self.dtype,
            progress=progress,
            seed=seed,
        )
        posterior: Any = recipe.fit((x, targets))
        if self.tune and len(x) > 1:
            posterior = self._tuned(posterior, progress)
        self.posterior_: GPPosterior = self._solved(posterior, started)
        return self

    def _tuned(
        self, posterior: GPPosterior, progress: bool | None, most: int = SMALL, part: Subset = PART
    ) -> GPPosterior:
        """With hyper-parameters chosen; the default search of a part takes the steps that half of the seconds allow.

        Args:
            posterior: With those it starts from.
            progress: See ``GPRegressor``.
            most: Distinct inputs that are taken all.
            part: The search of more, without its end.
        """
        method = None if isinstance(self.tune, bool | np.bool_) else self.tune
        if method is not None or self.seconds is None or len(posterior.distinct) <= most:
            return tune(posterior, method, progress=progress)
        started = time.perf_counter()
        first: GPPosterior = replace(part, steps=1).tune(posterior, progress)
        step = time.perf_counter() - started
        more = max(0, min(part.steps, int((self.seconds / 2 - step) / step)))
        logger.info("a step of the search takes %.1f s: %.0f s more at most", step, step * more)
        found: GPPosterior = replace(part, steps=more).tune(first, progress) if more else first
        if not more or (more < part.steps and len(found.trace) - len(first.trace) > more):
            warn(
                f"hyper-parameters may not be the best: half of seconds={self.seconds:g} allowed {1 + more} of "
                f"{part.steps} steps of the search, {step:.2g} s each. Try more seconds=, or "
                f"tune=gp.Subset(size={part.size // 2})",
                ConvergenceWarning,
            )
        return found

    def _solved(self, posterior: GPPosterior, started: float) -> GPPosterior:
        """With its solves made, in what is left of the seconds where they are iterative."""
        if self.seconds is not None and self.solver == "auto":
            left = max(1.0, self.seconds - (time.perf_counter() - started))
            limited = posterior.solver.within(left)
            if limited is not posterior.solver:
                posterior = posterior.with_solver(limited)
                logger.info("solves for %d inputs take %.0f s at most", len(posterior.distinct), left)
        posterior.predict(posterior.data.inputs[:1])
        return posterior

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Means, and with ``return_std`` the standard deviations of targets, noise included.

        Args:
            X: Inputs ``[m, p]``.
            return_std: Whether to return them too.
        """
        x = self._inputs(X)
        if not return_std:
            with torch.no_grad():
                return self._back(self.posterior_.mean(x))
        prediction: Any = self.posterior_.predict(x)
        return self._back(prediction.mean), self._back(prediction.std, spread=True)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Any:
        """Functions drawn from the posterior, ``[m, n_samples]`` or ``[m, c, n_samples]``; without noise.

        Args:
            X: Inputs ``[m, p]``.
            n_samples: How many.
            random_state: Of the draws.
        """
        x = self._inputs(X)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        with torch.no_grad():
            values = self.posterior_.sample_functions(x, n_samples, generator=seed)
        return np.stack([self._back(value) for value in values], -1)

    def _inputs(self, X: Any) -> Tensor:
        """As the posterior knows them."""
        check_is_fitted(self)
        checked: Any = validate_data(self, X, dtype=np.float64, reset=False)
        return torch.as_tensor(self._input_scale.transform(checked)).to(self.posterior_.data.inputs)

    def _back(self, values: Tensor, spread: bool = False) -> Any:
        """In the units of the targets."""
        scaled = wide(values).numpy()
        scaler = self._target_scale
        back = scaled * scaler.scale_ if spread else scaler.inverse_transform(scaled)
        return back[:, 0] if self._flat else back
