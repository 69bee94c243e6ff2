"""The tokenizer of a run: the model folder's own, or a byte-level BPE trained on the data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rankloom.errors import UserError
from rankloom.records import ChatRecord
from rankloom.records.special_tokens import (
    END,
    PAD,
    SPECIAL_TOKENS,
    TURN_STARTS,
    refuse_small_vocabulary,
)

__all__ = ["DEFAULT_VOCAB_SIZE", "folder_identity", "load_tokenizer", "train_tokenizer"]

DEFAULT_VOCAB_SIZE = 4096
MAX_TRAINING_CHARS = 20_000_000  # more changes few merges and takes minutes

# A turn is its role's token, the text, and the end token; the answer, with its calls of tools, and its end
# token are what is trained.
CHAT_TEMPLATE = (
    "{% if tools %}{{ '<|system|>' + (tools | tojson) + '<|end|>' }}{% endif %}"
    "{% for message in messages %}"
    "{% set content = message['content'] or '' %}"
    "{% if message['role'] == 'assistant' %}"
    "{% set calls = (message['tool_calls'] | tojson) if message['tool_calls'] else '' %}"
    "{{ '<|assistant|>' }}{% generation %}{{ content + calls + '<|end|>' }}{% endgeneration %}"
    "{% else %}"
    "{% set speaker = message['name'] + ': ' if message['name'] else '' %}"
    "{{ '<|' + message['role'] + '|>' + speaker + content + '<|end|>' }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer saved in a model folder; nothing is downloaded.

    Raises:
        UserError: no such folder, no fast tokenizer in it, or no chat template.
    """
    path = Path(folder)
    if not path.is_dir():
        raise UserError(f"{folder}: no such folder; model.path is the folder of a Hugging Face model")
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise UserError(
            f"{folder}: holds no tokenizer (neither tokenizer.json nor tokenizer_config.json); save the "
            "model's tokenizer there with tokenizer.save_pretrained"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the Rust side raises plain Exception
        raise UserError(f"{folder}: its tokenizer cannot be loaded: {_first_line(error)}") from error
    if not tokenizer.is_fast:
        raise UserError(
            f"{folder}: its tokenizer {type(tokenizer).__name__} is a slow one, which cannot say where in "
            "the text a token lies; save a fast one (tokenizer.json) there"
        )
    if not tokenizer.chat_template:
        raise UserError(
            f"{folder}: its tokenizer has no chat template; put one in {folder}/chat_template.jinja, with "
            "{% generation %} markers around what is to be trained"
        )
    for how in ("is_local", "local_files_only"):  # it was loaded; of no interest where it is saved again
        tokenizer.init_kwargs.pop(how, None)
    return tokenizer


def folder_identity(folder: str | Path) -> str:
    """A sha256 (hex) over every file of a model folder that can change its tokenizer or template."""
    digest = hashlib.sha256()
    for path in sorted(Path(folder).iterdir()):
        if path.is_file() and (path.suffix in {".json", ".jinja", ".model", ".txt", ".tiktoken"}):
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    templates = Path(folder) / "additional_chat_templates"
    for path in sorted(templates.glob("*.jinja")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def train_tokenizer(
    records: Iterable[ChatRecord], *, max_vocab_size: int = DEFAULT_VOCAB_SIZE
) -> PreTrainedTokenizerFast:
    """A byte-level BPE (Sennrich et al. 2016, over bytes as in GPT-2) trained on the text of the messages.

    The same records and size give the same tokenizer. Its chat template marks what is trained;
    `save_pretrained` writes both.

    Args:
        records: the training data, iterated over twice; of more than 20 million characters every second,
            third ... record is read.
        max_vocab_size: the vocabulary is at most this large, special tokens included, and smaller on little
            data.

    Raises:
        UserError: the size leaves no room for the 256 bytes and the special tokens.
    """
    refuse_small_vocabulary(max_vocab_size)
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=max_vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(_texts(records), trainer=trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=list(TURN_STARTS),
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _texts(records: Iterable[ChatRecord]) -> Iterator[str]:
    num_chars = sum(len(text) for record in records for text in _texts_of(record))
    stride = max(1, -(-num_chars // MAX_TRAINING_CHARS))
    return (text for record in islice(records, 0, None, stride) for text in _texts_of(record))


def _texts_of(record: ChatRecord) -> Iterator[str]:
    if record.tools:
        yield json.dumps(record.tools, ensure_ascii=False)
    for message in record.messages:
        yield message.content
        if message.tool_calls:
            yield json.dumps(message.tool_calls, ensure_ascii=False)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
