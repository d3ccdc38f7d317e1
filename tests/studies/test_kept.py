from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lapwing.ground.archive import whole
from studies.ella.setting import Setting
from studies.hessian_free.shallow import fitted
from studies.kept import kept_tensors
from studies.sampled.setting import Setting as Options


def test_tensors_are_made_once_for_the_same_key(tmp_path: Path) -> None:
    made: list[tuple[object, ...]] = []

    def asked(*key: object) -> Mapping[str, Tensor]:
        def make() -> dict[str, Tensor]:
            made.append(key)
            return {"a": torch.full([2, 3], float(len(made))).mT}

        return kept_tensors(make, tmp_path / "below", "name", *key)

    keys = [(1, torch.ones(2)), (1, torch.tensor([1.0, 1.5])), (2, torch.ones(2))]
    first = [asked(*key)["a"] for key in keys]
    again = [asked(*key)["a"] for key in keys]
    assert len(made) == 3 and all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert all(path.name.startswith("name-") and path.suffix == ".safetensors" for path in tmp_path.rglob("*.*"))


def test_a_file_that_was_not_written_whole_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(tensors: dict[str, Tensor], path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise OSError("no space left")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
        patch.setattr(whole, "save_file", broken)
        kept_tensors(lambda: {"a": torch.zeros(1)}, tmp_path, "name")
    assert kept_tensors(lambda: {"a": torch.ones(1)}, tmp_path, "name")["a"] == 1


def test_a_quick_cnn_is_kept_apart_from_the_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("studies.ella.setting.EPOCHS", 1)
    models: list[nn.Module] = []
    for quick in (True, False, True, False):
        models.append(Setting(quick=quick, kept=tmp_path).case("cnn").task.model)
        assert not models[-1].training
    assert len(list(tmp_path.iterdir())) == 2
    for one, again in zip(models[:2], models[2:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert len({sum(p.numel() for p in model.parameters()) for model in models}) == 2


def test_minima_are_found_once_and_again_after_other_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Options(quick=True, kept=tmp_path)
    (first,) = fitted("Quadratic-Inbetween", setting, [0])
    (path,) = tmp_path.iterdir()
    monkeypatch.setattr("studies.hessian_free.shallow.trained", lambda *_: pytest.fail("trained again"))
    (again,) = fitted("Quadratic-Inbetween", setting, [0])
    assert torch.equal(first.weights, again.weights) and first.noise == again.noise
    monkeypatch.undo()
    monkeypatch.setattr("studies.hessian_free.shallow.STEPS", 8)
    fitted("Quadratic-Inbetween", setting, [0])
    assert len(list(tmp_path.iterdir())) == 2 and path.exists()
