"""What the words on the pages mean, in a sentence or two each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["GLOSSARY", "Term"]

Term = tuple[str, str]  # the word as written, its meaning

GLOSSARY: Mapping[str, Term] = MappingProxyType(
    {
        "rank": ("rank", "One process with one GPU, numbered through the whole job."),
        "domain": (
            "NVLink domain",
            "GPUs that reach each other over NVLink. Traffic inside a domain is fast; what leaves it goes"
            " over the network.",
        ),
        "node": ("node", "One machine with several GPUs."),
        "lane": (
            "lane",
            "The ranks that train on the same rows at the same time. There are as many lanes as rows are"
            " dealt to side by side.",
        ),
        "row": ("row", "One line of the batch: a packed sequence of tokens."),
        "microbatch": (
            "microbatch",
            "The rows that go through the model at once. A step adds up the gradients of its microbatches.",
        ),
        "context": (
            "context position",
            "Which part of a row a rank has. Every row is cut over the ranks of a context group; attention"
            " exchanges keys and values inside it.",
        ),
        "zigzag": (
            "zigzag",
            "Each rank takes one early and one late chunk of a row. Late tokens look back on more tokens, so"
            " this way all ranks have equal work in causal attention.",
        ),
        "weight_shard": (
            "weight shard",
            "Which slice of each weight a rank stores. The ranks of a gtp_remat group have one slice each.",
        ),
        "replica": (
            "replica",
            "Which copy of the weights a rank belongs to. Ranks with the same slice in different copies form"
            " a replica group; they add up their gradients once a step.",
        ),
        "tp": (
            "TP",
            "Tensor parallelism: a weight stays cut while it is multiplied, and the partial results are"
            " exchanged. Heavy traffic in every layer.",
        ),
        "sp": (
            "SP",
            "Sequence parallelism: norms and residuals, which TP cannot cut, are cut along the tokens over"
            " the ranks of the TP group.",
        ),
        "gtp_remat": (
            "gtp_remat",
            "Ranks that store one slice each of the same weights. They gather a weight just before it is"
            " used, free it afterwards, and each keeps the gradient of its own slice.",
        ),
        "tp_gtp_remat": (
            "tp_gtp_remat",
            "TP and gtp_remat together: the ranks that hold one whole copy of each weight between them.",
        ),
        "batch": (
            "batch group",
            "Ranks at the same place of every lane: together they see the whole batch.",
        ),
        "pp": ("pipeline stage", "Which stretch of the model's layers a rank computes."),
        "gtp_remat_replica": (
            "gtp_remat_replica",
            "All ranks of a stage with the same TP coordinate. Norms and biases are kept whole on each of"
            " them and their gradients are added up over all.",
        ),
        "world": ("world", "All ranks of the job."),
        "all_gather": (
            "all-gather",
            "Every rank gives its part and gets the parts of all.",
        ),
        "reduce_scatter": (
            "reduce-scatter",
            "The parts of all ranks are added up, and each rank keeps the sum for its own slice.",
        ),
        "all_reduce": ("all-reduce", "The values of all ranks are added up, and every rank gets the sum."),
        "broadcast": ("broadcast", "One rank sends the same to all others of its group."),
        "send": ("send", "A rank sends to the rank of its group in another pipeline stage."),
        "optimizer_state": (
            "optimizer state",
            "A 32-bit master copy of the parameters and the two moments of Adam: 12 bytes a parameter, cut"
            " over the ranks that hold copies.",
        ),
        "padding": (
            "padding",
            "Rows added so that a weight can be cut into equal slices. They are never trained, counted or"
            " exported.",
        ),
        "driver": ("driver", "The one process that hands out work and collects results."),
        "call": (
            "call",
            "One request of the driver to the ranks. Its data is split over some axes and copied over"
            " others.",
        ),
    }
)
