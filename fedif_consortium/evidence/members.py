"""The members' public keys, by name: a folder with a file `<name>.pub` for each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedif_consortium.evidence.keys import VerifyingKey, key_digest, read_public_key
from fedif_flower.errors import ConfigError

_SUFFIX = ".pub"


def read_members(folder: Path) -> dict[str, VerifyingKey]:
    """Return the public keys in a folder, each by its file's name without `.pub`.

    Parameters
    ----------
    folder : Path
        With files such as ``hospital-a.pub``, as OpenSSH or PEM writes them, other files being
        ignored; or one such file.

    Raises
    ------
    ConfigError
        If there is no such folder or file, or naming the file that is no public key, or two with
        the same one.
    """
    members = {}
    for path in sorted(folder.glob(f"*{_SUFFIX}")) if folder.is_dir() else [folder]:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        members[path.name.removesuffix(_SUFFIX)] = read_public_key(data, str(path))
    if not members:
        raise ConfigError(f"members = {str(folder)!r} holds no public key, NAME{_SUFFIX}")
    names_by_digest(members, str(folder))
    return members


def names_by_digest(members: Mapping[str, VerifyingKey], where: str) -> dict[bytes, str]:
    """Return the members' names by :func:`~fedif_consortium.evidence.keys.key_digest`.

    ``where`` is what an error calls the place that lists them.

    Raises
    ------
    ConfigError
        If two have the same key.
    """
    names: dict[bytes, str] = {}
    for name, key in members.items():
        if (other := names.setdefault(key_digest(key), name)) != name:
            raise ConfigError(f"{where} {name} and {other} have the same key")
    return names
