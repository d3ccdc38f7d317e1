"""Networks that a trainer has wrapped or prepared are what they were before, or are refused."""

from __future__ import annotations

import time
from threading import Event, Thread
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch._dynamo import eval_frame
from torch.utils.checkpoint import checkpoint

import lapwing as lw
from lapwing.ground.errors import DataError, UnsupportedError
from lapwing.jacobian.network.serving import serving
from tests.curvature.unchanged import unchanged
from tests.posterior_cases import labels, normal, refused, seeded

X, Y = normal(12, 3).float(), labels(12, classes=3)


class Body(nn.Module):
    """A frozen body with an adapter beside its first layer, and a head."""

    def __init__(self, dropout: float = 0.0, again: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(4, 3)
        self.adapter, self.dropout, self.again = nn.Linear(3, 5, bias=False), nn.Dropout(dropout), again

    def middle(self, x: Tensor) -> Tensor:
        return torch.tanh(self.second(self.dropout(x)))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x) + self.adapter(x))
        return self.head(checkpoint(self.middle, x, use_reentrant=False) if self.again else self.middle(x))  # type: ignore[arg-type]


def found(model: nn.Module, structure: Any = None, weights: Any = None) -> Tensor:
    """Variances of the logits."""
    recipe = lw.Laplace(lw.Categorical(), structure=structure or lw.KFAC(), weights=weights or lw.All())
    return recipe.fit(model, (X, Y)).predict(X[:2]).logits.variance


def compiled(model: Body) -> nn.Module:
    model.compile(backend="aot_eager")
    return model


def parts_compiled(model: Body) -> nn.Module:
    model.second = torch.compile(model.second, backend="aot_eager")  # type: ignore[assignment]
    return model


def wrapped(model: Body) -> nn.Module:
    return torch.compile(nn.DataParallel(model))  # type: ignore[return-value]


def prepared(model: Body) -> nn.Module:
    AcceleratorState._reset_state(reset_partial_state=True)  # which other tests may have made, for a process is one
    return Accelerator(cpu=True, mixed_precision="bf16").prepare(model)


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
@pytest.mark.parametrize("structure", [lw.KFAC(), lw.MatrixFree()], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("wrap", [compiled, parts_compiled, prepared, wrapped])
@pytest.mark.no_cover
def test_variances_are_those_of_the_network_within(wrap: Any, structure: Any) -> None:
    model = wrap(seeded(Body).float())
    calls = [getattr(part, name, None) for part in model.modules() for name in ("_compiled_call_impl", "forward")]
    with unchanged(model):
        variance = found(model, structure)
    assert torch.equal(variance, found(seeded(Body).float(), structure))
    assert calls == [
        getattr(part, name, None) for part in model.modules() for name in ("_compiled_call_impl", "forward")
    ]


def test_threads_that_take_turns_leave_the_compiler_as_it_was() -> None:
    """One that waits for its turn has not told the compiler yet, or it would restore what the other had told it."""
    inside, model = Event(), nn.Linear(2, 2)

    def first() -> None:
        with serving(model):
            inside.set()
            time.sleep(0.2)  # the second comes to wait

    other = Thread(target=first)
    other.start()
    assert inside.wait(10)
    with serving(model):
        assert eval_frame._stance.stance == "force_eager"
    other.join()
    assert eval_frame._stance.stance == "default"


@pytest.mark.parametrize("structure", [lw.KFAC(), lw.MatrixFree()], ids=lambda x: type(x).__name__)
def test_what_is_checkpointed_is_computed_once_and_in_eval_mode(structure: Any) -> None:
    """A backward pass would compute it again in training mode, with dropout, and be that of another function."""
    expected = found(seeded(Body), structure)
    for training in (True, False):
        model = seeded(lambda: Body(0.5, again=True)).train(training)
        torch.testing.assert_close(found(model, structure), expected)


def test_what_is_kept_in_another_way_is_kept_in_eval_mode() -> None:
    """Hooks of saved tensors may compute them again, when the network is in training mode once more."""

    class Kept(Body):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept):
                return super().forward(x)

    assert bool(found(seeded(Kept).eval()).isfinite().all())
    with refused(UnsupportedError, "Try model.eval()"):
        found(seeded(Kept).train())


def test_layers_that_round_within_are_refused() -> None:
    class Rounded(Body):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x).float()

    with refused(UnsupportedError, "without torch.autocast"):
        found(seeded(Rounded).float())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_body_in_eight_bits_may_have_an_uncertain_head_and_no_adapter_before_it() -> None:
    model = torch.ao.quantization.quantize_dynamic(seeded(Body).float().eval(), {"first", "second"}, dtype=torch.qint8)
    variance = found(model, lw.Full(), lw.LastLayer())

    def jacobian(x: Tensor) -> Tensor:  # which rounds by the largest number of the batch
        features = model.middle(torch.tanh(model.first(x) + model.adapter(x))).detach()
        features = torch.cat([features, torch.ones(len(x), 1)], 1)
        return torch.einsum("ij,nk->nijk", torch.eye(3), features).flatten(2)

    probs = model(X).softmax(-1).detach()
    hessian = torch.diag_embed(probs) - probs[:, :, None] * probs[:, None]
    precision = torch.einsum("nci,ncd,ndj->ij", jacobian(X), hessian, jacobian(X)) + torch.eye(15)
    expected = torch.einsum("nci,ncj,ij->nc", jacobian(X[:2]), jacobian(X[:2]), precision.inverse())
    torch.testing.assert_close(variance, expected, rtol=1e-2, atol=0.0)  # the last bit of a sum can turn a rounding
    for weights in (lw.All(), lw.Names("adapter.*")):
        with refused(UnsupportedError, "a layer in 8 bits"):
            found(model, weights=weights)


@pytest.mark.parametrize("structure", [lw.KFAC(), lw.Full(), lw.MatrixFree()], ids=lambda x: type(x).__name__)
def test_inputs_that_a_network_does_not_take_get_a_sentence(structure: Any) -> None:
    recipe = lw.Laplace(lw.Categorical(), structure=structure)
    posterior = recipe.fit(seeded(Body), (X, Y))
    expected = "Expected inputs that the network takes. Got a tensor of shape"
    with refused(DataError, f"{expected} [12, 2], float64, for which it raises RuntimeError"):
        posterior.predict(X[:, :2])
    with refused(DataError, "Try x alone, of (x, y)"):
        posterior.predict((X, Y))
    with refused(DataError, "targets after them, as in fit(model, (x, y))"):
        recipe.fit(seeded(Body), (Y, X))


def test_errors_that_say_more_than_that_stay_as_they_are() -> None:
    class Singular(Body):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.inv(torch.zeros(2, 2)) @ x

    with pytest.raises(torch.linalg.LinAlgError):
        found(Singular())


@pytest.mark.parametrize("hint", ["sparse", "scale_grad_by_freq"])
def test_how_training_wants_the_gradient_of_an_embedding_changes_no_derivative(hint: str) -> None:
    def network(**hints: bool) -> nn.Module:
        return seeded(lambda: nn.Sequential(nn.Embedding(5, 2, **hints), nn.Flatten(), nn.Linear(4, 3)))

    tokens = torch.arange(24).view(12, 2) % 5
    hinted = network(**{hint: True})
    found, expected = (
        lw.Laplace(lw.Categorical(), structure=lw.Diagonal()).fit(model, (tokens, Y)).predict(tokens)
        for model in (hinted, network())
    )
    torch.testing.assert_close(found.logits.variance, expected.logits.variance)
    assert getattr(hinted[0], hint)
