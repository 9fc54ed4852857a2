"""Explanations as text: for a terminal, or as markdown."""

from __future__ import annotations

from typing import Any

from mixlab.accounting.account import QUANTITIES
from mixlab.accounting.figures import short
from mixlab.report.explained import COMPARED, size

NAMES = {
    "params": "parameters",
    "macs": "MACs",
    "flops": "FLOPs",
    "kept": "training keeps",
    "live": "inference holds",
    "state": "state of a token",
}
MEMORY = ("kept", "live", "state")
COLOURS = {"right": "green", "answered": "cyan", "rounded": "yellow", "slip": "red", "cited": "dim", "noted": "dim"}
MARKS = {"right": "right", "answered": "answered", "rounded": "rounded", "slip": "slip", "cited": "cited only"}


def totals(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Name, exact number, and the same to be said aloud; of the two units of computation, the convention's first."""
    counts = ("params", "macs", "flops") if found["unit"] == "mac" else ("params", "flops", "macs")
    rows = [(NAMES[name], f"{found[name]:,}", short(found[name])) for name in counts]
    return rows + [(NAMES[name], f"{found[name]:,} numbers", size(found[name])) for name in MEMORY]


def bounds(found: dict[str, Any]) -> list[str]:
    """A sentence for each part that mixes tokens."""
    told = {}
    for part in found["mixing"]:
        formulas = part["formulas"]
        said = [
            f"degree {part['order']}",
            f"terms M X W: {_bound(formulas['terms'], part['terms'])}",
            f"rank {_bound(formulas['rank'], part['rank'])}",
            f"reads {_bound(formulas['field'], part['field'])}",
        ]
        if "logits" in part:
            said.append(f"logits of a head: rank {_bound(formulas['logits'], part['logits'])}")
        told[f"{part['part']}: {'; '.join(said)}"] = None
    return list(told)


def _bound(formula: str, value: int) -> str:
    return formula if formula == str(value) else f"{formula} = {value:,}"


def heading(found: dict[str, Any]) -> list[str]:
    if found["kind"] == "layer":
        return [found["about"], f"{found['takes']} -> {found['gives']}; {found['scope']}"]
    note = f": {found['published_note']}" if found["published_note"] else ""
    published = f", published as {found['published']}{note}" if found["published"] else ""
    return [found["about"], f"for {found['task']}, n = {found['length']:,}; {found['source']}{published}"]


def show(found: dict[str, Any], of: tuple[str, ...]) -> None:
    """On a terminal."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if Console().is_terminal else 160)
    console.print(f"[bold]{found['what']}[/bold]")
    for line in heading(found):
        console.print(f"  {line}", markup=False)
    summary = Table(box=None, show_header=False, padding=(0, 2))
    for _ in range(3):
        summary.add_column(justify="left" if _ == 0 else "right")
    for name, exact, said in totals(found):
        summary.add_row(name, exact, f"[cyan]{said}[/cyan]")
    console.print(summary)
    if any(group["lines"] for group in found["groups"]):
        console.print(_table(found, of))
    for name, fact in found["facts"].items():
        console.print(f"  {name}: {fact['derivation']}", markup=False)
    for sentence in bounds(found):
        console.print(f"  {sentence}", markup=False)
    console.print(f"[dim]{found['convention']}[/dim]")


def _table(found: dict[str, Any], of: tuple[str, ...]) -> Any:
    from rich.table import Table

    table = Table("part", "times", *(QUANTITIES[what] for what in of), box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.columns[1].justify = "right"
    for group in found["groups"]:
        if group["group"]:
            table.add_row(f"[dim]{group['group']}[/dim]")
        for line in group["lines"]:
            table.add_row(f"  {line['part']}", f"{line['times']}", *(line[what]["derivation"] for what in of))
    return table


def show_comparison(both: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    left, right = both["left"], both["right"]
    table = Table("", left["what"], right["what"], "share", box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    for name in COMPARED:
        table.add_row(NAMES[name], f"{left[name]:,}", f"{right[name]:,}", f"[cyan]{both['shares'][name] or ''}[/cyan]")
    console = Console(highlight=False, width=None if Console().is_terminal else 160)
    console.print(table)
    for found in (left, right):
        for sentence in bounds(found):
            console.print(f"  {found['what']}: {sentence}", markup=False)
        console.print(f"[dim]  {found['what']}: {found['convention']}[/dim]")


def show_claims(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "the notes say", "printed", "recomputed", "of what", "verdict", box=None, header_style="bold", padding=(0, 2, 0, 0))
    for row in rows:
        table.add_section()
        first = [str(row["number"]), row["claim"]]
        for check in row["checks"] or [{"printed": "", "value": "", "says": "", "verdict": row["verdict"]}]:
            colour = COLOURS[check["verdict"]]
            verdict = f"[{colour}]{MARKS.get(check['verdict'], '')}[/{colour}]"
            table.add_row(*first, check["printed"] or "", check["value"], check["says"], verdict)
            first = ["", ""]
        if row["comment"]:
            table.add_row("", f"[dim]{row['comment']}[/dim]")
    console = Console(highlight=False, width=None if Console().is_terminal else 180)
    console.print(table)
    console.print(f"[dim]{tally(rows)}[/dim]")


def tally(rows: list[dict[str, Any]]) -> str:
    counts = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in MARKS}
    return f"{len(rows)} claims: " + ", ".join(f"{count} {MARKS[verdict]}" for verdict, count in counts.items())


def cells(*values: str) -> str:
    return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"


def markdown(found: dict[str, Any], of: tuple[str, ...]) -> str:
    lines = [f"**`{found['what']}`**", "", *heading(found), "", cells("", "exact", ""), cells("---", "---", "---")]
    lines += [cells(*row) for row in totals(found)]
    if any(group["lines"] for group in found["groups"]):
        lines += ["", cells("group", "part", "times", *(QUANTITIES[what] for what in of)), cells(*["---"] * (3 + len(of)))]
    for group in found["groups"]:
        for line in group["lines"]:
            lines.append(cells(group["group"], line["part"], str(line["times"]), *(f"`{line[what]['derivation']}`" for what in of)))
    told = [f"- {name}: `{fact['derivation']}`" for name, fact in found["facts"].items()] + [f"- {sentence}" for sentence in bounds(found)]
    return "\n".join([*lines, "", *told, "", found["convention"]])


def markdown_comparison(both: dict[str, Any]) -> str:
    left, right = both["left"], both["right"]
    lines = [cells("", f"`{left['what']}`", f"`{right['what']}`", "share"), cells(*["---"] * 4)]
    return "\n".join(lines + [cells(NAMES[n], f"{left[n]:,}", f"{right[n]:,}", both["shares"][n] or "") for n in COMPARED])


def markdown_claims(rows: list[dict[str, Any]]) -> str:
    lines = [cells("", "the notes say", "recomputed", "verdict", ""), cells(*["---"] * 5)]
    for row in rows:
        told = [f"{check['printed'] or ''}{' -> ' if check['printed'] else ''}{check['value']} {check['says']}" for check in row["checks"]]
        lines.append(cells(str(row["number"]), row["claim"], "; ".join(told), MARKS[row["verdict"]], row["comment"]))
    return "\n".join([*lines, "", tally(rows)])
