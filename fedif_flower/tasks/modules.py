"""Helpers for any torch module: names, layers, modes, random state, memory formats, trials."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedif_flower.errors import ConfigError
from fedif_flower.tasks.rows import num_examples

# Torch's default generators belong to the process, so only one thread at a time may seed them.
_randomness = RLock()


def trainable_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return a model's trainable parameters, in the order of the flat vector."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def trainable_names(model: nn.Module) -> list[str]:
    """Return the names of a model's trainable parameters, in the order of the flat vector."""
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def array_shapes(model: nn.Module) -> dict[str, list[int]]:
    """Return the shape of each array of a model's ``state_dict``, by name."""
    return {name: list(value.shape) for name, value in model.state_dict().items()}


def tied_names(model: nn.Module) -> dict[str, str]:
    """Return first names by second names of the arrays that ``state_dict`` has more than once."""
    first_names: dict[int, str] = {}  # By the id() of the array.
    tied: dict[str, str] = {}
    for name, array in model.state_dict(keep_vars=True).items():
        first_name = first_names.setdefault(id(array), name)
        if first_name != name:
            tied[name] = first_name
    return tied


class OutputLayer(NamedTuple):
    """Where a layer ``[classes, features]`` lies in the vector ``[d]`` of trainable parameters."""

    shape: torch.Size
    weight: slice
    bias: slice | None = None
    name: str = ""  # The name of the weight in the model.


def output_layer(model: nn.Module, user: str) -> OutputLayer:
    """Return the place of the last trainable matrix, and of the bias that follows it.

    The last is the one that the model registers last, whatever its ``forward`` calls last.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    user : str
        Who needs the layer, for the error.

    Raises
    ------
    ConfigError
        If the model has no trainable parameter of two dimensions.
    """
    layer: OutputLayer | None = None
    layer_name = ""
    end = 0  # End of the parameters so far, in the flat vector.
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        module_name = name.rpartition(".")[0]
        place = slice(end, end + parameter.numel())
        if parameter.dim() == 2:
            layer = OutputLayer(parameter.shape, place, name=name)
            layer_name = module_name
        elif layer and layer.weight.stop == end and module_name == layer_name:
            layer = layer._replace(bias=place)
        end = place.stop
    if layer is None:
        raise ConfigError(f"the model has no fully connected layer, which {user} looks at")
    return layer


def last_layer_inputs(model: nn.Module, batches: Iterable[Any]) -> Tensor | None:
    """Return the inputs of a model's last fully connected layer ``[n, f]``, a row per example.

    The last layer is the one that is called last, since a model may have layers that it calls only
    in training. The model's outputs take the place of its inputs if no such layer is called, or if
    it gets another number of rows than there are examples, such as one for each token.

    Parameters
    ----------
    model : torch.nn.Module
        In eval mode.
    batches : iterable
        ``(inputs, targets)``. In a batch of more than two items, the last item is the targets and
        the others are the model's arguments.

    Returns
    -------
    Tensor, optional
        ``[n, f]``, float32, on the CPU. ``None`` if the outputs do not have a row for each example
        either, or if rows have different lengths in different batches, as with padded sequences.
        ``None`` also if the layer has a row for each example in some batches only.
    """
    layer_inputs: list[Any] = []  # Inputs of all fully connected layers, in the current batch.

    def keep_input(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        layer_inputs.append(next(chain(arguments, keywords.values())))

    hooks = [
        module.register_forward_pre_hook(keep_input, with_kwargs=True)
        for module in model.modules()
        if isinstance(module, nn.Linear)
    ]
    features = []  # One entry per batch: None if the layer has no row for each example.
    # Outputs of batches without features only: the outputs of all batches may take much memory.
    outputs = []
    try:
        with evaluation_mode(model)():
            for *arguments, targets in batches:
                layer_inputs.clear()
                answer = model(*arguments)
                count = num_examples(targets)
                batch_features = _feature_rows(layer_inputs, count)
                features.append(batch_features)
                if batch_features is None:
                    outputs.append(_output_rows(answer, count))
    finally:
        for hook in hooks:
            hook.remove()
    if len(outputs) == len(features):
        return _join_rows(outputs)
    return _join_rows(features)


def _feature_rows(layer_inputs: Sequence[Any], count: int) -> Tensor | None:
    """Return the last input as float32 ``[count, f]`` on the CPU; ``None`` if it has other rows."""
    if not layer_inputs:
        return None
    last: Tensor = layer_inputs[-1]
    if last.dim() != 2 or len(last) != count:
        return None
    return last.float().cpu()


def _output_rows(outputs: Any, count: int) -> Tensor | None:
    """Return outputs as float32 ``[count, f]`` on the CPU; ``None`` if they have other rows."""
    if not isinstance(outputs, Tensor) or outputs.dim() == 0 or len(outputs) != count:
        return None
    return outputs.unsqueeze(1).flatten(1).float().cpu()


def _join_rows(pieces: Sequence[Tensor | None]) -> Tensor | None:
    """Return the rows of all batches ``[n, f]``; ``None`` if a batch has none or lengths differ."""
    there = [piece for piece in pieces if piece is not None]
    lengths = {piece.shape[1] for piece in there}
    if len(there) < len(pieces) or len(lengths) != 1:
        return None
    return torch.cat(there)


def copy_module(model: nn.Module, shared: dict[int, Any] | None = None) -> nn.Module:
    """Return a deep copy of a model; its parameters are trainable where the model's own are.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    shared : dict of int to object, optional
        Objects, by id, that the copy shares with the model. The copying adds to it.
    """
    memo = {} if shared is None else shared
    for tensor in _results_in(model):
        # Torch copies no tensor that was computed with gradients.
        memo[id(tensor)] = tensor.detach().clone()
    # With gradients, the copied tensors of a scripted module would depend on the original's.
    with torch.no_grad():
        copied: nn.Module = copy.deepcopy(model, memo)
    for copied_parameter, parameter in zip(copied.parameters(), model.parameters(), strict=True):
        copied_parameter.requires_grad_(parameter.requires_grad)
    return copied


def _results_in(model: nn.Module) -> Iterator[Tensor]:
    """Yield the tensors computed with gradients that modules keep, such as their last outputs."""
    for module in model.modules():
        for value in vars(module).values():
            kept: Iterable[Any] = [value]
            if type(value) is dict:
                kept = value.values()
            elif type(value) in (list, tuple):
                kept = value
            for tensor in kept:
                if isinstance(tensor, Tensor) and not tensor.is_leaf:
                    yield tensor


@contextmanager
def module_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put every module into train or eval mode; afterwards, put each back into its own mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training


@contextmanager
def seeded_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's random state, on the CPU and on ``device``; afterwards restore CPU and CUDA.

    Dropout and weight initialisation draw from this state. Other threads that enter wait until the
    end, so that federations that run side by side build the same models as alone.
    """
    cuda_devices = [device] if device.type == "cuda" else []
    with _randomness, torch.random.fork_rng(cuda_devices):
        _seed_torch(seed, device)
        yield


def _seed_torch(seed: int, device: torch.device) -> None:
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


@contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Seed every random state that a user's function may use; afterwards restore what can be.

    These are torch's, as in :func:`seeded_randomness`, NumPy's global one and Python's. The seed is
    0.
    """
    with seeded_randomness(0, device):
        numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002 (users draw from it)
        python_state = random.getstate()
        try:
            seed_all(0, device)
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


def seed_all(seed: int, device: torch.device) -> None:
    """Seed torch's, NumPy's and Python's random states; call it within :func:`own_randomness`."""
    _seed_torch(seed, device)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (users draw from it)
    random.seed(seed)


def random_state(device: torch.device) -> tuple[Any, ...]:
    """Return the random states that :func:`seed_all` seeds, for a comparison with later ones."""
    numpy_state: Any = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    elif device.type == "mps":
        states.append(torch.mps.get_rng_state())
    torch_states = [state.numpy().tobytes() for state in states]
    numpy_key = numpy_state["key"].tobytes()
    return (*torch_states, numpy_key, numpy_state["pos"], random.getstate())


def keep_freed_memory() -> None:
    """Let the C library keep the memory that a training step frees, for the next step.

    glibc returns large freed blocks to the system at once, so that every step would get its
    activations' memory anew, at the cost of page faults. The size from which it does so grows with
    the largest block freed so far, up to 32 MiB. Making and dropping a tensor of 31 MiB raises it.
    With other C libraries this has no effect.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)


@contextmanager
def without_trace(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore a model's buffers and the random state after a trial, but not its gradients."""
    with same_buffers(model), seeded_randomness(0, device):
        yield


@contextmanager
def same_buffers(model: nn.Module) -> Iterator[None]:
    """Restore the values of a model's buffers afterwards."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def evaluation_mode(model: nn.Module) -> Callable[[], AbstractContextManager[object]]:
    """Return the context manager in which a model is evaluated without gradients.

    It is ``torch.inference_mode``, except for models with modules of ``torch.jit``. Such a module,
    once it has run for a gradient, saves tensors for the backward pass, and inference mode forbids
    that: for these it is ``torch.no_grad``.
    """
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            return torch.no_grad
    return torch.inference_mode


def fastest_memory_format(
    model: nn.Module, attempt: Callable[[torch.memory_format], object]
) -> torch.memory_format:
    """Return the fastest memory format of images with which a model works.

    Convolutions are faster with channels last. But a model that calls ``view`` on its feature maps
    fails with that format, so it is tried first.

    Parameters
    ----------
    model : torch.nn.Module
        The model. Without convolutions it gains nothing, so nothing is tried.
    attempt : callable
        Runs the model forward and backward on a few examples in the given format.
    """
    convolutions = (nn.Conv2d, nn.ConvTranspose2d)
    if not any(isinstance(module, convolutions) for module in model.modules()):
        return torch.contiguous_format
    try:
        attempt(torch.channels_last)
    except Exception:  # A fault of the model itself will show again, in the other format.
        return torch.contiguous_format
    return torch.channels_last


def image_format(model: nn.Module, images: Tensor) -> torch.memory_format:
    """Return the memory format in which to train and evaluate ``model`` on these images.

    On the CPU channels last is tried with the first two images. On other devices images stay
    contiguous. Nothing in the model changes.

    Parameters
    ----------
    model : torch.nn.Module
        On the images' device.
    images : Tensor
        ``[n, c, h, w]``. For examples of other dimensions the format is contiguous.
    """
    if images.dim() != 4 or images.device.type != "cpu":
        return torch.contiguous_format

    def attempt(memory_format: torch.memory_format) -> None:
        example = to_memory_format(images[:2], memory_format).detach().requires_grad_()
        inputs = [example, *trainable_parameters(model)]
        with without_trace(model, images.device), module_mode(model, training=False):
            torch.autograd.grad(model(example).sum(), inputs, allow_unused=True)

    with torch.enable_grad():
        return fastest_memory_format(model, attempt)


def to_memory_format(examples: Tensor, memory_format: torch.memory_format) -> Tensor:
    """Return examples in a memory format; only images ``[n, c, h, w]`` can have channels last."""
    if memory_format is torch.channels_last and examples.dim() == 4:
        _, channels, height, width = examples.shape
        if examples.stride() == (channels * height * width, 1, channels * width, channels):
            return examples
        # Not ``contiguous(memory_format=...)``: it leaves one-channel images as they are.
        return examples.clone(memory_format=torch.channels_last)
    return examples.contiguous()


@contextmanager
def sparing_single_values(model: nn.Module) -> Iterator[None]:
    """Let batch norms that get one value per channel use their running statistics, unchanged.

    One value has no variance, so torch's batch norm would raise an error. The case is a batch of a
    single example, in layers whose feature maps are 1x1. The model has to be in train mode; batch
    norms that it keeps in eval mode, because they are frozen, are left alone.
    """
    norms = [
        module for module in model.modules() if isinstance(module, _BatchNorm) and module.training
    ]

    def spare(norm: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        inputs = next(chain(arguments, keywords.values()))  # [n, channels, ...]
        norm.train(inputs.numel() > inputs.shape[1])

    handles = [norm.register_forward_pre_hook(spare, with_kwargs=True) for norm in norms]
    try:
        yield
    finally:
        for norm, handle in zip(norms, handles, strict=True):
            handle.remove()
            norm.train()
