"""From the settings of a run to its data: records, tokenizer, tokenised dataset, global stream."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tokenizers
import transformers
from transformers import PreTrainedTokenizerBase

from rankloom.data.cache import cached_folder, default_cache_dir
from rankloom.data.dataset import TokenizedDataset, write_dataset
from rankloom.data.encoding import encode_records
from rankloom.data.stream import GlobalStream
from rankloom.data.tokenizer import DEFAULT_VOCAB_SIZE, folder_identity, load_tokenizer, train_tokenizer
from rankloom.errors import UserError
from rankloom.records import load_records, source_identity

if TYPE_CHECKING:
    from rankloom.config import ResolvedConfig

__all__ = ["PreparedData", "prepare", "prepare_data"]

FORMAT_VERSION = 2  # raised when the same inputs would give another folder
TOKENIZER = "tokenizer"


@dataclass(frozen=True)
class PreparedData:
    """The data of a run.

    Attributes:
        tokenizer: with its chat template; `save_pretrained` writes both.
        vocab_size: rows of the embedding: the model's own number, or else the tokenizer's.
        pad_token_id: what stands in padding, which is never trained.
        dataset: the records that fit.
        stream: the rows of every step.
        facts: short lines for the log.
        fingerprint: sha256 (hex) of tokens, tokenizer and everything that orders rows; equal on all ranks.
    """

    tokenizer: PreTrainedTokenizerBase
    vocab_size: int
    pad_token_id: int
    dataset: TokenizedDataset
    stream: GlobalStream
    facts: tuple[str, ...]
    fingerprint: str


def prepare(resolved: ResolvedConfig) -> PreparedData:
    """`prepare_data` with the values of a resolved config.

    Raises:
        UserError: no data, bad data, no tokenizer, a tokenizer larger than the model's vocabulary, zero
            steps.
    """
    data, model = resolved.data, resolved.model
    if data.train is None:
        raise UserError('data.train is not set; name a JSON Lines file of chats, or "python-docs"')
    return prepare_data(
        data.train,
        model_path=model.path,
        model_config=model.config,
        max_seq_length=data.max_seq_length,
        packing=data.packing,
        seed=data.seed,
        global_batch_size=resolved.train.global_batch_size,
        last_batch=data.last_batch,
        bad_records=data.bad_records,
        overlong=data.overlong,
        cache_dir=data.cache_dir,
    )


def prepare_data(
    train: str,
    *,
    model_path: str | None = None,
    model_config: Mapping[str, object] | None = None,
    max_seq_length: int,
    packing: bool,
    seed: int,
    global_batch_size: int,
    last_batch: str = "fill",
    bad_records: str = "error",
    overlong: str = "drop",
    cache_dir: str | Path | None = None,
) -> PreparedData:
    """Reads, tokenises and packs the training data; what was built before is taken from the cache.

    Many processes may call this at once: one builds, the others wait and map the result.

    Args:
        train: see `load_records`.
        model_path: folder whose tokenizer is used; without one a tokenizer is trained on the data.
        model_config: of a from-scratch model; its ``vocab_size`` caps the trained tokenizer.

    Raises:
        UserError: see `prepare`.
    """
    vocab_size = _model_vocab_size(model_path, model_config)
    name = "the trained tokenizer" if model_path is None else model_path
    own = None if model_path is None else load_tokenizer(model_path)
    if own is not None:
        _refuse_small_vocabulary(len(own), vocab_size, name)

    def build(folder: Path) -> None:
        found = load_records(train, bad_records=bad_records)
        tokenizer = own
        if tokenizer is None:
            tokenizer = train_tokenizer(found.records, max_vocab_size=vocab_size or DEFAULT_VOCAB_SIZE)
            tokenizer.save_pretrained(str(folder / TOKENIZER))
        skipped = Counter(found.skipped)
        encoded = encode_records(
            found.records, tokenizer, name=name, bad_records=bad_records, skipped=skipped
        )
        write_dataset(folder, encoded, skipped=skipped)

    root = default_cache_dir() if cache_dir is None else Path(cache_dir)
    key = _key(train, model_path=model_path, vocab_size=vocab_size, bad_records=bad_records)
    folder = cached_folder(root / "data", key, build=build)
    tokenizer = load_tokenizer(folder / TOKENIZER) if own is None else own
    _refuse_small_vocabulary(len(tokenizer), vocab_size, name)
    dataset = TokenizedDataset.open(folder, source=train).fitted(max_seq_length, overlong=overlong)
    stream = GlobalStream(
        dataset,
        max_seq_length=max_seq_length,
        packing=packing,
        seed=seed,
        global_batch_size=global_batch_size,
        last_batch=last_batch,
    )
    return PreparedData(
        tokenizer=tokenizer,
        vocab_size=vocab_size or len(tokenizer),
        pad_token_id=_pad_token_id(tokenizer),
        dataset=dataset,
        stream=stream,
        facts=(*_facts(dataset, len(tokenizer), name), *stream.describe()),
        fingerprint=_sha256(dataset.content_hash, key, overlong, *stream.settings(), stream.batch(0)),
    )


def _model_vocab_size(model_path: str | None, model_config: Mapping[str, object] | None) -> int | None:
    config, origin = model_config or {}, "model.config"
    if model_path is not None:
        path = Path(model_path) / "config.json"
        origin = str(path)
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(
                f"{path}: cannot be read: {error.strerror or error}; model.path is a model folder"
            ) from error
        except ValueError as error:
            raise UserError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(config, Mapping):
        raise UserError(f"{origin}: is not a JSON object; model.path is the folder of a Hugging Face model")
    size = config.get("vocab_size")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise UserError(f"{origin}: vocab_size is {size!r}; it is a positive whole number")
    return size


def _refuse_small_vocabulary(tokenizer_size: int, vocab_size: int | None, name: str) -> None:
    if vocab_size is not None and tokenizer_size > vocab_size:
        raise UserError(
            f"{name} has {tokenizer_size} tokens, the model's vocab_size is {vocab_size}: tokens "
            f"{vocab_size} and above would have no embedding; use a vocab_size of at least {tokenizer_size}, "
            "or the tokenizer that belongs to the model"
        )


def _pad_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    known = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(int(token) for token in known if token is not None)


def _key(train: str, *, model_path: str | None, vocab_size: int | None, bad_records: str) -> str:
    """Names the folder of everything that is built; two sets of inputs that differ have two folders."""
    own = (
        f"trained, at most {vocab_size or DEFAULT_VOCAB_SIZE}"
        if model_path is None
        else folder_identity(model_path)
    )
    versions = f"{FORMAT_VERSION} {tokenizers.__version__} {transformers.__version__}"
    return _sha256(versions, source_identity(train), own, bad_records)[:32]


def _sha256(*parts: object) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()


def _facts(dataset: TokenizedDataset, tokenizer_size: int, name: str) -> list[str]:
    trained = int(dataset.valid.sum())
    facts = [
        f"data: {dataset.source}, {len(dataset):,} records, {dataset.num_tokens:,} tokens, "
        f"{trained / dataset.num_tokens:.1%} of them trained",
        f"tokenizer: {name}, {tokenizer_size:,} tokens",
    ]
    if dataset.skipped:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in dataset.skipped.most_common())
        facts.append(f"records left out: {dataset.skipped.total():,} ({reasons})")
    if dataset.num_truncated:
        facts.append(f"records cut to data.max_seq_length: {dataset.num_truncated:,}")
    return facts
