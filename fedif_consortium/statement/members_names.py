"""What an operator calls the members: a CSV file that a person writes."""

from __future__ import annotations

from pathlib import Path

from fedif_consortium.evidence.names import MOST_LETTERS, is_name
from fedif_flower.errors import ConfigError
from fedif_flower.run.record_files import Table
from fedif_flower.run.rows import text_in


def read_names(path: Path) -> dict[int, str]:
    """Read members' names by client id from a CSV file with the columns ``client_id`` and ``name``.

    Raises
    ------
    ConfigError
        If an id is no whole number or is there twice, or a name is missing, is longer than 80
        characters or is not printable. The message names the file and the line.
    """
    names: dict[int, str] = {}
    written_by_hand = Table(path, ("client_id", "name")).read("", ended=False)
    for number, row in enumerate(written_by_hand, start=2):
        client_id = row.get("client_id", "")
        name = text_in(row.get("name", "").strip())
        is_named = None not in row and is_name(name)
        if not is_named or not client_id.isdecimal() or int(client_id) in names:
            raise ConfigError(
                f"{path}, line {number}: client_id = {client_id!r:.40}, name = {name!r:.90}; "
                "allowed: columns client_id and name, each id once, 1 to "
                f"{MOST_LETTERS} printable characters"
            )
        names[int(client_id)] = name
    return names
