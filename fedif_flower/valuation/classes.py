"""A validation set taken apart by the classes of its examples."""

from __future__ import annotations

from fedif_flower.errors import ValuationError
from fedif_flower.tasks.batches import first_few, take_rows
from fedif_flower.valuation.trial import FEW
from fedif_flower.valuation.validation import Validation


def class_validations(validation: Validation) -> list[Validation]:
    r"""Return the same validation on the examples of each class, in the order of the classes.

    .. math:: \ell(w, D') = \sum_c \frac{|D'_c|}{|D'|} \ell(w, D'_c)

    with :math:`D'_c` the examples of class c, and sums of class weights in place of counts where
    the loss has some: gradients on the parts add up to the whole one's. Examples whose target is
    ignored belong to no class. All parts use the one copy of the model.

    Parameters
    ----------
    validation : Validation
        On batches ``(inputs, targets)`` with integer targets ``[n]``, each number from 0 to the
        highest among them.

    Raises
    ------
    ValuationError
        If the targets are no classes, or a class has no example.
    """
    if "accuracy" not in validation.metrics:
        raise ValuationError("the validation set has no classes to tell contributions apart by")
    present = _present(validation)
    missing = set(range(max(present) + 1)) - present
    if missing or min(present) < 0:
        raise ValuationError(
            f"the validation set has no example of the classes {sorted(missing)}; contributions "
            "by class need one of each"
        )
    contents = [batch.content for batch in validation.batches]
    return [
        validation.part(
            take_rows(content, chosen)
            for content in contents
            if bool((chosen := content[-1] == label).any())
        )
        for label in sorted(present)
    ]


def missing_classes(validation: Validation) -> list[int]:
    """Return the classes that the model answers and the validation set has no example of.

    They are the columns of the model's outputs ``[n, classes]``; an empty list where the targets
    are no classes.
    """
    if "accuracy" not in validation.metrics:
        return []
    *inputs, _ = first_few(validation.batches[0].content, FEW)
    model = validation.judge.model
    with model.evaluation_mode():
        outputs = model.module(*inputs)
    return sorted(set(range(outputs.shape[1])) - _present(validation))


def _present(validation: Validation) -> set[int]:
    """Return the classes that have an example; a target that is ignored is none."""
    labels = [set(batch.content[-1].unique().tolist()) for batch in validation.batches]
    return set().union(*labels) - {validation.judge.objective.ignored}
