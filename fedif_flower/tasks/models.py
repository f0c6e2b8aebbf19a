"""The models of images that a run can name, each built for any image size that fits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedif_flower.errors import ConfigError
from fedif_flower.seeding import derive_seed
from fedif_flower.tasks.modules import seeded_randomness

ImageShape = tuple[int, int, int]  # channels, height, width


class Architecture(NamedTuple):
    """A function that builds a model, and one that says which image sizes the model can take."""

    build: Callable[[int, int, int, int], nn.Module]  # channels, height, width, classes
    fits: Callable[[int, int], bool]  # height, width


class Dropout(nn.Dropout):
    """Dropout at half the cost on a CPU: it draws a float for each value, torch's a double."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Zero each value with probability p, and scale the others by 1 / (1 - p)."""
        if not self.training or inputs.device.type != "cpu":
            return super().forward(inputs)
        mask = torch.rand_like(inputs, dtype=torch.float32).ge_(self.p)
        return inputs * mask.div_(1 - self.p).to(inputs.dtype)


class MaxPool(nn.MaxPool2d):
    """Max-pooling of 2 x 2 squares, faster than torch's on a CPU if no gradient is needed.

    Torch's records where each largest value was, which only a gradient needs. Without that, taking
    the larger of two columns and then of two rows gives the same bits in a sixth of the time.
    """

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the largest values ``[..., h // 2, w // 2]`` of inputs ``[..., h, w]``."""
        height, width = inputs.shape[-2:]
        is_even = height % 2 == width % 2 == 0
        if inputs.requires_grad or inputs.device.type != "cpu" or not is_even:
            pooled: Tensor = super().forward(inputs)
            return pooled
        column_maxima = torch.maximum(inputs[..., ::2], inputs[..., 1::2])
        return torch.maximum(column_maxima[..., ::2, :], column_maxima[..., 1::2, :])


def _block(
    inputs: int, outputs: int, kernel: int, padding: int | tuple[int, int], *norm: nn.Module
) -> nn.Sequential:
    """Return a convolution, ``norm`` if given, 2x2 max-pooling and ReLU."""
    # ReLU comes after the pooling: function and gradient are the same, on a quarter of the values.
    convolution = nn.Conv2d(inputs, outputs, kernel, padding=padding)
    return nn.Sequential(convolution, *norm, MaxPool(), nn.ReLU())


def cnn(channels: int, height: int, width: int, num_classes: int) -> nn.Module:
    """Return the CNN of AFedSV's authors for CIFAR-10; 1,059,306 parameters on 3x32x32, 10 classes.

    Two blocks of 3x3 convolution (16, 32 channels), ReLU and max-pooling; dropout 0.2; a hidden
    layer of 512; dropout 0.2.
    """
    return nn.Sequential(
        *_block(channels, 16, 3, 1),
        *_block(16, 32, 3, 1),
        nn.Flatten(),
        Dropout(0.2),
        nn.Linear(32 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
        Dropout(0.2),
        nn.Linear(512, num_classes),
    )


def cnn_batch_norm(channels: int, height: int, width: int, num_classes: int) -> nn.Module:
    """Return two 5x5 convolutions with batch norm; 29,034 parameters on 1x28x28, 10 classes."""
    return nn.Sequential(
        *_block(channels, 16, 5, 2, nn.BatchNorm2d(16)),
        *_block(16, 32, 5, 2, nn.BatchNorm2d(32)),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), num_classes),
    )


def lenet5(channels: int, height: int, width: int, num_classes: int) -> nn.Module:
    """Return LeNet-5 with ReLU and max-pooling; sides below 32 pixels are padded by 2 at each end.

    61,706 parameters on 1x28x28, 62,006 on 3x32x32, 10 classes.
    """
    return nn.Sequential(
        *_block(channels, 6, 5, (_lenet_padding(height), _lenet_padding(width))),
        *_block(6, 16, 5, 0),
        nn.Flatten(),
        nn.Linear(16 * _lenet_side(height) * _lenet_side(width), 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, num_classes),
    )


def mlp(channels: int, height: int, width: int, num_classes: int) -> nn.Module:
    """Return an MLP with one hidden layer of 64 and ReLU (for the digits 4,810 parameters)."""
    inputs = channels * height * width
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, num_classes))


def resnet18(channels: int, height: int, width: int, num_classes: int) -> nn.Module:
    """Return torchvision's ResNet-18; 11,173,962 parameters on 3x32x32, 10 classes.

    Images with sides of up to 64 pixels get the stem usual for CIFAR (3x3, stride 1, no pooling),
    larger ones the stem for ImageNet (7x7, stride 2, max-pooling).
    """
    from torchvision import models  # Imported here since it takes as long as importing torch.

    model: nn.Module = models.resnet18(num_classes=num_classes)
    model.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    if max(height, width) <= 64:
        model.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    return model


def _multiples_of_4(height: int, width: int) -> bool:
    return min(height, width) >= 4 and height % 4 == width % 4 == 0


def _lenet_padding(side: int) -> int:
    return 2 if side < 32 else 0


def _lenet_side(side: int) -> int:
    """Return the length of a side of LeNet-5's feature maps after both blocks."""
    return ((side + 2 * _lenet_padding(side) - 4) // 2 - 4) // 2


MODELS: Mapping[str, Architecture] = MappingProxyType(
    {
        "cnn": Architecture(cnn, _multiples_of_4),
        "cnn-batch-norm": Architecture(cnn_batch_norm, _multiples_of_4),
        "lenet5": Architecture(lenet5, lambda h, w: min(_lenet_side(h), _lenet_side(w)) >= 1),
        # The layers halve the image three times.
        "resnet18": Architecture(resnet18, lambda h, w: min(h, w) >= 8),
        "mlp": Architecture(mlp, lambda h, w: min(h, w) >= 1),
    }
)


def build_model(name: str, image_shape: ImageShape, num_classes: int, *, seed: int) -> nn.Module:
    """Build a model whose initial weights depend on ``seed`` alone (see :func:`new_model`).

    The process's random state is the same afterwards.
    """
    with seeded_randomness(derive_seed("model", seed), torch.device("cpu")):
        return new_model(name, image_shape, num_classes)


def new_model(name: str, image_shape: ImageShape, num_classes: int) -> nn.Module:
    """Build a model on the CPU, in train mode; weights come from the process's random state.

    Parameters
    ----------
    name : str
        One of :data:`MODELS`.
    image_shape : tuple of int
        Channels, height and width of the images.
    num_classes : int
        Number of outputs, >= 2.

    Raises
    ------
    ConfigError
        If there is no such model, there are fewer than two classes, or the images do not fit.
    """
    if name not in MODELS:
        raise ConfigError(f"model = {name!r}; allowed: {', '.join(MODELS)}")
    if num_classes < 2:
        raise ConfigError(f"model = {name!r} for {num_classes} class; allowed: 2 classes or more")
    _, height, width = image_shape
    if not MODELS[name].fits(height, width):
        fitting = [other for other, model in MODELS.items() if model.fits(height, width)]
        shape = "x".join(map(str, image_shape))
        raise ConfigError(
            f"model = {name!r} does not fit images of {shape}; allowed: {', '.join(fitting)}"
        )
    return MODELS[name].build(*image_shape, num_classes)


def default_model(image_shape: ImageShape) -> str:
    """Return the name of the model that ``model = "auto"`` stands for.

    It is ``cnn`` for images of the shape of CIFAR-10 or Fashion-MNIST, the paper's data sets. For
    others it is LeNet-5, or the MLP if they are too small for LeNet-5.
    """
    if image_shape in {(3, 32, 32), (1, 28, 28)}:
        return "cnn"
    _, height, width = image_shape
    if MODELS["lenet5"].fits(height, width):
        return "lenet5"
    return "mlp"
