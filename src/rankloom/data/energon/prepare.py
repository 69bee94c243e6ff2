"""From the settings of a run on an Energon data set to what every rank of it needs, before a row is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rankloom.config import ResolvedConfig
from rankloom.config.rampup import BatchSizes
from rankloom.config.schema import DataSection
from rankloom.data.cache import cached_folder
from rankloom.data.dataset_identity import DatasetIdentity
from rankloom.data.encoding import ChatEncoder
from rankloom.data.energon.lanes import num_samples, refuse_few_samples
from rankloom.data.energon.library import ENERGON, require_energon
from rankloom.data.energon.numbers import RowNumbers
from rankloom.data.energon.records import EnergonRecords
from rankloom.data.energon.remote import LaneRecipe
from rankloom.data.energon.task import RowSettings
from rankloom.data.energon.virtual import SHUFFLE_SAMPLES, SLICE_SAMPLES
from rankloom.data.facts import validation_facts
from rankloom.data.packing import packing_method
from rankloom.data.prepare import TO_EVALUATE, RunData, pad_token_id_of, recipe_of, refuse_small_vocabulary
from rankloom.data.tokenized import Recipe, sha256_of, tokenized
from rankloom.data.tokenizer import DEFAULT_VOCAB_SIZE, load_tokenizer, train_tokenizer
from rankloom.errors import UserError
from rankloom.records.energon import EnergonData, energon_data
from rankloom.records.words import counted

__all__ = ["EnergonRunData", "energon_source", "prepare_energon", "with_tokenizer"]


@dataclass(frozen=True, kw_only=True)
class EnergonRunData(RunData):
    """The data of a run on an Energon data set.

    Attributes:
        source: the data set.
        num_samples: its samples, before any is left out.
        num_virtual_lanes: V.
        rows: which rows of the run a step has.
        settings: how samples become rows.
        seed: of their order.
        encoder: tokenizer and template.
        num_workers: processes of each lane that make its rows; 0: none.
        order: everything that decides which rows come, in which order; see `EnergonState`.
    """

    source: EnergonData
    num_samples: int
    num_virtual_lanes: int
    rows: RowNumbers
    settings: RowSettings
    seed: int
    encoder: ChatEncoder
    num_workers: int = 0
    order: Mapping[str, object]

    def lane(self, lane: int, num_lanes: int) -> LaneRecipe:
        """How lane ``lane`` of ``num_lanes`` makes its rows."""
        return LaneRecipe(
            self.source,
            num_virtual_lanes=self.num_virtual_lanes,
            lane=lane,
            num_lanes=num_lanes,
            settings=self.settings,
            seed=self.seed,
            tokenizer=self.tokenizer,
            name=self.encoder.name,
            train_on=self.encoder.template.train_on,
        )


def prepare_energon(resolved: ResolvedConfig) -> EnergonRunData:
    """Many processes may call this at once.

    Raises:
        UserError: Energon is not installed, the data set is not prepared or has too few samples, no tokenizer
            or one larger than the model's vocabulary.
    """
    version = require_energon()
    data, source = resolved.data, energon_source(resolved)
    refuse_few_samples(source, data.num_virtual_lanes)
    recipe = with_tokenizer(_recipe(resolved), source)
    tokenizer = recipe.tokenizer
    assert tokenizer is not None
    settings = _settings(data)
    validation = None
    if data.validation is not None:
        found = tokenized(data.validation, recipe, key="data.validation").dataset
        validation = found.fitted(data.max_seq_length, overlong=data.overlong, purpose=TO_EVALUATE)
    count = num_samples(source)
    identity = DatasetIdentity(source.name, count, source.fingerprint)
    order = _order(data, identity, settings, tokenizer=recipe.identity, version=version)
    sizes = BatchSizes(resolved.train.global_batch_size, resolved.train.rampup_batch_size)
    return EnergonRunData(
        tokenizer=tokenizer,
        vocab_size=recipe.vocab_size or len(tokenizer),
        pad_token_id=pad_token_id_of(tokenizer),
        facts=(
            *_facts(identity, settings, data.num_virtual_lanes, recipe, len(tokenizer), resolved),
            *([] if validation is None else validation_facts(validation)),
        ),
        fingerprint=sha256_of(*order.values(), sizes, validation and validation.content_hash),
        validation=validation,
        source=source,
        num_samples=count,
        num_virtual_lanes=data.num_virtual_lanes,
        rows=RowNumbers(sizes),
        settings=settings,
        seed=data.seed,
        encoder=ChatEncoder(tokenizer, name=recipe.name, train_on=data.train_on),
        num_workers=data.num_workers,
        order=order,
    )


def energon_source(resolved: ResolvedConfig) -> EnergonData:
    """The data set of a run. Raises UserError: there is none, or it is not prepared."""
    if resolved.data.path is None:
        raise UserError("data.source energon: set data.path to a data set made ready with energon prepare")
    return energon_data(resolved.data.path)


def _recipe(resolved: ResolvedConfig) -> Recipe:
    data, model = resolved.data, resolved.model
    return recipe_of(
        model_path=model.path,
        model_config=model.config,
        bad_records=data.bad_records,
        train_on=data.train_on,
        cache_dir=data.cache_dir,
    )


def _settings(data: DataSection) -> RowSettings:
    return RowSettings(
        max_seq_length=data.max_seq_length,
        packing=packing_method(data.packing),
        packing_window=data.packing_window,
        bad_records=data.bad_records,
        overlong=data.overlong,
    )


def _order(
    data: DataSection, identity: DatasetIdentity, settings: RowSettings, *, tokenizer: str, version: str
) -> dict[str, object]:
    return {
        # A data set that was moved is the same one.
        "the data set": f"{identity.num_records:,} samples, fingerprint {identity.fingerprint[:12]}",
        "data.num_virtual_lanes": data.num_virtual_lanes,
        "data.max_seq_length": data.max_seq_length,
        "data.packing": settings.packing,
        "data.packing_window": None if settings.packing == "none" else settings.packing_window,
        "data.seed": data.seed,
        "data.train_on": data.train_on,
        "data.overlong": data.overlong,
        "data.bad_records": data.bad_records,
        "the tokenizer": tokenizer[:64],
        "samples shuffled together": [SLICE_SAMPLES, SHUFFLE_SAMPLES],
        ENERGON: version,
    }


def with_tokenizer(recipe: Recipe, source: EnergonData) -> Recipe:
    """The recipe with its tokenizer; one that is trained on the data set is made once and kept."""
    if recipe.tokenizer is None:
        key = sha256_of("energon tokenizer", source.fingerprint, recipe.identity)[:32]
        size = recipe.vocab_size or DEFAULT_VOCAB_SIZE

        def build(made: Path) -> None:
            train_tokenizer(EnergonRecords(source), max_vocab_size=size).save_pretrained(str(made))

        folder = cached_folder(recipe.root / "data", key, build=build)
        tokenizer = load_tokenizer(folder)
        recipe = replace(recipe, tokenizer=tokenizer, identity=f"trained by {key}")
    assert recipe.tokenizer is not None
    refuse_small_vocabulary(len(recipe.tokenizer), recipe.vocab_size, recipe.name)
    return recipe


def _facts(
    identity: DatasetIdentity,
    settings: RowSettings,
    num_virtual_lanes: int,
    recipe: Recipe,
    tokenizer_size: int,
    resolved: ResolvedConfig,
) -> tuple[str, ...]:
    lanes = resolved.layout.batch_parallel_size
    packs = settings.packing if settings.packing != "none" else "one sample each (packing is off)"
    return (
        f"data: {identity.source}, {counted(identity.num_records, 'sample')}, through Energon",
        f"rows: of {counted(settings.max_seq_length, 'token')}, {packs}; "
        f"{counted(num_virtual_lanes, 'virtual lane')}, {num_virtual_lanes // lanes} for each of "
        f"{counted(lanes, 'lane')}",
        f"tokenizer: {recipe.name}, {tokenizer_size:,} tokens",
    )
