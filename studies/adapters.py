"""Laplace-LoRA (Yang et al. 2024) in small: error bars on the adapters of a transformer fitted to few examples.

    python -m studies.adapters --json FILE [--quick] [--seeds N]

Handwritten digits of scikit-learn as 16 tokens. A transformer learns the digits 0 to 4; adapters of PEFT and a new head
then learn the digits 5 to 9 from 100 images. Temperature scaling has 60 more, the posteriors have none. Differences are
of the test NLL from that of temperature scaling on the same images, with their paired standard error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting, Study, main
from benchmarks.data import Pair, generator
from benchmarks.report import Row, timed
from benchmarks.tasks import probabilities
from benchmarks.training import train
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.tuning import Method
from studies.links import losses, scores

FEW, HELD = 100, 60
ALL = lw.Names(("*lora_*", "*classifier*"))
METHODS: dict[str, tuple[Any, Any, Method | None]] = {
    "last layer, evidence": (lw.Full(view="weights"), lw.LastLayer(), lw.EvidenceGradient()),
    "all adapters and the head, KFAC, evidence": (lw.KFAC(), ALL, lw.EvidenceGradient()),
    "all adapters and the head, KFAC of rank 8, evidence": (lw.KFAC(rank=8), ALL, lw.EvidenceGradient()),
    "all adapters and the head, KFAC, default": (lw.KFAC(), ALL, None),
}
"""How the precision is held, which weights are uncertain, and what the prior is chosen by; the paper's is evidence."""

COLUMNS = ("accuracy", "nll", "difference", "debiased_ece", "brier", "precision", "seconds")


def rows(setting: Setting) -> Iterator[Row]:
    """Every method on the same adapted transformers."""
    for seed in setting.repeats:
        first, few, held, test = digits(seed)
        model = adapted(first, few, seed, 0.1 if setting.quick else 1.0)
        network = PlainNetwork(model, lw.Categorical())
        calibrated, seconds = timed(lambda network=network, held=held: network.calibrated(held))
        by_temperature = probabilities(calibrated, test[0])
        base = losses(by_temperature, test[1])
        head = {"part": "digits", "seed": seed}
        yield head | {"method": "plain network"} | scores(probabilities(network, test[0]), test[1], base)
        yield head | {"method": "temperature scaling", "seconds": seconds} | scores(by_temperature, test[1], base)
        for name in setting.among(METHODS):
            fitted, seconds = timed(lambda name=name, few=few, model=model: tuned(name, model, few))
            row = {"weights": fitted.network.size, "precision": float(fitted.prior_precisions[0]), "seconds": seconds}
            yield head | {"method": name} | row | scores(probabilities(fitted, test[0]), test[1], base)


def tuned(name: str, model: nn.Module, data: Pair) -> lw.Posterior:
    """The posterior of a method, its prior chosen."""
    structure, weights, method = METHODS[name]
    posterior = lw.Laplace(lw.Categorical(), structure=structure, weights=weights).fit(model, data)
    return lw.tune(posterior) if method is None else lw.tune(posterior, method)


def digits(seed: int) -> tuple[Pair, Pair, Pair, Pair]:
    """The digits 0 to 4, and of the digits 5 to 9 few to adapt to, some held out, and the rest to test on."""
    from sklearn.datasets import load_digits

    pixels, labels = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    tokens = F.avg_pool2d(pixels.view(-1, 1, 8, 8).float(), 2).flatten(1).round().long()
    before = labels < 5
    later = torch.nonzero(~before)[:, 0]
    later = later[torch.randperm(len(later), generator=generator(seed))]
    parts = (later[:FEW], later[FEW : FEW + HELD], later[FEW + HELD :])
    few, held, test = ((tokens[part], labels[part] - 5) for part in parts)
    return (tokens[before], labels[before]), few, held, test


def adapted(first: Pair, few: Pair, seed: int, share: float) -> nn.Module:
    """A transformer that learnt the first digits, with adapters and a new head that learnt the others.

    Args:
        first: What it learns first.
        few: What it is adapted to.
        seed: Of weights and batches.
        share: Of the passes over the data that are made.
    """
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(vocab_size=17, max_position_embeddings=16, num_labels=5, pad_token_id=None, **sizes, **dropout)
    model = BertForSequenceClassification(config)
    train(model, *first, epochs=int(20 * share), batch=50, rate=3e-3, loss=nll, seed=seed)
    nn.init.normal_(model.classifier.weight, std=0.02)
    nn.init.zeros_(model.classifier.bias)
    model = get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=8, target_modules=["query", "value"]))
    return train(model, *few, epochs=int(100 * share), batch=50, rate=3e-3, loss=nll, seed=seed)


def nll(found: Any, labels: Tensor) -> Tensor:
    """The mean loss of what a model of ``transformers`` returns."""
    return F.cross_entropy(found.logits, labels)


STUDY = Study(rows, COLUMNS, counts=("weights",))

if __name__ == "__main__":
    main({"adapters": STUDY})
