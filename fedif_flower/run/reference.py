"""The settings as text: defaults for ``flwr run``, and tables of what each setting means.

``python -m fedif_flower.run.reference`` in a checkout writes the defaults into ``pyproject.toml``,
where ``flwr run`` looks for the keys that it accepts, and the tables into
``docs/configuration.md``. The parts of a run, whose sections are among the settings, are those that
``server_app.py`` names.
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
TOML_SECTION = "tool.flwr.app.config"
BEGIN = "<!-- begin: settings -->"
END = "<!-- end: settings -->"


def own_keys(section: type[Settings]) -> list[str]:
    """Return the run-config keys that a class declares itself, without those that it inherits."""
    names = section.__annotations__ or section.model_fields
    return [str(field.alias) for name, field in section.model_fields.items() if name in names]


def toml_defaults(parts: Sequence[RunPart]) -> str:
    """Return the body of ``[tool.flwr.app.config]``: every key with its default."""
    defaults = RunConfig.defaults()
    lines: list[str] = []
    for title, section in SECTIONS.items():
        lines.append(f"# {title}")
        lines += [f"{key} = {json.dumps(defaults[key])}" for key in own_keys(section)]
    for name, section in {**_sections_of(parts), **RunConfig.sections()}.items():
        lines += ["", f"[{TOML_SECTION}.{name}]"]
        for key, value in section.defaults().items():
            key_in_section = key.partition(".")[2]
            lines.append(f"{key_in_section} = {json.dumps(value)}")
    return "\n".join(lines)


def _sections_of(parts: Sequence[RunPart]) -> dict[str, type[Settings]]:
    """Return the sections of a run's parts, by name."""
    return {part.settings.section_name(): part.settings for part in parts if part.settings}


def markdown_tables(parts: Sequence[RunPart]) -> str:
    """Return the tables of all settings: key, default, what is allowed, what it means.

    The settings of all attacks are in one table, and so on for strategies and the other kinds. If
    several attacks have the same setting, it has one line with all of their keys.
    """
    tables = {title: [section] for title, section in SECTIONS.items()}
    for name, section in _sections_of(parts).items():
        tables[f"`{name}`"] = [section]
    by_name = RunConfig.sections()
    for kind, registry in RunConfig.registries.items():
        sections = [by_name[name] for name in registry.built_in if name in by_name]
        if sections:
            tables[f"Each `{kind.replace('_', '-')}`"] = sections
    tables["Each SuperNode"] = [NodeConfig]
    return tables_of(tables)


def tables_of(titled: Mapping[str, Sequence[type[Settings]]]) -> str:
    """Return Markdown tables: under each title, the settings that its sections declare."""
    lines: list[str] = []
    for title, sections in titled.items():
        cells = _described(sections)
        table = ResultTable("", ("key", "default", "allowed", "meaning"), cells, num_labels=4)
        lines += [f"## {title}", "", *table.to_markdown(), ""]
    return "\n".join(lines)


def _described(sections: Sequence[type[Settings]]) -> list[list[str]]:
    """Return a line for each setting: keys, default, what is allowed, what it means.

    Settings of several sections share a line if they have the same name, default, range and words.
    """
    keys_by_setting: dict[tuple[str, str, str, str], list[str]] = {}
    for section in sections:
        keys = own_keys(section)
        for key, default, allowed, words in section.describe():
            if key not in keys:
                continue
            name = key.rpartition(".")[2]
            shown_default = ""
            if default is not None:
                shown_default = f"`{json.dumps(default)}`"
            shown_allowed = re.sub("^an? ", "", allowed)
            setting = (name, shown_default, _with_signs(shown_allowed), _with_signs(words))
            keys_by_setting.setdefault(setting, []).append(f"`{key}`")
    cells = []
    for (_, *texts), keys in keys_by_setting.items():
        cells.append([", ".join(keys), *texts])
    return cells


def _with_signs(text: str) -> str:
    return text.replace(">=", "≥").replace("<=", "≤")


def update(
    project: Path, parts: Sequence[RunPart], more: Mapping[str, str] | None = None
) -> list[Path]:
    """Write defaults and tables into a checkout, and return the files that changed.

    Parameters
    ----------
    project : Path
        The checkout.
    parts : sequence of RunPart
        The parts of a run, whose sections are among the settings.
    more : mapping of str to str, optional
        Tables for other pages in ``docs/``, by the page's file name.
    """
    manifest = project / "pyproject.toml"
    new_texts = {manifest: _with_defaults(manifest.read_text(), toml_defaults(parts))}
    pages = {"configuration.md": markdown_tables(parts), **(more or {})}
    for name, tables in pages.items():
        page = project / "docs" / name
        new_texts[page] = _with_tables(page.read_text(), tables)
    # Files are written only now: a page without its marks has raised an error before.
    changed = []
    for path, text in new_texts.items():
        if path.read_text() != text:
            path.write_text(text)
            changed.append(path)
    return changed


def _with_defaults(manifest: str, defaults: str) -> str:
    """Return the text of a ``pyproject.toml`` with these defaults in place of its own."""
    before, rest = manifest.split(f"[{TOML_SECTION}]\n")
    # The old defaults end where the first section that is not one of theirs begins.
    end = re.search(rf"\n\n\[(?!{re.escape(TOML_SECTION)})", rest)
    assert end is not None
    return f"{before}[{TOML_SECTION}]\n{defaults}{rest[end.start() :]}"


def _with_tables(page: str, tables: str) -> str:
    """Return the text of a page with these tables between its two marks."""
    before = page.split(BEGIN)[0]
    after = page.split(END)[1]
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


if __name__ == "__main__":
    door = runpy.run_path("server_app.py")
    for written in update(Path.cwd(), chosen_parts(door["PARTS"])):
        print(f"written: {written}")
