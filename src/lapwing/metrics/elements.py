"""What is scored: checked, flattened, in float64."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.data.checks import check_finite
from lapwing.ground.errors import DataError, ShapeError, check_kind
from lapwing.ground.labels import IGNORED, canonical_labels, check_labels
from lapwing.ground.precision import wide, wide_device


def check_tensors(**named: object) -> None:
    """Refuses what is no tensor.

    Args:
        **named: What came, by the names that the messages use.

    Raises:
        ConfigError: Naming the first.
    """
    for name, value in named.items():
        check_kind(name, value, (Tensor,), f"torch.as_tensor({name})")


def elements(probs: Float[Tensor, "*n c"], targets: Tensor) -> tuple[Float[Tensor, "m c"], Int[Tensor, " m"]]:
    """The m elements with a label: probabilities in float64 and labels.

    Args:
        probs: Class probabilities, class axis last.
        targets: Integer labels ``[*n]``; -100 is ignored.

    Returns:
        Probabilities ``[m, c]`` and labels ``[m]``.

    Raises:
        ShapeError: If the shapes do not match.
        DataError: If there is nothing to score, or not probabilities, or labels outside the classes.
    """
    check_tensors(probs=probs, targets=targets)
    hint = "[n, c] with labels [n], or [n, t, c] with [n, t]; movedim(1, -1) for images [n, c, h, w]"
    if probs.ndim < 2 or probs.shape[-1] < 2:
        raise ShapeError("probabilities [n, c] with c >= 2 classes", f"shape {list(probs.shape)}", hint)
    labels = canonical_labels(probs, targets)
    check_labels(labels, probs.shape[-1])
    p, y = labelled(probs, labels)
    check_probabilities(p, probs.dtype)
    return p, y


def labelled(
    values: Float[Tensor, "*n c"], labels: Int[Tensor, "*n"]
) -> tuple[Float[Tensor, "m c"], Int[Tensor, " m"]]:
    """The m elements whose label is not ``IGNORED``, in float64, and their labels.

    Raises:
        DataError: If there is none.
    """
    kept = labels != IGNORED
    if not bool(kept.any()):
        raise DataError(f"a label other than {IGNORED}", f"{labels.numel()} labels, none to score", "more data")
    scored = wide(values.detach()[kept])
    return scored, labels[kept].to(scored.device)


def top(probs: Float[Tensor, "m c"], labels: Int[Tensor, " m"]) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
    """Confidence, the largest probability, and whether its class is the label (1) or not (0).

    Args:
        probs: Probabilities from ``elements``.
        labels: Labels from ``elements``.
    """
    confidence, predicted = probs.max(1)
    return confidence, wide(predicted == labels)


def ranked(probs: Float[Tensor, "m c"], labels: Int[Tensor, " m"]) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
    """As ``top``, by increasing confidence; equal confidences share their mean correctness.

    That is the expectation over the order of ties, so that no score depends on the order of the data.

    Args:
        probs: Probabilities from ``elements``.
        labels: Labels from ``elements``.
    """
    return by_confidence(*top(probs, labels))


def by_confidence(
    confidence: Float[Tensor, " m"], correct: Float[Tensor, " m"]
) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
    """As ``ranked``, of confidences and whether they were right.

    Args:
        confidence: Largest probability of each element.
        correct: 1 where its class was the label, else 0.
    """
    values, group, size = torch.unique(confidence, return_inverse=True, return_counts=True)
    mean = torch.zeros_like(values).index_add_(0, group, correct) / size
    return values.repeat_interleave(size), mean.repeat_interleave(size)


def scalars(**named: Tensor) -> tuple[Float[Tensor, " m"], ...]:
    """Tensors of one shape, flattened, in float64.

    Args:
        **named: Tensors by the names that the messages use; the shape of the first is expected of all.

    Raises:
        ShapeError: If a shape differs.
        DataError: If they are empty or a number is not finite.
    """
    check_tensors(**named)
    first = next(iter(named))
    shape = named[first].shape
    for name, tensor in named.items():
        if tensor.shape != shape:
            raise ShapeError(
                f"{name} of the shape of {first}, {list(shape)}",
                f"{list(tensor.shape)}",
                "reshape, or expand_as for one value for all: broadcasting [n] against [n, 1] is never meant",
            )
        if not tensor.numel():
            raise DataError(f"at least one number in {name}", f"shape {list(tensor.shape)}", "more data")
        check_finite(tensor, name, "looking for NaN in the data or a division by a zero variance")
    device = wide_device(next(iter(named.values())).device)
    return tuple(wide(tensor.detach()).to(device).flatten() for tensor in named.values())


def check_all_positive(name: str, values: Tensor) -> None:
    """Raise unless every number is positive.

    Args:
        name: What they are, in the message.
        values: Numbers to look at.

    Raises:
        DataError: If one is zero or negative.
    """
    if bool((values <= 0).any()):
        bad = int((values <= 0).sum())
        raise DataError(f"{name} > 0", f"{bad} of {values.numel()} not", "adding the observation noise")


def check_probabilities(p: Float[Tensor, "*n c"], dtype: torch.dtype) -> None:
    """Raise unless the numbers are probabilities, to the accuracy of a type.

    Args:
        p: Numbers to look at, classes last.
        dtype: Type in which they were computed.

    Raises:
        DataError: If a number is not finite or negative, or the sum over the last axis not 1.
    """
    hint = "outputs.softmax(-1): these look like logits or scores"
    tolerance = 1e-3 if torch.finfo(dtype).bits >= 32 else 2e-2
    check_finite(p, "probabilities", "checking the predictions")
    worst = float((p.sum(-1) - 1).abs().max())
    if worst > tolerance:
        raise DataError("probabilities that sum to 1 over the last axis", f"a sum off by {worst:.3g}", hint)
    if float(p.min()) < -tolerance:
        raise DataError("probabilities >= 0", f"a smallest one of {float(p.min()):.3g}", hint)
