"""How many ranks a launch line starts: torchrun, torch.distributed.launch, srun, mpirun, deepspeed.

torchrun    world = nproc_per_node x nnodes
srun        world = ntasks, or ntasks_per_node x nodes
mpirun      world = np
deepspeed   world = num_gpus x num_nodes
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from rankloom.config.findings import Finding
from rankloom.config.foreign.shell_marks import unknowns, why_unknown, without_marks
from rankloom.config.foreign.shell_values import Field

__all__ = ["Launch", "batch_options", "batch_variables", "read_launch", "read_world_size", "without_launch"]

_SHORT: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "srun": {"-n": "ntasks", "-N": "nodes"},
        "mpirun": {"-np": "np", "-n": "np", "-N": "npernode", "-npernode": "npernode", "-ppn": "npernode"},
        "torchrun": {},
        "deepspeed": {},
    }
)
_LONG: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "srun": ("ntasks", "nodes", "ntasks-per-node", "gpus-per-node"),
        "mpirun": ("np", "npernode"),
        "torchrun": ("nproc-per-node", "nnodes"),
        "deepspeed": ("num-gpus", "num-nodes"),
    }
)
_PROGRAMS: Mapping[str, str] = MappingProxyType(
    {
        "srun": "srun",
        "mpirun": "mpirun",
        "mpiexec": "mpirun",
        "torchrun": "torchrun",
        "deepspeed": "deepspeed",
        "torch.distributed.launch": "torchrun",
        "torch.distributed.run": "torchrun",
        "python": "",
        "python3": "",
        "bash": "",
        "sh": "",
    }
)
_DIRECTIVE = re.compile(r"^#SBATCH[ \t]+(.*?)(?:[ \t]+#.*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Launch:
    """Ranks and GPUs of a node, None where the line does not say; ``read``: what it was read from."""

    world_size: int | None = None
    gpus_per_node: int | None = None
    world_spelled: str = ""
    gpus_spelled: str = ""
    read: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def batch_options(text: str) -> dict[str, str]:
    """What ``#SBATCH`` lines ask for: {"nodes": "4", "ntasks-per-node": "8"}."""
    words = [Field(w, 0) for line in _DIRECTIVE.findall(text) for w in line.split()]
    return {name: value for program, name, value, _ in _options([Field("srun", 0), *words]) if program}


def batch_variables(options: Mapping[str, str]) -> dict[str, str]:
    """The variables that the batch system sets from them."""
    nodes, tasks, per_node = (options.get(k) for k in ("nodes", "ntasks", "ntasks-per-node"))
    if tasks is None and per_node is not None and (nodes or "1").isdigit() and per_node.isdigit():
        tasks = str(int(nodes or "1") * int(per_node))
    gpus = (options.get("gpus-per-node") or "").rpartition(":")[2]
    variables = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks,
        "SLURM_NTASKS_PER_NODE": per_node,
        "SLURM_GPUS_PER_NODE": gpus,
        "SLURM_GPUS_ON_NODE": gpus,
    }
    return {name: value for name, value in variables.items() if value}


def read_launch(words: Sequence[Field], batch: Mapping[str, str], *, origin: str) -> Launch:
    """``words``: those in front of the training script; ``batch``: the ``#SBATCH`` options."""
    found: dict[str, dict[str, str]] = {"srun": dict(batch), "mpirun": {}, "torchrun": {}, "deepspeed": {}}
    read: list[str] = [f"#SBATCH --{name}={value}" for name, value in batch.items()]
    for program, name, value, shown in _options(words):
        if program:
            found[program][name] = value
            read.append(shown)
    names = {w.text.rpartition("/")[2] for w in words}
    programs = {_PROGRAMS.get(name, "") for name in names}
    if "torchrun" in programs or found["torchrun"]:
        launch = _torchrun(found["torchrun"], found["srun"] if "srun" in programs else {}, origin)
    elif found["deepspeed"]:
        launch = _deepspeed(found["deepspeed"], origin)
    elif found["mpirun"]:
        launch = _mpirun(found["mpirun"], origin)
    else:
        launch = _srun(found["srun"], origin)
    return Launch(**(vars(launch) | {"read": tuple(dict.fromkeys(read))}))


def read_world_size(spelled: str, text: str, *, origin: str) -> Launch:
    """A number of ranks that is said as it is."""
    world, findings = _count(spelled, text, origin)
    return Launch(world, world_spelled=spelled, read=(f"{spelled} {text}",), findings=tuple(findings))


def without_launch(words: Sequence[Field]) -> tuple[Field, ...]:
    """A list of arguments without the options of torchrun among them, and their values."""
    left: list[Field] = []
    value_follows = False
    for word in words:
        head, equals, _ = word.text.partition("=")
        ours = head.startswith("--") and head[2:].replace("_", "-") in _LONG["torchrun"]
        if not ours and not value_follows:
            left.append(word)
        value_follows = ours and not equals
    return tuple(left)


def _options(words: Sequence[Field]) -> Iterator[tuple[str, str, str, str]]:
    """(program, option, value, as written) for every option with a value that is known here."""
    program = "torchrun"  # a list of torchrun's options may stand alone
    for at, word in enumerate(words):
        text = word.text
        base = text.rpartition("/")[2]
        if base in _PROGRAMS:
            program = _PROGRAMS[base] or program
            continue
        head, equals, value = text.partition("=")
        name = head.removeprefix("--").replace("_", "-") if head.startswith("--") else ""
        following = words[at + 1].text if at + 1 < len(words) else ""
        if name in _LONG[program]:
            yield program, name, value if equals else following, _shown(head, equals, value or following)
        elif text in _SHORT[program]:
            yield program, _SHORT[program][text], following, _shown(text, "", following)
        elif text[:2] in _SHORT[program] and text[2:].isdigit():
            yield program, _SHORT[program][text[:2]], text[2:], text


def _shown(head: str, equals: str, value: str) -> str:
    return without_marks(f"{head}{equals or ' '}{value}")


def _torchrun(options: Mapping[str, str], around: Mapping[str, str], origin: str) -> Launch:
    per_node, findings = _count("nproc-per-node", options.get("nproc-per-node", "1"), origin)
    given = options.get("nnodes")
    fewest, _, most = (given or "1").partition(":")
    nodes, problems = _count("nnodes", most or fewest, origin)
    findings += problems
    if per_node is None or nodes is None:
        return Launch(None, per_node, findings=tuple(findings), gpus_spelled="--nproc-per-node")
    world = per_node * nodes
    if most and most != fewest:
        findings.append(
            Finding(
                "warning",
                "layout",
                f"--nnodes {given} lets the job have {fewest} to {most} nodes; {world} ranks = {per_node} x "
                f"{most} are shown, and the layout of fewer nodes is another one; "
                f"--world-size shows another number",
                ("cluster.world_size",),
            )
        )
    started, _ = _count("ntasks", around.get("ntasks", around.get("nodes", "1")), origin)
    if given is None and started is not None and started > 1:
        findings.append(_alone(started, per_node))
    spelled = "--nproc-per-node x --nnodes" if given else "--nproc-per-node"
    return Launch(world, per_node, spelled, "--nproc-per-node", findings=tuple(findings))


def _deepspeed(options: Mapping[str, str], origin: str) -> Launch:
    """Without ``--num_gpus`` it takes all GPUs of a node, and how many those are is not known here."""
    per_node, findings = _count("num-gpus", options.get("num-gpus", ""), origin)
    nodes, more = _count("num-nodes", options.get("num-nodes", "1"), origin)
    world = per_node * nodes if per_node is not None and nodes is not None else None
    return Launch(world, per_node, "--num_gpus x --num_nodes", "--num_gpus", (), tuple(findings + more))


def _alone(started: int, per_node: int) -> Finding:
    message = (
        f"srun starts torchrun {started} times and none of them has --nnodes, so each is a job of its own "
        f"with {per_node} ranks; set --nnodes {started} and a rendezvous"
    )
    return Finding("warning", "layout", message, ("cluster.world_size",))


def _srun(options: Mapping[str, str], origin: str) -> Launch:
    tasks, findings = _count("ntasks", options.get("ntasks", ""), origin)
    per_node, more = _count("ntasks-per-node", options.get("ntasks-per-node", ""), origin)
    nodes, others = _count("nodes", options.get("nodes", "").rpartition("-")[2], origin)
    findings += more + others
    if tasks is None and per_node is not None and (nodes is not None or "nodes" not in options):
        tasks, spelled = per_node * (nodes or 1), "--ntasks-per-node x --nodes"
    else:
        spelled = "--ntasks"
    if per_node is None and tasks is not None and nodes is not None and tasks % nodes == 0:
        per_node = tasks // nodes
    known = tasks is not None
    return Launch(tasks, per_node, spelled if known else "", "--ntasks-per-node", (), tuple(findings))


def _mpirun(options: Mapping[str, str], origin: str) -> Launch:
    world, findings = _count("np", options.get("np", ""), origin)
    per_node, more = _count("npernode", options.get("npernode", ""), origin)
    return Launch(world, per_node, "-np" if world else "", "-npernode", (), tuple(findings + more))


def _count(name: str, text: str, origin: str) -> tuple[int | None, list[Finding]]:
    """The number in an option's value; None where it is not given, None and a finding where it is none."""
    if not text:
        return None, []
    if re.fullmatch(r"[-+]?[0-9]{1,18}", text):
        if int(text) > 0:
            return int(text), []
        message = f"{name} must be at least 1, not {text}"
        return None, [Finding("error", "layout", message, ("cluster.world_size",))]
    missing = unknowns(text)
    reason = why_unknown(missing, origin) if missing else "that is no number"
    if text in ("gpu", "auto", "cpu"):
        reason = "that depends on the machine"
    message = f"how many ranks there are is not known: {name} is {without_marks(text)[:80]}, and {reason}"
    return None, [Finding("warning", "layout", f"{message}; give --world-size", ("cluster.world_size",))]
