"""Proposals lie where drawn functions are large, and the loop finds a maximum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.gp import GP, Matern
from lapwing.gp.thompson import Search, choose, maximise, proposals, refined, thompson
from lapwing.ground.errors import ConfigError, DataError, ShapeError
from tests.checker import unchecked
from tests.posterior_cases import normal, refused

BOX = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)


def peak(x: Tensor) -> Tensor:
    return torch.exp(-8 * ((x[:, 0] - 0.3).square() + (x[:, 1] - 1.4).square()))


def posterior(n: int = 30) -> lw.Posterior:
    x = BOX[0] + (BOX[1] - BOX[0]) * torch.rand(n, 2, generator=torch.Generator().manual_seed(0)).double()
    return GP(Matern(0.5), lw.Gaussian(1e4), features=500).fit((x, peak(x)))


def test_a_proposal_is_where_its_function_is_largest() -> None:
    process = posterior()
    found = thompson(process, BOX, 3, search=Search(candidates=3000, starts=8), generator=4)
    grid = torch.cartesian_prod(torch.linspace(0, 1, 60), torch.linspace(0, 2, 60)).double()
    functions = process.draw_functions(3, generator=4)
    with torch.no_grad():
        largest, reached = functions(grid)[..., 0].amax(1), functions(found)[..., 0].diagonal()
    assert bool((reached > largest - 0.01).all())
    assert bool(((found >= BOX[0]) & (found <= BOX[1])).all())


def test_candidates_fill_the_box_wherever_it_is() -> None:
    x, box = normal(30, 2) + 7, torch.tensor([[5.0, -4.0], [9.0, -3.0]]).double()
    process = GP(Matern(0.5)).fit((x, x[:, 0]))
    found = (proposals(process, box, Search(candidates=4000))[:2000] - box[0]) / (box[1] - box[0])
    assert bool(((found >= 0) & (found <= 1)).all())
    torch.testing.assert_close(found.mean(0), torch.full((2,), 0.5).double(), rtol=0, atol=0.05)
    torch.testing.assert_close(found.std(0), torch.full((2,), 12**-0.5).double(), rtol=0, atol=0.02)


def test_the_loop_finds_the_maximum_and_keeps_what_it_saw() -> None:
    start = posterior(10)
    found = maximise(peak, start, BOX, rounds=6, batch=2, search=Search(candidates=300), generator=0)
    assert len(found.data.targets) == 22
    torch.testing.assert_close(peak(found.data.inputs), found.data.targets[:, 0])
    assert float(found.data.targets.max()) > 0.98 > float(start.data.targets.max())


def test_a_search_that_was_saved_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    options: dict[str, Any] = {"batch": 2, "search": Search(candidates=100, starts=2, steps=5)}
    whole = maximise(peak, posterior(10), BOX, rounds=3, generator=5, **options)
    source = torch.Generator().manual_seed(5)
    lw.save(maximise(peak, posterior(10), BOX, rounds=1, generator=source, **options), tmp_path / "search")
    rest = maximise(peak, lw.load(tmp_path / "search"), BOX, rounds=2, generator=source, **options)
    torch.testing.assert_close(rest.data.inputs, whole.data.inputs)


def test_candidates_are_chosen_once_each() -> None:
    candidates = torch.rand(12, 2, generator=torch.Generator().manual_seed(1)).double()
    assert sorted(choose(posterior(), candidates, 12).tolist()) == list(range(12))


def test_bounds_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="bounds"):
        thompson(posterior(), BOX[:, :1])
    with pytest.raises(ShapeError, match="candidates"):
        choose(posterior(), BOX, 3)
    with unchecked(), refused(ConfigError, "bounds to be of type Tensor. Got list"):
        thompson(posterior(), [[0.0, 0.0], [1.0, 2.0]])
    with refused(ConfigError, "lowest values are below the highest"):
        thompson(posterior(), BOX.flip(0))


def test_what_is_no_search_of_one_output_is_refused() -> None:
    x, start = normal(8, 2), posterior()
    classes = lw.GP(Matern(0.5), lw.Bernoulli()).fit((x, x[:, 0] > 0))
    with unchecked(), refused(ConfigError, "Got a LaplaceGPPosterior"):
        thompson(classes, BOX)
    with unchecked(), refused(ConfigError, "Search. Got int 100"):
        maximise(peak, start, BOX, search=100)
    with unchecked(), refused(ConfigError, "batch to be a whole number"):
        thompson(start, BOX, 2.0)
    with unchecked(), refused(DataError, "numbers in values"):
        choose(start, "x")
    with refused(ShapeError, "a process of one output. Got 2"):
        choose(GP().fit((x, x)), x)


@pytest.mark.parametrize("kind", [Tensor.numpy, Tensor.tolist, lambda values: values[:, None]])
def test_a_function_returns_its_values_in_any_form(kind: Any) -> None:
    start = posterior(10)
    options: dict[str, Any] = {"rounds": 1, "batch": 2, "search": Search(candidates=50, steps=2), "generator": 0}
    found = maximise(lambda x: kind(peak(x)), start, BOX, **options)
    assert torch.equal(found.data.targets, maximise(peak, start, BOX, **options).data.targets)


def test_a_function_returns_a_value_for_each_input() -> None:
    with refused(ShapeError, "one an input [2, 2]. Got shape"):
        maximise(lambda x: x, posterior(10), BOX, batch=2, search=Search(candidates=50, steps=2))
    with refused(DataError, "finite values of the function"):
        maximise(lambda x: x[:, 0] / 0 - x[:, 1] / 0, posterior(10), BOX, search=Search(candidates=50, steps=2))


def test_an_interrupted_loop_keeps_what_it_saw() -> None:
    def interrupted(x: Tensor) -> Tensor:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return peak(x)

    calls, search = iter(range(2)), Search(candidates=50, steps=2)
    with pytest.warns(lw.ConvergenceWarning, match="interrupted after 2 of 5 batches"):
        found = maximise(interrupted, posterior(10), BOX, rounds=5, batch=3, search=search, generator=0)
    whole = maximise(peak, posterior(10), BOX, rounds=2, batch=3, search=search, generator=0)
    assert torch.equal(found.data.inputs, whole.data.inputs)


def test_functions_are_refined_in_parts_as_all_at_once() -> None:
    functions = posterior().draw_functions(5, generator=0)
    starts = BOX[0] + (BOX[1] - BOX[0]) * torch.rand(5, 2, 2, dtype=torch.float64)
    whole = refined(functions, starts, BOX, 3)
    assert not torch.equal(whole, starts[:, 0])
    two_functions = 2 * 8 * 8 * 2 * (30 + 500)
    for max_bytes in (1, two_functions):
        torch.testing.assert_close(refined(functions, starts, BOX, 3, max_bytes), whole)


def test_each_function_at_places_of_its_own() -> None:
    functions, places = posterior().draw_functions(3, generator=0), torch.rand(3, 4, 2, dtype=torch.float64)
    values = torch.stack([functions(own)[number, :, 0] for number, own in enumerate(places)])
    torch.testing.assert_close(functions.each_at(places), values)
    torch.testing.assert_close(functions.select(slice(1, 3)).each_at(places[1:]), values[1:])
