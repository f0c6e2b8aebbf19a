"""The settings as text: defaults for ``flwr run``, and a table of what each means.

``python -m fedif_flower.run.reference`` in a checkout, whose door ``server_app.py`` names the parts
of a run, writes both into ``pyproject.toml``, where
``flwr run`` looks for the keys that it accepts, and into ``docs/configuration.md``.
"""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedif_flower.attacks import AttackConfig
from fedif_flower.local_methods import LocalMethodConfig
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.run.config import RunConfig
from fedif_flower.run.part import RunPart
from fedif_flower.run.parts import chosen_parts
from fedif_flower.settings import Settings
from fedif_flower.strategies.config import StrategyConfig
from fedif_flower.tables import ResultTable
from fedif_flower.tasks.config import TaskConfig, TrainingConfig

SECTIONS: dict[str, type[Settings]] = {
    "The run": RunConfig,
    "Data and model": TaskConfig,
    "Local training": TrainingConfig,
    "Local method": LocalMethodConfig,
    "Clients": ClientConfig,
    "Strategy": StrategyConfig,
    "Attack": AttackConfig,
}
TOML_TITLE = "[tool.flwr.app.config]"
BEGIN, END = "<!-- begin: settings -->", "<!-- end: settings -->"


def own_keys(section: type[Settings]) -> list[str]:
    """Return the keys that a class declares itself, not those it inherits."""
    own = section.__annotations__ or section.model_fields
    return [str(field.alias) for name, field in section.model_fields.items() if name in own]


def toml_defaults(parts: Sequence[RunPart]) -> str:
    """Return the body of ``[tool.flwr.app.config]``: every key with its default."""
    defaults = RunConfig.defaults()
    lines: list[str] = []
    for title, section in SECTIONS.items():
        lines.append(f"# {title}")
        lines += [f"{key} = {json.dumps(defaults[key])}" for key in own_keys(section)]
    of_parts = {part.settings.section_name(): part.settings for part in parts if part.settings}
    for name, own in {**of_parts, **RunConfig.sections()}.items():
        lines += ["", f"{TOML_TITLE[:-1]}.{name}]"]
        values = own.defaults().items()
        lines += [f"{key.partition('.')[2]} = {json.dumps(value)}" for key, value in values]
    return "\n".join(lines)


def markdown_tables(parts: Sequence[RunPart]) -> str:
    """Return the tables of all settings: key, default, what is allowed, what it means.

    Names of one kind, such as attacks, share a table, and a line of it where they share a setting.
    """
    by_name = RunConfig.sections()
    own = {f"`{p.settings.section_name()}`": p.settings for p in parts if p.settings}
    tables = {title: [settings] for title, settings in {**SECTIONS, **own}.items()}
    for kind, registry in RunConfig.registries.items():
        if named := [by_name[name] for name in registry.built_in if name in by_name]:
            tables[f"Each `{kind.replace('_', '-')}`"] = named
    return tables_of({**tables, "Each SuperNode": [NodeConfig]})


def tables_of(titled: Mapping[str, Sequence[type[Settings]]]) -> str:
    """Return a table for each title in Markdown, of the keys of these sections."""
    lines: list[str] = []
    for title, sections in titled.items():
        rows: dict[tuple[str, ...], list[str]] = {}
        for section in sections:
            own = own_keys(section)
            for key, default, allowed, words in section.describe():
                if key in own:
                    setting = key.rpartition(".")[2]
                    usual = "" if default is None else f"`{json.dumps(default)}`"
                    told = (re.sub("^an? ", "", allowed), words)
                    signs = [text.replace(">=", "≥").replace("<=", "≤") for text in told]
                    rows.setdefault((setting, usual, *signs), []).append(f"`{key}`")
        cells = [[", ".join(keys), *row[1:]] for row, keys in rows.items()]
        table = ResultTable("", ("key", "default", "allowed", "meaning"), cells, num_labels=4)
        lines += [f"## {title}", "", *table.to_markdown(), ""]
    return "\n".join(lines)


def update(
    project: Path, parts: Sequence[RunPart], more: Mapping[str, str] | None = None
) -> list[Path]:
    """Write the texts into a checkout and return the files that changed.

    ``parts`` are those whose sections are in it; ``more`` are texts of other pages of ``docs/``, by
    name.
    """
    manifest = project / "pyproject.toml"
    text = manifest.read_text()
    before, rest = text.split(f"{TOML_TITLE}\n")
    end = re.search(rf"\n\n\[(?!{re.escape(TOML_TITLE[1:-1])})", rest)
    assert end is not None
    after = rest[end.start() :]
    texts = [(manifest, text, f"{before}{TOML_TITLE}\n{toml_defaults(parts)}{after}")]
    pages = {"configuration.md": markdown_tables(parts), **(more or {})}
    for name, tables in pages.items():
        page = project / "docs" / name
        text = page.read_text()
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        texts.append((page, text, f"{before}{BEGIN}\n{tables}\n{END}{after}"))
    changed = {path: new for path, old, new in texts if old != new}
    for path, new in changed.items():
        path.write_text(new)
    return list(changed)


if __name__ == "__main__":
    for written in update(Path.cwd(), chosen_parts(runpy.run_path("server_app.py")["PARTS"])):
        print(f"written: {written}")
