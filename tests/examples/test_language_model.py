"""The language model's adapters: what travels, what is found, and which base may lie below."""

from __future__ import annotations

import pytest
import torch

from fedif_flower.messages.models import model_arrays
from fedif_flower.run.rows import read_rows
from language_model import base, task
from tests.examples.apps import run, weights

pytestmark = pytest.mark.all


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return run("language-model", tmp_path_factory.mktemp("runs"), device="cpu", num_server_rounds=3)


def test_the_adapters_learn_to_answer(run_dir):
    rounds = read_rows(run_dir / "rounds.csv")
    assert float(rounds[0]["test_right_answers"]) < 0.1
    assert float(rounds[-1]["test_right_answers"]) > 0.4


def test_agencies_with_shuffled_answers_hardly_count(run_dir):
    counted = weights(run_dir)
    shuffled = [counted.pop(partition_id) for partition_id in task.SHUFFLED]
    assert max(shuffled) < 0.5 * min(counted.values())


def test_only_adapters_travel_and_are_kept(run_dir):
    model = task.model()
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert set(model_arrays(model)) == trained
    kept = torch.load(run_dir / "model.pt", weights_only=True)
    assert set(kept) == trained
    assert all("lora_" in name for name in kept)
    missing, unexpected = model.load_state_dict(kept, strict=False)
    assert not unexpected
    assert not trained & set(missing)


def test_every_node_makes_the_same_base():
    one = base.load_base(base.TINY).state_dict()
    base._tiny.cache_clear()
    other = base.load_base(base.TINY).state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_any_model_that_transformers_can_load_takes_the_place_of_the_tiny_one(
    tmp_path, monkeypatch
):
    base.load_base(base.TINY).save_pretrained(tmp_path)
    base.load_tokenizer(base.TINY).save_pretrained(tmp_path)
    monkeypatch.setattr(task, "BASE_MODEL", str(tmp_path))
    batch = task.validation_data(None)
    loss, tokens = task.batch_loss(task.model(), batch)
    monkeypatch.undo()
    own_loss, own_tokens = task.batch_loss(task.model(), task.validation_data(None))
    assert tokens == own_tokens
    torch.testing.assert_close(loss, own_loss)
