"""What `rankloom inspect` prints. Colour repeats what signs say; lines fit the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from rankloom.data.inspect.overview import Overview
from rankloom.data.inspect.record import RecordView
from rankloom.data.inspect.step import ContextView, RowView, StepView
from rankloom.data.inspect.token_lines import BORDER, TokenLine, token_lines
from rankloom.explain.terminal_style import colour, fit, indented, print_table, some_ranks, table
from rankloom.records.words import counted

__all__ = ["print_overview", "print_record", "print_step", "print_view"]

TRAINED, CUT, PLAIN = "+", "-", " "
STYLES = {TRAINED: "#000000 on #009e73", CUT: "dim strike", PLAIN: ""}
SPANS_BY = {
    "markers": "as the {% generation %} markers of the chat template say",
    "renderings": "found by rendering the beginnings of the chat, as the chat template has no markers",
    "all": "as data.train_on is all",
}
SPAN_LINES = 3


def print_view(view: Overview | RecordView | StepView, *, config: str, console: Console) -> None:
    """``config``: the job's file, as the user wrote it."""
    if isinstance(view, Overview):
        print_overview(view, config=config, console=console)
    elif isinstance(view, RecordView):
        print_record(view, console=console)
    else:
        print_step(view, console=console)


def print_overview(view: Overview, *, config: str, console: Console) -> None:
    """Facts, the first steps, and how to look closer."""
    console.print(Text("Data", style="bold"))
    for fact in view.facts:
        indented(console, fact)
    console.print()
    unit = "batch" if view.validation else "step"
    headings = (unit, "rows", "fillers", "records", "tokens", "padding", "labels")
    made = table(*headings, numbers=headings)
    for step in view.first_steps:
        room = step.rows * view.sequence_length
        counts = (step.step, step.rows, step.fillers, step.records, step.tokens)
        made.add_row(*(f"{count:,}" for count in counts), f"{1 - step.tokens / room:.1%}", f"{step.labels:,}")
    what = "Batches of an evaluation," if view.validation else "Steps"
    title = f"{what} 1 to {len(view.first_steps)}{_of(view.num_steps)}"
    print_table(console, title, made, caption="labels: tokens predicted")
    console.print(Text("Look closer", style="bold"))
    for options, shows in _closer(view):
        indented(console, f"rankloom inspect {config} {options}")
        indented(console, shows, by=3)


def _closer(view: Overview) -> list[tuple[str, str]]:
    """Options of the command, and what they show."""
    of = "--validation " if view.validation else ""
    steps = "batches of an evaluation" if view.validation else "steps"
    last = " on" if view.num_steps is None else f" to {view.num_steps}"
    lanes = f"lanes 0 to {view.num_lanes - 1}" if view.num_lanes > 1 else "lane 0"
    return [
        (f"{of}--sample 0", f"a record, 0 to {view.num_samples - 1}"),
        (f"{of}--step 1 --lane 0", f"what a lane gets: {steps} 1{last}, {lanes}"),
    ]


def print_record(view: RecordView, *, console: Console) -> None:
    """A record: what becomes of it, and its tokens."""
    kind = "Validation record" if view.validation else "Record"
    number = "" if view.sample is None else f"{kind} {view.sample}: "
    console.print(Text(f"{number}{view.name}", style="bold"))
    if view.left_out:
        console.print(Text(f" left out: {view.left_out}", style="yellow"))
    if not view.ids:
        return
    cut = len(view.ids) - view.num_kept
    end = f", {counted(cut, 'token')} cut off" if cut else ""
    indented(console, f"{counted(len(view.ids), 'token')}, {sum(view.trained)} of them trained{end}")
    indented(console, _spans_text(view, width=console.width - 2))
    console.print()
    signs = [CUT if at >= view.num_kept else _sign(trained) for at, trained in enumerate(view.trained)]
    console.print(Text(f"  token   text ({TRAINED} trained{f', {CUT} cut off' if cut else ''})", style="dim"))
    for line in token_lines(view.texts, signs, width=console.width - len(f"{0:7}   ")):
        gutter = Text.assemble((f"{line.first:7} {signs[line.first]} ", "dim"))
        _print_line(gutter, line, style=STYLES[signs[line.first]], special=view.special, console=console)
    _print_legend(view.texts, console=console)


def _spans_text(view: RecordView, *, width: int) -> str:
    total = f"trained of its {len(view.text):,} characters:"
    if not view.spans:
        return f"{total} none, {SPANS_BY[view.spans_by]}"
    spans = fit(len(view.spans), lambda i: _span(*view.spans[i]), width=width, num_lines=SPAN_LINES)
    return f"{total} {spans}, {SPANS_BY[view.spans_by]}"


def print_step(view: StepView, *, console: Console) -> None:
    """The rows of a lane, its context ranks, and the tokens of each row."""
    what = "Evaluation, batch" if view.validation else "Step"
    title = f"{what} {view.step}{_of(view.num_steps)}, lane {view.lane} of {view.num_lanes}"
    if not view.validation and not _is_of_virtual_lanes(view):
        title += f", epoch {view.epoch}"
    console.print(Text(title, style="bold"))
    console.print()
    _print_rows(view, console=console)
    _print_contexts(view, console=console)
    context_of = _contexts_by_token(view)
    for number, microbatch in enumerate(view.microbatches):
        for row in microbatch:
            _print_row(row, number, context_of, console=console)


def _print_rows(view: StepView, *, console: Console) -> None:
    virtual = ("virtual lane", "epoch") if _is_of_virtual_lanes(view) else ()
    headings = ("microbatch", "row", *virtual, "records", "tokens", "padding", "labels")
    made = table(*headings, numbers=headings)
    for number, microbatch in enumerate(view.microbatches):
        for row in microbatch:
            padding = view.sequence_length - row.num_tokens
            places = (row.virtual_lane or 0, row.epoch) if virtual else ()
            counts = (*places, len(row.records), row.num_tokens, padding, row.num_labels)
            made.add_row(str(number), _name(row), *(f"{count:,}" for count in counts))
    caption = "labels: tokens predicted" + (
        "; a filler has no record and counts for nothing" if _has_filler(view) else ""
    )
    print_table(console, f"Rows of {view.sequence_length:,} tokens", made, caption=caption)


def _print_contexts(view: StepView, *, console: Console) -> None:
    headings = ("context", "of each row", "tokens", "labels")
    rows = [_context_cells(context) for context in view.contexts]
    taken = 1 + sum(2 + max(map(len, column)) for column in zip(headings, *rows, strict=True))
    made = table(*headings, "ranks", numbers=("context", "tokens", "labels"), fixed=("of each row", "ranks"))
    for cells, context in zip(rows, view.contexts, strict=True):
        number = Text(cells[0], style=colour(context.context))
        made.add_row(number, *cells[1:], some_ranks(context.ranks, width=console.width - taken))
    print_table(console, "Context ranks", made, caption="tokens and labels: of all rows, without padding")


def _context_cells(context: ContextView) -> tuple[str, str, str, str]:
    pieces = ", ".join(_span(*piece) for piece in context.pieces)
    return str(context.context), pieces, f"{context.num_tokens:,}", f"{context.num_labels:,}"


def _contexts_by_token(view: StepView) -> list[int]:
    found = [0] * view.sequence_length
    for context in view.contexts:
        for start, stop in context.pieces:
            found[start:stop] = [context.context] * (stop - start)
    return found


def _print_row(row: RowView, microbatch: int, context_of: Sequence[int], *, console: Console) -> None:
    name = "Filler" if row.row is None else f"Row {row.row}"
    console.print(Text(f"{name}, microbatch {microbatch}", style="bold"))
    console.print(Text(f"  token  position  context   text ({TRAINED} predicted)", style="dim"))
    kinds = list(zip(row.documents, context_of, map(_sign, row.trained), strict=True))
    end = row.num_tokens
    shown = -1
    for line in token_lines(row.texts[:end], kinds[:end], width=console.width - len(_gutter(0, 0)) - 11):
        document, context, sign = kinds[line.first]
        if document != shown:
            record, shown = row.records[document], document
            what = f"{record.name}: {counted(record.stop - record.start, 'token')}, "
            console.print(Text(f" {what}{counted(record.labels, 'label')}", style="bold"), soft_wrap=True)
        gutter = _full_gutter(line.first, row.positions[line.first], context, sign)
        _print_line(gutter, line, style=STYLES[sign], special=row.special, console=console)
    for context, tokens in groupby(range(end, len(row.ids)), key=lambda token: context_of[token]):
        places = list(tokens)
        gutter = _full_gutter(places[0], row.positions[places[0]], context, PLAIN)
        padding = Text(f"padding, {counted(len(places), 'token')}", style="dim italic")
        console.print(gutter + padding, soft_wrap=True)
    _print_legend(row.texts[:end], console=console)
    console.print()


def _gutter(token: int, position: int) -> str:
    return f"{token:7}  {position:8}  "


def _full_gutter(token: int, position: int, context: int, sign: str) -> Text:
    number = Text(f"{context}", style=colour(context))
    room = Text(" " * (7 - len(number)))
    return Text.assemble((_gutter(token, position), "dim"), room, number, (f" {sign} ", "dim"))


def _print_line(
    gutter: Text, line: TokenLine, *, style: str, special: Sequence[bool], console: Console
) -> None:
    text = gutter.copy()
    for token, piece in line.pieces:
        text.append(piece.removesuffix(BORDER), style=f"{style} bold" if special[token] else style)
        if piece.endswith(BORDER):
            text.append(BORDER, style="dim")
    console.print(text, soft_wrap=True)


def _print_legend(texts: Sequence[str], *, console: Console) -> None:
    if "" in texts:
        indented(console, Text("an empty token is a part of the character behind it", style="dim italic"))


def _sign(trained: bool) -> str:
    return TRAINED if trained else PLAIN


def _name(row: RowView) -> str:
    return "filler" if row.row is None else str(row.row)


def _has_filler(view: StepView) -> bool:
    return any(row.row is None for microbatch in view.microbatches for row in microbatch)


def _is_of_virtual_lanes(view: StepView) -> bool:
    return any(row.virtual_lane is not None for microbatch in view.microbatches for row in microbatch)


def _of(number: int | None) -> str:
    return "" if number is None else f" of {number:,}"


def _span(start: int, stop: int) -> str:
    return str(start) if stop == start + 1 else f"{start}-{stop - 1}"
