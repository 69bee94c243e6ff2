"""Precedence, provenance and derived values."""

from __future__ import annotations

import pickle
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankloom.config import resolve, resolve_layout
from rankloom.config.values import next_time, seconds_of
from rankloom.errors import UserError

Mappings = dict[str, dict[str, Any]]
Q = "parallel.tensor_parallel_num_sequence_shards"


def test_the_strongest_layer_wins_key_by_key(base: Mappings) -> None:
    base["optimizer"] = {"lr": 2.0, "eps": 2e-8}
    resolved = resolve(
        base,
        defaults={"optimizer.lr": 1.0, "optimizer.eps": 1e-9, "optimizer.clip_grad": 5.0},
        cli={"optimizer.lr": 3.0},
    )
    optimizer, sources = resolved.optimizer, resolved.sources
    assert (optimizer.lr, optimizer.eps, optimizer.clip_grad, optimizer.weight_decay) == (3.0, 2e-8, 5.0, 0.1)
    names = ("lr", "eps", "clip_grad", "weight_decay")
    assert [sources[f"optimizer.{name}"] for name in names] == ["cli", "file", "default", "derived"]


def test_a_null_world_size_leaves_it_to_torchrun(base: Mappings) -> None:
    mapping = {**base, "cluster": {"world_size": None}}
    resolved = resolve(mapping, defaults={"cluster.world_size": 4})
    assert resolved.layout.world_size == 4
    assert resolved.sources["cluster.world_size"] == "default"


def test_a_null_hides_weaker_layers(base: Mappings) -> None:
    base["data"] = {"train": None}
    resolved = resolve(
        base,
        defaults={"data.train": "python-docs", "optimizer.lr": 1.0},
        cli={"train.max_steps": None, "train.epochs": 2, "optimizer.lr": None},
    )
    assert (resolved.data.train, resolved.sources["data.train"]) == (None, "file")
    assert (resolved.train.max_steps, resolved.train.epochs) == (None, 2)
    # lr cannot be null: unset, it is the class default.
    assert (resolved.optimizer.lr, resolved.sources["optimizer.lr"]) == (3e-4, "derived")


def test_an_explicit_value_counts_beside_a_default_in_code() -> None:
    mapping: Mappings = {
        "cluster": {"world_size": 8},
        "train": {"global_batch_size": 8, "max_steps": 1},
        "parallel": {
            "tensor_model_parallel_size": 1,
            "tensor_parallel_num_weight_shards": 2,
            "context_parallel_size": 1,
        },
    }

    def facts(**layers: Any) -> tuple[int, ...]:
        resolved = resolve(layers.pop("mapping", mapping), defaults={Q: 2}, **layers)
        layout = resolved.layout
        return (
            layout.gtp_remat_num_sequence_shards,
            layout.runtime_context_parallel_size,
            layout.data_parallel_size,
            layout.batch_parallel_size,
            resolved.batch.num_microbatches,
        )

    assert facts() == (2, 2, 4, 4, 2)
    assert facts(cli={Q: 1}) == (1, 1, 4, 8, 1)
    explicit = {**mapping, "parallel": {**mapping["parallel"], Q.split(".")[1]: 1}}
    assert facts(mapping=explicit) == (1, 1, 4, 8, 1)
    assert resolve(mapping, defaults={Q: 2}).sources[Q] == "default"
    assert resolve(explicit, defaults={Q: 2}).sources[Q] == "file"
    assert resolve(mapping, defaults={Q: 2}, cli={Q: None}).sources[Q] == "derived"


def test_derived_values_are_filled_in() -> None:
    resolved = resolve(
        {
            "cluster": {"world_size": 8},
            "parallel": {
                "tensor_model_parallel_size": 2,
                "context_parallel_size": 2,
                "sequence_parallel": None,
            },
            "train": {"global_batch_size": 8, "max_steps": 20},
            "checkpoint": {"dir": "runs/x"},
        }
    )
    parallel = resolved.parallel
    assert parallel.sequence_parallel is True
    assert parallel.tensor_parallel_num_weight_shards == 2
    assert parallel.tensor_parallel_num_sequence_shards == 2
    assert resolved.schedule.decay_samples == 160
    assert resolved.logging.metrics == "runs/x/metrics.jsonl"
    for key in (
        "parallel.sequence_parallel",
        "parallel.tensor_parallel_num_weight_shards",
        Q,
        "schedule.decay_samples",
        "logging.metrics",
        "data.max_seq_length",
    ):
        assert resolved.sources[key] == "derived", key


def test_with_epochs_the_schedule_has_no_end_yet(base: Mappings) -> None:
    base["train"] = {"global_batch_size": 4, "epochs": 2}
    assert resolve(base).schedule.decay_samples is None


def test_an_exponent_on_the_command_line_is_a_number(base: Mappings) -> None:
    resolved = resolve(base, cli={"train.max_steps": "1e2", "optimizer.lr": "3e-4"})
    assert (resolved.train.max_steps, resolved.optimizer.lr) == (100, 3e-4)


def test_a_warmup_that_never_ends_is_said(base: Mappings) -> None:
    base["schedule"] = {"warmup_samples": 12}
    assert resolve(base, cli={"train.max_steps": 4}).notes == ()
    (note,) = resolve(base).notes
    assert note.endswith("reaches optimizer.lr in the last step only")
    assert resolve(base, cli={"train.max_steps": 2}).notes == (
        "schedule.warmup_samples 12 is longer than the run's 8 samples: the learning rate never reaches "
        "optimizer.lr",
    )


def test_checkpoint_settings_of_a_run_that_saves_none_are_said_where_somebody_wrote_them(
    base: Mappings,
) -> None:
    assert resolve(base).notes == ()
    (note,) = resolve({**base, "checkpoint": {"keep": 2}}).notes
    assert note == ("checkpoint.keep 2: no checkpoint is saved during the run, as checkpoint.save_every is 0")
    for saves in ({"save_every": 5}, {"save_before": "18:30"}, {"time_limit": "1:00:00"}):
        assert resolve({**base, "checkpoint": {"keep": 2, **saves}}).notes == ()


def test_times_are_read_as_they_are_written(base: Mappings) -> None:
    times = {"save_before": "7:05", "time_limit": "1-12:00:00"}
    resolved = resolve({**base, "checkpoint": times})
    assert (resolved.checkpoint.save_before, resolved.checkpoint.time_limit) == ("7:05", "1-12:00:00")
    assert seconds_of("1-12:00:00") == 36 * 3600
    now = datetime(2026, 11, 30, 18, 0)
    assert next_time("18:30", now=now) == datetime(2026, 11, 30, 18, 30)
    assert next_time("18:00", now=now) == datetime(2026, 12, 1, 18, 0)
    assert next_time("2026-12-24T09:00", now=now) == datetime(2026, 12, 24, 9, 0)


@pytest.mark.parametrize("bad", [{"save_before": "25:00"}, {"save_before": 1110}, {"time_limit": "90"}])
def test_times_that_are_none(base: Mappings, bad: dict[str, object]) -> None:
    (key,) = bad
    with pytest.raises(UserError, match=f"checkpoint.{key} must be a time"):
        resolve({**base, "checkpoint": bad})


def test_a_set_decay_is_kept(base: Mappings) -> None:
    base["schedule"] = {"decay_samples": 100}
    resolved = resolve(base)
    assert (resolved.schedule.decay_samples, resolved.sources["schedule.decay_samples"]) == (100, "file")


def test_a_default_row_length_is_rounded_up_to_what_the_layout_cuts(base: Mappings) -> None:
    base["cluster"] = {"world_size": 6}
    base["parallel"] = {"tensor_model_parallel_size": 3, "context_parallel_size": 2}
    resolved = resolve(base)
    assert resolved.data.max_seq_length == 516
    assert resolved.sources["data.max_seq_length"] == "derived"


def test_model_config_is_a_free_mapping_merged_key_by_key(base: Mappings) -> None:
    base["model"] = {
        "config": {"model_type": "llama", "hidden_size": 64, "rope_parameters": {"rope_theta": 1e4}}
    }
    resolved = resolve(
        base,
        cli={
            "model.config.hidden_size": 128,
            "model.config.head_dim": None,
            "model.config.rope_parameters.rope_theta": 5e5,
            "model.config.rms_norm_eps": "1e-5",
        },
        defaults={"model.config": {"hidden_size": 32, "vocab_size": 99}},
    )
    assert resolved.model.config == {
        "model_type": "llama",
        "hidden_size": 128,
        "vocab_size": 99,
        "head_dim": None,
        "rope_parameters": {"rope_theta": 5e5},
        "rms_norm_eps": 1e-5,
    }
    names = ("model_type", "hidden_size", "vocab_size")
    assert [resolved.sources[f"model.config.{name}"] for name in names] == ["file", "cli", "default"]


def test_a_default_in_code_yields_to_the_alternative_that_was_written(base: Mappings) -> None:
    base["train"] = {"global_batch_size": 4, "epochs": 2}
    base["model"] = {"path": "my-model"}
    resolved = resolve(base, defaults={"train.max_steps": 10, "model.config": {"model_type": "llama"}})
    assert (resolved.train.max_steps, resolved.train.epochs) == (None, 2)
    assert (resolved.model.path, resolved.model.config) == ("my-model", None)
    assert not any(key.startswith("model.config.") for key in resolved.sources)


def test_texts_of_numbers_are_numbers_and_numbers_may_name_folders(base: Mappings) -> None:
    base["optimizer"] = {"lr": "3e-4"}
    resolved = resolve(base, cli={"train.max_steps": "20", "data.packing": "false", "checkpoint.dir": 2026})
    assert (resolved.optimizer.lr, resolved.train.max_steps, resolved.data.packing) == (3e-4, 20, False)
    assert resolved.checkpoint.dir == "2026"


def test_empty_sections_and_hyphens_are_fine(base: Mappings) -> None:
    resolved = resolve({**base, "data": None}, cli={"train.micro-batch-size": 2, "optimizer": {"lr": 0}})
    assert (resolved.train.micro_batch_size, resolved.optimizer.lr) == (2, 0.0)


def test_the_resolved_mapping_is_valid_input_with_the_same_result() -> None:
    resolved = resolve(
        {
            "model": {"config": {"model_type": "qwen3", "hidden_size": 64}},
            "cluster": {"world_size": 8},
            "parallel": {"tensor_model_parallel_size": 2, "tensor_parallel_num_weight_shards": 4},
            "train": {"global_batch_size": 8, "max_steps": 20},
        }
    )
    again = resolve(resolved.to_mapping())
    assert again.to_mapping() == resolved.to_mapping()
    assert (again.layout, again.batch) == (resolved.layout, resolved.batch)


def test_a_resolved_config_is_frozen_and_can_be_pickled(base: Mappings) -> None:
    resolved = resolve(base, cli={"model.config.hidden_size": 8})
    assert pickle.loads(pickle.dumps(resolved)) == resolved
    with pytest.raises(AttributeError):
        resolved.origin = "x"  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        resolved.train.max_steps = 5


def test_every_setting_has_a_source(base: Mappings) -> None:
    resolved = resolve(base)
    settings = {f"{name}.{key}" for name, body in resolved.to_mapping().items() for key in body}
    assert set(resolved.sources) == settings
    assert set(resolved.sources.values()) <= {"cli", "file", "default", "derived"}


def test_where(base: Mappings) -> None:
    resolved = resolve(base, cli={"data.seed": 3}, defaults={"comm.timeout_s": 60}, origin="run.yaml")
    assert resolved.where("train.max_steps", "train.global_batch_size", "data.seed") == (
        "train section of run.yaml; --data.seed"
    )
    assert resolved.where("comm.timeout_s") == "default of comm.timeout_s given in code"
    assert resolved.where("optimizer.lr") == ""


def test_the_input_is_not_changed(base: Mappings) -> None:
    model_config = {"model_type": "llama"}
    base["model"] = {"config": model_config}
    resolve(base, cli={"model.config.hidden_size": 8})
    assert model_config == {"model_type": "llama"}


def test_a_layout_needs_no_train_section() -> None:
    found = resolve_layout(
        {"cluster": {"world_size": 24}, "train": {"global_batch_size": 7}},
        cli={"parallel.tensor_model_parallel_size": 4, "parallel.tensor_parallel_num_weight_shards": 12},
    )
    assert (found.layout.batch_parallel_size, found.cluster.nvlink_domain_size) == (6, 8)
    assert found.parallel.sequence_parallel is True
    assert found.sources["parallel.tensor_model_parallel_size"] == "cli"
    assert {key.split(".")[0] for key in found.sources} == {"parallel", "cluster"}
    with pytest.raises(UserError, match="world_size is not set"):
        resolve_layout({})


LAYER = st.dictionaries(
    st.sampled_from(["data.seed", "train.seed", "train.eval_every", "schedule.warmup_samples"]),
    st.integers(0, 9),
)


@given(cli=LAYER, file=LAYER, defaults=LAYER)
def test_precedence_and_sources_of_any_three_layers(
    cli: dict[str, int], file: dict[str, int], defaults: dict[str, int]
) -> None:
    mapping: Mappings = {"cluster": {"world_size": 1}, "train": {"global_batch_size": 4, "max_steps": 3}}
    for key, value in file.items():
        section, name = key.split(".")
        mapping.setdefault(section, {})[name] = value
    resolved = resolve(mapping, cli=cli, defaults=defaults)
    for key in ("data.seed", "train.seed", "train.eval_every", "schedule.warmup_samples"):
        layers = {"cli": cli, "file": file, "default": defaults, "derived": {key: 0}}
        source = next(name for name, layer in layers.items() if key in layer)
        section, name = key.split(".")
        assert resolved.sources[key] == source
        assert getattr(getattr(resolved, section), name) == layers[source][key]
