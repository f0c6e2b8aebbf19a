"""The parts that measure what a run's members contribute, and quarantine members by it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedif_flower.attribution.callback import PathAttribution
from fedif_flower.attribution.intervals import SplitContribution, block_sums, share_half_widths
from fedif_flower.attribution.quarantine import LEAST_MEMBERS, Quarantine
from fedif_flower.attribution.records import RoundAttribution
from fedif_flower.attribution.table import BLOCKS_KEY, CLASSES_KEY
from fedif_flower.errors import CheckpointError, require
from fedif_flower.messages.held_out_classes import read_held_out_classes
from fedif_flower.run.config import RunConfig
from fedif_flower.run.correction import NOISE
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.held_out import ContradictedLabels, classes_of
from fedif_flower.run.last_rounds import LastRounds
from fedif_flower.run.own_sections import CreditSettings, QuarantineSettings, ValidationSettings
from fedif_flower.run.part import NOTHING, Built, PartState, RunContext, RunPart
from fedif_flower.run.secret_validation import NONCE, PAYING_WITNESS, SecretData
from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.server.model import GlobalModel
from fedif_flower.server.run import RunningStrategy
from fedif_flower.valuation.subsets import BLOCKS

NAME = "attribution"  # The attribution's name in checkpoints.
QUARANTINE = "quarantine"  # The quarantine's name in checkpoints.
JUDGED_BY = ("simpson", "adaptive")  # Quadrature rules exact enough to judge members by.
ENOUGH_ROUNDS = 10  # After these the log says how precisely shares are known.
logger = logging.getLogger(__name__)


class Attribution(RunPart):
    """``attribution = "simpson"``: what each member's updates did to the held-out loss.

    Contributions are also split by blocks of held-out examples, with a column of
    ``attribution.csv`` for each block: from these columns, intervals of contributions can be
    computed for any choice of rounds. The blocks' weights are in ``provenance.json``.
    """

    settings = CreditSettings

    def fits(self, config: RunConfig) -> None:
        """Raise ConfigError for a setting of credit that would have no effect."""
        defaults = CreditSettings.defaults()  # Always allowed: ``flwr run`` sends them along.
        if config.attribution != "off":
            credit = config.section(CreditSettings)
            key = "credit.class-shift"
            has_effect = credit.per_class or credit.class_shift == defaults[key]
            words = f"{defaults[key]} without credit.per-class"
            require(has_effect, key, credit.class_shift, words)
            return
        for key, value in config.section(CreditSettings).to_mapping().items():
            words = f"{json.dumps(defaults[key])} with attribution = 'off'"
            require(value == defaults[key], key, value, words)

    def build(self, run: RunContext) -> Built:
        """Return the attribution, its state in checkpoints, and what it adds to the records."""
        config = run.config
        if config.attribution == "off":
            return NOTHING
        credit = config.section(CreditSettings)
        validation = run.loaded.validation
        memory: Mapping[str, Any] = {}
        secret = None
        if credit.secret_validation:
            secret = _secret_data(run)
            validation = secret.validation
            memory = secret.memory
        attribution = PathAttribution(
            validation,
            config.attribution,
            per_class=credit.per_class,
            blocks=BLOCKS,
            bounds=credit.bounds(),
        )
        attribution_state = AttributionState(attribution, memory)
        attribution.on_attribution.append(attribution_state.tell_widths)
        origin: dict[str, Any] = {BLOCKS_KEY: attribution.block_weights}
        if attribution.class_weights:
            origin[CLASSES_KEY] = attribution.class_weights
        built = Built(callbacks=[attribution], state={NAME: attribution_state}, provenance=origin)
        if secret is None:
            return built
        return _with_secret_data(built, secret, run)

    def refuse(self, strategy: ScreenedStrategy, run: RunContext) -> None:
        """Raise ConfigError if the strategy gives no update a coefficient to attribute by."""
        rule = run.config.attribution
        words = f"'off' with strategy {run.config.strategy!r}, which gives no update a coefficient"
        require(strategy.combines_updates or rule == "off", "attribution", rule, words)


def _secret_data(run: RunContext) -> SecretData:
    """Return the secret data that members are paid by, drawn and examined before round 1."""
    memory: Mapping[str, Any] = {}
    if run.checkpoint is not None:
        memory = run.checkpoint.records.get(NAME) or {}
    check = run.config.section(ValidationSettings).check()
    secret = SecretData.of_run(run.loaded, check, memory)
    words = "contributions are measured on secret data, commitment %s"
    logger.info(words, secret.commitment)
    level = logging.INFO
    if secret.record[NOISE]:
        level = logging.WARNING
    for remark in secret.remarks():
        logger.log(level, "%s", remark)
    return secret


def _with_secret_data(built: Built, secret: SecretData, run: RunContext) -> Built:
    """Return what the attribution adds to a run that pays by secret data."""
    contradicted = ContradictedLabels(
        secret.validation,
        run.folder,
        None,
        every=run.config.eval_every,
        last_round=run.config.num_server_rounds,
        column=PAYING_WITNESS,
    )
    # Members are told of the classes that either set can hardly value: they are weighed by the
    # validation split, and paid by the secret data.
    classes_before = read_held_out_classes(run.part_instructions)
    weak = classes_before.union(classes_of(secret.held_out))
    remarks = secret.remarks()
    if "accuracy" not in secret.validation.metrics:
        remarks = []  # The task has no classes: that the remarks are in the log is enough.
    return replace(
        built,
        callbacks=[*built.callbacks, contradicted],
        provenance={**built.provenance, **secret.provenance},
        remarks=remarks,
        columns=[PAYING_WITNESS],
        instructions=weak.to_config(),
    )


class AttributionState(PartState):
    """The attribution's state in checkpoints. The run's recorder writes the attribution's tables.

    Parameters
    ----------
    attribution : PathAttribution
        The run's attribution.
    secret : mapping
        What checkpoints keep of the secret data; empty: contributions are measured on the
        validation split.
    """

    def __init__(self, attribution: PathAttribution, secret: Mapping[str, Any]) -> None:
        self._attribution = attribution
        self._secret = {NONCE: "", **secret}

    def tell_widths(self, attributed: RoundAttribution) -> None:
        """Log once, after some rounds, how precisely the members' shares are known so far."""
        attribution = self._attribution
        if attributed.server_round != ENOUGH_ROUNDS:
            return
        width = widest_share(attribution.rounds, attribution.block_weights)
        if width:
            logger.info(
                "attribution: each member's share is known to within %.1f percentage points so far "
                "(95 %%, with another held-out set of the same size); with four times as many "
                "examples, to within %.1f",
                100 * width,
                50 * width,
            )

    def lines(self, after: int, last_round: int) -> list[dict[str, Any]]:
        """Return the attributed rounds after round ``after``, up to ``last_round``.

        Raises
        ------
        CheckpointError
            If an error came before all listeners were told of the last round: a run that is resumed
            would not tell them again.
        """
        # Round 0 has no attribution: max, because ``after`` is -1 before the first checkpoint.
        lines = self._attribution.lines(max(after, 0), last_round)
        if not self._attribution.is_settled:
            raise CheckpointError(
                "an error interrupted the attribution of the last round: no checkpoint of it is "
                "written"
            )
        return lines

    def memory(self, last_round: int) -> dict[str, Any]:
        """Return what later rounds need of the attribution after a round, and the secret data."""
        return {**self._attribution.state_dict(last_round), **self._secret}

    def restore(
        self, lines: Sequence[Mapping[str, Any]], memory: Mapping[str, Any] | None, last_round: int
    ) -> None:
        """Take over the rounds attributed so far."""
        if memory is None:
            raise ValueError("its rounds were not attributed; go on with attribution = 'off'")
        if memory.get(NONCE) != self._secret[NONCE]:
            raise ValueError(
                "its contributions were measured on other held-out data: set "
                "credit.secret-validation as it was"
            )
        self._attribution.load_state_dict(memory, lines, last_round)


def widest_share(rounds: Sequence[RoundAttribution], weights: Sequence[float]) -> float | None:
    """Return half the width of the widest 95 % interval of a member's share of the credit so far.

    Parameters
    ----------
    rounds : sequence of RoundAttribution
        The rounds so far.
    weights : sequence of float
        Each block's part of the held-out examples' weight.

    Returns
    -------
    float, optional
        ``None``: no member has a positive credit, or some contributions are not split by blocks.
    """
    num_blocks = len(weights)
    if not num_blocks:
        return None
    parts = []
    for attributed in rounds:
        for client in attributed.clients:
            if len(client.blocks) != num_blocks:
                return None
            parts.append(
                SplitContribution(
                    client.client_id, client.contribution, client.credited, client.blocks
                )
            )
    client_ids = sorted({part.client_id for part in parts})
    contributed, credited = block_sums(parts, client_ids, num_blocks)
    if not (credited.sum(axis=0) > 0).any():
        return None
    return float(share_half_widths(credited, contributed, np.array(weights)).max())


class Quarantined(RunPart):
    """``quarantine.on``: members that make the model worse are left out for a while."""

    settings = QuarantineSettings

    def fits(self, config: RunConfig) -> None:
        """Raise ConfigError if attribution is too coarse, or members too few, to judge members."""
        if not config.section(QuarantineSettings).on:
            return
        fits = config.attribution in JUDGED_BY
        allowed = '"simpson" or "adaptive" with quarantine.on'
        require(fits, "attribution", config.attribution, allowed)
        fits = config.num_clients >= LEAST_MEMBERS
        allowed = (
            f"at least {LEAST_MEMBERS} with quarantine.on, which compares them with each other"
        )
        require(fits, "num-clients", config.num_clients, allowed)

    def build(self, run: RunContext) -> Built:
        """Return the quarantine, which writes its decisions, and its state in checkpoints."""
        attribution = run.find(PathAttribution)
        if not run.config.section(QuarantineSettings).on or attribution is None:
            return NOTHING
        quarantine = RunQuarantine(attribution, run.folder)
        return Built(callbacks=[quarantine], state={QUARANTINE: quarantine})


class RunQuarantine(Quarantine, PartState):
    """A quarantine that writes its decisions to ``quarantine.csv``, with a state in checkpoints."""

    def __init__(self, attribution: PathAttribution, folder: RunFolder) -> None:
        table = folder.quarantine
        super().__init__(attribution, lambda decision: table.append([vars(decision)]))
        self._table = table
        self._last: LastRounds[dict[str, Any]] = LastRounds()

    def on_start(self, strategy: RunningStrategy) -> None:
        """Begin the table, with the decisions of a checkpoint if there is one."""
        super().on_start(strategy)
        self._table.begin()
        self._table.append([vars(decision) for decision in self.decisions])

    def on_model(self, server_round: int, model: GlobalModel) -> None:  # noqa: ARG002
        """Keep the state after this round, for a checkpoint of it."""
        self._last.add(server_round, self.state_dict())

    def memory(self, last_round: int) -> dict[str, Any]:
        """Return decisions, and what was known of members, after a round."""
        return dict(self._last.latest(last_round) or {})

    def restore(
        self,
        lines: object,  # noqa: ARG002
        memory: Mapping[str, Any] | None,
        last_round: int,
    ) -> None:
        """Take over who is left out, and what is known of all members."""
        if not memory:
            logger.warning(
                "quarantine: the checkpoint is of an earlier version, which did not keep who is "
                "left out; all rounds are judged again, as if the members that are online now had "
                "been online in each of them"
            )
            return
        self.load_state_dict(memory)
        self._last.restore(last_round, self.state_dict())
