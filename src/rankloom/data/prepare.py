"""From the settings of a run to its data: records, tokenizer, tokenised dataset, global stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from rankloom.data.cache import default_cache_dir
from rankloom.data.dataset import TokenizedDataset
from rankloom.data.facts import data_facts
from rankloom.data.packing import PACKING_WINDOW
from rankloom.data.stream import GlobalStream
from rankloom.data.tokenized import Recipe, Tokenized, sha256_of, tokenized
from rankloom.data.tokenizer import load_tokenizer
from rankloom.errors import UserError
from rankloom.records import Sources
from rankloom.records.source import source_weights

if TYPE_CHECKING:
    from rankloom.config import ResolvedConfig

TO_EVALUATE = "to evaluate"

__all__ = ["PreparedData", "RunData", "prepare", "prepare_data", "recipe_of"]


@dataclass(frozen=True, kw_only=True)
class RunData:
    """What every run has, wherever its rows come from.

    Attributes:
        tokenizer: with its chat template; `save_pretrained` writes both.
        vocab_size: rows of the embedding: the model's own number, or else the tokenizer's.
        pad_token_id: what stands in padding, which is never trained.
        facts: short lines for the log.
        fingerprint: sha256 (hex) of tokens, tokenizer and everything that orders rows; equal on all ranks.
        validation: records to evaluate that fit, none of them trained on.
    """

    tokenizer: PreTrainedTokenizerBase
    vocab_size: int
    pad_token_id: int
    facts: tuple[str, ...]
    fingerprint: str
    validation: TokenizedDataset | None = None


@dataclass(frozen=True, kw_only=True)
class PreparedData(RunData):
    """The data of a run on chats that are tokenised before it begins.

    Attributes:
        dataset: the records that fit.
        stream: the rows of every step.
    """

    dataset: TokenizedDataset
    stream: GlobalStream


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
        validation=data.validation,
        validation_split=data.validation_split,
        model_path=model.path,
        model_config=model.config,
        max_seq_length=data.max_seq_length,
        packing=data.packing,
        packing_window=data.packing_window,
        seed=data.seed,
        global_batch_size=resolved.train.global_batch_size,
        rampup=resolved.train.rampup_batch_size,
        last_batch=data.last_batch,
        bad_records=data.bad_records,
        overlong=data.overlong,
        train_on=data.train_on,
        cache_dir=data.cache_dir,
    )


def prepare_data(
    train: Sources,
    *,
    validation: Sources | None = None,
    validation_split: float = 0.0,
    model_path: str | None = None,
    model_config: Mapping[str, object] | None = None,
    max_seq_length: int,
    packing: bool | str,
    packing_window: int = PACKING_WINDOW,
    seed: int,
    global_batch_size: int,
    rampup: tuple[int, int, int] | None = None,
    last_batch: str = "fill",
    bad_records: str = "error",
    overlong: str = "drop",
    train_on: str = "all_turns",
    cache_dir: str | Path | None = None,
) -> PreparedData:
    """Reads, tokenises and packs the training data; what was built before is taken from the cache.

    Many processes may call this at once: one builds, the others wait and map the result.

    Args:
        train: see `data_files`.
        validation: the same, or else a share of the records of ``train`` is held out, by ``seed`` alone.
        model_path: folder whose tokenizer is used; without one a tokenizer is trained on the data.
        model_config: of a from-scratch model; its ``vocab_size`` caps the trained tokenizer.

    Raises:
        UserError: see `prepare`.
    """
    recipe = recipe_of(
        model_path=model_path,
        model_config=model_config,
        bad_records=bad_records,
        train_on=train_on,
        cache_dir=cache_dir,
    )
    found = tokenized(train, recipe)
    tokenizer, vocab_size = found.tokenizer, recipe.vocab_size
    refuse_small_vocabulary(len(tokenizer), vocab_size, recipe.name)
    whole, held_out = _two_sets(found, validation, validation_split, seed=seed)
    dataset = whole.fitted(max_seq_length, overlong=overlong)
    evaluated = (
        None if held_out is None else held_out.fitted(max_seq_length, overlong=overlong, purpose=TO_EVALUATE)
    )
    stream = GlobalStream(
        dataset,
        max_seq_length=max_seq_length,
        packing=packing,
        packing_window=packing_window,
        seed=seed,
        global_batch_size=global_batch_size,
        rampup=rampup,
        last_batch=last_batch,
    )
    return PreparedData(
        tokenizer=tokenizer,
        vocab_size=vocab_size or len(tokenizer),
        pad_token_id=pad_token_id_of(tokenizer),
        dataset=dataset,
        stream=stream,
        facts=(*data_facts(dataset, evaluated, len(tokenizer), recipe.name), *stream.describe()),
        fingerprint=sha256_of(
            dataset.content_hash,
            evaluated and evaluated.content_hash,
            validation_split,
            dataset.mixture,
            found.key,
            overlong,
            *stream.settings(),
            stream.batch(0),
        ),
        validation=evaluated,
    )


def recipe_of(
    *,
    model_path: str | None,
    model_config: Mapping[str, object] | None,
    bad_records: str,
    train_on: str,
    cache_dir: str | Path | None,
) -> Recipe:
    """How records become tokens; arguments and errors as for `prepare_data`."""
    vocab_size = _model_vocab_size(model_path, model_config)
    own = None if model_path is None else load_tokenizer(model_path)
    recipe = Recipe.of(
        default_cache_dir() if cache_dir is None else Path(cache_dir),
        model_path=model_path,
        tokenizer=own,
        vocab_size=vocab_size,
        settings={"bad_records": bad_records, "train_on": train_on},
    )
    if own is not None:
        refuse_small_vocabulary(len(own), vocab_size, recipe.name)
    return recipe


def _two_sets(
    found: Tokenized, validation: Sources | None, validation_split: float, *, seed: int
) -> tuple[TokenizedDataset, TokenizedDataset | None]:
    """The records to train on, and those to evaluate."""
    if validation is None:
        return found.dataset.split(validation_split, seed=seed) if validation_split else (found.dataset, None)
    if validation_split:
        raise UserError(
            f"data.validation and data.validation_split {validation_split:g} are both set; use one of them"
        )
    if any(weight != 1 for weight in source_weights(validation)):
        raise UserError("data.validation has weights; every validation record is evaluated once, remove them")
    return found.dataset, tokenized(validation, found.for_other_data(), key="data.validation").dataset


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


def refuse_small_vocabulary(tokenizer_size: int, vocab_size: int | None, name: str) -> None:
    if vocab_size is not None and tokenizer_size > vocab_size:
        raise UserError(
            f"{name} has {tokenizer_size} tokens, the model's vocab_size is {vocab_size}: tokens "
            f"{vocab_size} and above would have no embedding; use a vocab_size of at least {tokenizer_size}, "
            "or the tokenizer that belongs to the model"
        )


def pad_token_id_of(tokenizer: PreTrainedTokenizerBase) -> int:
    known = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(int(token) for token in known if token is not None)
