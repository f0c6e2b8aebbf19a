"""A keeper's own file: where it listens, whom it knows, what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedif_consortium.evidence.keys import VerifyingKey, names_by_digest, read_public_key
from fedif_consortium.masking.policy import KeeperPolicy
from fedif_flower.errors import ConfigError
from fedif_flower.foreign import read_toml, read_whole
from fedif_flower.run.logs import FORMATS
from fedif_flower.settings import Settings, setting, take_section

SECTIONS = ("members", "policy")
_FILES = ("state", "certificate", "certificate_key", "server_certificate")


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
    content, beside = read_toml(path), path.parent.absolute()
    try:
        names, limits = (take_section(content, name) for name in SECTIONS)
        settings, policy = KeeperSettings(**content), KeeperPolicy(**limits)
        places = {name: str(beside / getattr(settings, name)) for name in _FILES}
        members = {}
        for name, value in names.items():
            members[name] = read_public_key(
                read_whole(beside / str(value)), f"[members] {name} = {value!r}"
            )
        names_by_digest(members, "[members]")
        if len(members) < policy.least_members:
            raise ConfigError(
                f"[members] has {len(members)}; allowed: at least least-members = "
                f"{policy.least_members}"
            )
    except (OSError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return KeeperConfig(settings.replace(**places), members, policy)
