"""A member's side of masked rounds: its update leaves it under a mask, whose seed is sealed."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import cast

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from numpy.typing import NDArray
from torch import nn

from fedif_consortium.evidence.keys import SigningKey, read_key_file
from fedif_consortium.evidence.receipts import RECEIPTS_RECORD
from fedif_consortium.masking.boxes import read_keeper_key
from fedif_consortium.masking.member import mask_update
from fedif_consortium.masking.terms import (
    BOX,
    LENGTH,
    MASK_RECORD,
    VECTOR,
    MaskingTerms,
    trial_key,
)
from fedif_flower.client.reply import model_of
from fedif_flower.client.trust import agreed
from fedif_flower.errors import ConfigError
from fedif_flower.local_methods import LocalMethod, build_local_method
from fedif_flower.messages.arrays import pack_array, view_array
from fedif_flower.messages.instructions import ROUND_KEY
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.storage import make_folder, write_atomically
from fedif_flower.tasks.modules import trainable_names
from fedif_flower.tasks.task import Task


@dataclass(frozen=True)
class MemberMasking:
    """How a member masks its updates: for which keeper, signed with which key.

    Attributes
    ----------
    terms : MaskingTerms
        The run's.
    keeper : X25519PublicKey
        Whom the seed is sealed for.
    key : SigningKey
        The member's own.
    node_id : int
        Flower's.
    """

    terms: MaskingTerms
    keeper: X25519PublicKey
    key: SigningKey
    node_id: int

    def masked(self, received: RecordDict, update: NDArray[np.floating]) -> RecordDict:
        """Return what is sent in place of an update ``[d]``.

        The keeper sees by the hash of what was received that all members got the same.

        Raises
        ------
        MaskingError
            If the update is not finite, or too long.
        """
        sent = mask_update(
            update,
            self.keeper,
            self.key,
            run=self.terms.run,
            server_round=_round_of(received),
            node=self.node_id,
            instructions=content_hash(received),
        )
        return RecordDict(
            {
                "arrays": ArrayRecord({VECTOR: pack_array(sent.vector)}),
                MASK_RECORD: ConfigRecord({BOX: sent.box, LENGTH: sent.length}),
            }
        )


def masked_round(
    message: Message, context: Context, call_next: ClientAppCallable, task: Task | None
) -> Message:
    """Train, and mask what is sent, where the run is masked.

    Raises
    ------
    ConfigError
        If the run is not masked as the node wants it, more than the update would leave, or the
        server does not let the member train honestly, and by SGD alone: a method may send more than
        the update, or remember rounds in which members got other models; an attack is some members'
        alone, and what those send may be known.
    """
    received = message.content
    settings = cast(ConfigRecord, received["config"])
    node = NodeConfig.from_node_config(context.node_config)
    masking = member_masking(settings, node, message.metadata.dst_node_id)
    if masking is None:
        return call_next(message, context)
    config, task = agreed(settings, node, task)
    if type(build_local_method(config, task, config.seed)) is not LocalMethod:
        raise ConfigError(f"masking: local-method = {config.local_method!r}; allowed: sgd")
    if config.attack != "none" and not masking.terms.is_trial:
        raise ConfigError(f"masking: attack = {config.attack!r}; allowed: none")
    arrays = cast(ArrayRecord, received["arrays"])
    reply = call_next(message, context)
    if more := reply.content.keys() - {"metrics", "arrays"}:
        raise ConfigError(f"masking: {min(more)!r} would leave without a mask")
    trained = cast(ArrayRecord, reply.content["arrays"])
    update = trained_update(arrays, trained, model_of(task), masking.terms)
    reply.content.update(masking.masked(received, update))
    if node.own_updates_dir:
        folder = Path(node.own_updates_dir).expanduser() / f"{masking.terms.run:016x}"
        make_folder(folder)
        buffer = BytesIO()
        np.savez(buffer, update=update, node_id=masking.node_id, partition_id=node.partition_id)
        write_atomically(folder / f"round-{_round_of(received):06d}.npz", buffer.getvalue())
    return reply


def member_masking(settings: ConfigRecord, node: NodeConfig, node_id: int) -> MemberMasking | None:
    """Return how a node masks what it sends in a run; ``None``: it sends updates as they are.

    A node that names a keeper sends nothing that this keeper does not guard, whatever the server
    says.

    Raises
    ------
    ConfigError
        If the run is masked and the node names no keeper, or the other way.
    """
    terms = MaskingTerms.read(settings)
    keeper = _own_keeper(node, "off" if terms is None else "trial" if terms.is_trial else "keeper")
    if terms is None:
        return None
    if keeper is None:
        keeper = read_keeper_key(terms.trial_keeper, "the trial's keeper key")
        return MemberMasking(terms, keeper, trial_key(terms.trial_secret, node_id), node_id)
    key = read_key_file(Path(str(node.signing_key)), "signing-key")
    return MemberMasking(terms, keeper, key, node_id)


def check_masking(node: NodeConfig, masking: str) -> str:
    """Return whether the run is masked as the member wants it.

    Raises
    ------
    ConfigError
        If the run is masked and the node names no keeper, or the other way.
    """
    own = _own_keeper(node, masking)
    return f"masking = {masking!r}" if own is None else "a keeper of this member's choice"


def _own_keeper(node: NodeConfig, masking: str) -> X25519PublicKey | None:
    """Return the keeper whom a node names, if runs of this kind suit it; ``None``: none."""
    if node.keeper_key is None:
        if masking == "keeper":
            raise ConfigError(
                "this run is masked: the node config needs keeper-key, the public key of the "
                "keeper whom this member trusts, and signing-key"
            )
        return None
    if masking != "keeper":
        raise ConfigError(
            f"masking = {masking!r}: this node names a keeper (keeper-key), and takes part in runs "
            "with masking = 'keeper' alone"
        )
    return read_keeper_key(node.keeper_key, "keeper-key")


def _round_of(received: RecordDict) -> int:
    return int(cast(int, cast(ConfigRecord, received["config"])[ROUND_KEY]))


def content_hash(received: RecordDict) -> bytes:
    """Return the SHA-256 of all that a server sent but receipts.

    Those are each member's own, and nothing that trains reads them.
    """
    digest = hashlib.sha256()
    for name, record in sorted(received.items()):
        if name == RECEIPTS_RECORD:
            continue
        arrays = sorted(record.items()) if isinstance(record, ArrayRecord) else []
        values = [] if arrays else sorted(map(repr, record.items()))
        digest.update(json.dumps([name, len(arrays), values]).encode())
        for key, array in arrays:
            about = [key, array.dtype, list(array.shape), array.stype, len(array.data)]
            digest.update(json.dumps(about).encode())
            digest.update(array.data)
    return digest.digest()


def trained_update(
    received: ArrayRecord, trained: ArrayRecord, model: nn.Module, terms: MaskingTerms
) -> NDArray[np.floating]:
    """Return what training changed of the parameters, ``[d]``, no longer than the terms allow.

    Raises
    ------
    ConfigError
        If it changed something else, or the terms name other parameters.
    """
    state = model.state_dict()
    # One named twice would have two places in the vector; another order, other sums in a sketch.
    if list(terms.keys) != trainable_names(model):
        raise ConfigError(
            "masking: the server names other parameters than this client's model trains"
        )
    # A tied parameter has a second name.
    places = {state[key].data_ptr() for key in terms.keys}
    for name, tensor in state.items():
        others = tensor.data_ptr() not in places
        if others and not np.array_equal(view_array(trained[name]), view_array(received[name])):
            raise ConfigError(
                f"masking: training changed {name!r}, which is no trained parameter; masked rounds "
                "take parameters alone"
            )
    pieces: list[NDArray[np.floating]] = [
        np.subtract(view_array(trained[key]), view_array(received[key])).ravel()
        for key in terms.keys
    ]
    update = np.concatenate(pieces)
    length = float(np.linalg.norm(update.astype(np.float64, copy=False)))
    if math.isfinite(length) and length > terms.max_length:
        update *= terms.max_length / length
    return update
