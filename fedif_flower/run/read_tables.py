"""A run's tables in columns, also while the run writes them: the one reader of those who count."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv

from fedif_flower.errors import ConfigError
from fedif_flower.foreign import regular


def read_table(path: Path, types: Mapping[str, pa.DataType], *, more: bool = False) -> pa.Table:
    """Return the whole lines of a CSV file that another process writes, as columns of types.

    A last line may be half there. A column that is not there is empty; ``more``: other columns of
    the file follow, and none is added.

    Raises
    ------
    ConfigError
        If a cell is not of its column's type, or the file cannot be read.
    """
    try:
        content = b""
        if path.is_file():
            with open(path, "rb", opener=regular) as file:
                content = file.read()
            content = content[: content.rfind(b"\n") + 1]
        if not content:
            return pa.schema(types).empty_table()
        return pa_csv.read_csv(
            pa.BufferReader(content),
            parse_options=pa_csv.ParseOptions(invalid_row_handler=lambda _: "skip"),
            convert_options=pa_csv.ConvertOptions(
                column_types=types,
                include_columns=None if more else list(types),
                include_missing_columns=not more,
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
