"""The steps that a run kept with its updates, and checks of them against the run's records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedif_consortium.evidence.signed import record_digest
from fedif_consortium.statement.records import RunRecords
from fedif_flower.combining import combine
from fedif_flower.errors import ConfigError, StatementError
from fedif_flower.foreign import refused_as, require_plain_archive
from fedif_flower.messages.models import tensor_arrays
from fedif_flower.run.config import RunConfig
from fedif_flower.run.folder import files_of_rounds
from fedif_flower.run.kept_updates import read_step
from fedif_flower.server.model import GlobalModel
from fedif_flower.server.record import Step

# Allowed differences, in parts of the length of the vector.
_SAME_MODEL = 1e-5  # Of one model that was kept in another type.
_SAME_STEP = 1e-3  # Of one sum of updates that was added up in another order.


def read_kept_steps(records: RunRecords) -> dict[int, Step]:
    """Return the kept steps by round; raise ConfigError if the step of a round is missing."""
    files = files_of_rounds(records.folder.updates)
    # Rounds in which the model stayed as it was have no step.
    without_step = set()
    for line in records.lines:
        if line["round_failed"] or line["status"] == "kept":
            without_step.add(line["round"])
    missing = {line.round for line in records.member_rounds} - files.keys() - without_step
    if missing:
        where = f"{str(records.folder.path)!r}: the updates of round {min(missing)}"
        if records.config.get("updates.keep"):
            raise ConfigError(
                f"{where} are not here: they have gone since, or the run went on from another "
                "one's checkpoint, in whose folder they are"
            )
        raise ConfigError(f"{where} were not kept: run it with updates.keep = true")
    return {number: read_step(path) for number, path in files.items()}


def require_received(records: RunRecords, model: GlobalModel, step: Step) -> None:
    """Raise StatementError if members signed that they received another model than the kept one.

    Without this check, updates could be replayed on a model at which they contribute something
    else.
    """
    number = step.updates.server_round
    signatures = records.folder.signatures.read()
    received = {row["received"] for row in signatures if int(row["asked_in"]) == number}
    if not received:
        return
    kept_model = record_digest(model.layout.to_arrays(step.before)).hex()
    if received != {kept_model}:
        raise StatementError(
            f"round {number}: the model in {records.folder.updates.name}/ is not the one that "
            "members signed that they received"
        )


def read_weights(records: RunRecords) -> dict[tuple[int, int], tuple[float, float]]:
    """Return weight and number of examples of each accepted reply, by round and client id."""
    recorded = {}
    for line in records.folder.clients.read():
        if line["status"] == "accepted":
            place = (int(line["round"]), int(line["client_id"]))
            recorded[place] = (float(line["weight"] or "nan"), float(line["num_examples"]))
    return recorded


def require_weighed(
    records: RunRecords, step: Step, recorded: Mapping[tuple[int, int], tuple[float, float]]
) -> None:
    """Raise StatementError unless clients.csv has the weights and examples that a round kept.

    Bounds of credit are computed from them, and members have receipts for the weights in that
    table.
    """
    number = step.updates.server_round
    weights = step.aggregation.weights.tolist()
    examples = step.updates.num_examples.tolist()
    for node, weight, num_examples in zip(step.nodes, weights, examples, strict=True):
        if recorded.get((number, node.client_id)) != (weight, num_examples):
            raise StatementError(
                f"round {number}: client {node.client_id} has a weight of {weight:.6g} and "
                f"{num_examples:.6g} examples in {records.folder.updates.name}/, and others in "
                f"{records.folder.clients.path.name}"
            )


def require_lengths(
    records: RunRecords, step: Step, settings: RunConfig, *, sets_lengths: bool
) -> None:
    """Raise StatementError unless a round used updates at the lengths that its records say."""
    if not sets_lengths:
        _require_no_rescaling(records, step)
    # If updates are mixed, a coefficient is a sum over several means, which the run did not keep.
    is_mixed = settings.neighbour_mixing or settings.bucketing > 1
    if not is_mixed:
        _require_shortened(records, step)


def _require_no_rescaling(records: RunRecords, step: Step) -> None:
    """Raise StatementError if updates were rescaled, although the rule sets no lengths."""
    if step.aggregation.rescaling is not None:
        raise StatementError(
            f"round {step.updates.server_round}: {records.folder.updates.name}/ says that weights "
            f"bring updates to another length, which {records.config['strategy']!r} does not do"
        )


def _require_shortened(records: RunRecords, step: Step) -> None:
    """Raise StatementError unless each coefficient is the weight times the update's shortening.

    Bounds of credit are computed from the lengths at which a round used updates. Other checks have
    compared the weights with clients.csv, and the coefficients with the models before and after.
    """
    aggregation = step.aggregation
    assert aggregation.applied is not None  # KeptUpdates keeps no step without coefficients.
    applied = aggregation.applied.double()
    shortening = torch.ones_like(applied)
    if aggregation.shortening is not None:
        shortening = aggregation.shortening.double()
    expected = aggregation.weights.double() * shortening
    differs = ~torch.isclose(applied, expected, rtol=1e-6, atol=0.0)
    for row in differs.nonzero().flatten().tolist():
        raise StatementError(
            f"round {step.updates.server_round}: the update of client {step.nodes[row].client_id} "
            f"was multiplied by {applied[row]:.6g}, but its weight times what shortened it is "
            f"{expected[row]:.6g} in {records.folder.updates.name}/"
        )


def without_momentum(step: Step) -> Tensor:
    """Return the step ``[d]`` of a round by its coefficients, without server momentum."""
    applied = step.aggregation.applied
    assert applied is not None  # KeptUpdates keeps no step without coefficients.
    start = torch.zeros_like(step.before.params)
    if step.aggregation.noise is not None:
        start = step.aggregation.noise.to(start)
    return combine(start, step.updates.client_updates, applied)


def require_led_on(records: RunRecords, model: GlobalModel, step: Step) -> None:
    """Raise StatementError unless a round begins with the model that the round before it led to.

    Without this check, an operator could change the model between two rounds. The change would be
    nobody's contribution, and it could undo what a round before it brought.
    """
    kept_model = step.before.params.double()
    led_to = model.vectors.params.double()
    off = float((kept_model - led_to).norm())
    if not off <= _SAME_MODEL * float(led_to.norm()):
        raise StatementError(
            f"round {step.updates.server_round}: the model in {records.folder.updates.name}/ is "
            "not the one that the run had come to before it"
        )


def require_same_end(records: RunRecords, model: GlobalModel) -> None:
    """Raise StatementError unless model.pt is the model to which the kept steps lead.

    A statement says who contributed to this model, and members sign what they received: so none of
    them signs the last model. Without the file, nothing is compared.
    """
    path = records.folder.model
    if not path.is_file():
        return
    with refused_as(StatementError, f"{path.name} holds no model of this run"):
        require_plain_archive(path)
        state_dict = torch.load(path, weights_only=True, map_location="cpu")
        last = model.layout.to_vectors(tensor_arrays(state_dict))
    led_to = model.vectors
    for kept, expected in (
        (last.params.double(), led_to.params.double()),
        (last.buffers.double(), led_to.buffers.double()),
    ):
        off = float((kept - expected).norm())
        if not off <= _SAME_MODEL * float(expected.norm()):
            raise StatementError(
                f"{path.name} is not the model to which the last round in "
                f"{records.folder.updates.name}/ led"
            )


def require_led(
    records: RunRecords, model: GlobalModel, step: Step, by_themselves: Sequence[Tensor]
) -> None:
    """Raise StatementError unless a round's coefficients lead from its model to the next one.

    Without this check, an operator could make up the coefficients by which updates were multiplied.
    Contributions are proportional to them, and the remainder would hide the difference.

    Parameters
    ----------
    records : RunRecords
        The run's records.
    model : GlobalModel
        The model, which knows the type in which clients receive it.
    step : Step
        The kept step of the round.
    by_themselves : sequence of Tensor
        The steps ``[d]`` of this and earlier rounds without server momentum, the newest first.
    """
    before = step.before.params.double()
    after = step.after.params.double()
    step_factors = step.step_factors or (1.0,)
    expected = torch.zeros_like(before)
    for factor, own_step in zip(step_factors, by_themselves, strict=False):
        expected.add_(own_step.double(), alpha=factor)
    # A model that clients receive in half precision is rounded: at most as coarsely as in bfloat16.
    dtype = step.before.params.dtype
    if model.layout.narrows:
        dtype = torch.bfloat16
    roundings = 4 * max(1.0, sum(step_factors)) * torch.finfo(dtype).eps
    allowed = _SAME_STEP * float(expected.norm())
    allowed += roundings * float(before.norm() + after.norm())
    off = float((after - before - expected).norm())
    if not off <= allowed:
        raise StatementError(
            f"round {step.updates.server_round}: the updates and coefficients in "
            f"{records.folder.updates.name}/ do not lead from the model before it to the one "
            f"after it: a step of length {off:.3g} is of neither"
        )
