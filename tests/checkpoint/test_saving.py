"""Saving: one writer for everything, a snapshot of its own step, nothing lost when a writer fails."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from rankloom.checkpoint import Checkpointer, find_latest, list_checkpoints, load, read_manifest, save, verify
from rankloom.checkpoint.boxes import inside
from rankloom.checkpoint.reading import CheckpointReader
from rankloom.errors import RunError
from rankloom.plan import Box
from tests.checkpoint.runs import NUM_ROWS, TP, W, recipe, started, take, whole_tensors
from tests.pool import RanksFailed
from tests.weights.memory import LiveBytes

FILES, SAVING = "rankloom.checkpoint.files", "rankloom.checkpoint.saving"


def stored_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint, whole."""
    reader = CheckpointReader(folder)
    found = {}
    for name, tensor in reader.manifest.tensors.items():
        found[name] = torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype))
        reader.read(name, Box((0,) * len(tensor.shape), tensor.shape), found[name])
    return found


def save_counting(rank: int, world_size: int, settings: Any, r: Any, directory: Path) -> list[str]:
    """Names of the files that this rank opened for writing."""
    import rankloom.checkpoint.files as files

    model, optimizer = started(rank, world_size, settings, r)
    take(model, optimizer, r, 0, 1)
    opened: list[str] = []
    genuine = files._synced

    def counted(path: Path) -> Any:
        opened.append(path.name)
        return genuine(path)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(files, "_synced", counted)
        save(model, optimizer, directory, step=1, state={})
    return opened


@pytest.mark.parametrize(("world", "settings"), [(2, {W: 2}), (8, {TP: 2, W: 4})], ids=str)
def test_every_file_and_every_element_has_one_writer(
    ranks: Any, tmp_path: Path, world: int, settings: Any
) -> None:
    opened = ranks(world, save_counting, settings, recipe("qwen3", num_steps=1), tmp_path, timeout_s=120)
    writers = Counter(name for names in opened for name in names)
    assert set(writers.values()) == {1}
    mine = [f"rank-{rank:05d}" for rank in range(world)]
    expected = {f"{name}.safetensors" for name in mine} | {f"{name}.done.json.tmp" for name in mine[1:]}
    assert writers.keys() == expected | {
        "config.json",
        "generation_config.json",
        "checkpoint.json.tmp",
        "latest.tmp",
    }
    folder = tmp_path / "step-00000001"
    assert {path.name for path in folder.iterdir()} == {
        *(f"{name}.safetensors" for name in mine),
        "config.json",
        "generation_config.json",
        "checkpoint.json",
    }
    manifest = verify(folder)
    keys: Counter[str] = Counter()
    for name in manifest.files:
        if name.endswith(".safetensors"):
            with safe_open(folder / name, "pt") as file:
                keys.update(key for key in file.keys() if not key.startswith("random/"))  # noqa: SIM118
    assert keys == Counter(stored.key for tensor in manifest.tensors.values() for stored in tensor.boxes)
    assert set(keys.values()) == {1}
    for name, tensor in manifest.tensors.items():
        count = torch.zeros(tensor.shape)
        for stored in tensor.boxes:
            count[inside(stored.box, Box((0,) * len(tensor.shape), tensor.shape))] += 1
        assert (count == 1).all(), name
    assert not any(name.endswith("lm_head.weight") for name in manifest.tensors)


def save_on_some(rank: int, world_size: int, r: Any, directory: Path, report: Path) -> None:
    from torch.distributed import FileStore

    from rankloom.comm.watchdog import Watchdog

    model, optimizer = started(rank, world_size, {W: 2}, r)
    activity = model.comm.activity
    activity.phase = "step 3: waiting for the rows of lane 1"
    watchdog = Watchdog(
        activity,
        lambda: FileStore(str(report.with_suffix(".store")), world_size),
        model.plan.layout,
        rank=rank,
        timeout_s=1.5,
        on_failure=report.write_text,
    )
    watchdog.start()
    if rank in (1, 3):
        time.sleep(30)
    save(model, optimizer, directory, step=3, state={})


def test_a_save_on_some_ranks_ends_with_the_names_of_the_missing(ranks: Any, tmp_path: Path) -> None:
    report = tmp_path / "report"
    with pytest.raises(RanksFailed, match="exited with 1"):
        ranks(4, save_on_some, recipe(num_steps=1), tmp_path / "checkpoints", report, timeout_s=40)
    text = report.read_text()
    for rank in (1, 3):
        assert f"\nrank {rank} (tp 0, gtp_seq 0, gtp_batch 1, cp 0, dp {rank // 2}" in text
    assert "did not arrive; it is in step 3: waiting for the rows of lane 1" in text
    assert ": checkpoint: arrival in step 3: saving a checkpoint" in text
    assert text.rstrip().endswith("missing: ranks 1, 3")
    assert not (tmp_path / "checkpoints").exists()


def save_another_step(rank: int, world_size: int, r: Any, directory: Path) -> None:
    model, optimizer = started(rank, world_size, {W: 2}, r)
    save(model, optimizer, directory, step=3 + (rank == 1), state={})


def test_ranks_that_save_different_steps_are_named(ranks: Any, tmp_path: Path) -> None:
    with pytest.raises(
        RanksFailed, match=r"rank 1 saves a checkpoint of step 4 where rank 0 saves step 3 in"
    ):
        ranks(2, save_another_step, recipe(num_steps=1), tmp_path)


def delayed(seconds: float, *, on: int, rank: int) -> Any:
    import rankloom.checkpoint.saving as saving

    genuine = saving.write_file

    def write(path: Path, *args: Any, **kwargs: Any) -> Any:
        if rank == on and path.suffix == ".safetensors":
            time.sleep(seconds)
        return genuine(path, *args, **kwargs)

    return write


def train_past_a_slow_writer(rank: int, world_size: int, r: Any, directory: Path, slow: int) -> Any:
    model, optimizer = started(rank, world_size, {TP: 2, W: 4}, r)
    checkpointer = Checkpointer(model, optimizer, directory, keep=1)
    take(model, optimizer, r, 0, 2)
    checkpointer.save(2, state={})
    checkpointer.wait()
    assert (checkpointer.poll() is None) == (rank > 0)  # the first rank is told, once
    take(model, optimizer, r, 2, 3)
    tensors = whole_tensors(model, optimizer)
    state = {"list": [1]}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(f"{SAVING}.write_file", delayed(1.5, on=slow, rank=rank))
        checkpointer.save(3, state=state)
        state["list"].append(2)
        take(model, optimizer, r, 3, 4)
        during = (checkpointer.in_flight, checkpointer.poll(), find_latest(directory))
        checkpointer.wait()
    return tensors, during, checkpointer.in_flight


@pytest.mark.parametrize("slow", [pytest.param(0, marks=pytest.mark.long), 2])
def test_a_background_save_holds_the_values_of_its_step(ranks: Any, tmp_path: Path, slow: int) -> None:
    results = ranks(4, train_past_a_slow_writer, recipe(num_steps=4), tmp_path, slow, timeout_s=120)
    tensors, during, after = results[0]
    assert during == (3, None, tmp_path / "step-00000002")
    assert after is None
    found = stored_tensors(find_latest(tmp_path) or tmp_path)
    assert found.keys() == {name for name in tensors if not name.startswith("master/")}
    for name, tensor in found.items():
        assert torch.equal(tensor, tensors[name]), name
    assert [one.path.name for one in list_checkpoints(tmp_path)] == ["step-00000003"]
    manifest = read_manifest(tmp_path / "step-00000003")
    assert (manifest.step, manifest.num_updates, manifest.state) == (3, 3, {"list": [1]})


def killed_while_writing(rank: int, world_size: int, r: Any, directory: Path, victim: int) -> None:
    model, optimizer = started(rank, world_size, {W: 2}, r)
    take(model, optimizer, r, 0, 1)
    checkpointer = Checkpointer(model, optimizer, directory, keep=1)
    checkpointer.save(1, state={})
    checkpointer.wait()
    take(model, optimizer, r, 1, 2)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(f"{SAVING}.write_file", delayed(5, on=victim, rank=rank))
        checkpointer.save(2, state={})
        if rank == victim:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
        checkpointer.wait()


def load_and_save_again(rank: int, world_size: int, r: Any, directory: Path) -> int:
    model, optimizer = started(rank, world_size, {W: 2}, r)
    loaded = load(model, optimizer, find_latest(directory) or "")
    take(model, optimizer, r, loaded.step, 2)
    save(model, optimizer, directory, step=2, state={}, keep=1)
    return loaded.step


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_writer_leaves_the_save_before_and_no_obstacle(
    ranks: Any, tmp_path: Path, victim: int
) -> None:
    r = recipe(num_steps=2)
    with pytest.raises(RanksFailed) as caught:
        ranks(2, killed_while_writing, r, tmp_path, victim, timeout_s=60)
    assert "SIGKILL" in caught.value.failures[victim]
    assert (tmp_path / "latest").read_text() == "step-00000001\n"
    assert find_latest(tmp_path) == tmp_path / "step-00000001"
    verify(tmp_path / "step-00000001")
    assert [(one.path.name, one.reason) for one in list_checkpoints(tmp_path)] == [
        ("step-00000001", ""),
        ("step-00000002.partial", "its save did not end"),
    ]
    assert ranks(2, load_and_save_again, r, tmp_path, timeout_s=60) == [1, 1]
    assert [(one.path.name, one.complete) for one in list_checkpoints(tmp_path)] == [("step-00000002", True)]


def full_disk(rank: int, world_size: int, r: Any, directory: Path, background: bool) -> Any:
    """Errors of the save that fails, of polls before, and the folder after a save that works again."""
    import rankloom.checkpoint.saving as saving

    model, optimizer = started(rank, world_size, {W: 2}, r)
    checkpointer = Checkpointer(model, optimizer, directory, background=background)
    checkpointer.save(1, state={})
    genuine = saving.write_file

    def write(path: Path, *args: Any, **kwargs: Any) -> Any:
        if rank == 1 and path.suffix == ".safetensors":
            raise OSError(28, "No space left on device", str(path))
        return genuine(path, *args, **kwargs)

    errors = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(saving, "write_file", write)
        try:
            checkpointer.save(2, state={})
            if rank == 1:
                checkpointer._flight.thread.join()  # type: ignore[union-attr]
            checkpointer.poll()
        except RunError as error:
            errors.append(str(error))
    try:
        checkpointer.wait()
    except RunError as error:
        errors.append(str(error))
    left = sorted(path.name for path in directory.iterdir())
    checkpointer.save(2, state={})
    checkpointer.wait()
    return errors, left


@pytest.mark.parametrize("background", [True, False])
def test_a_full_disk_is_told_by_all_with_rank_and_file(ranks: Any, tmp_path: Path, background: bool) -> None:
    results = ranks(2, full_disk, recipe(num_steps=1), tmp_path, background, timeout_s=60)
    file = tmp_path / "step-00000002.partial" / "rank-00001.safetensors"
    error = (
        f"the checkpoint of step 2 was not saved: rank 1: {file}: No space left on device; "
        "those before it are untouched"
    )
    assert [errors for errors, _ in results] == [[error], [error, error] if background else [error]]
    assert results[0][1] == ["latest", "step-00000001"]
    assert find_latest(tmp_path) == tmp_path / "step-00000002"


def save_into(rank: int, world_size: int, r: Any, directory: Path) -> str:
    model, optimizer = started(rank, world_size, {W: 2}, r)
    try:
        save(model, optimizer, directory, step=1, state={})
    except RunError as error:
        return str(error)
    return ""


def test_a_folder_that_cannot_be_written_is_told_by_all(ranks: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = f"rank 0: checkpoint.dir: {tmp_path / 'file'} cannot be written: Not a directory"
    assert ranks(2, save_into, recipe(num_steps=1), tmp_path / "file") == [error, error]


def save_again_elsewhere(rank: int, world_size: int, r: Any, directory: Path) -> list[str]:
    model, optimizer = started(rank, world_size, {W: 2}, r)
    checkpointer = Checkpointer(model, optimizer, directory)
    checkpointer.save(1, state={})
    checkpointer.wait()
    if rank == 0:
        directory.rename(directory.with_name("moved"))
    try:
        checkpointer.save(2, state={})
    except RunError as error:
        return [str(error)]
    return []


def test_a_folder_that_is_gone_is_not_made_again(ranks: Any, tmp_path: Path) -> None:
    """It may be the place where a disk was mounted."""
    [one], [other] = ranks(2, save_again_elsewhere, recipe(num_steps=1), tmp_path / "run")
    assert one == other
    assert one.startswith(f"rank 0: checkpoint.dir: {tmp_path / 'run'} is gone since the run began; ")
    assert [found.name for found in tmp_path.iterdir()] == ["moved"]
    assert find_latest(tmp_path / "moved") == tmp_path / "moved" / "step-00000001"


def slow_save(rank: int, world_size: int, r: Any, directory: Path) -> list[str]:
    model, optimizer = started(rank, world_size, {W: 4}, r)
    told: list[str] = []
    checkpointer = Checkpointer(model, optimizer, directory, tell=told.append, patience_s=0.5)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(f"{SAVING}.write_file", delayed(1.8, on=2, rank=rank))
        checkpointer.save(1, state={})
        checkpointer.wait()
    return told


def test_ranks_whose_files_take_long_are_named(ranks: Any, tmp_path: Path) -> None:
    """A slow disk is no failure; for as long as it hangs, nothing else is said."""
    for told in ranks(4, slow_save, recipe(num_steps=1), tmp_path):
        assert told[:2] == [
            f"waiting for {seconds} s for the checkpoint of step 1: rank 2 still writes to "
            f"{tmp_path / 'step-00000001.partial'}"
            for seconds in ("0.5", "1")
        ]
    assert find_latest(tmp_path) == tmp_path / "step-00000001"


def many_saves(rank: int, world_size: int, r: Any, directory: Path) -> list[str]:
    model, optimizer = started(rank, world_size, {W: 2}, r)
    checkpointer = Checkpointer(model, optimizer, directory, keep=2, keep_every=4)
    complete = []
    for step in range(1, 8):
        checkpointer.save(step, state={})  # waits for the one before
        in_flight = {one.path.name for one in list_checkpoints(directory) if not one.complete}
        assert len(in_flight) <= 1, in_flight
        complete.append(find_latest(directory).name if step > 1 else "")  # type: ignore[union-attr]
    checkpointer.wait()
    return complete


def test_one_save_at_a_time_and_the_kept_ones(ranks: Any, tmp_path: Path) -> None:
    complete = ranks(2, many_saves, recipe(num_steps=1), tmp_path)[0]
    for step, name in enumerate(complete[1:], start=2):
        assert name in (f"step-{step - 1:08d}", f"step-{step:08d}")
    assert [one.step for one in list_checkpoints(tmp_path)] == [4, 6, 7]


def memory_of_a_save(rank: int, world_size: int, r: Any, directory: Path, background: bool) -> Any:
    model, optimizer = started(rank, world_size, {TP: 2, W: 4}, r)
    take(model, optimizer, r, 0, 1)
    own = 3 * sum(part.master.nbytes for piece in optimizer.pieces for part in piece.parts)
    checkpointer = Checkpointer(model, optimizer, directory, background=background)
    with LiveBytes() as live:
        before = live.now
        checkpointer.save(1, state={})
        peak = live.peak - before
        checkpointer.wait()
        after = live.now - before
    return own, peak, after


@pytest.mark.parametrize("background", [True, False])
def test_memory_of_a_save_is_one_copy_of_the_ranks_own_bytes(
    ranks: Any, tmp_path: Path, background: bool
) -> None:
    small = 32 * 1024  # random states, and what ranks tell each other
    for own, peak, after in ranks(4, memory_of_a_save, recipe(num_steps=1), tmp_path, background):
        assert own > 60_000
        assert peak <= (own if background else 0) + small
        assert after <= small


def saved_state(rank: int, world_size: int, r: Any, directory: Path) -> Any:
    model, optimizer = started(rank, world_size, {W: 4}, r)
    Checkpointer(model, optimizer, directory, background=False, config={"train": {"seed": 3}}).save(
        0, state={"consumed_samples": 0}, rank_state={"lane": rank} if rank % 2 else None
    )
    loaded = load(model, optimizer, directory / "step-00000000")
    return loaded.manifest


def test_states_and_facts_come_back(ranks: Any, tmp_path: Path) -> None:
    manifest = ranks(4, saved_state, recipe("llama", num_steps=1, dtype="bfloat16"), tmp_path)[0]
    assert manifest == read_manifest(tmp_path / "step-00000000")
    assert manifest.rank_state == {1: {"lane": 1}, 3: {"lane": 3}}
    assert (manifest.state, manifest.config) == ({"consumed_samples": 0}, {"train": {"seed": 3}})
    assert manifest.layout.describe() == "4 ranks: TP 1, W 4, Q 1, CP 1"
    assert (manifest.model.dtype, manifest.model.tied, manifest.num_updates) == ("bfloat16", False, 0)
    assert {name.split("/")[0] for name in manifest.tensors} == {"weight"}  # no update so far
    assert manifest.layout.resolve().fingerprint() == manifest.layout.fingerprint
    assert NUM_ROWS == 4


def save_no_json(rank: int, world_size: int, r: Any, directory: Path) -> str:
    model, optimizer = started(rank, world_size, {W: 2}, r)
    try:
        save(model, optimizer, directory, step=1, state={"set": {1}})
    except (TypeError, RunError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_a_state_that_is_no_json_is_told_by_all(ranks: Any, tmp_path: Path) -> None:
    reason = "TypeError: Object of type set is not JSON serializable"
    assert ranks(2, save_no_json, recipe(num_steps=1), tmp_path) == [reason, f"RunError: rank 0: {reason}"]


def save_where_nothing_can_be_removed(rank: int, world_size: int, r: Any, directory: Path) -> None:
    model, optimizer = started(rank, world_size, {W: 2}, r)
    checkpointer = Checkpointer(model, optimizer, directory, keep=1, background=False)
    checkpointer.save(1, state={})

    def refused(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(f"{SAVING}.prune", refused)
        checkpointer.save(2, state={})


def test_what_cannot_be_removed_fails_no_save(ranks: Any, tmp_path: Path) -> None:
    ranks(2, save_where_nothing_can_be_removed, recipe(num_steps=1), tmp_path)
    assert find_latest(tmp_path) == tmp_path / "step-00000002"
    assert [one.step for one in list_checkpoints(tmp_path)] == [1, 2]
