"""A keeper's service on loopback, its folder, its certificates, and its clients."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedif_consortium.federation.certificates import make_key, own_certificate
from fedif_consortium.masking.keeper import Keeper
from fedif_consortium.masking.keeper_client import HttpKeeper, trusting
from fedif_consortium.masking.keeper_service import (
    keeper_app,
    keeper_key,
    keeper_server,
    make_keeper,
    read_keeper_config,
)
from fedif_flower.storage import write_private
from tests.consortium.masking.parties import Parties


def write_certificate(folder: Path, name: str) -> None:
    """Write ``name.crt`` and ``name.key``: self-signed, for loopback."""
    write_private(folder / f"{name}.key", make_key())
    certificate = own_certificate(folder / f"{name}.key", name, ["127.0.0.1"])
    (folder / f"{name}.crt").write_bytes(certificate)


class Keeping(Parties):
    """A keeper's folder with members' keys, P-384; :meth:`serving` serves it."""

    def __init__(self, folder: Path, policy: str = "sketch-share = 0.0625") -> None:
        super().__init__()
        self.folder, self.limits, self.url = folder, policy, ""
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
