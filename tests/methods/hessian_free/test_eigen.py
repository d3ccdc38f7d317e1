"""The baseline of a few eigenvectors against a dense eigendecomposition."""

from __future__ import annotations

import pytest
import torch

import lapwing as lw
from lapwing.ground.errors import ConfigError, DataError
from lapwing.methods.hessian_free import TopEigen
from tests.methods.hessian_free.setting import shared
from tests.posterior_cases import refused


@pytest.mark.parametrize(("name", "rank"), [("two-outputs", None), ("classes", 5)])
def test_only_the_leading_eigenvectors_are_uncertain(name: str, rank: int | None) -> None:
    setting = shared(name)
    recipe = lw.Laplace(setting.likelihood, prior=setting.prior, structure=lw.Full(view="weights"))
    values, vectors = torch.linalg.eigh(recipe.fit(setting.model, (setting.x, setting.y)).precision.operator.dense())
    kept = 3 if rank is None else rank
    pushed = setting.jacobian(setting.points) @ vectors[:, -kept:]
    expected = (pushed / values[-kept:]) @ pushed.mT
    posterior = TopEigen(setting.likelihood, setting.prior, rank).fit(setting.model, (setting.x, setting.y))
    outputs = posterior.predict(setting.points)
    moments = outputs.outputs if name == "two-outputs" else outputs.logits
    n, c = moments.mean.shape
    blocks = torch.stack([expected.view(n, c, n, c)[i, :, i] for i in range(n)])
    torch.testing.assert_close(moments.covariance, blocks, rtol=1e-5, atol=1e-7)


def test_bad_input_is_refused() -> None:
    setting = shared("classes")
    with refused(ConfigError, expected="rank of at least 1", got="0", hint="rank=1"):
        TopEigen(lw.Categorical(), rank=0)
    posterior = TopEigen(lw.Categorical()).fit(setting.model, (setting.x, setting.y))
    with refused(DataError, expected="at least one example", got="none", hint="x[None]"):
        posterior.predict(setting.points[:0])
