"""What parts add to a run together."""

from __future__ import annotations

import pytest

from fedif_flower.errors import ConfigError
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.loaded_task import LoadedTask
from fedif_flower.run.part import Built, PartState, RunContext
from tests.run.resuming import run_config


def context(folder) -> RunContext:
    loaded = LoadedTask(run_config(folder), None, None, None, [], None, None, "data")
    return RunContext(loaded, None, RunFolder(folder / "run"), "id")


OWN = ("rounds", "clients", "attendance", "names", "seconds")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Built(state={"mine": PartState()}), Built(state={"mine": PartState()})),
        (Built(setup={"intake": 1}), Built(setup={"intake": 2})),
        (Built(columns=["cost"]), Built(columns=["cost"])),
        (Built(), Built(columns=["test_loss"])),
        *((Built(), Built(state={name: PartState()})) for name in OWN),
    ],
)
def test_a_second_thing_of_one_name_is_refused(tmp_path, first, second):
    run = context(tmp_path)
    run.add(first)
    with pytest.raises(ConfigError, match=r"^Built\.\w+: the name .* is taken by another part or"):
        run.add(second)


def test_what_a_later_part_tells_stands_for_what_an_earlier_one_does(tmp_path):
    run = context(tmp_path)
    run.add(Built(state={"one": PartState()}, columns=["one"], instructions={"weak": "1"}))
    run.add(Built(state={"two": PartState()}, columns=["two"], instructions={"weak": "2"}))
    assert list(run.state) == ["one", "two"]
    assert run.part_instructions == {"weak": "2"}
