"""Helpers for any torch module: train and eval mode, memory layout, randomness."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def module_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put every module into train or eval mode; each returns to the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training


@contextmanager
def frozen_parameters(model: nn.Module) -> Iterator[None]:
    """Switch off the gradients of the parameters for a while."""
    wanted = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    model.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, requires_grad in wanted:
            parameter.requires_grad_(requires_grad)


@contextmanager
def seeded_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seed what dropout draws from, on the CPU and on ``device``; both states return after."""
    cpu_state = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    device_state: Tensor | None = None
    if device.type == "cuda":
        device_state = torch.cuda.get_rng_state(device)
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        device_state = torch.mps.get_rng_state()
        torch.mps.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(cpu_state)
        if device.type == "cuda" and device_state is not None:
            torch.cuda.set_rng_state(device_state, device)
        elif device_state is not None:
            torch.mps.set_rng_state(device_state)


def keep_freed_memory() -> None:
    """Let the C library keep what each training step frees, for the next step.

    glibc returns freed blocks to the system above a threshold which grows with the largest block
    freed so far (up to 32 MiB); below it, each step would fault its activations in anew. Elsewhere
    this does nothing.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)


def lay_out(model: nn.Module, images: Tensor) -> Tensor:
    """Return the images ``[n, c, h, w]`` in the memory layout in which the model is fastest.

    A model says so by an attribute ``memory_format = torch.channels_last``. It is followed on the
    CPU; others are left as they are, because a model that calls ``view`` on its feature maps would
    fail.
    """
    wanted = getattr(model, "memory_format", torch.contiguous_format)
    if wanted is torch.channels_last and images.dim() == 4 and images.device.type == "cpu":
        # Not ``contiguous(memory_format=...)``: it leaves one-channel images as they are.
        return images.clone(memory_format=torch.channels_last)
    return images.contiguous()


def single_value_norms(model: nn.Module, example: Tensor) -> list[nn.Module]:
    """Return the batch norms that see one value per channel when a batch is one example.

    Parameters
    ----------
    model : torch.nn.Module
        Run once in eval mode; nothing in it changes.
    example : Tensor
        ``[1, ...]``.
    """
    lonely: list[nn.Module] = []

    def note(norm: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if arguments[0].numel() == arguments[0].shape[1]:
            lonely.append(norm)

    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return lonely
    handles = [norm.register_forward_pre_hook(note) for norm in norms]
    try:
        with module_mode(model, training=False), torch.inference_mode():
            model(example)
    finally:
        for handle in handles:
            handle.remove()
    return lonely


@contextmanager
def without_batch_statistics(norms: Iterable[nn.Module]) -> Iterator[None]:
    """Let these batch norms use their running statistics, and not update them."""
    for norm in norms:
        norm.eval()
    try:
        yield
    finally:
        for norm in norms:
            norm.train()
