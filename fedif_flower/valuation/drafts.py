"""Right answers counted from a draft in bfloat16; float32 decides where two classes are close."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedif_flower.valuation.objective import num_correct

# Images that float32 sees in any case, to learn how far off the draft is.
_SAMPLE = 64
# Margins up to this multiple of the largest error in the sample count as close. A draft errs by
# less where classes are far apart relative to the outputs, so that 1 would almost do.
_SAFETY = 2.0
# Fewer images than this are not worth a draft: the sample would be most of them.
_LEAST = 8 * _SAMPLE

# Images per pass. Activations take half the room in bfloat16, and each pass arranges the weights.
_DRAFTED_AT_ONCE = 200
_REPEATED_AT_ONCE = 100


def has_fast_bfloat16() -> bool:
    """Tell whether the processor multiplies matrices faster in bfloat16 than in float32."""
    if not hasattr(torch.cpu, "get_capabilities"):  # Older than torch 2.10.
        return False
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


class AccuracyDraft:
    r"""Counts right answers as float32 does, with most images seen in bfloat16 alone.

    Let :math:`\tilde z` be an image's outputs in bfloat16 and z those in float32. The answer can
    differ only where the margin between the two best classes of :math:`\tilde z` is below
    :math:`\epsilon = \max_j (z - \tilde z)_j - \min_j (z - \tilde z)_j`. So the 64 images with the
    smallest margins are seen again in float32, which shows the largest of their
    :math:`\epsilon`; and so are all others with a margin of up to twice that.

    Parameters
    ----------
    inputs : Tensor
        ``[n, ...]``, float32, on the CPU.
    targets : Tensor
        ``[n]``, integers.
    """

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs = inputs
        self.targets = targets

    @classmethod
    def from_batches(cls, model: nn.Module, batches: Sequence[Any]) -> AccuracyDraft | None:
        """Return a draft of all batches ``(inputs, targets)``, or None where they allow none."""
        if not all(_is_plain(batch, batches[0]) for batch in batches):
            return None
        inputs, targets = (torch.cat([batch[i] for batch in batches]) for i in range(2))
        draft = cls(inputs, targets)
        try:
            draft._outputs_in_bfloat16(model, inputs[:2])
        except Exception:  # Models with a dtype of their own may not run under autocast.
            return None
        return draft if len(targets) >= _LEAST else None

    @torch.inference_mode()
    def count(self, model: nn.Module) -> Tensor:
        """Return how many answers of ``model`` are right: a scalar, float32."""
        outputs = torch.cat(
            [
                self._outputs_in_bfloat16(model, images)
                for images in torch.split(self.inputs, _DRAFTED_AT_ONCE)
            ]
        )  # [n, classes]
        best = outputs.topk(2, dim=1).values
        # What is not finite cannot be told apart: it counts as closest.
        margins = (best[:, 0] - best[:, 1]).nan_to_num(nan=0.0)  # [n]
        order = margins.argsort()
        error = self._repeat(model, outputs, order[:_SAMPLE])
        close = len(order) - int((margins > _SAFETY * error).sum())
        self._repeat(model, outputs, order[_SAMPLE:close])
        return num_correct(outputs, self.targets)

    def _repeat(self, model: nn.Module, outputs: Tensor, chosen: Tensor) -> Tensor:
        """Replace the chosen images' ``outputs`` by float32's; return the largest error."""
        errors = [torch.zeros(())]
        for rows in torch.split(chosen, _REPEATED_AT_ONCE) if len(chosen) else ():
            exact = model(self.inputs[rows])
            difference = exact - outputs[rows]  # [rows, classes]
            errors.append((difference.amax(dim=1) - difference.amin(dim=1)).amax())
            outputs[rows] = exact
        return torch.stack(errors).amax()

    @staticmethod
    def _outputs_in_bfloat16(model: nn.Module, images: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            outputs: Tensor = model(images)
        return outputs.float()


def _is_plain(batch: Any, first: Any) -> bool:
    """Tell whether a batch is float32 inputs and targets, one input shaped like another."""
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        return False
    inputs, targets = batch
    return (
        isinstance(inputs, Tensor)
        and isinstance(targets, Tensor)
        and inputs.dtype == torch.float32
        and inputs.shape[1:] == first[0].shape[1:]
        and targets.shape == inputs.shape[:1]
    )
