"""A training step as a CUDA graph: for small models, whose time goes into launching kernels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

WARM_UP_STEPS = 3
MIN_STEPS = 16  # Below this, capturing costs more than replaying saves.


class GraphedStep:
    """Calls ``step(inputs, labels)``; full batches from a captured graph.

    The first :data:`WARM_UP_STEPS` full batches run as they are (libraries choose their kernels
    and workspaces), the next one is captured, and every full batch from there on is one copy into
    the graph's memory and one replay. Batches of another size run as they are. All of it happens
    on the stream of :func:`capture_stream`, which must be current.

    Dropout draws from the device's default generator, which capturing registers with the graph:
    each replay advances it as the plain step would.

    Parameters
    ----------
    step : callable
        ``step(inputs, labels) -> None``; whatever it reads and writes besides its arguments stays
        at the same address between calls, and it never waits for the device.
    batch_size : int
        Examples in a full batch.
    """

    def __init__(self, step: Callable[[Tensor, Tensor], None], batch_size: int) -> None:
        self._step = step
        self._batch_size = batch_size
        self._warm_up_left = WARM_UP_STEPS
        self._graph: torch.cuda.CUDAGraph | None = None
        self._captures = True

    def __call__(self, inputs: Tensor, labels: Tensor) -> None:
        """Do one step on a batch ``[b, ...]`` with labels ``[b]``."""
        if not self._captures or len(labels) != self._batch_size:
            self._step(inputs, labels)
            return
        if self._warm_up_left:
            self._warm_up_left -= 1
            self._step(inputs, labels)
            return
        if self._graph is None and not self._capture(inputs, labels):
            self._step(inputs, labels)
            return
        assert self._graph is not None
        self._inputs.copy_(inputs)
        self._labels.copy_(labels)
        self._graph.replay()

    def _capture(self, inputs: Tensor, labels: Tensor) -> bool:
        """Record one step without running it; False if the model cannot be captured."""
        self._inputs = inputs.clone()  # Preserves the memory format.
        self._labels = labels.clone()
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream(inputs.device)
        try:
            # "thread_local": another thread of this process may use the device meanwhile.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self._step(self._inputs, self._labels)
        except RuntimeError as error:
            self._captures = False
            logger.warning("this model cannot be captured as a CUDA graph: %s", error)
            return False
        self._graph = graph
        return True


@contextmanager
def capture_stream(device: torch.device) -> Iterator[None]:
    """Make a side stream current (the default stream cannot be captured), ordered with the rest."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    outer = torch.cuda.current_stream(device)
    stream.wait_stream(outer)
    try:
        with torch.cuda.device(device), torch.cuda.stream(stream):
            yield
    finally:
        outer.wait_stream(stream)
