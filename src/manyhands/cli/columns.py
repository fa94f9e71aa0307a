"""A team at work as lines of text: one column per worker, never wider or higher than it may be.

    Alice [2]                 │ Bob [1]
    ✓ We divide the problem.  │ I take the second part, which
    The first part is▌        │ needs▌
    71/2048 passes · 142 tokens · 35.2 tokens/s · 0:04 · working

Finished steps are dim and have a check mark; the step that is being written stands at the bottom.
Branches come and go: those of the newest block are shown beside the line that they parted from. Many
workers make rows of columns; where even those do not fit, each worker has one line. Only what
can be seen is looked at, so a picture costs the same however long the run is. In a narrow terminal
the status takes several lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from manyhands.cli.status import folded
from manyhands.strategies.account import Account, Hand
from manyhands.text.clean import printable

NARROWEST = 17  # cells of a column: four of them, and what separates them, are 80 cells
LOWEST = 4  # lines of a column, its title included, that are still worth drawing
MOST_REPLY_LINES = 6
_STYLES = ("cyan", "magenta", "green", "yellow", "blue", "red")
_GAP = " │ "
_Hands = Sequence[tuple[int, Hand]]  # with their numbers, which decide the colour
_PLAIN = Console(width=80, color_system=None)  # wrapping asks for one, and takes nothing from it


def picture(
    account: Account, status: Sequence[str], width: int, height: int, *, with_reply: bool = True
) -> list[Text]:
    """The whole frame: at most `height` lines of at most `width` cells. `status` comes in parts."""
    foot = [_line(line, width, "bold") for line in folded(status, width, max(1, height - LOWEST))]
    if with_reply and account.reply and account.is_apart:
        room = min(MOST_REPLY_LINES, max(0, height - len(foot) - LOWEST))
        foot = _reply(account.reply, width, room) + foot
    room = height - len(foot)
    hands = account.present
    count = len(hands)
    per_row = max(1, min(count, (width + len(_GAP)) // (NARROWEST + len(_GAP))))
    num_rows = -(-count // per_row)
    per_row = -(-count // num_rows)  # five workers: three and two, not four and one
    if room // num_rows < LOWEST:
        return (_one_line_each(hands, width, room) + foot)[-height:]
    lines: list[Text] = []
    for start in range(0, count, per_row):
        lines += _row(hands[start : start + per_row], per_row, width, room // num_rows)
    return lines + foot


def _row(hands: _Hands, per_row: int, width: int, height: int) -> list[Text]:
    """Some workers side by side, no higher than they need."""
    cells = (width - len(_GAP) * (per_row - 1)) // per_row
    columns = [_column(hand, index, cells, height) for index, hand in hands]
    lines = []
    for index in range(max(map(len, columns))):
        line = Text(no_wrap=True, overflow="crop")
        for number, column in enumerate(columns):
            if number:
                line.append(_GAP, "dim")
            cell = column[index] if index < len(column) else Text()
            cell.truncate(cells, overflow="crop", pad=True)
            line.append_text(cell)
        lines.append(line)
    return lines


def _column(hand: Hand, index: int, width: int, height: int) -> list[Text]:
    """A title, then as much of the newest text as fits."""
    room = height - 1
    cursor = "" if hand.stopped or hand.paused or hand.is_person else "▌"
    lines = _wrapped(hand.text.lstrip() + cursor, width, room) if hand.text or cursor else []
    for step in reversed(hand.steps):
        if len(lines) >= room:
            break
        lines = _wrapped("✓ " + step.text, width, room - len(lines), "dim") + lines
    return [_title(hand, index, width), *lines]


def _title(hand: Hand, index: int, width: int) -> Text:
    state = " redundant?" if hand.checked else ""
    if hand.paused:
        state = " paused"
    if hand.stopped:
        state = f" {hand.why_stopped or 'done'}"
    name = printable(hand.name) if hand.came_late else f"{printable(hand.name)} [{hand.step}]"
    title = Text(name, f"bold {_STYLES[index % len(_STYLES)]}")
    title.append(state, "dim")
    return _within(title, width)


def _one_line_each(hands: _Hands, width: int, height: int) -> list[Text]:
    """The last words of each worker, and how many workers there was no line for."""
    shown = len(hands) if len(hands) <= height else max(0, height - 1)
    lines = []
    for index, hand in hands[:shown]:
        line = _title(hand, index, width)
        room = width - line.cell_len - 1
        if room > 0:
            line.append(" ").append_text(_line(hand.text[-room:], room))
        lines.append(line)
    if shown < len(hands) and height > 0:
        lines.append(_line(f"… and {len(hands) - shown} more", width, "dim"))
    return lines


def _reply(reply: str, width: int, height: int) -> list[Text]:
    if height < 2:
        return []
    return [_line("Reply", width, "bold"), *_wrapped(reply.lstrip(), width, height - 1)]


def input_lines(name: str, typed: str, note: str, width: int, height: int) -> list[Text]:
    """A person's own line, its end if it is long, and below it the note; at most `height` lines."""
    line = Text(f"{printable(name)}> ", "bold", no_wrap=True, overflow="crop")
    _within(line, max(0, width - 2))
    room = width - line.cell_len - 1
    text = printable(typed.replace("\n", "⏎"))[-max(1, room) :]
    while text and Text(text).cell_len > room:
        text = text[1:]
    line.append(text, "not bold").append("▌", "dim")
    return [_within(line, width), *_wrapped(note, width, height - 1, "dim")][:height]


def _line(text: str, width: int, style: str = "") -> Text:
    line = Text(" ".join(printable(text).split()), style, no_wrap=True)
    return _within(line, width)


def _within(line: Text, width: int) -> Text:
    """The line, cut to at most `width` cells.

    Characters behind joiners without a width count otherwise once their neighbours are cut off, so what was
    cut is measured again.
    """
    if line.cell_len > width:
        line.truncate(width, overflow="ellipsis")
    while line.cell_len > width:
        line.right_crop(1)
    return line


def _wrapped(text: str, width: int, height: int, style: str = "") -> list[Text]:
    """The last `height` lines of a text. Text objects: what a model writes is never markup."""
    if height < 1:
        return []
    end = printable(text[-width * height :]).rstrip("\n")
    lines = Text(end, style).wrap(_PLAIN, width, overflow="fold", tab_size=4)
    return [_within(line, width) for line in list(lines)[-height:]]
