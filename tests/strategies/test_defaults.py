"""The classes' defaults are those of the declared settings: the same name means the same value."""

from __future__ import annotations

import inspect

import pytest

from fedif_flower import strategies
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.settings import Settings
from fedif_flower.strategies import DescentSettings, Setup, Weighting
from fedif_flower.strategies.config import StrategyConfig
from fedif_flower.valuation.shapley.valuation import ShapleyValuation

CLASSES = [getattr(strategies, name) for name in strategies.__all__]
CLASSES += [Setup, Weighting, DescentSettings, ShapleyValuation]
DECLARED: tuple[type[Settings], ...] = (StrategyConfig, ClientConfig)
# What a class calls otherwise than the run config, in which a key is named after its strategy.
SETTING_OF = {
    ("DescentSettings", "steps"): "descent_steps",
    ("DescentSettings", "examples"): "descent_examples",
    ("DescentSettings", "relative"): "relative_weights",
    ("ShapleyValuation", "estimator"): "shapley_estimator",
    ("ShapleyValuation", "num_samples"): "shapley_samples",
    ("ShapleyValuation", "utility"): "shapley_utility",
    ("Krum", "distances"): "krum_distances",
    ("Krum", "malicious_fraction"): "assumed_malicious_fraction",
    ("TrimmedMean", "malicious_fraction"): "assumed_malicious_fraction",
    ("DnC", "malicious_fraction"): "assumed_malicious_fraction",
    ("ByzFL", "malicious_fraction"): "assumed_malicious_fraction",
}
EXCEPTIONS = {
    ("RootTraining", "task"): "a Task; the setting is the name of one",
    ("ScreenedStrategy", "fraction_train"): "Flower's own default; the setting is the paper's C",
    (
        "Setup",
        "max_num_examples",
    ): "the setting's 0 is the data set's size: unknown here",
    ("Weighting", "num_clients"): "None counts the nodes seen so far",
    ("ShapFed", "gamma"): "the authors' value; the setting is FedIF's and AFedSV's",
    ("Krum", "malicious_fraction"): "a run config tells it the share of malicious clients",
    ("TrimmedMean", "malicious_fraction"): "as Krum's, and less: half leaves it nothing to average",
    ("DnC", "malicious_fraction"): "as Krum's, and less: half leaves it nothing to average",
    ("ByzFL", "malicious_fraction"): "as Krum's, and less: half leaves it nothing to average",
}


def shared() -> list[tuple[type, str, object, Settings]]:
    """Return class, argument, default and declaration of every argument that is a setting."""
    found = []
    for kind in CLASSES:
        for name, parameter in inspect.signature(kind.__init__).parameters.items():
            setting = SETTING_OF.get((kind.__name__, name), name)
            declared = next((own for own in DECLARED if setting in own.model_fields), None)
            has_default = parameter.default is not inspect.Parameter.empty
            flowers = name == "fraction_train" and kind is not strategies.ScreenedStrategy
            if declared is not None and has_default and "__init__" in vars(kind) and not flowers:
                found.append((kind, name, parameter.default, declared))
    return found


def allowed_defaults(declared: type[Settings], setting: str) -> list[object]:
    """Return a setting's own default, and the run config's: ``"auto"`` where that is allowed."""
    field = declared.model_fields[setting]
    return [field.default, declared.defaults()[str(field.alias)]]


@pytest.mark.parametrize(
    ("kind", "name", "default", "declared"), shared(), ids=lambda v: getattr(v, "__name__", str(v))
)
def test_a_class_has_the_default_of_the_setting(kind, name, default, declared):
    setting = SETTING_OF.get((kind.__name__, name), name)
    same = default in allowed_defaults(declared, setting)
    assert same != ((kind.__name__, name) in EXCEPTIONS)


def test_every_exception_is_one_of_the_arguments():
    assert {(kind.__name__, name) for kind, name, _, _ in shared()} >= EXCEPTIONS.keys()


@pytest.mark.parametrize(
    "setting", ["gamma", "weight_scope", "proximal_mu", "utility", "steps", "max_paused_turns"]
)
def test_the_setting_is_found_in_a_class(setting):
    assert setting in {name for _, name, _, _ in shared()}
