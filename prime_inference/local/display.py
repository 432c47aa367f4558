"""What the person sees while the stack starts: a live table on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table

from prime_inference.local.supervisor import Child, Phase

STYLES = {
    Phase.WAITING: "dim",
    Phase.STARTING: "yellow",
    Phase.READY: "green",
    Phase.RESTARTING: "red",
    Phase.LEAVING: "yellow",
    Phase.STOPPED: "dim",
}


class PlainLines:
    """One line a change: for logs, pipes and tests."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def changed(self, child: Child) -> None:
        pid = f" (pid {child.pid})" if child.pid is not None else ""
        self.say(f"{child.spec.name}: {child.phase}{pid}")

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def starting(self, children: list[Child]) -> Iterator[None]:
        yield


class LiveTable(PlainLines):
    """A table that is redrawn while the stack starts; afterwards changes are lines below it."""

    _drawing = False

    def changed(self, child: Child) -> None:
        if not self._drawing:
            super().changed(child)

    @contextmanager
    def starting(self, children: list[Child]) -> Iterator[None]:
        self._drawing = True
        try:
            with Live(get_renderable=lambda: table_of(children), console=self.console, refresh_per_second=4):
                yield
        finally:
            self._drawing = False


def display_for(console: Console) -> PlainLines:
    return LiveTable(console) if console.is_terminal else PlainLines(console)


def table_of(children: list[Child]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("process", "state", "seconds", "pid"):
        table.add_column(title, justify="right" if title in ("seconds", "pid") else "left")
    for child in children:
        style = STYLES[child.phase]
        seconds = f"{time.monotonic() - child.since:.0f}" if child.phase is Phase.STARTING else ""
        table.add_row(child.spec.name, f"[{style}]{child.phase}[/]", seconds, str(child.pid or ""))
    return table
