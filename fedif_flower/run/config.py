"""Run config: every setting of one federation, parsed once, checked completely, then immutable.

Settings are declared beside the code that uses them. This file adds the settings of the run itself
and reads all of them, with the sections of the run's parts, from Flower's run config.
``fedif_flower.run.reference`` writes their defaults into ``pyproject.toml``, where ``flwr run``
looks for them, and their meaning into the documentation.
"""

from __future__ import annotations

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
    parse_overrides,
    quiet_setting,
    setting,
    similar_words,
    unknown_key,
)
from fedif_flower.storage import content_key
from fedif_flower.strategies.config import (
    PaceSettings,
    StrategyConfig,
    default_clipping,
    tuned_settings,
)
from fedif_flower.tasks.config import IMAGES

# Settings of the built-in task; no other task reads them.
IMAGE_FIELDS = ("dataset", "normalization", "model", "dirichlet_alpha")
IMAGE_KEYS = tuple(name.replace("_", "-") for name in IMAGE_FIELDS)

OWN_SETTINGS = "own-settings"  # The key whose text holds settings of a user's own classes.


class ConfiguredPart:
    """The methods of a run's part that a run config calls while it is read.

    :class:`~fedif_flower.run.part.RunPart` adds those that the run itself calls.
    """

    settings: ClassVar[type[Settings] | None] = None

    def automatic(self, values: Mapping[str, Scalar]) -> Mapping[str, Scalar]:  # noqa: ARG002
        """Return, by key, what ``"auto"`` stands for in a run that has this part."""
        return {}

    def fits(self, config: RunConfig) -> None:
        """Raise ConfigError if the run's settings rule this part out; nothing is loaded yet."""


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
            # Checked here and not by validators: sections, such as ``pace``, are there only now.
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

        ``num-clients = "auto"`` becomes its default, since the caller simulates that many clients.
        A ServerApp counts its nodes first, see
        :func:`~fedif_flower.run.preflight.read_config_and_count_nodes`.

        Parameters
        ----------
        run_config : mapping of str to bool, int, float or str
            Values by key; a key that is not there has its default.
        parts : sequence of RunPart, optional
            The parts that the run can have: their sections are allowed, and their checks are made.
            ``None``: the sections of the library's own parts are allowed, and the parts' checks are
            left to :func:`~fedif_flower.run.federation.run_federation`.

        Raises
        ------
        ConfigError
            If a setting is wrong; the error names the key, its value and what is allowed.
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
        """Parse the run config that Flower hands to a ServerApp.

        It has all keys that the app's ``pyproject.toml`` lists, whether the user has set them or
        not. So a key of a part that the app lacks is ignored if its value means "off". Settings in
        ``own-settings`` are not ignored, since the user wrote them.

        Parameters
        ----------
        run_config, parts
            As :meth:`from_run_config` takes them.

        Raises
        ------
        ConfigError
            If a setting is wrong; the error names the key, its value and what is allowed.
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
        # An ignored key may be a slip for a key that this app does have.
        for key in off:
            config._refuse_slip(key)
        return config

    @classmethod
    def _automatic(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return, by key, what ``"auto"`` stands for where the other settings have these values."""
        # A value that is no string is refused later, as an error of its own key.
        strategy = str(values["strategy"])
        dataset = str(values["dataset"])
        malicious = values["malicious-fraction"]
        is_number = isinstance(malicious, int | float) and not isinstance(malicious, bool)
        if not (is_number and 0 <= malicious <= 1):
            # A share that is not allowed is refused later, as an error of malicious-fraction.
            malicious = cls.model_fields["assumed_malicious_fraction"].default
        learning_rate = 0.001
        if dataset == "digits":
            learning_rate = 0.05
        return {
            "num-clients": cls.model_fields["num_clients"].default,
            "learning-rate": learning_rate,
            "assumed-malicious-fraction": malicious,
            "update-clipping": default_clipping(strategy),
            **tuned_settings(strategy, dataset),
        }

    @classmethod
    def of_records(cls, settings: Mapping[str, Scalar], where: str = "") -> Self:
        """Read the settings in a run's records, without sections that the library does not know.

        Parameters
        ----------
        settings : mapping of str to bool, int, float or str
            The settings in the records, by key.
        where : str
            The file that holds them, for errors; empty: errors name no file.

        Raises
        ------
        ConfigError
            If a setting is wrong; the error names the file, the key, its value and what is allowed.
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
        """Raise ConfigError if a key is set in a section that none of these parts has."""
        heard = [part.settings for part in parts]
        for section in self._free_sections:
            if section in heard:
                continue
            for key in section.key_names():
                if key in self._in_sections:
                    raise ConfigError(_not_heard(key, self._in_sections[key]))

    def _refuse_unknown(self, key: str, value: Scalar) -> None:
        """Refuse a key of a section that no part has; the library's own may have their defaults."""
        defaults = own_defaults()
        if key not in defaults:
            self._refuse_slip(key)
        if key not in defaults or value != defaults[key]:
            raise ConfigError(_not_heard(key, value))

    def _refuse_slip(self, key: str) -> None:
        """Refuse a key that is spelled much like a known key, which the user has probably meant."""
        known = list(self.defaults())
        for kind in (*OWN_SECTIONS, *self._free_sections):
            known += kind.key_names()
        similar = similar_words(key, known)
        section, _, setting_name = key.partition(".")
        for field, registry in self.registries.items():
            # A user's own class is not imported here: only the name of its section is known.
            name = getattr(self, field)
            if registry.is_own(name) and similar_words(section, [section_name(name)]):
                similar.append(f"{section_name(name)}.{setting_name}")
        if similar:
            raise ConfigError(unknown_key(key, similar))

    @property
    def pace(self) -> PaceSettings:
        """The settings of how long rounds wait for replies."""
        return self.section(PaceSettings)

    @property
    def auto_name(self) -> str:
        """What ``run-name = "auto"`` stands for: strategy, data, attack, a hash of the settings."""
        # A user's own name, such as module:object, may have characters that no folder may have.
        words = (self.strategy, self.subject, self.attack)
        name = "-".join(re.sub(r"[^\w.-]+", "-", word) for word in words)
        return f"{name}-{self.digest()[:8]}"

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Raise ConfigError for settings of images with another task, or a folder without path."""
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
        """What the run is about, as results call it: the data set, or the task."""
        return subject_of(self.to_mapping())

    @property
    def share_at_work(self) -> float:
        """The share C of the clients that a round asks, before ``pace.ask-more``; buffered: 1."""
        if self.pace.is_buffered:
            return 1.0
        return self.fraction_train

    @property
    def num_drawn(self) -> int:
        """How many of the K clients a round asks: the paper's m = max(C * K, 1).

        With ``pace.ask-more`` a round asks that many times as many.
        """
        return self.num_drawn_of(self.num_clients)

    def num_drawn_of(self, num_clients: int) -> int:
        """Return how many clients a round would ask if there were ``num_clients``."""
        return self.pace.pace().num_drawn(num_clients, self.share_at_work, 1)

    @property
    def fewest_replies(self) -> int:
        """The number of usable replies with which a round may close before its time is over."""
        return self.pace.pace().fewest_replies(self.num_drawn)

    @property
    def most_replies(self) -> int:
        """The largest number of replies that a round takes in."""
        return self.pace.pace().most_replies(self.num_drawn, self.num_clients)

    def _require_reachable(self) -> None:
        """Raise ConfigError if a round needs more replies to close than clients are asked."""
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
        """The setting that decides with how many replies a round may close, with its value."""
        pace = self.pace
        if pace.is_buffered:
            return f"pace.buffer-size = {pace.buffer_size}"
        if pace.quorum:
            return f"pace.quorum = {pace.quorum:g}"
        return f"fraction-train = {self.fraction_train}"

    @property
    def run_dir(self) -> Path:
        """The folder that this run writes its results to, absolute."""
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
        return content_key(self.identity())


def with_own_settings(run_config: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return a run config in which each setting in ``own-settings`` has a key of its own.

    Raises
    ------
    ConfigError
        If the text is no list of ``KEY=VALUE`` pairs, or a key in it has no section or is also set
        outside of the text.
    """
    values = dict(run_config)
    text = values.get(OWN_SETTINGS)
    if not isinstance(text, str) or not text:
        return values  # A value that is no text is refused when the settings are checked.
    values[OWN_SETTINGS] = ""
    try:
        own_settings = parse_overrides(text)
    except ConfigError as error:
        raise ConfigError(f"{OWN_SETTINGS}: {error}") from error
    for key, value in own_settings.items():
        allowed = (
            "a key with a section, like 'Scaled.factor', that is not set in the run config as well"
        )
        require("." in key and key not in values, OWN_SETTINGS, key, allowed)
        values[key] = value
    return values


def with_hyphens(
    settings: Mapping[str, Scalar], parts: Sequence[ConfiguredPart] = ()
) -> dict[str, Scalar]:
    """Return settings by run-config key, given settings by Python keyword.

    Underscores become hyphens, except in the name of a section that belongs to a part or to an
    entry that the settings choose: such a section may be named like a function.

    Parameters
    ----------
    settings : mapping of str to bool, int, float or str
        Values by keyword, such as ``num_clients``.
    parts : sequence of RunPart
        The parts of the run, whose sections are known by name.
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
    """Return the sections of parts, and those of the entries that settings choose by name.

    ``settings`` have either run-config keys or Python keywords.
    """
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
    return task.rpartition(":")[2]  # Of module:object, the object's name.


def _resolved(values: Mapping[str, Any], automatic: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``automatic`` values for keys that are ``"auto"`` or missing in ``values``."""
    return {key: value for key, value in automatic.items() if values.get(key, AUTO) == AUTO}


def _is_foreign(key: str, sections: Collection[str]) -> bool:
    """Whether a key has a section, and the section is none of these."""
    section, dot, _ = key.partition(".")
    return bool(dot) and section not in sections


def _not_heard(key: str, value: Scalar) -> str:
    """Return the error message for a key whose section no part of this app has."""
    section = key.partition(".")[0]
    return f"{key} = {value!r}: this app has no part with a section [{section}]"
