"""EM interrupted and gone on with leaves the trace of one that was not, bit for bit."""

from __future__ import annotations

import copy
import math
import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import lapwing as lw
from lapwing.ground.errors import ConfigError, ConvergenceWarning, DataError, LapwingError, MismatchError
from lapwing.ground.files.archive import Tensors
from lapwing.ground.files.checkpoint import Checkpoint
from lapwing.linear.perturbation import Perturbation
from lapwing.posteriors import Step
from lapwing.tuning.em import maximisation
from lapwing.tuning.em.state import CHECKPOINT, State
from tests.posterior_cases import normal, refused
from tests.tuning.em.cases import Counted, Regression, learnt

TOY, CPU = Regression(), torch.device("cpu")
SMALL: dict[str, Any] = {"samples": 3, "tolerance": 1e-3}

STRUCTURES: dict[str, Any] = {
    "exact": lw.KFAC(),
    "cg": lw.MatrixFree(solver=lw.solvers.CG()),
    "preconditioned": lw.MatrixFree(solver=lw.solvers.CG(preconditioner=lw.preconditioners.PivotedCholesky(3))),
    "sgd": lw.MatrixFree(solver=lw.solvers.SGD(epochs=12, batch=14, rtol=0.1)),
    "sampled": lw.Sampled(4, solver=lw.solvers.CG(preconditioner=lw.LowRank(3))),
}


def state() -> State:
    """A state with everything in it."""
    steps = (
        Step(None, (500.0, 1 / 3), None, 1.5, None, 0.1, (0.25, 1 / 7), 30.1),
        Step(-3.25, (1e-7, 2.0), 4.0, 1.5, None, None, (1.0, 3.0), 29.0),
    )
    noise = Perturbation(normal(5, 2), normal(5, 2, seed=1))
    one = torch.tensor(0.1).double()
    return State(
        normal(2, seed=2), one, steps, normal(3, seed=3), normal(3, seed=5), True, normal(5, seed=4), noise, noise.prior
    )


class TestFile:
    def test_a_state_comes_back_as_it_was(self, tmp_path: Path) -> None:
        file, written = Checkpoint(CHECKPOINT, State, tmp_path / "em", {"seed": "0"}), state()
        assert file.read(CPU) is None
        file.write(written)
        back = file.read(CPU)
        assert back is not None and (back.trace, back.settled) == (written.trace, True)
        assert back.noise is not None and written.noise is not None
        for name in ("precisions", "scale", "measured", "moves", "weights", "draws"):
            assert torch.equal(getattr(back, name), getattr(written, name))
        assert torch.equal(back.noise.data, written.noise.data) and torch.equal(back.noise.prior, written.noise.prior)

    def test_without_draws_there_is_no_noise(self, tmp_path: Path) -> None:
        file = Checkpoint(CHECKPOINT, State, tmp_path / "em", {})
        file.write(State(normal(1), normal(1)[0], state().trace[:1], normal(2), None, False, normal(5)))
        back = file.read(CPU)
        assert back is not None and back.noise is None and back.draws is None and back.moves is None

    def test_other_settings_are_refused_by_name(self, tmp_path: Path) -> None:
        Checkpoint(CHECKPOINT, State, tmp_path / "em", {"seed": "0", "data": "x"}).write(state())
        with refused(MismatchError, "checkpoint="):
            Checkpoint(CHECKPOINT, State, tmp_path / "em", {"seed": "1", "data": "x"}).read(CPU)

    def test_what_is_no_checkpoint_is_refused(self, tmp_path: Path) -> None:
        file = Checkpoint(CHECKPOINT, State, tmp_path / "em", {})
        save_file({"x": torch.zeros(1)}, file.path)
        with refused(DataError, "a file that EM("):
            file.read(CPU)
        file.write(state())
        file.path.write_bytes(file.path.read_bytes()[:-20])
        with refused(DataError, "a whole file that EM("):
            file.read(CPU)
        with refused(ConfigError, "a directory"):
            Checkpoint(CHECKPOINT, State, tmp_path / "nowhere" / "em", {})

    def test_one_of_the_future_is_refused(self, tmp_path: Path) -> None:
        file = Checkpoint(CHECKPOINT, State, tmp_path / "em", {})
        for schema, hint in ((99, "pip install"), (3, "deleting")):
            replace(CHECKPOINT, schema=schema, oldest=1).write(file.path, {}, Tensors())
            with refused(DataError, hint):
                file.read(CPU)

    def test_damage_is_noticed_and_what_was_changed_by_hand_is_refused(self, tmp_path: Path) -> None:
        file = Checkpoint(CHECKPOINT, State, tmp_path / "em", {})
        file.write(state())
        content = bytearray(file.path.read_bytes())
        content[-3] ^= 1
        file.path.write_bytes(content)
        with refused(DataError, "a whole file"):
            file.read(CPU)
        file.write(state())
        header = CHECKPOINT.header(file.path)
        tensors = CHECKPOINT.tensors(file.path, header)
        refused_values = 0
        for place in (("settings",), ("state",), *(("state", name) for name in header["state"])):
            for value in ([], {}, "a", math.nan, 10**400, {"tensor": "absent"}, [None]):
                changed = copy.deepcopy({name: header[name] for name in ("settings", "state")})
                inner = changed if len(place) == 1 else changed["state"]
                inner[place[-1]] = value
                CHECKPOINT.write(file.path, changed, tensors)
                try:
                    file.read(CPU)
                except LapwingError:
                    refused_values += 1
        assert refused_values > 50

    def test_an_interrupted_write_leaves_the_last_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = Checkpoint(CHECKPOINT, State, tmp_path / "em", {})
        file.write(state())

        def interrupt(_: int) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            file.write(State(normal(1), normal(1)[0], (), normal(2), None, False, normal(5)))
        back = file.read(CPU)
        assert back is not None and back.trace == state().trace
        assert list(tmp_path.iterdir()) == [file.path]


class TestResume:
    @pytest.mark.filterwarnings("ignore::lapwing.ground.errors.ConvergenceWarning")
    @pytest.mark.parametrize(("name", "kind"), [*zip(("gaussian", "categorical") * 3, STRUCTURES, strict=False)])
    @pytest.mark.no_cover
    def test_the_trace_is_that_of_a_run_that_was_not_interrupted(self, kind: str, name: str, tmp_path: Path) -> None:
        case, structure = learnt(name), STRUCTURES[kind]
        recipe = lw.Laplace(case.likelihood, structure=structure, prior=lw.Layerwise(50.0))
        posterior, path = recipe.fit(case.model, case.batches(14)), tmp_path / "em.safetensors"
        whole = lw.tune(posterior, lw.EM(steps=3, **SMALL))
        lw.tune(posterior, lw.EM(steps=1, checkpoint=path, **SMALL))
        gone_on = lw.tune(recipe.fit(case.model, case.batches(14)), lw.EM(steps=3, checkpoint=path, **SMALL))
        assert gone_on.trace == whole.trace and len(whole.trace) == 4
        assert gone_on.prior == whole.prior and gone_on.likelihood == whole.likelihood

    @pytest.mark.parametrize("structure", [lw.KFAC(), lw.MatrixFree()])
    def test_an_interruption_in_the_middle_of_a_step_loses_that_step_alone(
        self, structure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole, method = lw.tune(TOY.fit(structure), lw.EM(**SMALL)), lw.EM(checkpoint=tmp_path / "em", **SMALL)
        steps = Counted(maximisation.fixed_point, interrupted=2)
        monkeypatch.setattr(maximisation, "fixed_point", steps)
        with pytest.warns(ConvergenceWarning, match="interrupted"):
            lw.tune(TOY.fit(structure), method)
        steps.interrupted = 10**9
        assert lw.tune(TOY.fit(structure), method).trace == whole.trace
        assert steps.calls - len(whole.trace) in (0, 1)  # the last step may be looked at twice

    @pytest.mark.parametrize(
        ("change", "name"),
        [
            ({"noise": None}, "noise.data of shape"),
            ({"draws": None}, "draws of shape"),
            ({"weights": None}, "weights of shape"),
            ({"precisions": normal(1).exp().float()}, "precisions of shape"),
            ({"measured": None}, "measured of shape"),
        ],
    )
    def test_a_state_that_lacks_a_part_or_has_another_type_is_refused(
        self, change: dict[str, Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        posterior, written = TOY.fit(lw.MatrixFree()), list[State]()
        monkeypatch.setattr(Checkpoint, "write", lambda _, state: written.append(state))
        lw.tune(posterior, lw.EM(steps=1, checkpoint=tmp_path / "em", **SMALL))
        monkeypatch.setattr(Checkpoint, "read", lambda *_: replace(written[-1], **change))
        with refused(DataError, name):
            lw.tune(posterior, lw.EM(steps=2, checkpoint=tmp_path / "em", **SMALL))

    def test_a_run_that_has_ended_is_read_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        method = lw.EM(checkpoint=str(tmp_path / "em"), **SMALL)
        once = lw.tune(TOY.fit(), method)
        monkeypatch.setattr(maximisation, "fixed_point", Counted(maximisation.fixed_point, interrupted=0))
        again = lw.tune(TOY.fit(), method)
        assert again.trace == once.trace and again.prior == once.prior and again.likelihood == once.likelihood

    @pytest.mark.parametrize(
        ("change", "name"),
        [
            ({"seed": 1}, "with seed: "),
            ({"tolerance": 0.1}, "with tolerance: "),
            ({"prior": lw.Isotropic(2.0)}, "prior"),
            ({"structure": lw.Full(view="functions")}, "posterior"),
            ({"y": TOY.y + 1}, "data"),
        ],
    )
    def test_another_run_does_not_go_on_from_it(self, change: dict[str, Any], name: str, tmp_path: Path) -> None:
        lw.tune(TOY.fit(), lw.EM(checkpoint=tmp_path / "em"))
        options = {key: value for key, value in change.items() if key in ("seed", "tolerance")}
        data = (TOY.x, change.get("y", TOY.y))
        posterior = TOY.fit(change.get("structure"), change.get("prior"), data)
        with refused(MismatchError, name):
            lw.tune(posterior, lw.EM(checkpoint=tmp_path / "em", **options))

    @pytest.mark.parametrize("other", [lw.Sampled(16), lw.Sampled(8, seed=5)])
    def test_other_draws_do_not_go_on_from_it(self, other: lw.Sampled, tmp_path: Path) -> None:
        method = lw.EM(checkpoint=tmp_path / "em", steps=1)
        with pytest.warns(ConvergenceWarning, match="ended after 1 steps"):
            lw.tune(TOY.fit(lw.Sampled(8)), method)
        with refused(MismatchError, "draws, noise"):
            lw.tune(TOY.fit(other), method)

    def test_a_killed_process_is_gone_on_with(self, tmp_path: Path) -> None:
        """Killed in its third step."""
        path = tmp_path / "em"
        child = multiprocessing.get_context("fork").Process(target=tune_until_killed, args=(path,))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL and path.is_file()
        gone_on = lw.tune(TOY.fit(lw.MatrixFree()), lw.EM(checkpoint=path, **SMALL))
        assert gone_on.trace == lw.tune(TOY.fit(lw.MatrixFree()), lw.EM(**SMALL)).trace


def tune_until_killed(path: Path) -> None:
    """Tunes in a process of its own, until that is killed in its third step."""
    torch.set_num_threads(1)  # the others were lost with the fork, and would be waited for
    kill = Counted(maximisation.fixed_point, 2, lambda: os.kill(os.getpid(), signal.SIGKILL))
    maximisation.fixed_point = kill  # type: ignore[assignment]
    lw.tune(TOY.fit(lw.MatrixFree()), lw.EM(checkpoint=path, **SMALL))
