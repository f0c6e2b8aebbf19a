"""A keeper, members and what a server makes of both, small enough for tests."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedif_consortium.federation.certificates import make_key, own_certificate
from fedif_consortium.masking.boxes import MaskedUpdate, MaskingTerms, mask_update
from fedif_consortium.masking.keeper import Keeper, OpenedRound
from fedif_consortium.masking.keeper_client import HttpKeeper, trusting
from fedif_consortium.masking.keeper_service import (
    keeper_app,
    keeper_key,
    keeper_server,
    make_keeper,
    read_keeper_config,
)
from fedif_consortium.masking.masked_round import MaskedRound
from fedif_consortium.masking.policy import KeeperPolicy
from fedif_flower.storage import write_private

RUN = 2**63 + 5  # Flower's ids may use all 64 bits.
# For models of a few parameters, of which a sketch may not take most by default.
OPEN = KeeperPolicy(sketch_share=1.0, largest_entry=1.0, largest_known_share=9.0)


def boxes_of(masked: dict[int, MaskedUpdate]) -> dict[int, bytes]:
    """Return the boxes of masked updates, by node."""
    return {node: update.box for node, update in masked.items()}


class Parties:
    """Members with Ed25519 keys, by names ``member 0`` ..., at nodes 100 ..."""

    def __init__(self, members: int = 5, policy: KeeperPolicy = OPEN) -> None:
        self.policy = policy
        self.key = X25519PrivateKey.generate()
        self.keys = [Ed25519PrivateKey.generate() for _ in range(members)]
        self.keeper = self.keeper_with()

    def keeper_with(self, **options) -> Keeper:
        members = {f"member {i}": key.public_key() for i, key in enumerate(self.keys)}
        return Keeper(self.policy, members, self.key, **options)

    def mask(
        self, member: int, update, server_round: int = 1, *, run=RUN, node=0, **other
    ) -> MaskedUpdate:
        terms = MaskingTerms(run=run, server_round=server_round, keys=[])
        keeper_key = self.key.public_key()
        signing_key = self.keys[member]
        node = node or 100 + member
        return mask_update(np.asarray(update), keeper_key, signing_key, terms, node, **other)

    def mask_all(self, updates, server_round: int = 1) -> dict[int, MaskedUpdate]:
        return {100 + i: self.mask(i, update, server_round) for i, update in enumerate(updates)}

    def open(self, masked: dict[int, MaskedUpdate], server_round: int = 1) -> OpenedRound:
        length = len(next(iter(masked.values())).vector)
        return self.keeper.open_round(RUN, server_round, length, boxes_of(masked))

    def opened(self, updates, spoil=lambda vectors: None, server_round: int = 1) -> MaskedRound:
        """Return what a server knows of a round, all of whose updates ``[m, d]`` count."""
        masked = self.masked = self.mask_all(updates, server_round)
        vectors = [update.vector for update in masked.values()]
        spoil(vectors)
        lengths = np.array([update.length for update in masked.values()])
        answer = self.open(masked, server_round)
        labels = [f"node {node}" for node in answer.nodes]
        return MaskedRound(self.keeper, (RUN, server_round), answer, vectors, lengths, labels)


def write_certificate(folder: Path, name: str) -> None:
    """Write ``name.crt`` and ``name.key``: self-signed, for loopback."""
    write_private(folder / f"{name}.key", make_key())
    certificate = own_certificate(folder / f"{name}.key", name, ["127.0.0.1"])
    (folder / f"{name}.crt").write_bytes(certificate)


class Keeping(Parties):
    """A keeper's folder with members' keys, P-384; :meth:`serving` serves it."""

    def __init__(self, folder: Path, policy: str = "sketch-share = 0.0625") -> None:
        super().__init__()
        self.folder = folder
        self.limits = policy
        self.url = ""
        for name in ("keeper", "keeper-client", "stranger"):
            write_certificate(folder, name)
        self.keys = [ec.generate_private_key(ec.SECP384R1()) for _ in self.keys]
        for i, key in enumerate(self.keys):
            public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
            (folder / f"member-{i}.pub").write_bytes(public)
        self.state = folder / "keeper-state"
        self.key = keeper_key(self.state)

    def write(self) -> Path:
        """Write ``keeper.toml``."""
        members = "\n".join(f'member-{i} = "member-{i}.pub"' for i in range(len(self.keys)))
        file = self.folder / "keeper.toml"
        file.write_text(f'address = "127.0.0.1:0"\n[members]\n{members}\n[policy]\n{self.limits}\n')
        return file

    @contextmanager
    def serving(self, keeper: Keeper | None = None) -> Iterator[HttpKeeper]:
        """Serve the keeper, with what its folder remembers, in a thread; give a client of it."""
        config = read_keeper_config(self.write())
        server, listening = keeper_server(
            keeper_app(keeper or make_keeper(config)), config.settings
        )
        self.url = f"https://127.0.0.1:{listening.getsockname()[1]}"
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield self.client()
        finally:
            server.should_exit = True
            thread.join()
            listening.close()

    def client(
        self, name: str = "keeper-client", seconds: float = 60.0, keeper: str = "keeper"
    ) -> HttpKeeper:
        files = [
            str(self.folder / file) for file in (f"{keeper}.crt", f"{name}.crt", f"{name}.key")
        ]
        context = trusting(ssl.PROTOCOL_TLS_CLIENT, *files, "files")
        return HttpKeeper(self.url, context, seconds)
