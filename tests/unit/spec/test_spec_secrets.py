"""Secrets leave the plan, and no message shows one."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path

import pytest

from orchestrator.core.errors import SpecError
from orchestrator.head.code import codetree
from orchestrator.head.code.push_rules import LeftOut
from orchestrator.spec.load import load_spec
from orchestrator.spec.plan import load_plan
from orchestrator.spec.secrets import looks_secret, secret_names, secret_values

SECRET = "s3cr3t-0f-mine"


def write(folder: Path, run: str) -> Path:
    (folder / "train.py").touch()
    file = folder / "cluster.yaml"
    file.write_text(
        "version: 1\nname: x\nhosts: [{name: a}]\nrun:\n  strategy: multi_worker_mirrored\n"
        f"  script: train.py\n  tasks: {{worker: {{replicas: 1}}}}\n{run}"
    )
    return file


def write_secret(folder: Path, content: bytes = SECRET.encode() + b"\n", mode: int = 0o600) -> Path:
    file = folder / "wandb"
    file.write_bytes(content)
    file.chmod(mode)
    return file


@pytest.mark.parametrize(
    "name",
    [
        "TOKEN",
        "HF_TOKEN",
        "TOKEN_HF",
        "my_secret",
        "DB_PASSWORD",
        "PASSWD",
        "WANDB_API_KEY",
        "X_APIKEY",
        "AWS_SECRET_ACCESS_KEY",
        "SSH_PRIVATE_KEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "CREDENTIAL",
        "SSH_KEY_PASSPHRASE",
        "PGPASSWORD",
        "PGPASSFILE",
        "MYSQL_PWD",
        "AWS_CREDS",
        "GH_BEARER",
        "SESSION_COOKIE",
        "SENTRY_DSN",
        "SLACK_WEBHOOK_URL",
        "BASIC_AUTH",
        "DB_PASS",
        "apikey2",
        *("accessToken", "client-secret", "TOKEN1", "SSHPASS", "OPENAI_KEY", "AZURE_STORAGE_ACCOUNT_KEY"),
        *("GH_PAT", "SERVICE_JWT", "BLOB_CONNECTION_STRING", "SECRETKEY"),
    ],
)
def test_names_that_look_secret(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "API_URL",
        "KEY",
        "PRIVATE",
        "SECRETARY",
        "KEYBOARD_API",
        "PATH",
        "PWD",
        "OLDPWD",
        "AUTHOR",
        *("BYPASS", "COMPASS", "MONKEY", "N_PASSES"),
    ],
)
def test_names_that_do_not(name: str) -> None:
    assert not looks_secret(name)


@pytest.mark.fault(49)
@pytest.mark.parametrize(
    ("value", "secret"),
    [
        ("postgres://me:pw@db.lab/x", True),
        ("tracking at https://user:p%40ss@mlflow.lab:5000 and more", True),
        ("postgresql+psycopg2://u:@db/x", False),
        ("redis://:p/w@db.lab", True),
        ("http://lab:8080/a@b", False),
        ("-H 'Authorization: Basic dTpwdw=='", True),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", True),
        ("ghp_0123456789abcdefghijklmnopqrstuvwxyzAB", True),
        ("sk-learn-random-forest-regressor", False),
        ("https://hooks.slack.com/services/T0/B0/x", True),
        ("https://mlflow.lab:5000/a@b", False),
        ("me@lab", False),
        ("s3://bucket/key:1@2", False),
    ],
)
def test_a_password_in_a_url_is_secret_whatever_the_variable_is_called(
    tmp_path: Path, value: str, secret: bool
) -> None:
    assert looks_secret("DATABASE_URL", value) is secret
    spec = tmp_path / "cluster.yaml"
    text = "version: 1\nname: t\nhosts: [{name: here, transport: local}]\nrun:\n  strategy: single\n  script: t.py\n"
    spec.write_text(text + f"  env: {{DATABASE_URL: {json.dumps(value)}}}\n")
    (tmp_path / "t.py").touch()
    plan, values = load_plan(spec)
    assert (plan.secrets, plan.env) == ((("DATABASE_URL",), {}) if secret else ((), {"DATABASE_URL": value}))
    assert plan.withheld == (("cluster.yaml",) if secret else ())
    assert values == ({"DATABASE_URL": value} if secret else {})
    spec.write_text(text + f"  args: [--db, {json.dumps(value)}]\n")
    if secret:
        with pytest.raises(SpecError, match=r"run\.args\[1\]: a password, a key or a token"):
            load_plan(spec)
    else:
        assert load_plan(spec)[0].args == ("--db", value)


@pytest.mark.parametrize(
    "value",
    [
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=x1==",
        '{"user": "u", "password": "pw"}',
        "jdbc:postgresql://db/x?user=u&password=pw",
        "https://t0ken@git.lab/x",
        "u:pw@proxy.lab:3128",
    ],
)
def test_a_setting_in_a_value_hides_the_value(value: str) -> None:
    assert looks_secret("X", value)


@pytest.mark.fault(49)
def test_files_that_the_spec_names_as_secret_are_never_pushed(tmp_path: Path) -> None:
    for name in ("token.txt", "channel", "t.py"):
        (tmp_path / name).write_text("json://localhost/x\n")
        (tmp_path / name).chmod(0o600)
    (tmp_path / "link.txt").symlink_to("token.txt")
    (tmp_path / ".orchignore").write_text("!token.txt\n!link.txt\n")
    spec = tmp_path / "cluster.yaml"
    spec.write_text(
        "version: 1\nname: t\nhosts: [{name: here, transport: local}]\nrun:\n  strategy: single\n  script: t.py\n"
        "  secrets: {W: token.txt}\n  notify: {to: [{file: channel}]}\n"
    )
    plan, _ = load_plan(spec)
    assert plan.withheld == ("channel", "token.txt")
    pushed = codetree.manifest(plan.workdir, plan.script, plan.push_bytes_max, plan.withheld)
    assert [file.path for file in pushed] == [".orchignore", "cluster.yaml", "t.py"]
    said = codetree.survey(plan.workdir, plan.withheld)
    assert LeftOut("link.txt", "named") in said.left_out


def test_secrets_travel_apart_from_the_plan(tmp_path: Path) -> None:
    write_secret(tmp_path)
    file = write(tmp_path, f"  env: {{HF_TOKEN: {SECRET}, LANG: C}}\n  secrets: {{WANDB_API_KEY: wandb}}\n")
    plan, values = load_plan(file)
    assert plan.env == {"LANG": "C"}
    assert plan.secrets == ("HF_TOKEN", "WANDB_API_KEY")
    assert values == {"HF_TOKEN": SECRET, "WANDB_API_KEY": SECRET}
    assert SECRET not in json.dumps(dataclasses.asdict(plan))
    spec = load_spec(file)
    assert SECRET not in repr(spec)
    assert secret_names(spec) == plan.secrets
    assert secret_values(spec, tmp_path) == values


BAD_FILES = {
    "others may read": (
        {"mode": 0o640},
        "others may read the file (mode 0640); chmod 600 it",
    ),
    "empty": ({"content": b"\n"}, "the file is empty"),
    "not text": ({"content": b"\xff\xfe"}, "the file is not UTF-8 text"),
    "nul": ({"content": b"a\0b"}, "the file holds a NUL character"),
    "large": ({"content": b"x" * 70_000}, "the file has more than 65536 bytes"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_secrets_file_that_cannot_be_taken(tmp_path: Path, case: str) -> None:
    how, said = BAD_FILES[case]
    write_secret(tmp_path, **how)  # type: ignore[arg-type]
    file = write(tmp_path, "  secrets: {WANDB_API_KEY: wandb}\n")
    with pytest.raises(SpecError) as caught:
        load_spec(file)
    assert caught.value.message == f"{file}:8:28: run.secrets.WANDB_API_KEY: {said}"


def test_a_secret_may_be_as_long_as_is_said(tmp_path: Path) -> None:
    write_secret(tmp_path, content=b"x" * 65536)
    _, values = load_plan(write(tmp_path, "  secrets: {WANDB_API_KEY: wandb}\n"))
    assert values == {"WANDB_API_KEY": "x" * 65536}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_secrets_file_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(write_secret(tmp_path), 12345, 12345)
    file = write(tmp_path, "  secrets: {WANDB_API_KEY: wandb}\n")
    with pytest.raises(SpecError) as caught:
        load_spec(file)
    said = "the file must be yours, and it is another user's"
    assert caught.value.message == f"{file}:8:28: run.secrets.WANDB_API_KEY: {said}"


def test_a_pipe_or_a_directory_is_no_secret_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    file = write(tmp_path, "  secrets: {A: pipe, B: .}\n")
    with pytest.raises(SpecError) as caught:
        load_spec(file)
    said = "must be a file on this machine with the value in it, and this is no regular file"
    assert caught.value.message.splitlines() == [
        f"{file}:8:16: run.secrets.A: {said}",
        f"{file}:8:25: run.secrets.B: {said}",
    ]


def test_a_secret_that_changed_since_the_check_is_an_error_without_its_value(tmp_path: Path) -> None:
    secret = write_secret(tmp_path)
    spec = load_spec(write(tmp_path, "  secrets: {WANDB_API_KEY: wandb}\n"))
    secret.chmod(0o644)
    with pytest.raises(SpecError) as caught:
        secret_values(spec, tmp_path)
    assert caught.value.message == (
        "run.secrets.WANDB_API_KEY: others may read the file (mode 0644); chmod 600 it"
    )


@pytest.mark.parametrize(
    "run",
    [
        f"  secrets: {{WANDB_API_KEY: {SECRET}}}\n",
        f"  secrets: {{WANDB_API_KEY: [{SECRET}]}}\n",
        f"  secrets: {SECRET}\n",
        f'  secrets: {{"K={SECRET}": x}}\n',
        f'  env: {{"TOKEN={SECRET}": x}}\n',
        f'  env: ["TOKEN={SECRET}"]\n',
        f"  env: TOKEN={SECRET}\n",
        f"  env: {{ORCH_RUN: {SECRET}, A: [{SECRET}]}}\n",
        f'  env: {{A: "{SECRET}\\0"}}\n',
        f"  env: {{A: &x {SECRET}, B: *x}}\n",
        f"  env: {{A: !x {SECRET}}}\n",
        f"  env: {{A: {SECRET}: {SECRET}}}\n",
        f'  env: {{A: "{SECRET}}}\n',
        f"  env: {{A: {SECRET}, A: {SECRET}}}\n",
        f"  args: [[{SECRET}]]\n",
        f"  envs: {SECRET}\n",
    ],
)
def test_no_complaint_shows_what_may_be_secret(tmp_path: Path, run: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(write(tmp_path, run))
    assert SECRET not in caught.value.message
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_a_numeric_secret_is_not_shown_either(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(write(tmp_path, "  env: {PASSWORD: 271828}\n  args: [314159]\n"))
    assert "271828" not in caught.value.message
    assert "314159" not in caught.value.message


def test_a_name_in_env_and_in_secrets_is_one_too_many(tmp_path: Path) -> None:
    write_secret(tmp_path)
    file = write(tmp_path, "  env: {A: x}\n  secrets: {A: wandb, TF_CONFIG: wandb}\n")
    with pytest.raises(SpecError) as caught:
        load_spec(file)
    assert caught.value.message.splitlines() == [
        f"{file}:9:16: run.secrets.A: A stands in env too; keep one",
        f"{file}:9:23: run.secrets.TF_CONFIG: TF_CONFIG is set by orch for each task, and cannot be set here",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000,
        "x://" * 250_000,
        "x://:b" * 160_000,
        "http://" * 140_000,
        "http://" + "a" * 1_000_000,
        "-----BEGIN " + "A " * 500_000,
        "-----BEGIN A" * 80_000,
        "sk-" + "a1-" * 300_000,
        "password" * 120_000,
        "password" + " " * 1_000_000,
        "bearer " * 140_000,
        "bearer" + " " * 1_000_000,
        "eyJ" + "a" * 1_000_000,
        "a:" * 500_000,
        "A" * 1_000_000 + "a",
    ],
    ids=lambda text: text[:12],
)
def test_a_text_of_a_megabyte_is_searched_at_once(text: str) -> None:
    began_at = time.process_time()
    looks_secret("X" + text[:1000], text)
    looks_secret(text, "")
    assert time.process_time() - began_at < 5.0
    assert looks_secret("X", f"{text} s3://me:hush@bucket")


def test_a_spec_with_the_address_of_a_recipient_is_never_pushed(tmp_path: Path) -> None:
    (tmp_path / "t.py").touch()
    plan, _ = load_plan(write(tmp_path, "  notify: {to: ['json://localhost/x']}\n"))
    assert plan.withheld == ("cluster.yaml",)
