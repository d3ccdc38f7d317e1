"""Networks on graphs: nodes that need each other are no examples, their numbers are; one graph may be all there is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import lapwing as lw
from lapwing.ground.errors import DataError, UnsupportedError
from tests.posterior_cases import labels, normal, refused, seeded

NODES = 7
X, Y = normal(NODES, 3), labels(NODES, classes=3)
EDGES = torch.stack([torch.arange(NODES), torch.arange(NODES).roll(1)])
ADJACENCY = torch.eye(NODES, dtype=torch.float64) + torch.eye(NODES, dtype=torch.float64).roll(1, 0)


class Sparse(nn.Module):
    """Two layers that send messages along edges."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 3)

    def mixed(self, h: Tensor, edges: Tensor) -> Tensor:
        return h.index_add(0, edges[1], h[edges[0]])

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.second(self.mixed(torch.tanh(self.first(self.mixed(x, edges))), edges))


class Dense(Sparse):
    """The same by a matrix of neighbours."""

    def mixed(self, h: Tensor, edges: Tensor) -> Tensor:
        return edges @ h


class ByNumber(nn.Module):
    """The whole graph, and the numbers of some nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Sparse()
        self.register_buffer("x", X)
        self.register_buffer("edges", EDGES)

    def forward(self, nodes: Tensor) -> Tensor:
        return self.network(self.x, self.edges)[nodes]


@pytest.mark.parametrize("weights", [lw.All(), lw.LastLayer()])
@pytest.mark.parametrize(("build", "graph"), [(Sparse, EDGES), (Dense, ADJACENCY)], ids=["edges", "matrix"])
def test_nodes_that_need_each_other_are_refused_with_the_cure(build: Any, graph: Tensor, weights: Any) -> None:
    with refused(UnsupportedError, "fails on the first few"):
        lw.Laplace(lw.Categorical(), weights=weights).fit(seeded(build), [((X, graph), Y)])


def test_a_network_that_fails_on_all_of_them_does_not_take_such_inputs() -> None:
    with refused(DataError, "shapes cannot be multiplied"):
        lw.Laplace(lw.Categorical()).fit(nn.Linear(2, 3), (X, Y))


@pytest.mark.parametrize("structure", [lw.Full(), lw.MatrixFree()], ids=lambda x: type(x).__name__)
def test_the_cure_gives_each_node_its_own_jacobian(structure: Any) -> None:
    model, nodes = seeded(ByNumber), torch.arange(NODES)
    posterior = lw.Laplace(lw.Categorical(), structure=structure).fit(model, (nodes, Y))
    params = {name: value.detach() for name, value in model.named_parameters()}
    blocks = jacrev(lambda values: functional_call(model, values, (nodes,)))(params)
    jacobian = torch.cat([blocks[name].flatten(2) for name in params], 2)
    probs = model(nodes).detach().softmax(-1)
    hessian = torch.diag_embed(probs) - probs[:, :, None] * probs[:, None]
    precision = torch.einsum("nci,ncd,ndj->ij", jacobian, hessian, jacobian) + torch.eye(jacobian.shape[-1])
    expected = torch.einsum("nci,ij,ncj->nc", jacobian, precision.inverse(), jacobian)
    torch.testing.assert_close(posterior.predict(nodes).logits.variance, expected, rtol=1e-6, atol=1e-9)


def test_a_graph_that_is_all_there_is_is_tuned_by_what_needs_no_other() -> None:
    one = ((X[None], ADJACENCY[None]), Y[None])
    posterior = lw.Laplace(lw.Categorical(event_dim=1), structure=lw.Full()).fit(seeded(Dense), [one])
    tuned = lw.tune(posterior)
    assert tuned.prior == lw.tune(posterior, lw.ELBO()).prior != posterior.prior
    assert tuned.predict(one[0]).probs.shape == (1, NODES, 3)
    with refused(DataError, "two examples at least"):
        lw.tune(posterior, lw.Mixup())
