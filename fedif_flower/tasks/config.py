"""The settings of a federation's task: data, model, local training."""

from __future__ import annotations

from typing import Literal

from fedif_flower.registry import Registry
from fedif_flower.sections import SectionedSettings
from fedif_flower.settings import AUTO, Settings, setting
from fedif_flower.tasks.data.datasets import DATASETS, NORMALIZATIONS
from fedif_flower.tasks.models import MODELS

Precision = Literal["float32", "bf16"]
IMAGES = "images"  # The built-in task.
OWN = "this-app:"  # Prefix of the name of a task that an app brings along.


# Tasks by name. A task's function can take the settings, and the facts that the server sent to a
# client.
TASKS = Registry(
    "task",
    {IMAGES: "fedif_flower.tasks.images:image_task"},
    offered=("settings", "facts"),
    brought=OWN,
)


class TaskConfig(SectionedSettings):
    """The data that a federation learns from, and the model that it trains."""

    task: str = setting(
        IMAGES,
        "what is learned; `images`: a classifier of images, which the other keys of this table "
        "describe; else a task of your own",
        choices=TASKS,
    )
    dataset: str = setting(
        "digits",
        "the data set; `image-folder`: any tree `train/<class>/`, `test/<class>/`",
        choices=DATASETS,
    )
    data_dir: str = setting(
        "", "path where the data set lies, or is downloaded to", changes_result=False
    )
    normalization: str = setting(
        "data",
        "pixels less their mean over their standard deviation: `data`: the training split's own, "
        "`unit-range`: 0.5 and 0.5, `mnist`: 0.1307 and 0.3081",
        choices=NORMALIZATIONS,
    )
    model: str = setting(AUTO, "the model; `auto`: by data set", choices=(AUTO, *MODELS))
    dirichlet_alpha: float = setting(
        1.0, "heterogeneity of the partitions by label; smaller is more skewed", gt=0
    )


class TrainingConfig(Settings):
    r"""How a client trains: epochs E, batch size B, rate :math:`\eta`, momentum :math:`\beta`."""

    local_epochs: int = setting(5, "E, a client's passes over its examples in a round", ge=1)
    batch_size: int = setting(16, "B, examples per step; a last smaller batch is kept", ge=1)
    learning_rate: float = setting(
        0.001,
        "learning rate of the clients' SGD",
        gt=0,
        auto="0.05 for digits and tasks of your own, 0.001 otherwise",
    )
    momentum: float = setting(
        0.9, "momentum of the clients' SGD; starts from 0 at every round", ge=0, le=1
    )
    precision: Precision = setting(
        "float32",
        "number format of the clients' forward and backward pass; the parameters stay float32",
    )
