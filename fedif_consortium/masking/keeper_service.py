"""The keeper as a service: its file, its folder, and HTTPS for its one client, the server.

The server shows a certificate in the TLS handshake, and the keeper accepts only the certificate
that its file names. So nobody else can send a request. The length of a request is checked before
its body is read. The keeper answers requests one after the other, and needs O(d) memory for any
number of members.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import uvicorn
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fedif_consortium.address import Address, an_address, split_address
from fedif_consortium.evidence.chained_log import hold_folder, open_log, read_log
from fedif_consortium.evidence.keys import VerifyingKey, names_by_digest, read_public_key
from fedif_consortium.health import serving_health
from fedif_consortium.masking.boxes import MOST_BYTES
from fedif_consortium.masking.keeper import MOST_MEMBERS, Keeper, RoundBoxes
from fedif_consortium.masking.keeper_client import trusting
from fedif_consortium.masking.policy import KeeperPolicy, least_for
from fedif_consortium.masking.ring import to_bytes, to_ring
from fedif_flower.errors import (
    ConfigError,
    EvidenceError,
    FedIFError,
    KeeperError,
    StorageError,
    require,
)
from fedif_flower.foreign import read_toml, read_whole, refused_as
from fedif_flower.run.logs import FORMATS
from fedif_flower.settings import Settings, require_known, setting, take_section
from fedif_flower.storage import make_private, require_private, write_atomically

logger = logging.getLogger(__name__)
MOST_BOXES = 2 * MOST_BYTES * MOST_MEMBERS  # The most bytes of a round's boxes as JSON.
# The settings that are paths.
_FILES = ("state", "certificate", "certificate_key", "server_certificate")


class KeeperSettings(Settings):
    """The address of a keeper's service, and its files; paths are relative to the keeper's file."""

    address: Address = an_address("Where it listens.", "0.0.0.0:9443")
    state: str = setting("keeper-state", "Folder of its key and its log; made if it is not there.")
    certificate: str = setting("keeper.crt", "Its certificate for TLS, a file in PEM.")
    certificate_key: str = setting("keeper.key", "The certificate's private key.")
    server_certificate: str = setting(
        "keeper-client.crt", "Of the server, which alone is answered."
    )
    health_address: str = setting("", "Where /health answers, without TLS; empty: nowhere.")
    log_format: str = setting("text", "How its log looks.", choices=FORMATS)


class KeeperConfig(NamedTuple):
    """The content of a keeper's file: settings with absolute paths, members' keys, and policy."""

    settings: KeeperSettings
    members: Mapping[str, VerifyingKey]
    policy: KeeperPolicy


def read_keeper_config(path: Path) -> KeeperConfig:
    """Return the content of a keeper's file.

    ``[members]`` names a file with a public key for each member, and ``[policy]`` has the keys of
    :class:`~fedif_consortium.masking.policy.KeeperPolicy`.

    Raises
    ------
    ConfigError
        If a key or a value is not allowed, or a member's key cannot be read. The message names the
        file, the key, and what is allowed.
    """
    content = read_toml(path)
    folder = path.parent.absolute()
    try:
        key_files = take_section(content, "members")
        limits = take_section(content, "policy")
        if "least_members" not in limits:
            limits.setdefault("least-members", least_for(len(key_files)))
        require_known(KeeperSettings, content)
        require_known(KeeperPolicy, limits)
        settings = KeeperSettings(**content)
        policy = KeeperPolicy(**limits)
        members = {}
        for name, file in key_files.items():
            key_bytes = read_whole(folder / str(file))
            members[name] = read_public_key(key_bytes, f"[members] {name} = {file!r}")
        names_by_digest(members, "[members]")
        allowed = f"at most the {len(members)} of [members]"
        least = policy.least_members
        require(least <= len(members), "least-members", least, allowed)
    except (OSError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}") from error
    absolute_paths = {name: str(folder / getattr(settings, name)) for name in _FILES}
    return KeeperConfig(settings.replace(**absolute_paths), members, policy)


def keeper_key(folder: Path) -> X25519PrivateKey:
    """Return the key that opens boxes, from a keeper's folder; make folder and key if missing.

    The public half, which members need, is written to ``box-key.pub``. Only the owner can read the
    key itself. Seeds are never written, so that a round fails if the keeper ends before it is over.

    Raises
    ------
    ConfigError
        If the file holds no key, other users may read it, or it is missing and the folder shows
        that there was one.
    StorageError
        If a file cannot be written.
    """
    path = folder / "box-key"
    if not path.exists():
        _require_none_lost(folder)
        new_key = X25519PrivateKey.generate()
        make_private(path, new_key.private_bytes_raw().hex().encode())
    require_private(path, "the keeper's key")
    with refused_as(ConfigError, f"{path} has no key of a keeper"):
        key = X25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text()))
    public_hex = key.public_key().public_bytes_raw().hex()
    write_atomically(folder / "box-key.pub", f"{public_hex}\n", 0o644)
    return key


def _require_none_lost(folder: Path) -> None:
    """Raise ConfigError if a folder without a key has files of a keeper: its key was lost."""
    left = [name for name in ("box-key.pub", "log.txt") if (folder / name).exists()]
    if left:
        names = " and ".join(left)
        raise ConfigError(
            f"{folder} has {names}, but no box-key: restore box-key alone from a backup (never an "
            "older log.txt), or move the folder away, and tell every member the new key"
        )


def make_keeper(config: KeeperConfig) -> Keeper:
    """Return a keeper with the key, the log and the counts in its folder.

    Raises
    ------
    FedIFError
        If a file is damaged, or cannot be read or written.
    """
    folder = Path(config.settings.state)
    key = keeper_key(folder)
    log_file = folder / "log.txt"
    log = open_log(log_file)
    with refused_as(EvidenceError, f"{log_file} is no keeper's log"):
        return Keeper(config.policy, config.members, key, log, past=read_log(log_file))


def keeper_app(keeper: Keeper) -> Starlette:
    """Return a web application in which a keeper answers one request after the other."""

    async def ask(request: Request) -> Response:
        most_bytes = max(MOST_BOXES, 8 * keeper.length)
        # Without chunks, the HTTP parser reads no more of a body than its stated length.
        length = request.headers.get("content-length", "")
        is_in_chunks = "transfer-encoding" in request.headers
        if is_in_chunks or not length.isdecimal() or int(length) > most_bytes:
            raise KeeperError(f"a request states its length, here at most {most_bytes} bytes")
        body = await request.body()
        return Response(answer_request(keeper, body, **request.path_params))

    async def refused(_: Request, error: Exception) -> Response:
        if not isinstance(error, KeeperError):  # No refusal: the keeper itself may be at fault.
            logger.warning("The keeper could not answer: %s", error)
        return PlainTextResponse(str(error), 409, headers={"connection": "close"})

    async def unwritten(_: Request, error: Exception) -> Response:
        logger.error("The keeper cannot write its log: %s", error)
        words = "the keeper cannot write its log"
        return PlainTextResponse(words, 503, headers={"connection": "close"})

    route = Route("/{question}/{run:int}/{server_round:int}", ask, methods=["POST"])
    handlers = {KeeperError: refused, FedIFError: refused, StorageError: unwritten}
    return Starlette(routes=[route], exception_handlers=handlers)


def answer_request(
    keeper: Keeper, body: bytes, question: str, run: int, server_round: int
) -> bytes:
    """Return a keeper's answer to a request, as bytes.

    Parameters
    ----------
    keeper : Keeper
        The keeper.
    body : bytes
        The request's body: JSON to open a round, elements of the ring for products and the sum.
    question : str
        ``policy``, ``open``, ``products``, ``sum`` or ``close``.
    run, server_round : int
        Run and round; ``policy`` and ``close`` do not need them.

    Raises
    ------
    KeeperError
        If the keeper refuses, or the request is malformed.
    """
    with refused_as(KeeperError, "the request is not readable"):
        if question == "policy":
            return keeper.policy.model_dump_json(by_alias=True).encode()
        if question == "open":
            sent = RoundBoxes.model_validate_json(body)
            opened = keeper.open_round(run, server_round, sent.length, sent.boxes)
            return opened.model_dump_json().encode()
        if question == "products":
            products = keeper.products(run, server_round, to_ring(body))
            return to_bytes(products)
        if question == "sum":
            total = keeper.weighted_sum(run, server_round, to_ring(body))
            return to_bytes(total)
        if question == "close":
            return keeper.close().encode()
        raise KeyError(question)


def keeper_server(app: Starlette, settings: KeeperSettings) -> tuple[uvicorn.Server, socket.socket]:
    """Return a keeper's HTTPS server, which accepts one client's certificate, and its socket.

    Raises
    ------
    ConfigError
        If a certificate cannot be used, other users may read its key, or the address is not free.
    """
    host, port = split_address(settings.address)
    config = uvicorn.Config(app, http="h11", ws="none", log_level="warning")
    config.load()
    config.ssl = trusting(
        ssl.PROTOCOL_TLS_SERVER,
        trusted=settings.server_certificate,
        certificate=settings.certificate,
        key=settings.certificate_key,
        keys="server-certificate, certificate, certificate-key",
    )
    require_private(Path(settings.certificate_key), "certificate-key")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with refused_as(ConfigError, f"address = {settings.address!r}"):
        listening = socket.create_server((host, port), family=family)
    return uvicorn.Server(config), listening


def serve(config: KeeperConfig) -> None:
    """Run a keeper's service until the process is told to end.

    Raises
    ------
    FedIFError
        If the service cannot start.
    """
    folder = Path(config.settings.state)
    with hold_folder(folder, "keeper"):
        keeper = make_keeper(config)
        server, listening = keeper_server(keeper_app(keeper), config.settings)
        with serving_health("keeper", config.settings.health_address, key="health-address"):
            logger.info("The keeper of masks listens on %s", config.settings.address)
            logger.info("Members' keeper-key: %s", (folder / "box-key.pub").read_text().strip())
            logger.info("The log's last hash: %s", keeper.log.head)
            server.run(sockets=[listening])
