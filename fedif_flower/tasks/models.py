"""The models a run can name, each built for any image size that fits it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.errors import ConfigError
from fedif_flower.seeding import derive_seed
from fedif_flower.tasks.modules import seeded_randomness

ImageShape = tuple[int, int, int]  # channels, height, width


class Architecture(Protocol):
    """What the registry holds: builds a model, and knows which images it can take."""

    def __call__(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        """Build the model with fresh weights."""

    def fits(self, image_shape: ImageShape) -> bool:
        """Tell whether images of this shape ``(c, h, w)`` can be classified."""


class Dropout(nn.Dropout):
    """Dropout at half the cost on a CPU: one float drawn per value, where torch draws a double."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Zero each value with probability p, and scale the others by 1 / (1 - p)."""
        if not self.training or inputs.device.type != "cpu":
            return super().forward(inputs)
        kept = torch.rand_like(inputs, dtype=torch.float32).ge_(self.p)
        return inputs * kept.div_(1 - self.p).to(inputs.dtype)


class CNN(nn.Sequential):
    """The CNN of AFedSV's authors for CIFAR-10; 1,059,306 parameters on 3x32x32, 10 classes.

    Two blocks of 3x3 convolution (16, 32 channels), ReLU and max-pooling; dropout 0.2; a hidden
    layer of 512; dropout 0.2.
    """

    def __init__(self, image_shape: ImageShape, num_classes: int) -> None:
        channels, height, width = image_shape
        super().__init__(
            # ReLU after the pooling: the same function and gradient, on a quarter of the values.
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            Dropout(0.2),
            nn.Linear(32 * (height // 4) * (width // 4), 512),
            nn.ReLU(),
            Dropout(0.2),
            nn.Linear(512, num_classes),
        )

    @staticmethod
    def fits(image_shape: ImageShape) -> bool:
        """Height and width must be multiples of 4."""
        return _multiples_of_4(image_shape)


class BatchNormCNN(nn.Sequential):
    """Two 5x5 convolutions with batch norm; 29,034 parameters on 1x28x28, 10 classes."""

    def __init__(self, image_shape: ImageShape, num_classes: int) -> None:
        channels, height, width = image_shape
        super().__init__(
            nn.Conv2d(channels, 16, 5, padding=2),
            nn.BatchNorm2d(16),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 5, padding=2),
            nn.BatchNorm2d(32),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * (height // 4) * (width // 4), num_classes),
        )

    @staticmethod
    def fits(image_shape: ImageShape) -> bool:
        """Height and width must be multiples of 4."""
        return _multiples_of_4(image_shape)


class LeNet5(nn.Sequential):
    """LeNet-5 with ReLU and max-pooling; images below 32 pixels are padded by 2 on each side.

    61,706 parameters on 1x28x28, 62,006 on 3x32x32, 10 classes.
    """

    def __init__(self, image_shape: ImageShape, num_classes: int) -> None:
        channels, height, width = image_shape
        super().__init__(
            nn.Conv2d(channels, 6, 5, padding=(_lenet_padding(height), _lenet_padding(width))),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(6, 16, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * _lenet_side(height) * _lenet_side(width), 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, num_classes),
        )

    @staticmethod
    def fits(image_shape: ImageShape) -> bool:
        """At least one value per channel must be left after both blocks (12 pixels)."""
        _, height, width = image_shape
        return min(_lenet_side(height), _lenet_side(width)) >= 1


class MLP(nn.Sequential):
    """One hidden layer of 64 with ReLU (64-64-10 for the digits: 4,810 parameters)."""

    def __init__(self, image_shape: ImageShape, num_classes: int) -> None:
        channels, height, width = image_shape
        super().__init__(
            nn.Flatten(),
            nn.Linear(channels * height * width, 64),
            nn.ReLU(),
            nn.Linear(64, num_classes),
        )

    @staticmethod
    def fits(image_shape: ImageShape) -> bool:
        """Any image fits."""
        return min(image_shape) >= 1


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (He et al., 2016, figure 2)."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module | None = None
        if stride != 1 or in_channels != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ``[n, in_channels, h, w]`` to ``[n, channels, h / stride, w / stride]``."""
        hidden = functional.relu(self.bn1(self.conv1(inputs)))
        shortcut = inputs if self.downsample is None else self.downsample(inputs)
        return functional.relu(self.bn2(self.conv2(hidden)) + shortcut)


class ResNet18(nn.Module):
    """ResNet-18, state dict as torchvision's; 11,173,962 parameters on 3x32x32, 10 classes.

    Images up to 64 pixels get the stem usual for CIFAR (3x3, stride 1, no pooling), larger ones
    that of ImageNet (7x7, stride 2, max-pooling). Written out because importing
    ``torchvision.models`` takes almost as long as importing torch, in every client process.
    """

    def __init__(self, image_shape: ImageShape, num_classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.maxpool: nn.Module
        if max(height, width) <= 64:
            self.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
            self.maxpool = nn.Identity()
        else:
            self.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
            self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1))
        self.fc = nn.Linear(512, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, inputs: Tensor) -> Tensor:
        """Map images ``[n, c, h, w]`` to logits ``[n, num_classes]``."""
        hidden = self.maxpool(functional.relu(self.bn1(self.conv1(inputs))))
        hidden = self.layer4(self.layer3(self.layer2(self.layer1(hidden))))
        logits: Tensor = self.fc(hidden.mean((2, 3)))
        return logits

    @staticmethod
    def fits(image_shape: ImageShape) -> bool:
        """At least 8 pixels: the layers halve the image three times."""
        return min(image_shape[1:]) >= 8


MODELS: Mapping[str, Architecture] = MappingProxyType(
    {
        "cnn": CNN,
        "cnn-batch-norm": BatchNormCNN,
        "lenet5": LeNet5,
        "resnet18": ResNet18,
        "mlp": MLP,
    }
)

# The images of the paper's data sets.
_CNN_SHAPES: frozenset[ImageShape] = frozenset({(3, 32, 32), (1, 28, 28)})


def build_model(name: str, image_shape: ImageShape, num_classes: int, *, seed: int) -> nn.Module:
    """Build a model whose initial weights depend on ``seed`` alone.

    Parameters
    ----------
    name : str
        One of :data:`MODELS`.
    image_shape : tuple of int
        Channels, height and width of an image.
    num_classes : int
        Classes to tell apart, >= 2.
    seed : int
        The run's seed; the process's own random state is left as it was.

    Returns
    -------
    torch.nn.Module
        The model on the CPU, in train mode.

    Raises
    ------
    ConfigError
        If the name is unknown, there is nothing to tell apart, or the images do not fit.
    """
    with seeded_randomness(derive_seed("model", seed), torch.device("cpu")):
        return new_model(name, image_shape, num_classes)


def new_model(name: str, image_shape: ImageShape, num_classes: int) -> nn.Module:
    """Build a model from the process's own random state; see :func:`build_model`.

    Parameters
    ----------
    name : str
        One of ``MODELS``.
    image_shape : tuple of int
        Channels, height and width of what it takes.
    num_classes : int
        Outputs, >= 2.

    Raises
    ------
    ConfigError
        If there is no such model, or it does not fit the images.
    """
    if name not in MODELS:
        raise ConfigError(f"model = {name!r}; allowed: {', '.join(MODELS)}")
    if num_classes < 2:
        raise ConfigError(f"model = {name!r} for {num_classes} class; allowed: 2 classes or more")
    if not MODELS[name].fits(image_shape):
        fitting = ", ".join(other for other in MODELS if MODELS[other].fits(image_shape))
        shape = "x".join(map(str, image_shape))
        raise ConfigError(f"model = {name!r} does not fit images of {shape}; allowed: {fitting}")
    return MODELS[name](image_shape, num_classes)


def default_model(image_shape: ImageShape) -> str:
    """Return the name of the model that ``model = "auto"`` stands for.

    The paper's CNN for images as large as those of its data sets, else LeNet-5, and the MLP for
    images too small for it.
    """
    if image_shape in _CNN_SHAPES:
        return "cnn"
    return "lenet5" if LeNet5.fits(image_shape) else "mlp"


def _multiples_of_4(image_shape: ImageShape) -> bool:
    _, height, width = image_shape
    return min(height, width) >= 4 and height % 4 == width % 4 == 0


def _lenet_padding(side: int) -> int:
    return 2 if side < 32 else 0


def _lenet_side(side: int) -> int:
    return ((side + 2 * _lenet_padding(side) - 4) // 2 - 4) // 2
