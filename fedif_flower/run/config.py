"""Run config: every setting of one federation, parsed once, checked completely, then immutable.

The settings are declared in the rooms that use them; this file adds a run's own, with those of its
own parts, and reads them all from Flower's run config. ``fedif_flower.run.reference`` writes their
defaults into ``pyproject.toml``, where ``flwr run`` looks for them, and their meaning into the
documentation.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import model_validator

from fedif_flower.errors import ConfigError, require
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.text import UNSHOWN
from fedif_flower.run.completeness import LEAST_PARTICIPATION
from fedif_flower.run.own_sections import OFF, OWN_SECTIONS, own_defaults
from fedif_flower.sections import section_name, section_names
from fedif_flower.settings import (
    AUTO,
    Scalar,
    Settings,
    alike,
    parse_overrides,
    quiet_setting,
    setting,
    unknown_key,
)
from fedif_flower.strategies.config import (
    PaceSettings,
    StrategyConfig,
    default_clipping,
    tuned_settings,
)
from fedif_flower.tasks.config import IMAGES

# Settings of the built-in task, which another task does not read.
IMAGE_FIELDS = ("dataset", "normalization", "model", "dirichlet_alpha")
IMAGE_KEYS = tuple(name.replace("_", "-") for name in IMAGE_FIELDS)

OWN_SETTINGS = "own-settings"


class ConfiguredPart:
    """What a run config asks of a part of a run (:class:`~fedif_flower.run.part.RunPart`)."""

    settings: ClassVar[type[Settings] | None] = None

    def automatic(self, values: Mapping[str, Scalar]) -> Mapping[str, Scalar]:  # noqa: ARG002
        """Return what keys of the run config that are ``"auto"`` stand for with this part."""
        return {}

    def fits(self, config: RunConfig) -> None:
        """Raise ConfigError for settings that it cannot stand beside; nothing was loaded yet."""


class RunConfig(ClientConfig, StrategyConfig):
    """Every setting of one federation; ``docs/configuration.md`` describes each key."""

    num_server_rounds: int = setting(100, "rounds T", ge=1)
    eval_every: int = setting(1, "evaluate every this many rounds, and after the last", ge=1)
    output_dir: str = quiet_setting("runs", "path; results go to `output-dir/run-name/`")
    run_name: str = quiet_setting(
        AUTO,
        "`auto`: strategy, data set, attack and a hash of the settings, with `-2` and so on behind "
        "it where a run has that name already",
        pattern=rf"^([^/\\{UNSHOWN}]*[^/\\{UNSHOWN}.][^/\\{UNSHOWN}]*|\.{{3,}})$",
        allowed="a folder's name of printable characters, or 'auto'",
    )
    start_without: str = quiet_setting(
        "nobody",
        "`nobody`: a run does not begin while a member that is online cannot take part ([what each "
        "checks](consortium.md#a-run)); `unfit`: it begins all the same",
        choices=("nobody", "unfit"),
    )
    least_participation: float = quiet_setting(
        LEAST_PARTICIPATION,
        "a run in which a member took part in less than this share of its turns is "
        "`incomplete`: it ends with exit status 3 (`docs/consortium.md`); "
        "0: no run is incomplete for that",
        ge=0,
        le=1,
    )
    checkpoint_every: int = quiet_setting(
        10,
        "rounds between checkpoints; the last two are kept. With real nodes each round has one if "
        "it costs at most 3 % of the time, and each masked round has one. 0: none",
        ge=0,
    )
    resume: str = quiet_setting(
        "",
        "`auto`, or a path: go on from the run's last good checkpoint, or from a file, which may "
        "be another run's if the folder holds none; a checkpoint of another configuration is "
        "refused. What clients keep of their rounds "
        "(`scaffold`, `moon`, attacks that use the last global step) goes on with `fedif run`. At "
        "real nodes and with `flwr run` it begins anew, with a warning",
    )

    own_settings: str = quiet_setting(
        "",
        "`KEY=VALUE ...`, settings of parts of your own: `flwr run` takes no keys that the app's "
        "`pyproject.toml` does not list "
        "([an example](tutorial/own-parts.md#settings-of-your-own))",
    )
    overwrite: bool = quiet_setting(
        False,
        "a run of the same `run-name` is replaced, whatever it came to; else a name that was given "
        "is refused",
    )

    if not TYPE_CHECKING:

        def __init__(
            self, *, sections: Sequence[type[Settings]] = OWN_SECTIONS, **values: Any
        ) -> None:
            super().__init__(sections=sections, **values)
            self._require_reachable()
            fewest = self.fewest_replies
            words = f"<= the {fewest} clients of a round"
            if self.pace.pace().quorum:
                words = f"<= {fewest}, the replies with which a round closes by {self.closes_by}"
            is_reached = self.min_valid_replies <= fewest
            require(is_reached, "min-valid-replies", self.min_valid_replies, words)

    @classmethod
    def from_run_config(
        cls, run_config: Mapping[str, Scalar], parts: Sequence[ConfiguredPart] | None = None
    ) -> Self:
        """Parse and check a Flower run config; settings that are ``"auto"`` are resolved.

        ``num-clients = "auto"`` becomes its default: whoever calls this simulates so many. A
        ServerApp counts its nodes first, see :func:`~fedif_flower.run.preflight.read_config`.

        Parameters
        ----------
        run_config : mapping of str to bool, int, float or str
            Values by key; a key that is not there has its default.
        parts : sequence of RunPart, optional
            What the run can have beside its records; ``None``: sections are those of the
            library's own parts, and what does not fit them is found when the run begins.

        Raises
        ------
        ConfigError
            Naming the key, its value and what is allowed.
        """
        values: dict[str, Any] = {**cls.defaults(), **with_own_settings(run_config)}
        for part in parts or ():
            values |= _resolved(values, part.automatic(values))
        values |= _resolved(values, cls._automatic(values))
        sections: Sequence[type[Settings]] = OWN_SECTIONS
        if parts is not None:
            sections = [part.settings for part in parts if part.settings]
        config = cls(sections=sections, **values)  # type: ignore[call-arg]
        for part in parts or ():
            part.fits(config)
        if config.run_name == AUTO:
            return config.replace(run_name=config.auto_name)
        return config

    @classmethod
    def from_flower(
        cls, run_config: Mapping[str, Scalar], parts: Sequence[ConfiguredPart] | None = None
    ) -> Self:
        """Parse the run config that a ServerApp is handed: all keys that its app lists.

        Flower takes no others on its command line. So a key of a part that is not there may be
        nobody's wish: it is passed over where its value is off. What ``own-settings`` holds was
        written down.

        Parameters
        ----------
        run_config, parts
            As :meth:`from_run_config` takes them.

        Raises
        ------
        ConfigError
            Naming the key, its value and what is allowed.
        """
        sections = _named_sections(run_config, parts or ())
        sections |= {kind.section_name() for kind in OWN_SECTIONS}
        for registry in cls.registries.values():
            sections |= set(registry.built_in)
        off = []
        for key, value in run_config.items():
            if _is_foreign(key, sections) and value in OFF:
                off.append(key)
        wanted = {key: value for key, value in run_config.items() if key not in off}
        config = cls.from_run_config(wanted, parts)
        for key in off:
            config._refuse_slip(key)
        return config

    @classmethod
    def _automatic(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what keys that are ``"auto"`` stand for, beside these values."""
        # What is no name at all is an error of its key, too.
        strategy = str(values["strategy"])
        dataset = str(values["dataset"])
        share = values["malicious-fraction"]
        if not (isinstance(share, int | float) and 0 <= share <= 1):
            # One that is not allowed is an error of the key that was set.
            share = cls.model_fields["assumed_malicious_fraction"].default
        learning_rate = 0.001
        if dataset == "digits":
            learning_rate = 0.05
        return {
            "num-clients": cls.model_fields["num_clients"].default,
            "learning-rate": learning_rate,
            "assumed-malicious-fraction": share,
            "update-clipping": default_clipping(strategy),
            **tuned_settings(strategy, dataset),
        }

    @classmethod
    def of_records(cls, settings: Mapping[str, Scalar], where: str = "") -> Self:
        """Read the settings that a run's records have; sections of others' parts are left out.

        Parameters
        ----------
        settings : mapping of str to bool, int, float or str
            What the records hold.
        where : str
            The file that holds them, for errors; empty: it needs no name.

        Raises
        ------
        ConfigError
            Naming the file, the key, its value and what is allowed.
        """
        sections = set(cls.sections())
        sections |= {kind.section_name() for kind in OWN_SECTIONS}
        for registry in cls.registries.values():
            chosen = str(settings.get(registry.key, ""))
            sections.add(section_name(chosen))
        readable = {key: value for key, value in settings.items() if not _is_foreign(key, sections)}
        try:
            return cls.from_run_config(readable)
        except ConfigError as error:
            if not where:
                raise
            raise ConfigError(f"{where}: {error}") from error

    def require_heard(self, parts: Sequence[ConfiguredPart]) -> None:
        """Raise ConfigError for a key that is set, of a section that none of these parts has."""
        heard = [part.settings for part in parts]
        for section in self._free_sections:
            if section in heard:
                continue
            for key in section.key_names():
                if key in self._in_sections:
                    raise ConfigError(_not_heard(key, self._in_sections[key]))

    def _refuse_unknown(self, key: str, value: Scalar) -> None:
        """Refuse a key of a section that no part has, but for defaults of the library's own."""
        defaults = own_defaults()
        if key not in defaults:
            self._refuse_slip(key)
        if key not in defaults or value != defaults[key]:
            raise ConfigError(_not_heard(key, value))

    def _refuse_slip(self, key: str) -> None:
        """Refuse a key that reads like one that there is: whoever wrote it meant that one."""
        known = list(self.defaults())
        for kind in (*OWN_SECTIONS, *self._free_sections):
            known += kind.key_names()
        similar = alike(key, known)
        section, _, setting_name = key.partition(".")
        for field, registry in self.registries.items():
            # What is one's own is not imported here, so that its settings are not known yet.
            name = getattr(self, field)
            if registry.is_own(name) and alike(section, [section_name(name)]):
                similar.append(f"{section_name(name)}.{setting_name}")
        if similar:
            raise ConfigError(unknown_key(key, similar))

    @property
    def pace(self) -> PaceSettings:
        """How long its rounds wait."""
        return self.section(PaceSettings)

    @property
    def auto_name(self) -> str:
        """What ``run-name = "auto"`` stands for: strategy, data, attack, a hash of the settings."""
        # Names of a user's own, such as module:object, may have what no folder's name has.
        words = (self.strategy, self.subject, self.attack)
        name = "-".join(re.sub(r"[^\w.-]+", "-", word) for word in words)
        return f"{name}-{self.digest()[:8]}"

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.task != IMAGES:
            allowed = f"only with task {IMAGES!r}: others have their own"
            for name in IMAGE_FIELDS:
                value = getattr(self, name)
                default = type(self).model_fields[name].default
                require(value == default, name, value, allowed)
        if self.dataset == "image-folder":
            allowed = "the folder's path, which dataset 'image-folder' needs"
            require(bool(self.data_dir), "data_dir", self.data_dir, allowed)
        return self

    @property
    def subject(self) -> str:
        """What it is about, as results call it: the data set, or the task."""
        return subject_of(self.to_mapping())

    @property
    def share_at_work(self) -> float:
        """The share C of the clients that a round asks; in buffered rounds all of them."""
        if self.pace.is_buffered:
            return 1.0
        return self.fraction_train

    @property
    def num_drawn(self) -> int:
        """How many clients a round asks; the paper's m = max(C * K, 1), if no more are asked."""
        return self.num_drawn_of(self.num_clients)

    def num_drawn_of(self, num_clients: int) -> int:
        """Return how many a round would ask of so many clients."""
        return self.pace.pace().num_drawn(num_clients, self.share_at_work, 1)

    @property
    def fewest_replies(self) -> int:
        """With how few usable replies a round may close before its time is over."""
        return self.pace.pace().fewest_replies(self.num_drawn)

    @property
    def most_replies(self) -> int:
        """How many replies a round takes in at most."""
        return self.pace.pace().most_replies(self.num_drawn, self.num_clients)

    def _require_reachable(self) -> None:
        """Raise ConfigError where a round is to close with more replies than clients are asked."""
        pace = self.pace
        drawn = self.num_drawn
        if pace.is_buffered:
            words = f"<= {drawn}, since num-clients = {self.num_clients} are at work"
            require(pace.buffer_size <= drawn, "pace.buffer-size", pace.buffer_size, words)
            return
        asked = f"num-clients = {self.num_clients}, fraction-train = {self.fraction_train:g}"
        if pace.ask_more != 1:
            asked += f" and pace.ask-more = {pace.ask_more:g}"
        words = f"<= the {drawn} clients that a round asks by {asked}"
        require(pace.quorum <= drawn, "pace.quorum", pace.quorum, words)

    @property
    def closes_by(self) -> str:
        """The setting that says with how few replies a round may close, with its value."""
        pace = self.pace
        if pace.is_buffered:
            return f"pace.buffer-size = {pace.buffer_size}"
        if pace.quorum:
            return f"pace.quorum = {pace.quorum:g}"
        return f"fraction-train = {self.fraction_train}"

    @property
    def run_dir(self) -> Path:
        """Where this run writes its results, absolute."""
        return Path(self.output_dir).expanduser().absolute() / self.run_name

    def identity(self) -> dict[str, Scalar]:
        """Return every setting that can change a result (not where or when it is written)."""
        identity = super().identity()
        if self.task != IMAGES:
            for key in IMAGE_KEYS:
                identity.pop(key, None)
        return identity

    def digest(self) -> str:
        """Return a hash of every setting that can change a result."""
        text = json.dumps(self.identity(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def with_own_settings(run_config: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return a run config with those settings that ``own-settings`` holds, under their own keys.

    Raises
    ------
    ConfigError
        If the text is no list of pairs, or has a key that is given, or that has no section.
    """
    values = dict(run_config)
    text = values.get(OWN_SETTINGS)
    if not isinstance(text, str) or not text:
        return values  # What is no text is refused where it is checked.
    values[OWN_SETTINGS] = ""
    try:
        own_settings = parse_overrides(text)
    except ConfigError as error:
        raise ConfigError(f"{OWN_SETTINGS}: {error}") from error
    for key, value in own_settings.items():
        allowed = "a key like 'Scaled.factor', which is not given otherwise"
        require("." in key and key not in values, OWN_SETTINGS, key, allowed)
        values[key] = value
    return values


def with_hyphens(
    settings: Mapping[str, Scalar], parts: Sequence[ConfiguredPart] = ()
) -> dict[str, Scalar]:
    """Return settings by run-config key, where Python's keywords have underscores.

    A section of a chosen name, or of a part, keeps its own underscores: a function's name has some.
    """
    sections = _named_sections(settings, parts)
    values = {}
    for keyword, value in settings.items():
        section, dot, name = keyword.rpartition(".")
        if section not in sections:
            section = section.replace("_", "-")
        values[section + dot + name.replace("_", "-")] = value
    return values


def _named_sections(settings: Mapping[str, Scalar], parts: Sequence[ConfiguredPart]) -> set[str]:
    """Return the sections of parts, and of what settings name, under keys or keywords."""
    sections = {part.settings.section_name() for part in parts if part.settings}
    for field, registry in RunConfig.registries.items():
        chosen = settings.get(registry.key, settings.get(field, ""))
        sections |= set(section_names(registry, str(chosen)))
    return sections


def subject_of(settings: Mapping[str, Scalar]) -> str:
    """Return what a run with these settings is about: the data set, or the task."""
    task = str(settings.get("task", IMAGES))
    if task == IMAGES:
        return str(settings.get("dataset", "?"))
    return task.rpartition(":")[2]  # The object's name in module:object.


def _resolved(values: Mapping[str, Any], automatic: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``"auto"`` stands for, under keys that are ``"auto"`` or that nobody has set."""
    return {key: value for key, value in automatic.items() if values.get(key, AUTO) == AUTO}


def _is_foreign(key: str, sections: Collection[str]) -> bool:
    """Tell whether a key has a section, and that is none of these."""
    section, dot, _ = key.partition(".")
    return bool(dot) and section not in sections


def _not_heard(key: str, value: Scalar) -> str:
    """Return that nothing of this app reads a key of a section."""
    section = key.partition(".")[0]
    return f"{key} = {value!r}: this app has no part with a section [{section}]"
