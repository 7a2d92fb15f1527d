"""A run that fails in the night: a real coordinator tells a real mail server and a real web server of it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster.cluster import Cluster, wait_until
from tests.contract.receivers import Mail, Web


def test_people_are_told_and_no_address_is_written_anywhere(
    local_cluster: Cluster, web: Web, mail: Mail
) -> None:
    own = local_cluster.directory / "config" / "orch"
    own.mkdir(parents=True)
    (own / "notify.yaml").write_text(f'on: [failed]\nto: ["{web.url("own-s3cret")}"]\nlines: 0\n')
    (own / "notify.yaml").chmod(0o600)
    local_cluster.env["XDG_CONFIG_HOME"] = str(own.parent)
    notify = {
        "on": ["failed", "restarted"],
        "to": [web.url("s3cret"), mail.url, "json://127.0.0.1:1/dead-s3cret"],
    }
    spec = local_cluster.spec(
        *["--fail-at", "5", "--fail-task", "worker:1", "--fail-later"],
        notify=notify,
        restart={"without_progress_max": 2, "backoff": "0.2s", "standby": "off"},
    )
    done = local_cluster.orch("up", spec, "--wait")
    assert done.returncode == 1
    wait_until(lambda: len(mail.got) >= 2 and len(web.got) >= 3, "all are told")
    subjects = [subject for subject, _ in mail.got]
    assert subjects[0] == "orch: t is restarted"
    assert subjects[-1] == "orch: t has failed"
    text = mail.got[-1][1]
    assert "worker:1" in text
    assert "the data ends at step" in text, "its last lines"
    assert "orch why t" in text
    assert web.paths.count("/own-s3cret") == 1, "one's own file is for failures only"
    told = next(event for event in local_cluster.events(kind="notice-failed"))
    assert told["data"]["recipient"] == "json-2"
    assert "tried again" in told["message"]
    written = [done.stdout, done.stderr, local_cluster.ok("events", "t", "--json")]
    local_cluster.ok("coordinator", "stop")
    state = Path(local_cluster.env["ORCH_STATE_DIR"])
    written += [
        path.read_bytes().decode(errors="replace")
        for path in state.rglob("*")
        if path.is_file() and path.parent.name != "recipients"
    ]
    assert not [text for text in written if "s3cret" in text]
    unsent = json.loads((state / "notices.json").read_text())["unsent"]
    assert {one["name"] for one in unsent} == {"json-2"}, (
        "what was not delivered waits for the next coordinator"
    )
