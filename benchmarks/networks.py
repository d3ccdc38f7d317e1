"""Networks of benchmarks and studies: LeNet, a digit CNN, the two kinds of CIFAR ResNet, a small transformer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)
WEIGHTS = 15_000
CHANNELS = (8, 16)
CLASSES = 10


def lenet(classes: int = 10) -> nn.Sequential:
    """LeNet for 28x28 images, 29,282 parameters with 10 classes.

    Args:
        classes: Width of the output.

    Returns:
        A plain sequence of modules, the only form some peers accept.

    Example:
        >>> weight_count(lenet())
        29282
    """
    return pooled(6, 16, 256, 100, classes, kernel=5)


def pooled(
    first: int, second: int, features: int, width: int, classes: int, *, kernel: int, padding: int = 0,
    activation: type[nn.Module] = nn.ReLU, pool: Callable[[int], nn.Module] = nn.MaxPool2d,
) -> nn.Sequential:  # fmt: skip
    """Two convolutions of grey images, each with an activation and pooling over pairs, and two linear layers.

    Args:
        first: Channels after the first convolution.
        second: And after the second.
        features: Inputs of the linear layers.
        width: Hidden units between them.
        classes: Width of the output.
        kernel: Height and width of the filters.
        padding: Of the convolutions.
        activation: After each layer but the last.
        pool: After each convolution.
    """
    convolutions: list[nn.Module] = []
    for inputs, outputs in ((1, first), (first, second)):
        convolutions += [nn.Conv2d(inputs, outputs, kernel, padding=padding), activation(), pool(2)]
    return nn.Sequential(
        *convolutions, nn.Flatten(), nn.Linear(features, width), activation(), nn.Linear(width, classes)
    )


def digit_cnn(
    pixels: Literal[28, 8] = 28, *, kernel: Literal[5, 3] = 5, hidden: int | None = None, seed: int = 0
) -> nn.Sequential:
    """Two convolutions with pooling and two linear layers, for digits in grey.

    The width of the hidden layer brings the network closest to 15,000 weights:

        pixels  kernel  features  hidden  weights
            28       5       256      43   14,915
            28       3       400      33   14,821
             8       5        64     154   14,984
             8       3        64     183   14,983

    Args:
        pixels: Height and width of an image; the convolutions pad images of 8 pixels only.
        kernel: Height and width of the filters.
        hidden: Another width of the hidden layer.
        seed: Of the initial weights.

    Example:
        >>> sum(p.numel() for p in digit_cnn().parameters()), digit_cnn()(torch.zeros(2, 1, 28, 28)).shape
        (14915, torch.Size([2, 10]))
    """
    padding = kernel // 2 if pixels == 8 else 0
    side = pixels
    for _ in CHANNELS:
        side = (side + 2 * padding - kernel + 1) // 2
    narrow, wide = CHANNELS
    features = wide * side**2
    filters = narrow * (kernel**2 + 1) + wide * (narrow * kernel**2 + 1)
    width = round((WEIGHTS - filters - CLASSES) / (features + 1 + CLASSES)) if hidden is None else hidden
    sizes = (narrow, wide, features, width, CLASSES)
    return seeded(lambda: pooled(*sizes, kernel=kernel, padding=padding), seed).eval()


def perceptron(*widths: int, activation: type[nn.Module] = nn.Tanh, seed: int = 0) -> nn.Sequential:
    """Linear layers with activations between them.

    Args:
        *widths: Inputs, hidden units, outputs.
        activation: Between the layers.
        seed: Of the initial weights.

    Example:
        >>> weight_count(perceptron(784, 37, 37, 10))
        30831
    """

    def layers() -> nn.Sequential:
        parts = [part for i, o in pairwise(widths) for part in (nn.Linear(i, o), activation())]
        return nn.Sequential(*parts[:-1])

    return seeded(layers, seed)


def seeded(make: Callable[[], M], seed: int) -> M:
    """A network whose initial weights follow the seed, which leaves the global one alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def weight_count(model: nn.Module) -> int:
    """How many weights a network has."""
    return sum(p.numel() for p in model.parameters())


def jacobian(model: nn.Module, x: Float[Tensor, "n k"]) -> Float[Tensor, "n d"]:
    """The derivative of a single output in the weights that are trained, a row an input."""
    weights = [value for value in model.parameters() if value.requires_grad]
    rows = [torch.autograd.grad(output, weights, retain_graph=True) for output in model(x)]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm around a shortcut (He et al. 2016, section 4.2).

    Args:
        inputs: Channels that come in.
        outputs: Channels that go out; where they are more, the image is halved.
        projection: Where the shape changes, shortcut by 1x1 convolution and batch norm (option B of the
            paper) instead of stride-2 subsampling padded with zero channels (option A).
    """

    def __init__(self, inputs: int, outputs: int, *, projection: bool) -> None:
        super().__init__()
        self.stride = stride = 1 if inputs == outputs else 2
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.padding = outputs - inputs
        self.downsample: nn.Sequential | None = None
        if projection and inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x: Float[Tensor, "n i h w"]) -> Float[Tensor, "n o h2 w2"]:
        """Images in, images out."""
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self._shortcut(x))

    def _shortcut(self, x: Tensor) -> Tensor:
        if self.downsample is not None:
            return self.downsample(x)
        if not self.padding:
            return x
        before = self.padding // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.padding - before))


class ResNet(nn.Module):
    """The CIFAR ResNet of He et al. 2016, section 4.2: depth 6 blocks + 2, channels 16-32-64.

    Args:
        blocks: Blocks in each of the three stages: 3 for ResNet-20, 5 for ResNet-32.
        classes: Width of the output.
        projection: Kind of shortcut, see ``BasicBlock``.
        head: Name of the last linear layer in the state dict.

    Example:
        >>> weight_count(ResNet(3))
        269722
    """

    def __init__(self, blocks: int, *, classes: int = 10, projection: bool = False, head: str = "linear") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks, projection=projection)
        self.layer2 = _stage(16, 32, blocks, projection=projection)
        self.layer3 = _stage(32, 64, blocks, projection=projection)
        self._head = head
        self.add_module(head, nn.Linear(64, classes))

    def forward(self, x: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n c"]:
        """Normalised images in, logits out."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.get_submodule(self._head)(x.mean(dim=(2, 3)))


def _stage(inputs: int, outputs: int, blocks: int, *, projection: bool) -> nn.Sequential:
    channels = (inputs, *[outputs] * blocks)
    return nn.Sequential(*(BasicBlock(i, o, projection=projection) for i, o in pairwise(channels)))


class Attention(nn.Module):
    """Self-attention over the tokens that are there.

    Args:
        width: Size of a token.
        heads: Attention heads; divides ``width``.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads = heads

    def forward(self, x: Float[Tensor, "n t w"], absent: Bool[Tensor, "n t"] | None = None) -> Float[Tensor, "n t w"]:
        """Tokens in, tokens out."""
        n, t, w = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / (w // self.heads) ** 0.5
        if absent is not None:
            scores = scores.masked_fill(absent[:, None, None, :], -torch.inf)
        return self.mix((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, w))


class EncoderLayer(nn.Module):
    """Self-attention and a two-layer perceptron, each behind a layer norm (pre-norm).

    Args:
        width: Size of a token.
        heads: Attention heads; divides ``width``.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Float[Tensor, "n t w"]) -> Float[Tensor, "n t w"]:
        """Tokens in, tokens out."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Two-layer classifier of token sequences; token 0, put first, is the class token.

    It knows 64 tokens, the class token included, in sequences of at most 32, and ten classes; four heads.

    Example:
        >>> net = Transformer()
        >>> weight_count(net), net(torch.zeros(2, 32, dtype=torch.long)).shape
        (73866, torch.Size([2, 10]))
    """

    def __init__(self) -> None:
        super().__init__()
        width = 64
        self.token, self.position = nn.Embedding(64, width), nn.Embedding(32, width)
        self.encoder = nn.Sequential(*(EncoderLayer(width, heads=4) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, tokens: Int[Tensor, "n t"]) -> Float[Tensor, "n c"]:
        """Sequences that begin with the class token in, logits out."""
        place = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        x = self.encoder(self.token(tokens) + self.position(place))
        return self.head(self.norm(x[:, 0]))


class WideResNet18(nn.Module):
    """ResNet-18 as ImageNet knows it (He et al. 2016, table 1): 64, 128, 256 and 512 channels, two blocks a stage.

    Args:
        classes: Outputs.
        small: Whether images are small, as those of CIFAR are: the first convolution is then 3x3 and keeps their size.

    Example:
        >>> weight_count(WideResNet18()), weight_count(WideResNet18(small=True))
        (11181642, 11173962)
    """

    def __init__(self, classes: int = 10, *, small: bool = False) -> None:
        super().__init__()
        first = nn.Conv2d(3, 64, 3, 1, 1, bias=False) if small else nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        pool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        self.stem = nn.Sequential(first, nn.BatchNorm2d(64), nn.ReLU(), pool)
        widths = (64, 64, 128, 256, 512)
        self.stages = nn.Sequential(*(_stage(i, o, 2, projection=True) for i, o in pairwise(widths)))
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n c"]:
        """Normalised images in, logits out."""
        return self.fc(self.stages(self.stem(x)).mean(dim=(2, 3)))
