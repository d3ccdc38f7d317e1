"""Models of transformers with adapters of PEFT: the guide runs, the study of adapters too, variances are exact.

One file, because loading these libraries takes seconds of every process of the tests.
"""

from __future__ import annotations

import copy
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import lapwing as lw
from benchmarks.command import main
from lapwing.ground.errors import ShapeError
from studies.adapters import METHODS, STUDY
from tests.meter import Meter
from tests.posterior_cases import refused

GUIDE = Path(__file__).parent.parent / "docs" / "hugging-face.md"


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the code of the guide has made, one block after the other."""
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("guide"))
        for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL):
            exec(block, names)
    return names


def test_the_code_of_the_guide_runs(guide: dict[str, Any]) -> None:
    assert guide["p"].probs.shape == (5, 3) and guide["text"].shape == (1, 6)
    assert guide["head"].network.size == 51


@pytest.mark.parametrize("structure", [lw.Full(), lw.Diagonal()], ids=["full", "diagonal"])
def test_adapters_alone_are_uncertain(guide: dict[str, Any], structure: Any) -> None:
    """Variances of the logits are those of a precision written down densely, by autograd through the whole model."""
    model, x, y = copy.deepcopy(guide["model"]).double().eval(), guide["x"], guide["y"][:4]
    x = {name: values[:4] for name, values in x.items()}
    adapters = [value for name, value in model.named_parameters() if "lora_" in name]
    for value in adapters:  # an untrained adapter starts at zero, where half of its gradients vanish
        value.data.normal_(generator=torch.Generator().manual_seed(1))
    posterior = lw.Laplace(lw.Categorical(), structure=structure, weights=lw.Names("*lora_*")).fit(model, (x, y))
    assert posterior.network.size == sum(map(torch.Tensor.numel, adapters))
    logits = model(**x).logits
    rows = [torch.autograd.grad(f, adapters, retain_graph=True) for f in logits.reshape(-1)]
    jacobian = torch.stack([torch.cat([part.reshape(-1) for part in row]) for row in rows]).view(4, 3, -1)
    probs = logits.detach().softmax(-1)
    hessian = torch.diag_embed(probs) - probs[:, :, None] * probs[:, None]
    precision = torch.einsum("nci,ncd,ndj->ij", jacobian, hessian, jacobian) + torch.eye(jacobian.shape[-1])
    if isinstance(structure, lw.Diagonal):
        precision = precision.diagonal().diag()
    expected = torch.einsum("nci,ncj,ij->nc", jacobian, jacobian, precision.inverse())
    torch.testing.assert_close(posterior.predict(x).logits.variance, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.filterwarnings("ignore")
def test_checkpointing_of_their_own_and_outputs_by_index_change_nothing(guide: dict[str, Any]) -> None:
    model, data = copy.deepcopy(guide["model"]), (guide["x"], guide["y"])
    recipe = lw.Laplace(lw.Categorical(), structure=lw.Diagonal(), weights=lw.Names("*lora_*"))
    expected = recipe.fit(model, data).predict(guide["x"]).probs
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    model.train()
    model.get_base_model().config.return_dict = False
    with refused(ShapeError, "a tuple of 1: [3, 3]"):
        recipe.fit(model, data)
    for output in (0, lambda returned: returned[0]):
        assert torch.equal(recipe.fit(model, data, output=output).predict(guide["x"]).probs, expected)
    model.get_base_model().config.return_dict = True
    for output in (0, "logits"):
        assert torch.equal(recipe.fit(model, data, output=output).predict(guide["x"]).probs, expected)


def test_every_method_of_the_study_has_a_row_and_a_mean(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    main({"adapters": STUDY}, ["--quick", "--seeds", "1", "--only", "last layer, evidence", "--json", str(report)])
    found = json.loads(report.read_text())["rows"]
    rows = [row for row in found if not row.get("summary")]
    assert [row["method"] for row in rows] == ["plain network", "temperature scaling", "last layer, evidence"]
    assert rows[1]["difference"] == 0.0 and all(row["targets"] == 736 for row in rows)
    assert "last layer, evidence" in METHODS and all(0.0 < row["accuracy"] < 1.0 for row in rows)


def test_a_language_model_of_fifty_thousand_tokens_is_tuned_in_bounded_memory(guide: dict[str, Any]) -> None:
    """The guide's own recipe; a covariance of the logits of one position would take 10 GB."""
    block = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)[1]
    names = {**guide, "tokens": torch.randint(50257, (6, 4), generator=torch.Generator().manual_seed(0))}
    with Meter() as meter, warnings.catch_warnings():
        warnings.simplefilter("ignore", lw.ConvergenceWarning)  # of a network that was never trained
        exec(block.replace("vocab_size=12", "vocab_size=50257").replace("(24, 1)", "(6, 1)"), names)
    assert names["posterior"].network.size == 50257 * 16 and names["text"].shape == (1, 6)
    assert meter.most < (512 + 768) * 2**20, "what the guide says"
