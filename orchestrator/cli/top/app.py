"""The application of `orch top`: panes and keys. `feed` provides the data, and `view` formats it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.css.query import NoMatches
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, OptionList, RichLog, Static
from textual.widgets.option_list import Option

from orchestrator.cli.session import Paint
from orchestrator.cli.show import causes, render
from orchestrator.cli.show.terminal import inert
from orchestrator.cli.top import view
from orchestrator.cli.top.feed import Feed, Seen
from orchestrator.client.choice import is_active
from orchestrator.client.client import Run
from orchestrator.core.errors import OrchestratorError

NARROW = 70
"""Below so many columns one pane is shown at a time, and Tab changes it."""

SHORT = 32
"""Below so many lines the panes share them: a few tasks, the newest events, and the log of the chosen task."""

PANES = ("tasks", "events", "log")

_HELP = """\
up, down   choose a task; its log is below     a  the log of all tasks
w  why it failed or restarted                  s  stacks of the task
d  drain the task's host                       k  kill the run
/  only log lines with a text                  r  choose another run
f  only tasks with a text                      o  another order: trouble first, by step, pace, …
Tab  next pane (narrow terminals)              q  quit

Nothing is changed without a question. Times are local; `orch top --utc` shows the other.
"""


class Page(ModalScreen[None]):
    """A text over the whole screen. Any of its keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter,w,s,question_mark", "dismiss", "Close")]

    def __init__(self, title: str, text: Text) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        """Return the widgets."""
        with VerticalScroll(id="page"):
            yield Static(self._text)
        yield Static(f"{self._title} · Esc closes", classes="keys", markup=False)


class Question(ModalScreen[bool]):
    """A question whose only yes is the key y."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q", "answer(False)", "No"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Return the widgets."""
        yield Static(f"{self._text}\n\ny  yes     n  no", id="question", markup=False)

    def action_answer(self, yes: bool) -> None:
        """Close with the answer."""
        self.dismiss(yes)


class Choice(ModalScreen[str | None]):
    """The runs, to choose the one that is shown."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss(None)", "Close")]

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def compose(self) -> ComposeResult:
        """Return the widgets."""
        runs = [
            Option(view.safe(f"{render.title(run)}  {run.get('phase')}"), id=str(run["run_id"]))
            for run in reversed(self._seen.runs)
        ]
        yield OptionList(*runs, id="runs")

    def on_option_list_option_selected(self, chosen: OptionList.OptionSelected) -> None:
        """Close with the run."""
        self.dismiss(chosen.option.id)


class Top(App[None]):
    """Runs, tasks, events and a log, live."""

    CSS = """
    Screen { layout: vertical; }
    #head { height: 3; text-wrap: nowrap; text-overflow: ellipsis; }
    #plots { height: 2; text-wrap: nowrap; }
    #plots Static { width: 1fr; }
    DataTable { height: auto; max-height: 14; overflow-x: hidden; }
    #events { height: 8; border-top: solid $panel; }
    #log { height: 1fr; border-top: solid $panel; border-title-color: $text-muted; }
    .short DataTable { max-height: 6; }
    .short #events { height: 5; }
    .narrow DataTable, .narrow #events { height: 1fr; max-height: 100%; }
    RichLog { scrollbar-size: 1 1; overflow-x: hidden; }
    #find, #filter { display: none; }
    DataTable { border-title-color: $text-muted; }
    .ordered { border-top: solid $panel; }
    .hidden { display: none; }
    Page, Choice { background: $background; }
    #page { height: 1fr; }
    .keys { height: 1; color: $text-muted; }
    Question { align: center middle; }
    #question { width: auto; max-width: 90%; padding: 1 2; border: solid $error; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "why", "why"),
        Binding("a", "all_tasks", "all logs"),
        Binding("s", "stacks", "stacks"),
        Binding("d", "drain", "drain"),
        Binding("k", "kill", "kill"),
        Binding("slash", "find", "find"),
        Binding("f", "filter", "filter"),
        Binding("o", "order", "order"),
        Binding("r", "runs", "runs"),
        Binding("tab", "pane", "pane", show=False, priority=True),
        Binding("question_mark", "help", "help"),
        Binding("q", "quit", "quit"),
    ]
    ENABLE_COMMAND_PALETTE = False
    TITLE = "orch top"

    def __init__(self, feed: Feed, *, every_s: float = 1.0, utc: bool = False) -> None:
        super().__init__()
        self._feed, self._every_s, self._utc = feed, every_s, utc
        self._seen = Seen(has_asked=False)
        self._chosen: str | None = None
        self._all = False
        self._grep = ""
        self._wanted = ""
        self._by = view.TROUBLE_FIRST
        self._pane = 0
        self._columns: list[str] = []
        self._shown: dict[str, object] = {}
        self._polling = False
        self._again = False

    def compose(self) -> ComposeResult:
        """Return the widgets."""
        yield Static(id="head")
        with Horizontal(id="plots"):
            yield Static(id="pace")
            yield Static(id="loss")
        yield DataTable(id="tasks", cursor_type="row", zebra_stripes=False)
        yield RichLog(id="events", max_lines=200)
        yield RichLog(id="log", max_lines=400)
        yield Input(id="find", placeholder="only lines with this text; Enter; empty for all")
        yield Input(
            id="filter",
            placeholder="only tasks whose name, host or state has this text; Enter; empty for all",
        )
        yield Footer()

    def on_mount(self) -> None:
        """Start to poll."""
        self.query_one(DataTable).focus()
        self.set_interval(self._every_s, self.poll)
        self.poll()
        self._arrange()

    # -- looking -------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Read the status once, in a thread: a slow coordinator does not hold up the keys."""
        self._again = self._polling
        if self._polling:
            return
        self._polling = True
        task, grep = None if self._all else self._chosen, self._grep

        def run() -> None:
            try:
                result: Seen | OrchestratorError = self._feed.read(task, grep)
            except OrchestratorError as e:
                result = e
            self.call_from_thread(self._polled, result)

        self.run_worker(run, thread=True, group="poll")

    def _polled(self, result: Seen | OrchestratorError) -> None:
        self._polling = False
        if isinstance(result, OrchestratorError):
            self.notify(inert(str(result)), severity="error", markup=False)
        else:
            self._show(result)
        if self._again:  # another task was chosen meanwhile
            self.poll()

    def _show(self, seen: Seen) -> None:
        self._seen = seen
        try:
            self._set("#head", view.head(seen, self.size.width or 120))
            half = max(20, self.size.width // 2 - 1)
            self._set("#pace", view.sparkline("steps/s", seen.pace, half))
            self._set("#loss", view.sparkline("loss", seen.loss, half))
            self._show_tasks(seen)
            self._lines("#events", [view.event(event, utc=self._utc) for event in seen.events])
            title = "all tasks" if self._all or self._chosen is None else self._chosen
            log = self.screen_stack[0].query_one("#log", RichLog)
            log.border_title = f"log {title}" + (f" with {inert(self._grep)!r}" if self._grep else "")
            with_task = self._all or self._chosen is None
            self._lines("#log", [view.log_line(line, with_task=with_task) for line in seen.lines])
        except NoMatches:
            return  # the application is ending

    def _set(self, name: str, text: Text) -> None:
        if self._shown.get(name) != text:  # what has not changed is not sent: the line may be slow
            self._shown[name] = text
            self.screen_stack[0].query_one(name, Static).update(text)

    def _lines(self, name: str, lines: list[Text]) -> None:
        before = self._shown.get(name)
        if before == lines:
            return
        self._shown[name] = lines
        pane = self.screen_stack[0].query_one(name, RichLog)
        if isinstance(before, list) and before and lines[: len(before)] == before:
            lines = lines[len(before) :]
        else:
            pane.clear()
        at_end = pane.is_vertical_scroll_end
        for line in lines:
            pane.write(line, scroll_end=at_end)

    def _show_tasks(self, seen: Seen) -> None:
        table: DataTable[Text] = self.screen_stack[0].query_one(DataTable)
        run = seen.run or {}
        columns, rows = view.task_rows(run, self.size.width - 2, by=self._by, wanted=self._wanted)
        chosen = [f"by {self._by}"] if self._by != view.TROUBLE_FIRST else []
        if self._wanted:
            chosen.append(f"with {inert(self._wanted)!r}: {len(rows)} of {len(run.get('tasks') or ())}")
        table.border_title = f"tasks {', '.join(chosen)}"
        table.set_class(bool(chosen), "ordered")
        if columns != self._columns or [str(key.value) for key in table.rows] != list(rows):
            self._columns = columns
            # The task that was chosen stays chosen, wherever its row is now.
            with self.prevent(DataTable.RowHighlighted):
                table.clear(columns=True)
                for name in columns:
                    table.add_column(name, key=name)
                for task, cells in rows.items():
                    table.add_row(*cells, key=task)
                chosen_now = self._chosen if self._chosen in rows else next(iter(rows), None)
                if chosen_now is not None:
                    table.move_cursor(row=table.get_row_index(chosen_now))
            if chosen_now != self._chosen:
                self._chosen = chosen_now
                self.poll()
            return
        for task, cells in rows.items():
            for name, cell in zip(columns, cells, strict=True):
                if table.get_cell(task, name) != cell:
                    table.update_cell(task, name, cell, update_width=True)

    def on_data_table_row_highlighted(self, chosen: DataTable.RowHighlighted) -> None:
        """Show the log of the task under the cursor."""
        task = chosen.row_key.value if chosen.row_key is not None else None
        if task is not None and task != self._chosen:
            self._chosen = task
            self._all = False
            self.poll()

    # -- panes ---------------------------------------------------------------------------------------------

    def on_resize(self) -> None:
        """Arrange the panes for the new size, which Textual takes only after this."""
        self.call_next(self._resized)

    def _resized(self) -> None:
        self._arrange()
        self._show(self._seen)

    def _arrange(self) -> None:
        narrow = self.size.width < NARROW
        self.screen_stack[0].set_class(narrow, "narrow")
        self.screen_stack[0].set_class(self.size.height < SHORT, "short")
        for number, name in enumerate(PANES):
            pane = self.screen_stack[0].query_one(f"#{name}")
            pane.set_class(narrow and number != self._pane, "hidden")
        if narrow:
            shown = self.screen_stack[0].query_one(f"#{PANES[self._pane]}")
            shown.focus()
            if isinstance(shown, RichLog):
                self.call_after_refresh(shown.scroll_end, animate=False)

    def action_pane(self) -> None:
        """Show the next pane of a narrow terminal; give the focus to the next one of a wide one."""
        if len(self.screen_stack) > 1:
            return
        self._pane = (self._pane + 1) % len(PANES)
        self._arrange()
        self.screen_stack[0].query_one(f"#{PANES[self._pane]}").focus()

    # -- keys ----------------------------------------------------------------------------------------------

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(Page("keys", Text(_HELP)))

    def action_all_tasks(self) -> None:
        """Show the log of all tasks, or of the chosen one again."""
        self._all = not self._all
        self.poll()

    def action_find(self) -> None:
        """Ask for a text that lines of the log must have."""
        self._ask_text("#find")

    def action_filter(self) -> None:
        """Ask for a text that tasks must have."""
        self._ask_text("#filter")

    def action_order(self) -> None:
        """Sort the tasks by the next column that has something."""
        tasks = (self._seen.run or {}).get("tasks") or []
        orders = [
            by for by, name in view.ORDERS.items() if not name or any(t.get(name) is not None for t in tasks)
        ]
        self._by = orders[(orders.index(self._by) + 1) % len(orders)] if self._by in orders else orders[0]
        self._show(self._seen)

    def _ask_text(self, name: str) -> None:
        field = self.query_one(name, Input)
        field.display = True
        field.focus()

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        """Show the lines or the tasks that have it."""
        if submitted.input.id == "find":
            self._grep = submitted.value
        else:
            self._wanted = submitted.value
            self._show(self._seen)
        submitted.input.display = False
        self.query_one(DataTable).focus()
        self.poll()

    def action_runs(self) -> None:
        """Choose the run that is shown."""

        def chosen(run_id: str | None) -> None:
            if run_id is not None:
                self._feed.name = run_id
                self._chosen = None
                self.poll()

        self.push_screen(Choice(self._seen), chosen)

    def action_why(self) -> None:
        """Show why the run failed or restarted."""
        width = self.size.width - 2
        self._page("why", lambda run: causes.why(run.why(), Paint(on=False), width=width))

    def action_stacks(self) -> None:
        """Show the stacks of the chosen task."""
        task = self._chosen
        self._page("stacks", lambda run: "\n\n".join(f"{k}\n{v}" for k, v in run.stacks(task).items()))

    def _page(self, title: str, ask: Callable[[Run], str]) -> None:
        def show(text: str) -> None:
            self.push_screen(Page(title, Text(inert(text))))

        self._ask(lambda run: self.call_from_thread(show, ask(run)))

    def action_drain(self) -> None:
        """Drain the host of the chosen task, once that is confirmed."""
        tasks = (self._seen.run or {}).get("tasks") or []
        host = next((task["host"] for task in tasks if task.get("task") == self._chosen), None)
        if host is None:
            self.notify("choose a task: its host is drained", severity="warning")
            return
        self._confirm(
            f"Drain {host}? It gets no more tasks. Those that it has move at the next verified checkpoint, or at the "
            "next restart where none is kept.",
            lambda run: run.drain(host),
        )

    def action_kill(self) -> None:
        """Kill the run, once that is confirmed."""
        shown = self._seen.run
        if shown is not None and not is_active(shown):
            self.notify(f"{render.title(shown)} has ended", severity="warning", markup=False)
        elif shown is not None:
            self._confirm(
                f"Kill {render.title(shown)}? Every task is stopped, with a grace period.",
                lambda _run: self._feed.kill(shown),
            )

    def _confirm(self, question: str, do: Callable[[Run], Any]) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self._ask(do)

        self.push_screen(Question(inert(question)), answered)

    def _ask(self, do: Callable[[Run], Any]) -> None:
        """Ask about the run that is shown, in a thread; an error is shown with its hint."""
        shown = self._seen.run
        if shown is None:
            return

        def run() -> None:
            try:
                do(self._feed.run_of(shown))
            except OrchestratorError as e:
                hint = f"\n{e.hint}" if e.hint else ""
                text = inert(f"{e}{hint}")
                self.call_from_thread(lambda: self.notify(text, severity="error", markup=False))

        self.run_worker(run, thread=True)
