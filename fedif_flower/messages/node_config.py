"""The settings of a SuperNode in ``--node-config``; in a simulation, the simulation sets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import model_validator

from fedif_flower.errors import ConfigError, require
from fedif_flower.settings import Scalar, Settings, setting

_HUB_DATA = "data-path"  # The name that apps on Flower Hub have for data-dir.


class NodeConfig(Settings):
    """The settings of one node: which client it is, where its data are, and what it keeps."""

    partition_id: int = setting(
        ..., "which client this is: what it draws at random depends on it", ge=0
    )
    num_partitions: int | None = setting(
        None,
        "the clients share one data set, which is divided into this many parts; this one has part "
        "`partition-id`",
    )
    data_dir: str | None = setting(
        None,
        "with `num-partitions`: where this node has the shared data set; without: images of its "
        "own, a tree `train/<class>/`, all of which it trains on; `data-path`, as apps on Flower "
        "Hub call it, is the same",
    )
    statement_dir: str | None = setting(
        None,
        "folder of this node's own in which it keeps what the server states of its contribution: "
        "at most 100 statements of at most 2 MiB; without: none",
    )
    keeper_key: str | None = setting(
        None,
        "public key of the keeper whom this member trusts, 64 hexadecimal digits: this node then "
        'takes part in runs with `masking.mode = "keeper"` alone, and seals its masks for it',
        pattern=r"^[0-9a-fA-F]{64}$",
        allowed="64 hexadecimal digits",
    )
    signing_key: str | None = setting(
        None,
        "with `keeper-key`: file with the private key with which this member signs its boxes, and "
        "which the keeper knows, such as the one that the SuperNode logs in with. Updates are "
        "signed by the [guard](member-policy.md), never by the app",
    )
    receipts_dir: str | None = setting(
        None,
        "folder in which this node keeps what it sent and its receipts, from which `fedif verify "
        "--receipts` finds rewritten records; at most 100 runs; without: none",
    )
    gradients_dir: str | None = setting(
        None,
        "folder in which this node keeps the gradients of runs with `gradients.publish=true`, and "
        "the models they were taken at, for `fedif inspect`: at "
        "most 16 rounds and 4 GiB; another run's gradient takes the place of the same round's, so "
        "give each run a folder of its own; without: none",
    )
    attack: str | None = setting(
        None,
        "this node misbehaves in this way, whatever the run config says (for tests and demos)",
        allowed="an attack's name",
    )

    import_from: str = setting(
        "",
        "packages, separated by spaces, out of which a run config may name a task or an attack as "
        "`module:object`; those that a package installs under a name of their own need no mention "
        "([security](security.md#what-a-node-executes))",
    )

    @model_validator(mode="after")
    def _is_one_of_the_partitions(self) -> Self:
        if self.num_partitions is not None:
            require(
                self.partition_id < self.num_partitions,
                "partition_id",
                self.partition_id,
                f"0 <= partition_id < {self.num_partitions}",
            )
        if self.keeper_key:  # The keeper recognises a member's boxes by their signature.
            has_key = bool(self.signing_key)
            require(has_key, "signing_key", self.signing_key, "a path, with keeper_key")
        return self

    @classmethod
    def from_node_config(cls, node_config: Mapping[str, Scalar]) -> NodeConfig:
        """Parse and check a Flower node config.

        Raises
        ------
        ConfigError
            If a setting is wrong, both names of ``data-dir`` are given, or the node has neither
            ``num-partitions`` nor ``data-dir``.
        """
        values = dict(node_config)
        if _HUB_DATA in values:
            if "data-dir" in values:
                raise ConfigError(f"data-dir and {_HUB_DATA} are both given; allowed: one of them")
            values["data-dir"] = values.pop(_HUB_DATA)
        node = cls(**values)  # type: ignore[arg-type]
        if node.num_partitions is None and not node.data_dir:
            raise ConfigError(
                "node-config needs num-partitions (a part of a data set that all clients share) "
                "or data-dir (data of this client's own)"
            )
        return node
