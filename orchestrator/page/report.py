"""Writes everything about a run into one file: the page with its documents in it, which needs no server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.head.code.push_rules import REPORT_MARK
from orchestrator.head.node.paths import Paths
from orchestrator.head.records import bands
from orchestrator.head.records.run_series import SERIES_MAX, named
from orchestrator.page.feed import steady
from orchestrator.page.server import joined, read
from orchestrator.page.source import Source, dumped

_SERIES_BUCKETS = 900
_BAND_BUCKETS = 300
_CHECKPOINTS_S = 20.0

LINES_MAX = 12
"""More lines than these are shown as a band."""

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


def report(paths: Paths, name: str | None, other: str | None = None) -> tuple[str, str]:
    """Return the id of a run (None: the newest) and the text of its file. Raises UsageError if there is no such run.

    `other`: a second run, to compare it with; all of it is in the file too.
    """
    source = Source(paths)
    known = source.runs()
    archived = source.archived(read_s=0.0)
    runs = [*archived.values(), *known["runs"]]
    run_ids = [_chosen(runs, chosen) for chosen in ((name,) if other is None else (name, other))]
    documents = _documents(source, run_ids[0])
    if other is not None:
        documents |= {"other": _documents(source, run_ids[1]), "compare": source.compare(*run_ids)}
    shown = [
        source.archived_run(run["run_id"]) if run["run_id"] in archived else run
        for run in runs
        if run["run_id"] in run_ids
    ]
    documents |= {"made": known["now"], "state": steady({**known, "runs": shown, "troubles": []}, None)}
    return "-and-".join(run_ids), _page(dumped(documents))


def _chosen(runs: Sequence[dict[str, Any]], name: str | None) -> str:
    matching = [run for run in runs if name in (None, run["run_id"], run["name"])]
    if matching:
        return str(matching[-1]["run_id"])
    if name is None:
        raise OrchestratorError("there are no runs yet", hint="`orch up FILE` starts one")
    raise UsageError(f"there is no run {name!r}", hint="`orch status` shows all")


def _documents(source: Source, run_id: str) -> dict[str, Any]:
    history = source.history(run_id)
    measured = [(key["task"], key["name"]) for key in history["series"]]
    own = [key for key in measured if not key[0]]
    families = Counter(bands.family(*key) for key in measured if key[0])
    few = [key for key in measured if key[0] and families[bands.family(*key)] <= LINES_MAX]
    return {
        "run": run_id,
        "history": history,
        "series": {
            "step": _series(source, run_id, own, "step"),
            "time": _series(source, run_id, own + few, "time"),
        },
        "bands": [
            source.band(run_id, {"of": family, "name": name, "buckets": str(_BAND_BUCKETS)})
            for (family, name), members in families.items()
            if members > LINES_MAX
        ],
        "why": source.why(run_id),
        "events": source.events(run_id, 0),
        "checkpoints": _checkpoints(source, run_id),
        "plan": source.plan(run_id),
    }


def _series(source: Source, run_id: str, names: Sequence[tuple[str, str]], x: str) -> list[Any]:
    series: list[Any] = []
    for at in range(0, len(names), SERIES_MAX):
        asked = ",".join(named(*key) for key in names[at : at + SERIES_MAX])
        query = {"names": asked, "x": x, "buckets": str(_SERIES_BUCKETS)}
        series += source.series(run_id, query)["series"]
    return series


def _checkpoints(source: Source, run_id: str) -> dict[str, Any]:
    """Return the list of checkpoints, if coordinator and host answer soon: a report does not wait for them."""
    try:
        return source.checkpoints(run_id, timeout_s=_CHECKPOINTS_S)
    except OrchestratorError:
        return {}


def _page(data: str) -> str:
    """Return the page with all files that it loads in it."""
    text, style, script = read("index.html"), joined(".css"), joined(".js")
    assert "</script" not in script
    head, rest = text.split("<!-- files -->")
    _, body = rest.split("<!-- /files -->")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    inner, end = body.split("</body>")
    return (
        f"{head}{REPORT_MARK}{policy}<style>{style}</style>{inner}"
        f'<script type="application/json" id="data">{data}</script>\n<script>{script}</script>\n</body>{end}'
    )
