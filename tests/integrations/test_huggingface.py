"""Hugging Face's callback on a tiny model: the real Trainer trains it.

Tests import the library, not the file, which every process of the tests reads: it takes seconds.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import lapwing as lw
from lapwing.ground.errors import ConfigError, DataError
from tests.integrations.pages import run_page
from tests.posterior_cases import refused

RECIPE = lw.Laplace(lw.Categorical(), weights=lw.LastLayer())
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture(autouse=True)
def own_accelerator() -> None:
    """The Trainer's state is one for the whole process, and other tests want it in another precision."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


class Texts(torch.utils.data.Dataset[Any]):
    """Token ids whose first says the label, mostly."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(1, 12, (size, 5), generator=generator)
        wrong = torch.rand(size, generator=generator) < 0.2
        self.labels = (self.tokens[:, 0] + wrong) % 3

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.tokens[index]
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": self.labels[index]}


def model_of(seed: int) -> Any:
    import transformers

    torch.manual_seed(seed)
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(vocab_size=12, num_labels=3, max_position_embeddings=8, **SIZES)
    )


def trained(folder: Path, callback: Any, *others: Any, evaluate: bool = True, **options: Any) -> Any:
    """The trainer."""
    import transformers

    options = {"save_strategy": "epoch", "num_train_epochs": 2, **options}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        dataloader_drop_last=True,
        eval_strategy="epoch" if evaluate else "no",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        **options,
    )
    trainer = transformers.Trainer(
        model=model_of(1),
        args=arguments,
        train_dataset=Texts(43, 0),
        eval_dataset=Texts(30, 1),
        callbacks=[*others, callback],
    )
    trainer.train()
    return trainer


def batch_of(texts: Texts) -> dict[str, torch.Tensor]:
    return {"input_ids": texts.tokens, "attention_mask": torch.ones_like(texts.tokens)}


def noting() -> Any:
    """A callback that notes the state that training leaves."""
    import transformers

    class Before(transformers.TrainerCallback):
        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.weights = copy.deepcopy(kwargs["model"].state_dict())
            self.modes = [part.training for part in kwargs["model"].modules()]

    return Before()


def test_the_posterior_is_that_of_all_training_data_tuned_on_the_evaluation_data(tmp_path: Path) -> None:
    callback = lw.huggingface.LaplaceCallback(RECIPE)
    before = noting()
    trainer = trained(tmp_path, callback, before, num_train_epochs=12, save_strategy="no")
    train, held_out = Texts(43, 0), Texts(30, 1)
    assert callback.posterior.totals.examples == 43  # the last three too
    assert max(callback.posterior.prior_precisions) < 1e6, "uncertainty is wanted"
    loaders = [torch.utils.data.DataLoader(each, batch_size=8) for each in (train, held_out)]
    expected = lw.tune(RECIPE.fit(trainer.model, loaders[0]), lw.Validation(loaders[1]))
    torch.testing.assert_close(
        callback.posterior.predict(batch_of(held_out)).probs,
        expected.predict(batch_of(held_out)).probs,
        rtol=1e-4,
        atol=1e-5,
    )
    assert [part.training for part in trainer.model.modules()] == before.modes
    assert all(torch.equal(value, before.weights[name]) for name, value in trainer.model.state_dict().items())
    assert callback.outcome is not None
    assert callback.outcome.after["nll"] <= callback.outcome.before["nll"]
    assert trainer.state.log_history[-1]["after/nll"] == callback.outcome.after["nll"]
    assert {"before/ece", "after/ece", "step"} <= trainer.state.log_history[-1].keys()
    with torch.inference_mode():
        again = callback.posterior.predict(batch_of(held_out)).probs
    assert torch.equal(again, callback.posterior.predict(batch_of(held_out)).probs)


def test_it_is_saved_in_the_folder_of_the_checkpoint_whose_weights_it_has(tmp_path: Path) -> None:
    import transformers

    options = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True}
    callback = lw.huggingface.LaplaceCallback(RECIPE)
    trainer = trained(tmp_path, callback, **options)
    best = Path(trainer.state.best_model_checkpoint)
    assert best.name == "checkpoint-5"  # the worst, which is not the last
    model = transformers.BertForSequenceClassification.from_pretrained(best)
    x = batch_of(Texts(4, 2))
    posterior = lw.load(best / "posterior.safetensors", model)
    torch.testing.assert_close(posterior.predict(x).probs, callback.posterior.predict(x).probs)


def test_data_of_ones_own_and_other_methods_without_an_evaluation(tmp_path: Path) -> None:
    callback = lw.huggingface.LaplaceCallback(RECIPE, method=lw.EvidenceGradient())
    trained(tmp_path / "none", callback, evaluate=False, save_strategy="no")
    assert callback.outcome is not None and not callback.outcome.metrics
    assert callback.outcome.file == tmp_path / "none" / "posterior.safetensors"
    held_out = Texts(30, 1)
    loader = [{**batch_of(held_out), "labels": held_out.labels}]
    callback = lw.huggingface.LaplaceCallback(RECIPE, validation=loader, folder=tmp_path / "there")
    trained(tmp_path / "own", callback, evaluate=False, save_strategy="no")
    assert callback.outcome is not None and "after/nll" in callback.outcome.metrics
    assert (tmp_path / "there" / "posterior.safetensors").is_file()


def test_what_cannot_be_fitted_is_refused() -> None:
    with refused(ConfigError, "of type Laplace"):
        lw.huggingface.LaplaceCallback(lw.KFAC())
    with refused(ConfigError, "once training has ended"):
        _ = lw.huggingface.LaplaceCallback(RECIPE).posterior


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    names = run_page("trainer", tmp_path)
    assert names["posterior"].totals.examples == 64


def test_batches_without_labels_are_refused_before_training(tmp_path: Path) -> None:
    """Whether they are those of the trainer or of one's own."""
    import transformers

    callback = lw.huggingface.LaplaceCallback(RECIPE)
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    state = transformers.TrainerState()
    control = transformers.TrainerControl()
    batches = [{"input_ids": torch.ones(2, 3).long()}]
    with refused(DataError, "labels"):
        callback.on_train_begin(arguments, state, control, model=model_of(0), train_dataloader=batches)
    own = lw.huggingface.LaplaceCallback(RECIPE, validation=batches)
    with refused(DataError, "labels"):
        own.on_train_begin(arguments, state, control, model=model_of(0), train_dataloader=batches)


def test_a_pipeline_says_how_sure_it_is(tmp_path: Path) -> None:
    names = run_page("pipeline", tmp_path)
    assert [set(each) for each in names["answers"]] == [{"label", "score", "entropy", "epistemic"}] * 2
    assert json.dumps(names["answers"])
