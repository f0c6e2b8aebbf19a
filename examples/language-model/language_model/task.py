"""What the agencies learn: adapters (LoRA) of a language model that each of them has already.

Only the adapters are sent, valued and stored. The base model is not sent, since the model's
``state_dict()`` leaves it out.
"""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower import ClientSite, Metric, Site, Task
from language_model.base import IGNORED, TINY, encode, load_base
from language_model.questions import PAIRS

BASE_MODEL = TINY  # Or a folder, or a name on the hub: "HuggingFaceTB/SmolLM2-135M".
NUM_AGENCIES = 6
SHUFFLED = (1, 4)  # These agencies have their answers in the wrong order.
VALIDATION, TEST = slice(0, 40), slice(40, 80)  # The server's questions; agencies have the rest.


def adapted(base: str, share: float = 1.0) -> PeftModel:
    """Return a frozen base model with new adapters in its upper layers, a ``share`` of all."""
    loaded = load_base(base)
    count = loaded.config.num_hidden_layers
    layers = list(range(count - round(share * count), count))
    config = LoraConfig(task_type="CAUSAL_LM", r=8, layers_to_transform=layers)
    model = get_peft_model(loaded, config)
    model.register_state_dict_post_hook(leave_out_frozen)
    return model


def model() -> PeftModel:
    """Return the model that the agencies train."""
    return adapted(BASE_MODEL)


def leave_out_frozen(module: nn.Module, state: dict[str, Tensor], prefix: str, _: Any) -> None:
    """Remove the frozen parameters from a ``state_dict()``, so that they are not sent."""
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            del state[prefix + name]


def some_questions(chosen: slice) -> list[tuple[str, str]]:
    """Return some of the questions with their answers; the order of all is random, but fixed."""
    order = torch.randperm(len(PAIRS), generator=torch.Generator().manual_seed(0)).tolist()
    return [PAIRS[i] for i in order[chosen]]


def client_data(site: ClientSite) -> dict[str, Tensor]:
    """Return the questions that an agency was asked, and its answers."""
    own = some_questions(slice(TEST.stop + site.partition_id, None, NUM_AGENCIES))
    if site.partition_id in SHUFFLED:
        own = [(asked, own[i - 1][1]) for i, (asked, _) in enumerate(own)]
    return encode(own, BASE_MODEL)


def validation_data(_: Site) -> dict[str, Tensor]:
    """Return the questions by which the server judges the agencies."""
    return encode(some_questions(VALIDATION), BASE_MODEL)


def test_data(_: Site) -> dict[str, Tensor]:
    """Return the questions by which the server tests the model."""
    return encode(some_questions(TEST), BASE_MODEL)


def answers(module: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return logits ``[n, length, vocabulary]`` and labels ``[n, length]`` of the answers alone."""
    begin = int((batch["labels"] != IGNORED).any(dim=0).nonzero()[0])
    labels = batch["labels"][:, begin:]
    texts = {key: batch[key] for key in ("input_ids", "attention_mask")}
    # Only the logits of the answers' tokens are computed, since the vocabulary is large.
    logits = module(**texts, logits_to_keep=labels.shape[1] + 1).logits
    return logits[:, :-1], labels


def batch_loss(module: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    """Return the mean loss over the answers' tokens, and the number of these tokens."""
    logits, labels = answers(module, batch)
    loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
    return loss, int((labels != IGNORED).sum())


def right_answers(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the share of answers in which every token is the most likely one.

    These are the answers that the model would write word for word.
    """
    logits, labels = answers(module, batch)
    is_right = (logits.argmax(dim=2) == labels) | (labels == IGNORED)
    return is_right.all(dim=1).float().mean()


def train(module: nn.Module, data: dict[str, Tensor], training: Any) -> float:
    """Train the adapters in place with AdamW; return the mean loss of the last epoch."""
    device = next(module.parameters()).device
    adapters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(adapters, lr=training.learning_rate)
    losses: list[float] = []
    for _ in range(training.local_epochs):
        losses.clear()
        for rows in torch.randperm(len(data["labels"])).split(training.batch_size):
            batch = {key: value[rows].to(device) for key, value in data.items()}
            optimizer.zero_grad()
            loss, _ = batch_loss(module, batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


task = Task(
    name="language-model",
    model=model,
    client_data=client_data,
    validation_data=validation_data,
    test_data=test_data,
    batch_loss=batch_loss,
    metrics=[Metric("right answers", right_answers)],
    train=train,
)
