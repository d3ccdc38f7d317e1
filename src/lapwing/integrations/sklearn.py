"""Networks and Gaussian processes as estimators of scikit-learn."""

from __future__ import annotations

import abc
import copy
import logging
import math
import time
from dataclasses import replace
from numbers import Number
from typing import Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Shaped
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin, clone
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_array, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from lapwing.gp.classification import LaplaceGPPosterior
from lapwing.gp.kernels import Kernel
from lapwing.gp.recipe import GP
from lapwing.gp.regression.posterior import SMALL, GPPosterior
from lapwing.gp.tuning.subsets import Subset
from lapwing.ground.errors import (
    ConfigError,
    ConvergenceWarning,
    DataError,
    NumericalError,
    ShapeError,
    UnsupportedError,
    check_count,
    check_positive,
    reason_of,
    warn,
)
from lapwing.ground.precision import wide
from lapwing.ground.progress import track
from lapwing.jacobian.network.network import like_of
from lapwing.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from lapwing.methods.laplace import Laplace
from lapwing.posteriors import Posterior
from lapwing.tuning import tune

logger = logging.getLogger(__name__)

SUBSET = Subset()
"""How hyper-parameters of many observations are looked for."""

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
"""Layers that take the mean of a batch."""

HIDDEN = 100
"""Hidden units of the network that is made where none is given."""

LEAST_NOISE = 1e-6
"""Least noise variance to start from, over the variance of the targets."""


def one_hidden_layer(inputs: int, outputs: int) -> nn.Module:
    """The network that is made where none is given: one layer of 100 hidden units, tanh.

    Args:
        inputs: Columns of the table.
        outputs: Targets, or classes.
    """
    return nn.Sequential(nn.Linear(inputs, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, outputs))


class TableEstimator(BaseEstimator, abc.ABC):
    """What all of them share: the rows of a table go in, standardised, and arrays come out."""

    _like: Tensor
    """One whose dtype and device inputs have."""

    def _standardised(
        self, inputs: Any, *, sample_weight: Any = None, standardise: bool = True, kernel: Any = None
    ) -> Any:
        """Training inputs in units of their columns' spread, by which later ones are scaled too.

        Args:
            inputs: ``[n, p]``.
            sample_weight: By which mean and spread are weighted.
            standardise: Whether they are scaled at all.
            kernel: Whose categories are left as they are; several, or none.
        """
        self._input_scale: Any = StandardScaler(with_mean=standardise, with_std=standardise)
        self._input_scale.set_output(transform="default")
        self._input_scale.fit(inputs, sample_weight=sample_weight)
        kernels = kernel if isinstance(kernel, tuple) else (kernel,)
        for each in kernels:
            if isinstance(each, Kernel):
                columns = list(each.categorical(inputs.shape[1]))
                self._input_scale.mean_[columns] = 0.0
                self._input_scale.scale_[columns] = 1.0
        return self._input_scale.transform(inputs)

    def _table(self, X: Any, *targets: Any, **options: Any) -> Any:
        """Inputs in float64, and targets, as scikit-learn checks them.

        Raises:
            DataError: If a column holds words.
        """
        try:
            return validate_data(self, X, *targets, dtype=np.float64, **options)
        except ValueError as error:
            if "could not convert" not in str(error):
                raise
            hint = "make_pipeline(sklearn.compose.ColumnTransformer(...) with an OneHotEncoder of that column, ...)"
            raise DataError("a table of numbers", f"a column that is none: {error}", hint) from error

    def _inputs(self, X: Any) -> Float[Tensor, "m p"]:
        """New inputs, as the posterior knows them."""
        check_is_fitted(self)
        checked = self._table(X, reset=False)
        return torch.tensor(self._input_scale.transform(checked)).to(self._like)


class TableClassifier(ClassifierMixin, TableEstimator):
    """What the classifiers share: labels of any type, numbered from 0 within."""

    def _coded(self, labels: Any, classes: Any = None) -> Any:
        """Labels as numbers of ``classes_``.

        Args:
            labels: ``[n]``.
            classes: All that there are, in order; ``None`` for those of the labels, sorted.

        Raises:
            DataError: If there is only one class, or one that is not among ``classes``.
        """
        check_classification_targets(labels)
        found, codes = np.unique(labels, return_inverse=True)
        self.classes_ = found if classes is None else np.asarray(classes)
        if len(self.classes_) < 2:
            came = f"one class, {self.classes_[0]}"
            raise DataError("labels of two classes or more", came, "training data with another class")
        if classes is None:
            return codes
        places = {label: place for place, label in enumerate(self.classes_.tolist())}
        unknown = [label for label in found.tolist() if label not in places]
        if unknown or len(places) < len(self.classes_):
            expected = f"different classes, among them those of the labels, {found.tolist()}"
            raise DataError(expected, f"classes={self.classes_.tolist()}", "classes= in the order of the outputs")
        return np.array([places[label] for label in found.tolist()])[codes]

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes, the uncertainty of the function averaged out, ``[m, c]``.

        Args:
            X: Inputs ``[m, p]``.
        """
        return self._probabilities(X)

    def predict(self, X: Any) -> Any:
        """The most probable class of each input, ``[m]``.

        Args:
            X: Inputs ``[m, p]``.
        """
        best = self._probabilities(X).argmax(1)
        return self.classes_[best]

    @abc.abstractmethod
    def _probabilities(self, X: Any) -> Any:
        """See ``predict_proba``."""


class TableRegressor(MultiOutputMixin, RegressorMixin, TableEstimator):
    """What the regressors share: targets are standardised, and predictions are in their units."""

    def _standardised_targets(self, y: Any, *, sample_weight: Any = None, standardise: bool = True) -> Any:
        """Training targets ``[n, c]`` in units of their spread."""
        self._flat = y.ndim == 1
        self._target_scale: Any = StandardScaler(with_mean=standardise, with_std=standardise)
        self._target_scale.set_output(transform="default")
        targets = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        return self._target_scale.fit_transform(targets, sample_weight=sample_weight)

    def _answered(self, posterior: Any, x: Tensor, return_std: bool, return_cov: bool) -> Any:
        """Means, and with them standard deviations or covariances; noise included."""
        if return_std and return_cov:
            raise ConfigError("one of return_std and return_cov", "both", "np.sqrt of the diagonal of the covariance")
        prediction: Any = posterior.predict(x, joint=return_cov)
        mean = self._back(prediction.mean)
        if return_std:
            return mean, self._in_units(wide(prediction.std).cpu().numpy())
        if not return_cov:
            return mean
        each = wide(prediction.covariance).diagonal(dim1=1, dim2=3)  # those of one output, between inputs
        return mean, self._in_units(each.cpu().numpy(), power=2)

    def _back(self, values: Float[Tensor, "m c"]) -> Any:
        """Means in the units of the targets."""
        back = self._target_scale.inverse_transform(wide(values).cpu().numpy())
        return back[:, 0] if self._flat else back

    def _in_units(self, spreads: Any, power: int = 1) -> Any:
        """Spreads of standardised targets ``[..., c]``, or their squares, in the units of the targets."""
        scale = self._target_scale.scale_
        back = spreads if scale is None else spreads * scale**power
        return back[..., 0] if self._flat else back


class LaplaceEstimator(TableEstimator):
    """What the estimators around a network share.

    Args:
        module: A factory of networks, called with the numbers of inputs and outputs; an ``nn.Module``, of which a copy
            is trained; or a net of skorch, which trains itself. ``None`` for a layer of 100 hidden units.
        prefit: Whether the module, or the module of the net, is trained already, on these very data: it is taken as it
            is, and neither inputs nor targets are standardised. ``clone`` keeps a module; a net it keeps in
            ``sklearn.frozen.FrozenEstimator``.
        structure: As for ``Laplace``; ``None`` for ``Auto()``.
        weights: Which are uncertain, as for ``Laplace``; ``None`` for all.
        prior: As for ``Laplace``; ``None`` for ``Isotropic()``.
        tune: Whether prior precision and noise are chosen from the training data, or by which method of ``lw.tune``.
        epochs: Passes over the data, by AdamW, whose rate falls to zero along a cosine. Nothing here is stopped early.
        batch_size: Most examples of a step, in random order.
        rate: Learning rate at first.
        weight_decay: Of AdamW.
        standardise: Whether the network has inputs, and targets that are numbers, in units of their spread.
        dtype: Of a network that a factory makes; ``None`` for ``torch.float64``, in which a prediction does not depend
            on the rows beside it. A module keeps its own.
        random_state: Of the first weights, the order of the data, and dropout.
        progress: Whether to show bars; ``None`` for after two seconds, in a terminal or notebook.
    """

    posterior_: Posterior

    _target: ClassVar[str]
    """What an output is of."""

    _other_outputs: ClassVar[str]
    """What to try where there are more or fewer."""

    def __init__(
        self,
        module: Any = None,
        *,
        prefit: Any = False,
        structure: Any = None,
        weights: Any = None,
        prior: Any = None,
        tune: Any = True,
        epochs: Any = 200,
        batch_size: Any = 64,
        rate: Any = 1e-2,
        weight_decay: Any = 1e-2,
        standardise: Any = True,
        dtype: Any = None,
        random_state: Any = 0,
        progress: Any = None,
    ) -> None:
        self.module = module
        self.prefit = prefit
        self.structure = structure
        self.weights = weights
        self.prior = prior
        self.tune = tune
        self.epochs = epochs
        self.batch_size = batch_size
        self.rate = rate
        self.weight_decay = weight_decay
        self.standardise = standardise
        self.dtype = dtype
        self.random_state = random_state
        self.progress = progress

    def _network(self, inputs: Any, targets: Any, likelihood: Likelihood, outputs: int) -> nn.Module:
        """The network, trained."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            if isinstance(self.module, BaseEstimator):
                return self._module_of_net(inputs, targets, outputs)
            network = self._untrained(inputs.shape[1], outputs)
            self._check_outputs(network, inputs, outputs)
            if not self.prefit:
                x = torch.tensor(inputs).to(_like_of(network))
                y = torch.tensor(targets, device=x.device)
                self._train(network, x, y if y.dtype == torch.long else y.to(x), likelihood)
            return network

    def _untrained(self, inputs: int, outputs: int) -> nn.Module:
        """The network that is to be trained, or was."""
        module = one_hidden_layer if self.module is None else self.module
        if isinstance(module, nn.Module):
            return module if self.prefit else copy.deepcopy(module)
        if self.prefit or not callable(module):
            hint = "module=the network with prefit=True, or module=lambda inputs, outputs: nn.Linear(inputs, outputs)"
            came = f"module={module!r:.60}, prefit={self.prefit}"
            raise ConfigError("a trained nn.Module, or a factory of untrained ones", came, hint)
        made: Any = module(inputs, outputs)
        return made.to(self.dtype or torch.float64)

    def _check_outputs(self, network: nn.Module, inputs: Any, outputs: int) -> None:
        """Refuses a network that has not one output a target, or a class.

        Raises:
            ShapeError: If there are more or fewer, or it does not take these inputs.
        """
        like = _like_of(network)
        with torch.random.fork_rng(), torch.no_grad():
            try:
                made: Any = copy.deepcopy(network).eval()(torch.tensor(inputs[:2]).to(like))
            except RuntimeError as error:
                expected = f"a module that takes rows of {inputs.shape[1]} numbers in {like.dtype}"
                hint = "a factory of modules, which is told the numbers of inputs and outputs"
                raise ShapeError(expected, reason_of(error), hint) from error
        if made.ndim != 2 or made.shape[1] != outputs:
            expected = f"outputs [{len(made)}, {outputs}], one a {self._target}"
            raise ShapeError(expected, f"{list(made.shape)}", self._other_outputs)

    def _module_of_net(self, inputs: Any, targets: Any, outputs: int) -> nn.Module:
        """The module of a net of skorch, which trains itself."""
        net: Any = self.module
        single = inputs.astype(np.float32)
        if not self.prefit:
            with torch.random.fork_rng():
                untrained: Any = clone(net)
                self._check_outputs(untrained.initialize().module_, single, outputs)
            numbers = targets.astype(np.float32) if targets.dtype.kind == "f" else targets.astype(np.int64)
            untrained = clone(net)
            net = untrained.fit(single, numbers)
        check_is_fitted(net)
        if isinstance(net.criterion_, nn.NLLLoss):
            raise UnsupportedError(
                "a net whose module returns logits",
                "one with the criterion NLLLoss, whose module returns probabilities",
                "NeuralNetClassifier(module, criterion=torch.nn.CrossEntropyLoss) with a module without a softmax",
            )
        self._check_outputs(net.module_, single, outputs)
        return net.module_

    def _train(
        self, network: nn.Module, x: Float[Tensor, "n p"], y: Shaped[Tensor, "n *c"], likelihood: Likelihood
    ) -> None:
        """AdamW on the mean loss of batches in random order.

        Raises:
            ConfigError: If an option makes no sense, or a batch norm would see single examples.
            NumericalError: If the loss is not finite.
        """
        check_count("epochs", self.epochs)
        check_count("batch_size", self.batch_size)
        check_positive("rate", self.rate, "1e-2")
        if not self.weight_decay >= 0:
            raise ConfigError("weight_decay of 0 or more", f"{self.weight_decay!r}", "weight_decay=1e-2")
        optimiser = torch.optim.AdamW(network.parameters(), self.rate, weight_decay=self.weight_decay)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.epochs)
        batches = math.ceil(len(x) / self.batch_size)
        smallest = len(torch.arange(len(x)).chunk(batches)[-1])
        if smallest == 1 and any(isinstance(part, BATCH_NORMS) for part in network.modules()):
            hint = "another batch_size=, or nn.LayerNorm"
            came = f"batch_size={self.batch_size} of {len(x)} examples, which leaves one alone"
            raise ConfigError("batches of two examples or more, for a batch norm", came, hint)
        network.train()
        for _ in track(range(self.epochs), "training", unit="epochs", progress=self._progress()):
            for index in torch.randperm(len(x)).chunk(batches):
                optimiser.zero_grad()
                loss = likelihood.nll(network(x[index]), y[index]).mean()
                if not bool(loss.isfinite()):
                    hint = "a smaller rate=, or standardise=True"
                    raise NumericalError("a network that trains", f"a loss of {float(loss.detach())}", hint)
                loss.backward()
                optimiser.step()
            schedule.step()
        network.eval()

    def _approximated(
        self, network: nn.Module, x: Float[Tensor, "n p"], y: Shaped[Tensor, "n *c"], likelihood: Likelihood
    ) -> None:
        """Its posterior, and what of it is to be chosen chosen."""
        choices = {"structure": self.structure, "weights": self.weights, "prior": self.prior}
        recipe: Any = Laplace(likelihood, **{name: choice for name, choice in choices.items() if choice is not None})
        posterior = recipe.fit(network, (x, y), progress=self._progress())
        if not isinstance(self.tune, bool | np.bool_):
            posterior = tune(posterior, self.tune, progress=self._progress())
        elif self.tune and len(x) > 1:
            posterior = tune(posterior, progress=self._progress())
        self.posterior_ = posterior

    def _progress(self) -> bool | None:
        """As lapwing takes it."""
        return None if self.progress is None else bool(self.progress)


@final
class LaplaceClassifier(TableClassifier, LaplaceEstimator):
    """A network that classifies the rows of a table, with Laplace's approximation of it.

    The network is trained, approximated, and tuned from its training data, see ``lw.tune``; ``posterior_`` predicts
    from standardised inputs. Other arguments as for ``LaplaceEstimator``.

    Args:
        classes: All classes, in the order of the outputs; ``None`` for those of the data, sorted. A network that is
            trained already needs them where the data lack a class.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(60, 2))
        >>> classifier = LaplaceClassifier(epochs=50).fit(x, np.where(x[:, 0] > 0, "right", "left"))
        >>> classifier.predict([[2.0, 0.0], [-2.0, 0.0]]).tolist()
        ['right', 'left']
        >>> classifier.predict_proba([[2.0, 0.0]]).shape
        (1, 2)
    """

    _target = "class"
    _other_outputs = "classes=, all classes in the order of the outputs, or a module with as many outputs as classes"

    def __init__(
        self,
        module: Any = None,
        *,
        classes: Any = None,
        prefit: Any = False,
        structure: Any = None,
        weights: Any = None,
        prior: Any = None,
        tune: Any = True,
        epochs: Any = 200,
        batch_size: Any = 64,
        rate: Any = 1e-2,
        weight_decay: Any = 1e-2,
        standardise: Any = True,
        dtype: Any = None,
        random_state: Any = 0,
        progress: Any = None,
    ) -> None:
        super().__init__(
            module,
            prefit=prefit,
            structure=structure,
            weights=weights,
            prior=prior,
            tune=tune,
            epochs=epochs,
            batch_size=batch_size,
            rate=rate,
            weight_decay=weight_decay,
            standardise=standardise,
            dtype=dtype,
            random_state=random_state,
            progress=progress,
        )
        self.classes = classes

    def fit(self, X: Any, y: Any, **unused: Any) -> LaplaceClassifier:
        """Train, approximate, tune. Examples have no weights: a step of AdamW on one of weight 2 is not one on two.

        Args:
            X: Inputs ``[n, p]``.
            y: Labels ``[n]``.
            **unused: Refused, as ``sample_weight``.

        Raises:
            DataError: If there are columns of words, one class, or labels that are not among ``classes``.
            ShapeError: If the network has not one output a class.
            UnsupportedError: If there are weights.
        """
        refuse_weights(unused, self)
        inputs, labels = self._table(X, y)
        codes = self._coded(labels, self.classes)
        x = self._standardised(inputs, standardise=self.standardise and not self.prefit)
        network = self._network(x, codes, Categorical(), len(self.classes_))
        self._like = _like_of(network)
        self._approximated(network, torch.tensor(x).to(self._like), torch.as_tensor(codes), Categorical())
        return self

    def _probabilities(self, X: Any) -> Any:
        x = self._inputs(X)
        prediction: Any = self.posterior_.predict(x, epistemic=False)
        return wide(prediction.probs).cpu().numpy()


@final
class LaplaceRegressor(TableRegressor, LaplaceEstimator):
    """A network that fits the rows of a table, with Laplace's approximation of it and learnt noise.

    The noise, one an output, starts at what the network leaves of the targets and is tuned with the prior precision;
    ``posterior_`` predicts standardised targets from standardised inputs. Arguments as for ``LaplaceEstimator``.

    Example:
        >>> x = np.linspace(0, 6, 40)[:, None]
        >>> regressor = LaplaceRegressor().fit(x, np.sin(x[:, 0]))
        >>> mean, std = regressor.predict(np.array([[3.0]]), return_std=True)
        >>> bool(abs(mean[0] - 0.1411) < 0.05)
        True
    """

    _target = "target"
    _other_outputs = "a module with as many outputs as there are targets"

    def fit(self, X: Any, y: Any, **unused: Any) -> LaplaceRegressor:
        """Train, approximate, tune. Examples have no weights: a step of AdamW on one of weight 2 is not one on two.

        Args:
            X: Inputs ``[n, p]``.
            y: Targets ``[n]`` or ``[n, c]``.
            **unused: Refused, as ``sample_weight``.

        Raises:
            DataError: If there are columns of words.
            ShapeError: If the network has not one output a target.
            UnsupportedError: If there are weights.
        """
        refuse_weights(unused, self)
        inputs, y = self._table(X, y, multi_output=True, y_numeric=True)
        standardise = self.standardise and not self.prefit
        x = self._standardised(inputs, standardise=standardise)
        scaled = self._standardised_targets(y, standardise=standardise)
        network = self._network(x, scaled, Gaussian(), scaled.shape[1])
        self._like = _like_of(network)
        made = torch.tensor(x).to(self._like)
        targets = torch.tensor(scaled).to(self._like)
        noise = Gaussian(precisions_by_residuals(network, made, targets))
        self._approximated(network, made, targets, noise)
        return self

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """Means, and with them what is not known of the targets, noise included.

        Args:
            X: Inputs ``[m, p]``.
            return_std: Whether to return standard deviations too.
            return_cov: Whether to return covariances between the inputs too, ``[m, m]``, or ``[m, m, c]`` of c outputs.

        Raises:
            ConfigError: If both are asked for.
        """
        x = self._inputs(X)
        return self._answered(self.posterior_, x, return_std, return_cov)


@final
class GPRegressor(TableRegressor):
    """Gaussian process regression with a Matérn 3/2 kernel, one length-scale a dimension, and learnt noise.

    Inputs, but for the categories of ``Hamming``, and targets are standardised, hyper-parameters start where a function
    varies once over the data, and are chosen by the evidence: of all observations up to 2,000, else by ``Subset``; each
    output has a noise of its own.
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GPRegressor:
        """Standardise, choose hyper-parameters, and solve.

        Args:
            X: Inputs ``[n, p]``.
            y: Targets ``[n]`` or ``[n, c]``.
            sample_weight: How many times as precise as an observation of weight 1 each is, ``[n]``: its noise has the
                variance of that over the weight, as the mean of so many observations. Those of weight 0 are left out.
                Predictions have the noise of weight 1.
        """
        started = time.perf_counter()
        if self.seconds is not None:
            check_positive("seconds", self.seconds, "600.0")
        inputs, y = self._table(X, y, multi_output=True, y_numeric=True)
        weights = None
        if sample_weight is not None:
            weights = weights_of(sample_weight, len(inputs))
            inputs, y, weights = (values[weights > 0] for values in (inputs, y, weights))
        self._like = torch.empty(0, dtype=self.dtype or torch.float64)
        x = torch.as_tensor(self._standardised(inputs, sample_weight=weights, kernel=self.kernel)).to(self._like)
        targets = torch.as_tensor(self._standardised_targets(y, sample_weight=weights)).to(self._like)
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
        noise = None if weights is None else torch.as_tensor(1.0 / weights).to(self._like)
        posterior: Any = recipe.fit((x, targets), relative_noise=noise)
        if self.tune and len(x) > 1:
            posterior = self._tuned(posterior, progress)
        self.posterior_: GPPosterior = self._solved(posterior, started)
        return self

    def _tuned(
        self, posterior: GPPosterior, progress: bool | None, most: int = SMALL, part: Subset = SUBSET
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

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """Means, and with them what is not known of the targets, noise included.

        Args:
            X: Inputs ``[m, p]``.
            return_std: Whether to return standard deviations too.
            return_cov: Whether to return covariances between the inputs too, ``[m, m]``, or ``[m, m, c]`` of c outputs.

        Raises:
            ConfigError: If both are asked for.
        """
        x = self._inputs(X)
        if return_std or return_cov:
            return self._answered(self.posterior_, x, return_std, return_cov)
        with torch.no_grad():
            return self._back(self.posterior_.mean(x))

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


@final
class GPClassifier(TableClassifier):
    """Gaussian process classification with a Matérn 3/2 kernel, one length-scale a dimension, by Laplace's method.

    Inputs are standardised, but for the categories of ``Hamming``, hyper-parameters start where a function varies once
    over the data, and are chosen by the evidence. Two classes are one function; more are one each. ``posterior_`` is
    the process of standardised inputs.

    Args:
        kernel: A kernel for standardised inputs; ``None`` for the Matérn.
        tune: Whether hyper-parameters are chosen, or how: ``gp.Evidence()``, ``gp.Subset(size=500)``.
        progress: Whether steps show a bar; ``None`` for after two seconds, in a terminal or notebook.

    Example:
        >>> x = np.linspace(-3, 3, 30)[:, None]
        >>> classifier = GPClassifier().fit(x, np.where(np.abs(x[:, 0]) < 1, "near", "far"))
        >>> classifier.predict([[0.0], [2.5]]).tolist()
        ['near', 'far']
    """

    posterior_: LaplaceGPPosterior

    def __init__(self, kernel: Any = None, *, tune: Any = True, progress: Any = None) -> None:
        self.kernel = kernel
        self.tune = tune
        self.progress = progress

    def fit(self, X: Any, y: Any, **unused: Any) -> GPClassifier:
        """Standardise, choose hyper-parameters, and find the mode. Labels have no weights.

        Args:
            X: Inputs ``[n, p]``.
            y: Labels ``[n]``.
            **unused: Refused, as ``sample_weight``.

        Raises:
            DataError: If there are columns of words, or one class.
            UnsupportedError: If there are weights.
        """
        refuse_weights(unused, self)
        inputs, labels = self._table(X, y)
        codes = torch.as_tensor(self._coded(labels))
        self._like = torch.empty(0, dtype=torch.float64)
        x = torch.as_tensor(self._standardised(inputs, kernel=self.kernel)).to(self._like)
        likelihood = Categorical() if len(self.classes_) > 2 else Bernoulli()
        progress = None if self.progress is None else bool(self.progress)
        posterior: Any = GP(self.kernel, likelihood).fit((x, codes))
        if not isinstance(self.tune, bool | np.bool_):
            posterior = tune(posterior, self.tune, progress=progress)
        elif self.tune:
            posterior = tune(posterior, progress=progress)
        self.posterior_ = posterior
        _ = self.posterior_.mode
        return self

    def _probabilities(self, X: Any) -> Any:
        x = self._inputs(X)
        prediction: Any = self.posterior_.predict(x)
        probs = prediction.probs.numpy()
        return probs if len(self.classes_) > 2 else np.concatenate([1.0 - probs, probs], 1)


def weights_of(sample_weight: Any, rows: int) -> Any:
    """Weights of the rows of a table, float64.

    Args:
        sample_weight: ``[n]``, or one number for all.
        rows: n.

    Raises:
        DataError: If one is negative, or all are zero.
        ShapeError: If there are not as many.
    """
    each = np.full(rows, sample_weight) if isinstance(sample_weight, Number) else sample_weight
    double: Any = np.float64
    weights: Any = check_array(each, dtype=double, ensure_2d=False, input_name="sample_weight")
    if weights.shape != (rows,):
        raise ShapeError(f"sample_weight of shape [{rows}], one a row", f"{list(weights.shape)}", "np.ones(len(X))")
    if bool((weights < 0).any()) or not bool((weights > 0).any()):
        came = f"numbers from {weights.min():g} to {weights.max():g}"
        raise DataError("sample_weight of zero or more, not all zero", came, "np.ones(len(X))")
    return weights


def refuse_weights(unused: dict[str, Any], estimator: BaseEstimator) -> None:
    """Refuses what ``fit`` does not take.

    Raises:
        UnsupportedError: Naming it.
    """
    given = ", ".join(f"{name}=" for name, value in unused.items() if value is not None)
    if given:
        hint = "GPRegressor, which takes sample_weight=, or rows repeated as often as they weigh"
        raise UnsupportedError(f"{type(estimator).__name__}.fit(X, y), without weights", given, hint)


def precisions_by_residuals(
    network: nn.Module, x: Float[Tensor, "n p"], targets: Float[Tensor, "n c"]
) -> float | tuple[float, ...]:
    """Noise precisions to tune from, one an output: what the network leaves of the targets.

    Args:
        network: The network, trained.
        x: Training inputs.
        targets: Training targets.
    """
    with torch.no_grad():
        residuals = wide(targets) - wide(copy.deepcopy(network).eval()(x))
    found = 1.0 / residuals.square().mean(0).clamp_min(LEAST_NOISE)
    return float(found) if len(found) == 1 else tuple(found.tolist())


def _like_of(network: nn.Module) -> Tensor:
    """A tensor whose dtype and device its inputs have."""
    like = like_of(network)
    return torch.empty(0) if like is None else like[:0]
