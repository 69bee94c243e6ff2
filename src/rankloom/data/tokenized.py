"""From files of chats to tokens on disk: built once for each data, tokenizer, template and choice of mask."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import tokenizers
import transformers
from transformers import PreTrainedTokenizerBase

from rankloom.data.cache import cached_folder
from rankloom.data.dataset import TokenizedDataset, write_dataset
from rankloom.data.encoding import encode_records
from rankloom.data.identities import known_identity
from rankloom.data.tokenizer import DEFAULT_VOCAB_SIZE, folder_identity, load_tokenizer, train_tokenizer
from rankloom.errors import UserError
from rankloom.records import DataFile, RecordStream, Sources, Tally, data_files
from rankloom.records.source import source_name, source_weights

__all__ = ["Recipe", "Tokenized", "sha256_of", "tokenized"]

FORMAT_VERSION = 4  # raised when the same inputs would give another folder
TOKENIZER = "tokenizer"


@dataclass(frozen=True)
class Recipe:
    """What decides the tokens besides the data.

    Attributes:
        root: the cache; folders are made in it.
        tokenizer: null for one that is trained on the data.
        identity: of the tokenizer and its template; of a trained one, of what it is trained by.
        name: what messages call it.
        vocab_size: largest size of a trained one.
        bad_records, train_on: the settings.
    """

    root: Path
    tokenizer: PreTrainedTokenizerBase | None
    identity: str
    name: str
    vocab_size: int | None = None
    bad_records: str = "error"
    train_on: str = "all_turns"

    @classmethod
    def of(
        cls,
        root: Path,
        *,
        model_path: str | None,
        tokenizer: PreTrainedTokenizerBase | None,
        vocab_size: int | None,
        settings: Mapping[str, str],
    ) -> Recipe:
        """With the tokenizer of a model folder, or else one that is to be trained."""
        if model_path is None:
            trained = f"trained, at most {vocab_size or DEFAULT_VOCAB_SIZE}"
            return cls(root, None, trained, "the trained tokenizer", vocab_size, **settings)
        return cls(root, tokenizer, folder_identity(model_path), model_path, vocab_size, **settings)


@dataclass(frozen=True)
class Tokenized:
    """Tokens of all records that were accepted, whatever their length, and the tokenizer they are of.

    ``key``: differs where data, tokenizer or settings do.
    """

    dataset: TokenizedDataset
    tokenizer: PreTrainedTokenizerBase
    recipe: Recipe
    key: str

    def for_other_data(self) -> Recipe:
        """How to tokenise other data with the same tokenizer."""
        identity = self.recipe.identity
        if self.recipe.tokenizer is None:
            identity = f"trained by {self.key}"
        return replace(self.recipe, tokenizer=self.tokenizer, identity=identity)


def tokenized(train: Sources, recipe: Recipe, *, key: str = "data.train") -> Tokenized:
    """The tokens of a setting's data, from the cache if they were built before.

    Many processes may call this at once: one builds, the others wait and map the result. Building holds a few
    hundred records at a time.

    Raises:
        UserError: files that are missing, bad records, a template that does not fit; see `data_files`,
            `stream_records` and `encode_records`.
    """
    files = data_files(train, key=key)
    versions = f"{FORMAT_VERSION} {tokenizers.__version__} {transformers.__version__}"
    identity = known_identity(files, recipe.root / "identities")
    settings = (recipe.bad_records, recipe.train_on)
    folder_name = sha256_of(versions, identity, recipe.identity, *settings)[:32]

    def build(made: Path) -> None:
        _build(made, files, recipe)
        if known_identity(files, recipe.root / "identities") != identity:
            raise UserError(
                f"{source_name(train)}: has changed while it was read ({key}); start again once nothing "
                "writes to it"
            )

    folder = cached_folder(recipe.root / "data", folder_name, build=build)
    dataset = TokenizedDataset.open(
        folder, source=source_name(train), files=files, weights=source_weights(train)
    )
    tokenizer = recipe.tokenizer or load_tokenizer(folder / TOKENIZER)
    return Tokenized(dataset, tokenizer, recipe, folder_name)


def _build(folder: Path, files: tuple[DataFile, ...], recipe: Recipe) -> None:
    tokenizer = recipe.tokenizer
    if tokenizer is None:
        records = RecordStream(files, Tally(), bad_records=recipe.bad_records)
        tokenizer = train_tokenizer(records, max_vocab_size=recipe.vocab_size or DEFAULT_VOCAB_SIZE)
        tokenizer.save_pretrained(str(folder / TOKENIZER))
    tally = Tally()
    encoded = encode_records(
        RecordStream(files, tally, bad_records=recipe.bad_records),
        tokenizer,
        name=recipe.name,
        skipped=tally.skipped,
        bad_records=recipe.bad_records,
        train_on=recipe.train_on,
    )
    write_dataset(folder, encoded, skipped=tally.skipped)


def sha256_of(*parts: object) -> str:
    """Of the parts in words."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()
