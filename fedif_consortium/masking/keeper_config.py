"""A keeper's own file: where it listens, whom it knows, what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedif_consortium.evidence.keys import VerifyingKey, read_public_key
from fedif_consortium.evidence.members import names_by_digest
from fedif_consortium.masking import KeeperPolicy
from fedif_flower.errors import ConfigError
from fedif_flower.foreign import read_toml
from fedif_flower.run.logs import FORMATS
from fedif_flower.settings import Settings, setting, take_section

SECTIONS = ("members", "policy")


class KeeperSettings(Settings):
    """Where a keeper's service listens, and its files; paths are relative to the keeper's file."""

    address: str = setting(
        "0.0.0.0:9443", "Where it listens.", pattern=r".+:\d{1,5}", allowed="HOST:PORT"
    )
    state: str = setting(
        "keeper-state", "Folder of its key, its counts and its log; made if it is not there."
    )
    certificate: str = setting("keeper.crt", "Its certificate for TLS, a file in PEM.")
    certificate_key: str = setting("keeper.key", "The certificate's private key.")
    server_certificate: str = setting(
        "keeper-client.crt",
        "The certificate with which the federation's server shows who it is. Nobody else is "
        "answered.",
    )
    health_address: str = setting(
        "",
        "Where `/health` answers, without TLS and to whoever asks; empty: nowhere.",
        pattern=r"^(.+:\d{1,5})?$",
        allowed="HOST:PORT, or empty",
    )
    log_format: str = setting(
        "text", "How its log looks: `json` is a line of JSON for each message.", choices=FORMATS
    )

    @property
    def folder(self) -> Path:
        """The keeper's folder."""
        return Path(self.state)


@dataclass(frozen=True)
class KeeperConfig:
    """A keeper's file, read.

    Attributes
    ----------
    settings : KeeperSettings
        With absolute paths.
    members : mapping of str to public key
        Those whose boxes it opens, by the file's names.
    policy : KeeperPolicy
        What it answers at most.
    """

    settings: KeeperSettings
    members: Mapping[str, VerifyingKey]
    policy: KeeperPolicy


def read_keeper_config(path: Path) -> KeeperConfig:
    """Read a keeper's file.

    ``[members]`` has a file with a public key for each member, and ``[policy]`` the keys of
    :class:`~fedif_consortium.masking.policy.KeeperPolicy`.

    Raises
    ------
    ConfigError
        Naming the file, the key, and what is allowed.
    """
    content = read_toml(path)
    try:
        members, policy = (take_section(content, name) for name in SECTIONS)
        settings = KeeperSettings(**content)
        files = ("state", "certificate", "certificate_key", "server_certificate")
        places = {name: str(path.parent.absolute() / getattr(settings, name)) for name in files}
        found = KeeperConfig(
            settings.replace(**places),
            _read_members(members, path.parent.absolute()),
            KeeperPolicy(**policy),
        )
        least = found.policy.least_members
        if len(found.members) < least:
            raise ConfigError(
                f"[members] has {len(found.members)}; allowed: at least least-members = {least}"
            )
        for name in files[1:]:
            if not Path(places[name]).is_file():
                raise ConfigError(f"{name.replace('_', '-')} = {places[name]!r} is no file")
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return found


def _read_members(names: Mapping[str, object], folder: Path) -> dict[str, VerifyingKey]:
    members: dict[str, VerifyingKey] = {}
    for name, value in names.items():
        if not isinstance(value, str):
            raise ConfigError(f"[members] {name} = {value!r}; allowed: a file with a public key")
        try:
            data = (folder / value).read_bytes()
        except OSError as error:
            raise ConfigError(f"[members] {name} = {value!r}: {error.strerror}") from error
        members[name] = read_public_key(data, f"[members] {name} = {value!r}")
    names_by_digest(members, "[members]")
    return members
