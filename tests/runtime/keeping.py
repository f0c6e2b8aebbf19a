"""A keeper's service on loopback, its folder, its certificates, and its clients."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedif_consortium.federation.certificates import make_key, own_certificate
from fedif_consortium.masking.boxes import MaskedUpdate, mask_update
from fedif_consortium.masking.keeper import Keeper
from fedif_consortium.masking.keeper_client import HttpKeeper, trusting
from fedif_consortium.masking.keeper_service import (
    KeeperConfig,
    keeper_app,
    keeper_key,
    keeper_server,
    make_keeper,
    read_keeper_config,
)
from fedif_flower.storage import write_private

RUN = 2**63 + 5


def write_certificate(folder: Path, name: str) -> None:
    """Write ``name.crt`` and ``name.key``: self-signed, for loopback."""
    write_private(folder / f"{name}.key", make_key())
    certificate = own_certificate(folder / f"{name}.key", name, ["127.0.0.1"])
    (folder / f"{name}.crt").write_bytes(certificate)


@dataclass
class Keeping:
    """A keeper's folder with members' keys; :meth:`serving` serves it."""

    folder: Path
    members: int = 5
    policy: str = "sketch-share = 0.0625"
    port: int = 0
    keys: list[ec.EllipticCurvePrivateKey] = field(init=False)

    def __post_init__(self) -> None:
        for name in ("keeper", "keeper-client", "stranger"):
            write_certificate(self.folder, name)
        self.keys = [ec.generate_private_key(ec.SECP384R1()) for _ in range(self.members)]
        for i, key in enumerate(self.keys):
            public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
            (self.folder / f"member-{i}.pub").write_bytes(public)
        self.write()

    def write(self) -> Path:
        """Write ``keeper.toml``."""
        members = "\n".join(f'member-{i} = "member-{i}.pub"' for i in range(self.members))
        file = self.folder / "keeper.toml"
        file.write_text(
            f'address = "127.0.0.1:{self.port}"\n[members]\n{members}\n[policy]\n{self.policy}\n'
        )
        return file

    def config(self) -> KeeperConfig:
        return read_keeper_config(self.write())

    @property
    def state(self) -> Path:
        return self.folder / "keeper-state"

    def keeper(self) -> Keeper:
        """Return a keeper as the service makes it, with what the folder remembers."""
        return make_keeper(self.config())

    @contextmanager
    def serving(self, keeper: Keeper | None = None) -> Iterator[HttpKeeper]:
        """Serve the keeper in a thread; give a client of it."""
        app = keeper_app(self.keeper() if keeper is None else keeper)
        server, listening = keeper_server(app, self.config().settings)
        self.port = listening.getsockname()[1]
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
        return HttpKeeper(f"https://127.0.0.1:{self.port}", context, seconds)

    def mask(self, member: int, update, server_round: int = 1, **other) -> MaskedUpdate:
        bound = {"run": RUN, "server_round": server_round, "node": 100 + member, **other}
        keeper = keeper_key(self.state).public_key()
        return mask_update(np.asarray(update), keeper, self.keys[member], **bound)

    def mask_all(self, updates, server_round: int = 1) -> dict[int, MaskedUpdate]:
        return {100 + i: self.mask(i, update, server_round) for i, update in enumerate(updates)}


def boxes(masked: dict[int, MaskedUpdate]) -> dict[int, bytes]:
    return {node: one.box for node, one in masked.items()}
