"""The member's side of masked rounds: it masks its update, and seals the seed for the keeper."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from numpy.typing import NDArray
from torch import nn

from fedif_consortium.evidence.keys import SigningKey, read_key_file
from fedif_consortium.evidence.receipts import RECEIPTS_RECORD
from fedif_consortium.evidence.signed import arrays_digest
from fedif_consortium.masking import boxes
from fedif_consortium.masking.boxes import MaskingTerms, mask_update
from fedif_flower.client.app import ClientPart
from fedif_flower.client.preflight import tried
from fedif_flower.client.reply import model_of
from fedif_flower.client.trust import agreed
from fedif_flower.errors import ConfigError, require
from fedif_flower.local_methods import LocalMethod, build_local_method
from fedif_flower.messages.arrays import pack_array, view_array
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.messages.preflight import Finding
from fedif_flower.tasks.modules import tied_names, trainable_names
from fedif_flower.tasks.task import Task

MASKING_KEY = "masking-mode"  # A key of a run's instructions to members.


class MaskedReplies(ClientPart):
    """Masks updates in masked runs, and refuses runs that the node's config does not allow."""

    def mods(self, task: Task | None) -> Sequence[Mod]:
        """Return the mod that masks replies."""
        return [partial(masked_round, task=task)]

    def checks(self, node: NodeConfig, settings: ConfigRecord) -> Sequence[Finding]:
        """Return a finding: it fails unless the node can take part in a run that is masked so."""
        mode = str(settings.get(MASKING_KEY, "off"))
        return [tried("masking", lambda: _how_masked(node, mode))]


def _how_masked(node: NodeConfig, mode: str) -> str:
    """Return words for how a run of this ``masking.mode`` is masked, if the node can take part."""
    _require_own_masking(node, mode)
    if node.keeper_key is None:
        return f"masking = {mode!r}"
    _read_signing_key(node)  # Raises ConfigError. Otherwise the member would fail in each round.
    return "a keeper of this member's choice"


def _require_own_masking(node: NodeConfig, mode: str) -> None:
    """Raise ConfigError unless a run of this ``masking.mode`` is masked as the node demands.

    A node whose config names a keeper sends updates only under masks for this keeper.

    Raises
    ------
    ConfigError
        If ``mode`` is ``"keeper"`` and the node names no keeper, or the other way round.
    """
    names_keeper = node.keeper_key is not None
    needs_keeper = mode == "keeper"
    allowed = (
        "'keeper' where the node config has keeper-key and signing-key, else 'off' and 'trial'"
    )
    require(names_keeper == needs_keeper, "masking.mode", mode, allowed)


def masked_round(
    message: Message, context: Context, call_next: ClientAppCallable, task: Task | None
) -> Message:
    """Train, and mask the update if the run is masked.

    Raises
    ------
    ConfigError
        If the run is not masked as the node's config demands, more than the update would leave, or
        the run has another local method than SGD or an attack.
    MaskingError
        If the update is not finite, or too long.
    """
    received = message.content
    settings = cast(ConfigRecord, received["config"])
    terms = MaskingTerms.read(settings)
    node = NodeConfig.from_node_config(context.node_config)
    if terms is None:
        _require_own_masking(node, "off")
        return call_next(message, context)
    _require_own_masking(node, terms.mode)
    keeper, signing_key = _keys_for(terms, node)
    config, task = agreed(settings, node, task)
    _require_plain_training(config, task, terms)

    arrays = cast(ArrayRecord, received["arrays"])
    # Before training, which could change the arrays that came.
    instructions = content_hash(received)
    reply = call_next(message, context)
    unmasked = reply.content.keys() - {"metrics", "arrays"}
    if unmasked:
        raise ConfigError(f"masking: {min(unmasked)!r} would leave without a mask")

    trained = cast(ArrayRecord, reply.content["arrays"])
    masked = mask_update(
        trained_update(arrays, trained, model_of(task), terms),
        keeper,
        signing_key,
        terms,
        node=message.metadata.dst_node_id,
        instructions=instructions,
        model=model_hash(arrays, terms),
    )
    reply.content["arrays"] = ArrayRecord({boxes.VECTOR: pack_array(masked.vector)})
    mask = ConfigRecord({boxes.BOX: masked.box, boxes.LENGTH: masked.length})
    reply.content[boxes.MASK_RECORD] = mask
    return reply


def _keys_for(terms: MaskingTerms, node: NodeConfig) -> tuple[X25519PublicKey, SigningKey]:
    """Return the keeper's public key, and the private key with which the member signs."""
    if node.keeper_key is None:
        opening_key, members_key = boxes.trial_keys(terms.trial_secret)
        return opening_key.public_key(), members_key
    keeper = X25519PublicKey.from_public_bytes(bytes.fromhex(node.keeper_key))
    return keeper, _read_signing_key(node)


def _read_signing_key(node: NodeConfig) -> SigningKey:
    """Return the private key in the node config's ``signing-key``, which signs boxes.

    Raises
    ------
    ConfigError
        If the file cannot be read, or holds no such key.
    """
    return read_key_file(Path(str(node.signing_key)), "signing-key")


def _require_plain_training(config: ClientConfig, task: Task, terms: MaskingTerms) -> None:
    """Raise ConfigError unless the member trains by SGD alone and, but for a trial, honestly.

    A local method may send more than the update, or remember rounds in which members got other
    models. With an attack, the server may know the updates of some members, and could take them
    out of the sum.
    """
    is_plain = type(build_local_method(config, task, config.seed)) is LocalMethod
    require(is_plain, "local-method", config.local_method, "'sgd' in masked rounds")
    if not terms.trial_secret:
        require(config.attack == "none", "attack", config.attack, "'none' in masked rounds")


def content_hash(received: RecordDict) -> bytes:
    """Return the SHA-256 of all that a server sent, without receipts.

    Receipts differ from member to member, and training does not read them.
    """
    content = hashlib.sha256()
    for name, record in sorted(received.items()):
        if name == RECEIPTS_RECORD:
            continue
        content.update(repr(name).encode())
        for key, value in sorted(record.items()):
            hashed: object = value
            if isinstance(value, Array):
                digest = hashlib.sha256(value.data).digest()
                hashed = (value.dtype, list(value.shape), value.stype, digest)
            content.update(repr((key, hashed)).encode())
    return content.digest()


def model_hash(received: ArrayRecord, terms: MaskingTerms) -> bytes:
    """Return the SHA-256 of the trained parameters that a member received, and of nothing else."""
    return arrays_digest((name, view_array(received[name])) for name in terms.keys)


def trained_update(
    received: ArrayRecord, trained: ArrayRecord, model: nn.Module, terms: MaskingTerms
) -> NDArray[np.floating]:
    """Return the update ``[d]`` of the trained parameters, shortened to ``terms.max_length``.

    Parameters
    ----------
    received, trained : ArrayRecord
        The model before and after training.
    model : torch.nn.Module
        The client's model, which says which parameters are trained.
    terms : MaskingTerms
        The round's terms.

    Raises
    ------
    ConfigError
        If training changed other arrays, or the terms name other parameters than the model trains.
    """
    # A parameter that is named twice would be twice in the vector. In another order, the sketch
    # would have other sums, and so tell more about the same update.
    if terms.keys != trainable_names(model):
        raise ConfigError(
            "masking: the server names other parameters than this client's model trains"
        )
    for name in received.keys() - {*terms.keys, *tied_names(model)}:
        if not np.array_equal(view_array(trained[name]), view_array(received[name])):
            raise ConfigError(
                f"masking: training changed {name!r}, which is no trained parameter; masked rounds "
                "take parameters alone"
            )
    changes = []
    for name in terms.keys:
        change = np.subtract(view_array(trained[name]), view_array(received[name]))
        changes.append(change.ravel())
    update: NDArray[np.floating] = np.concatenate(changes)  # [d]
    length = float(np.linalg.norm(update.astype(np.float64, copy=False)))
    if terms.max_length < length < math.inf:
        update *= terms.max_length / length
    return update
