"""Test-time augmentation: a network's average over views of its input, which is a network as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast, final

from torch import Tensor, nn

from lapwing.ground.errors import ConfigError, DataError, describe
from lapwing.jacobian.network.output import Output, check_output, name_of, output_of
from lapwing.jacobian.network.unwrapping import unwrapped

Change: TypeAlias = Callable[[Tensor], Tensor]
"""Another tensor made of a tensor, the same at every call."""

View: TypeAlias = Change | tuple[Change, Change]
"""A change of the input; with a second one, which takes the outputs back, where they have places."""


@final
class TestTimeAugmentation(nn.Module):
    """A network that averages its outputs over views of the input, such as an image and its mirror image.

        f̄(x) = 1/V Σ_v u_v(f(t_v(x))),   t_1 and u_1 the identity

    It is fitted, tuned, compared, exported and saved as any network is. A file holds no code: ``lw.load`` is given the
    average over the same views, and does not notice others. Of a posterior the weights are those of f, and the Jacobian
    is the average over the views too. Views must be changes after which the answer is the same and that the network has
    seen in training: mirror images of digits are other digits.

    ``KFAC()`` takes each view for an example of its own, as it takes positions of a convolution: where views look alike
    to a layer its curvature is up to V times too small. ``KFAC(sharing="reduce")`` sums over views first, and over
    positions; ``EKFAC``, ``Diagonal`` and ``LowRank`` are of the average itself.

    ``LastLayer()`` looks for a layer whose outputs are the network's own, and finds none: name it, as
    ``LastLayer("model.fc")``. Or average the features, which is the same posterior:
    ``nn.Sequential(TestTimeAugmentation(body, views), head)``.

    Args:
        model: The trained network. Its weights are shared, not copied; in training mode it stays as it was.
        views: Changes t_v of the input beside the input as it is. Where outputs have places, as those of segmentation,
            a pair of changes (t_v, u_v): the second takes the outputs back.
        output: Which part of what the network returns is its output: a key, an index or a function of it.

    Raises:
        ConfigError: If there are no views, or one is no function or pair of them.

    Cost:
        V times the passes of the network, for fits, tuning and predictions alike, one view after the other.

    Example:
        >>> import torch
        >>> network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
        >>> averaged = TestTimeAugmentation(network, [lambda x: x.flip(-1)])
        >>> x = torch.randn(5, 1, 4, 4)
        >>> torch.allclose(averaged(x), averaged(x.flip(-1)), atol=1e-6)
        True

    Source: A. Krizhevsky, I. Sutskever and G. Hinton, ImageNet Classification with Deep Convolutional Neural Networks,
        2012, section 4.1, which averages probabilities; here it is the outputs, before the likelihood.
    """

    __test__ = False  # pytest takes classes of this name for tests

    def __init__(self, model: nn.Module, views: Sequence[View], *, output: Output = None) -> None:
        super().__init__()
        check_output(output)
        if not isinstance(views, list | tuple) or not views:
            raise ConfigError("a list of views", f"{views!r:.80}", "[lambda x: x.flip(-1)]")
        self.model = unwrapped(model, "TestTimeAugmentation(model, views)")
        self.views = tuple(there_and_back(view) for view in views)
        self.output = output

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """The average of the outputs.

        Args:
            inputs: The input, one tensor.
            named: Or by its name, as the forward pass of the network calls it.

        Raises:
            ConfigError: If a view is another one of the outputs' shape.
            DataError: If the input is not one tensor.
        """
        total = output_of(self.model(*inputs, **named), self.output)
        for there, back in self.views:
            changed, changed_by_name = changed_input(there, inputs, named)
            outputs = back(output_of(self.model(*changed, **changed_by_name), self.output))
            if outputs.shape != total.shape:
                raise ConfigError(
                    f"views whose outputs have the shape of those of the input itself, {list(total.shape)}",
                    f"{list(outputs.shape)} by {name_of(there)}",
                    "a pair of changes (there, back), the second of which takes the outputs back",
                )
            total = total + outputs
        return total / (1 + len(self.views))

    def extra_repr(self) -> str:
        """The views, by name, and which part is the output."""
        views = f"views={', '.join(name_of(there) for there, _ in self.views)}"
        if self.output is None:
            return views
        return f"{views}, output={name_of(self.output) if callable(self.output) else repr(self.output)}"


def changed_input(
    change: Change, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Another view of the only input of a network, given by its place or by its name.

    Raises:
        DataError: If it is not one tensor.
    """
    given = [*inputs, *named.values()]
    if len(given) != 1 or not isinstance(given[0], Tensor):
        kinds = ", ".join(describe(each) for each in given) or "nothing"
        hint = "a network of one input; of several write a module that calls it with each view of them"
        raise DataError("one tensor as input, of which views are made", kinds, hint)
    return tuple(change(x) for x in inputs), {name: change(x) for name, x in named.items()}


def there_and_back(view: object) -> tuple[Change, Change]:
    """The change of the input of a view, and that of the outputs.

    Raises:
        ConfigError: If it is no view.
    """
    pair = view if isinstance(view, tuple) else (view, unchanged)
    if len(pair) != 2 or not all(callable(change) for change in pair):
        expected = "views that are functions of a tensor, or pairs of them"
        raise ConfigError(expected, f"{view!r:.80}", "lambda x: x.flip(-1)")
    return cast("tuple[Change, Change]", pair)


def unchanged(outputs: Tensor) -> Tensor:
    """The outputs as they are."""
    return outputs
