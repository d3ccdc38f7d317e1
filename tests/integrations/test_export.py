"""The page on serving runs; ONNX Runtime agrees where it has all operations; an endpoint answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import lapwing as lw
from lapwing.ground.errors import ConfigError
from tests.checker import unchecked
from tests.integrations.pages import run_page
from tests.posterior_cases import normal, problem, refused


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    with unchecked():
        names = run_page("export", tmp_path)
    expected = names["posterior"].predict(names["x"][:1])
    torch.testing.assert_close(names["answers"]["probs"], expected.probs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "link"), [("gaussian", None), ("categorical", "probit"), ("categorical", "pairwise")])
def test_onnx_runtime_agrees(name: str, link: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="onnxscript writes ONNX")
    runtime: Any = pytest.importorskip("onnxruntime", reason="onnxruntime runs it")
    case = problem(name)
    posterior: Any = case.fit(lw.Laplace(case.likelihood, weights=lw.LastLayer()))
    if link is not None:
        posterior = posterior.with_link(link)
    outputs = ("mean", "std") if link is None else ("probs", "outputs_std")
    with unchecked():
        lw.export(posterior, tmp_path / "model.onnx", outputs)
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for n in (1, 7):
        x = normal(n, 3, seed=4)
        prediction = posterior.predict(x)
        expected = prediction.mean if link is None else prediction.probs
        found = session.run(list(outputs), {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.as_tensor(found[0]), expected, rtol=1e-6, atol=1e-6)


def test_without_onnxscript_what_to_install_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxscript", None)
    case = problem("gaussian")
    posterior = case.fit(lw.Laplace(case.likelihood, weights=lw.LastLayer()))
    with unchecked(), refused(ConfigError, "pip install '.[integrations]'"):
        lw.export(posterior, tmp_path / "model.onnx")


def test_an_endpoint_answers(tmp_path: Path) -> None:
    for package in ("fastapi", "uvicorn", "httpx"):
        pytest.importorskip(package, reason="the endpoint needs FastAPI, uvicorn and httpx")
    import httpx

    from demo.endpoint import application, latencies, running

    case = problem("categorical")
    posterior: Any = case.fit(lw.Laplace(case.likelihood, weights=lw.LastLayer()))
    with unchecked():
        module: Any = posterior.module(("probs", "outputs_std"))
    x = normal(2, 3, seed=4)
    with running(application({"posterior": lambda inputs: module(inputs.double())})) as address:
        answer = httpx.post(f"{address}/posterior", json=x.tolist()).json()
        assert httpx.post(f"{address}/elsewhere", json=x.tolist()).status_code == 404
        assert httpx.post(f"{address}/posterior", json="words").status_code == 422
        found = latencies(address, "posterior", x[:1].tolist(), seconds=0.2, most=5)
    torch.testing.assert_close(torch.tensor(answer["probs"]).double(), posterior.predict(x).probs, rtol=1e-4, atol=1e-5)
    assert 2 <= found["requests"] <= 5 and 0 < found["p50"] <= found["p95"] <= found["p99"]
