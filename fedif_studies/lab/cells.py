"""A cell of a grid is one federation: its settings, its data and the folder of its result."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedif_flower.errors import ConfigError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import why_nobody_attacks
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.loaded_task import fingerprint
from fedif_flower.run.outside_code import modules_of
from fedif_flower.run.own_sections import CreditSettings, UpdatesSettings
from fedif_flower.run.provenance import CODE, code_hash, modules_hash
from fedif_flower.run.record_files import JsonFile
from fedif_flower.settings import AUTO, Scalar
from fedif_flower.storage import content_key
from fedif_flower.tasks.images import settled
from fedif_flower.words import listed
from fedif_studies.rows import machine

LABEL = "cell.json"  # In a run's folder: what the run's settings do not say, see Cell.label.
# In an output folder: the locks of the cells that processes run, and runs that are not results yet.
CLAIMS = ".claims"
_AND = " and "  # Joins the revisions of a run that was stopped and went on with other code.
_UNKNOWN = "unknown"
_TITLES = {"cifar10": "CIFAR-10", "fashion-mnist": "Fashion-MNIST", "digits": "Digits"}


@dataclass(frozen=True)
class Cell:
    """One federation of a grid.

    Attributes
    ----------
    group : str
        The table or sweep that it was made for.
    name : str
        Its name in the group. A sweep cuts long names, so that two cells may have the same.
    config : RunConfig
        Every setting; ``config.run_dir`` is where the result goes.
    data : str
        The name of its data set in a report, such as ``"CIFAR-10 (JPEG)"``.
    modules : mapping of str to str
        A hash of each module outside the library that its settings name, such as a user's own
        strategy.
    is_timed : bool
        Whether its figures are seconds. Seconds depend on what else the machine does, so a run of
        another group never stands for a timed cell, even with the same settings.
    """

    group: str
    name: str
    config: RunConfig
    data: str
    modules: Mapping[str, str]
    is_timed: bool = False

    @property
    def digest(self) -> str:
        """The hash at the end of its directory's name; cells with the same one share a result."""
        return self.config.run_name.rpartition("-")[2]

    def require_unchanged(self) -> None:
        """Raise ConfigError if one of ``modules`` was edited after the cell was made."""
        now = modules_of(self.config)
        for name in sorted(self.modules.keys() | now.keys()):
            before = self.modules.get(name, "none")
            after = now.get(name, "none")
            if before != after:
                raise ConfigError(
                    f"{name} was edited: its SHA-256 was {before[:12]} and is {after[:12]} now; "
                    "the same command measures the new one"
                )

    def label(self, revision: str, *, goes_on: bool) -> None:
        """Write into its directory what a report cannot derive from the settings.

        Parameters
        ----------
        revision : str
            The revision that ran it.
        goes_on : bool
            Whether an earlier process ran the first rounds: its revision is kept beside this one.
        """
        file = JsonFile(self.config.run_dir / LABEL)
        revisions = [revision]
        if goes_on:
            earlier = file.read()["revision"] if file.path.exists() else _UNKNOWN
            revisions = [*earlier.split(_AND), *revisions]
        here = machine()
        content = {
            "group": self.group,
            "name": self.name,
            "data": self.data,
            "revision": _AND.join(dict.fromkeys(revisions)),
            "processor": here["processor"],
            "threads": here["threads"],
        }
        file.write(content)


def make_cell(
    group: str,
    name: str,
    settings: Mapping[str, Scalar],
    output_dir: Path,
    data: str = "",
    *,
    is_timed: bool = False,
) -> Cell:
    """Return a cell whose directory is ``<output_dir>/<group>/<name>-<hash>``.

    The hash covers every setting that can change the result, the settings of attribution, the
    pixels and labels of the data set, and the modules outside the library that the settings name,
    such as a user's own rule. A directory that exists is therefore a result of exactly these.

    Parameters
    ----------
    group, name : str
        The table or sweep, and the cell's name in it.
    settings : Mapping[str, Scalar]
        A complete run config, as ``flwr run`` takes it.
    output_dir : Path
        Under it lies one directory per group.
    data : str
        The data set's name in a report; if empty, the name that the settings give it.
    is_timed : bool
        Whether the cell's figures are seconds, see :class:`Cell`.

    Raises
    ------
    ConfigError, DataError
        If a setting is not allowed, or the data set cannot be read.
    """
    folder = (output_dir / group).absolute()
    place = {"output-dir": str(folder), "run-name": AUTO, "resume": AUTO}
    config = settled(RunConfig.from_run_config({**settings, **place}).completed())
    modules = modules_of(config)
    content = f"{config.digest()} {fingerprint(config)}"
    if config.attribution != "off":
        content += f" {content_key(_attribution_of(config))}"
    if modules:
        content += f" {modules_hash(modules)}"
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    config = config.replace(run_name=f"{name}-{digest}")
    return Cell(group, name, config, data or config.subject, modules, is_timed)


def _attribution_of(config: RunConfig) -> dict[str, Scalar]:
    """Return the settings of attribution, which ``config.digest()`` does not cover.

    They change what members are credited with, but not the model.
    """
    sections = (config.section(CreditSettings), config.section(UpdatesSettings))
    settings: dict[str, Scalar] = {"attribution": config.attribution}
    for section in sections:
        settings |= section.to_mapping()
    return settings


def find_result(cell: Cell) -> Path | None:
    """Return the directory of a cell's complete result; ``None`` if there is none.

    Another group may have run a cell with the same digest: its result counts, unless this cell is
    timed.
    """
    if RunFolder(cell.config.run_dir).is_complete():
        return cell.config.run_dir
    if cell.is_timed:
        return None
    output_dir = cell.config.run_dir.parent.parent
    for run_dir in sorted(output_dir.glob(f"*/*-{cell.digest}")):
        if RunFolder(run_dir).is_complete():
            return run_dir
    return None


def has_failed_last_round(run_dir: Path) -> bool:
    """Tell whether the last round of a complete run failed."""
    return bool(RunFolder(run_dir).summary.read().get("last_round_failed"))


def is_of_other_code(cell: Cell) -> bool:
    """Tell whether a cell has a complete result that was measured by code other than today's.

    A result that does not name its code counts as one of today's.
    """
    run_dir = find_result(cell)
    if run_dir is None:
        return False
    provenance = RunFolder(run_dir).provenance
    if not provenance.path.is_file():
        return False
    return provenance.read().get(CODE) != code_hash(cell.modules)


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells, less those that share the result of an earlier one.

    Timed cells share a result within their group only.
    """
    first: dict[tuple[str, str], Cell] = {}
    for cell in cells:
        group = cell.group if cell.is_timed else ""
        first.setdefault((cell.digest, group), cell)
    return list(first.values())


def remarks_on(cells: Sequence[Cell], measured: Collection[Path]) -> list[str]:
    """Return remarks on a table of cells: which are missing, failed, not attacked or shared.

    Parameters
    ----------
    cells : sequence of Cell
        All cells that were asked for.
    measured : collection of Path
        The directories of the runs that the table shows.
    """
    distinct_cells = distinct(cells)
    missing = []
    failed = []
    peaceful = []
    for cell in distinct_cells:
        if why_nobody_attacks(cell.config):
            peaceful.append(cell.name)
        run_dir = find_result(cell)
        if run_dir is None or run_dir not in measured:
            missing.append(cell.name)
        elif has_failed_last_round(run_dir):
            failed.append(cell.name)
    remarks = []
    for remark, names in (
        ("Missing:", missing),
        ("The last round failed in", failed),
        ("There is an attack, but nobody is malicious in", peaceful),
    ):
        if names:
            count = f"{len(names)} of {len(distinct_cells)} cells"
            remarks.append(f"{remark} {count}: {listed(names)}.")
    num_shared = len(cells) - len(distinct_cells)
    if num_shared:
        remarks.append(
            f"{num_shared} of {len(cells)} cells have the same settings as another cell, as far as "
            "results depend on them, and share its run."
        )
    return remarks


def find_data(dataset: str, data_dir: str) -> tuple[dict[str, Scalar], str]:
    """Return the settings that name a data set, and its name in a report.

    CIFAR-10 may also be given as folders of images, ``train/<class>/`` and ``test/<class>/``, in
    ``data_dir`` or in its subfolder ``cifar10``. These images are then the data set, whose name
    says whether they are JPEG files.
    """
    title = title_of_data(dataset)
    if not data_dir:
        return {"dataset": dataset, "data-dir": ""}, title
    place = Path(data_dir).expanduser().absolute()
    if dataset == "cifar10":
        for folder in (place, place / "cifar10"):
            if (folder / "train" / "airplane").is_dir():
                settings: dict[str, Scalar] = {"dataset": "image-folder", "data-dir": str(folder)}
                return settings, f"CIFAR-10 ({_kind_of_images(folder)})"
    return {"dataset": dataset, "data-dir": str(place)}, title


def title_of_data(dataset: str) -> str:
    """Return the name of a data set in a report."""
    return _TITLES.get(dataset, dataset)


def _kind_of_images(folder: Path) -> str:
    """Return ``"JPEG"`` if a folder of CIFAR-10's images has such files, else "image folder"."""
    image = next((folder / "train" / "airplane").iterdir(), Path())
    if image.suffix.lower() in (".jpg", ".jpeg"):
        return "JPEG"
    return "image folder"
