"""What a task is started with."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.gang import next_generation
from orchestrator.core.launching.environment import (
    checkpoint_dir,
    endpoint,
    environment,
    has_scratch,
    have_ports_apart,
    port_candidates,
    ports_needed,
    runtime_options,
    wiring,
)
from orchestrator.core.launching.wiring import slots
from orchestrator.core.plan import CheckpointPlan, HostPlan, Options, Plan, TaskId, TaskPlan
from orchestrator.core.state.host import Facts
from orchestrator.core.state.run import new_run
from orchestrator.core.strategy import STRATEGIES
from orchestrator.protocol import wired
from orchestrator.reporting import launch_document


def tf_config(plan: Plan, addresses: dict[TaskId, str], task: TaskId) -> Any:
    return json.loads(wiring(plan, addresses, task).get("TF_CONFIG", "null"))


W0, W1, E0, CHIEF = TaskId("worker", 0), TaskId("worker", 1), TaskId("evaluator", 0), TaskId("chief", 0)
PS0 = TaskId("ps", 0)
ADDRESSES = {W0: "10.0.0.1:20000", W1: "10.0.0.2:20000", E0: "10.0.0.1:20016", CHIEF: "10.0.0.3:20000"}


def plan_of(*tasks: TaskId, hosts: int = 2, ports: tuple[int, int] = (20000, 20999)) -> Plan:
    return Plan(
        name="x",
        strategy="multi_worker_mirrored",
        hosts=tuple(HostPlan(f"h{i}", data_address=f"10.0.0.{i + 1}") for i in range(hosts)),
        tasks=tuple(
            TaskPlan(task, f"h{i % hosts}", (i,), i // hosts) for i, task in enumerate(sorted(tasks))
        ),
        script="train.py",
        ports=ports,
    )


def test_tf_config_lists_every_peer_in_the_order_of_its_index() -> None:
    plan = plan_of(W1, W0, CHIEF)
    cluster = {"chief": ["10.0.0.3:20000"], "worker": ["10.0.0.1:20000", "10.0.0.2:20000"]}
    for task in (W0, W1, CHIEF):
        expected = {"cluster": cluster, "task": {"type": task.type, "index": task.index}}
        assert tf_config(plan, ADDRESSES, task) == expected


def test_the_evaluator_has_a_cluster_of_its_own() -> None:
    plan = plan_of(W0, W1, E0)
    workers = ["10.0.0.1:20000", "10.0.0.2:20000"]
    assert tf_config(plan, ADDRESSES, W0) == {
        "cluster": {"worker": workers},
        "task": {"type": "worker", "index": 0},
    }
    assert tf_config(plan, ADDRESSES, E0) == {
        "cluster": {"evaluator": ["10.0.0.1:20016"]},
        "task": {"type": "evaluator", "index": 0},
    }


def test_tensorflow_reads_an_index_of_ten_after_nine() -> None:
    tasks = [TaskId("worker", i) for i in range(11)]
    config = tf_config(plan_of(*tasks), {task: str(task) for task in tasks}, tasks[10])
    assert config is not None
    assert config["cluster"]["worker"] == [f"worker:{i}" for i in range(11)]


def test_a_sole_task_gets_no_tf_config() -> None:
    assert tf_config(plan_of(W0), ADDRESSES, W0) is None
    assert tf_config(plan_of(CHIEF), ADDRESSES, CHIEF) is None


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("gpu-a", "gpu-a:7"),
        ("10.0.0.1", "10.0.0.1:7"),
        ("fd00::1", "[fd00::1]:7"),
        ("[fd00::1]", "[fd00::1]:7"),
    ],
)
def test_endpoints(address: str, expected: str) -> None:
    assert endpoint(address, 7) == expected


@settings(max_examples=200, deadline=None)
@given(
    tasks=st.integers(1, 12),
    hosts=st.integers(1, 4),
    spare_ports=st.integers(0, 500),
    run_id=st.text(min_size=1),
    generation=st.integers(1, 10_000),
)
def test_no_port_is_offered_to_two_tasks_of_a_machine_nor_to_two_generations_in_a_row(
    tasks: int, hosts: int, spare_ports: int, run_id: str, generation: int
) -> None:
    ids = [TaskId("worker", i) for i in range(tasks)]
    plan = plan_of(*ids, hosts=hosts)
    plan = replace(plan, ports=(20000, 20000 + ports_needed(plan) - 1 + spare_ports))
    taken: dict[str, list[int]] = {}
    for turn in (generation, generation + 1):
        for task in ids:
            ports = port_candidates(plan, run_id, turn, task)
            assert 1 <= len(ports) <= 16
            assert ports == port_candidates(plan, run_id, turn, task)
            assert all(plan.ports[0] <= port <= plan.ports[1] for port in ports)
            taken.setdefault(plan.task(task).host, []).extend(ports)
    assert all(len(ports) == len(set(ports)) for ports in taken.values())


@pytest.mark.parametrize(("size", "tasks"), [(2, 1), (5, 2), (9, 2), (40, 3), (1000, 8)])
def test_what_has_ports_apart_shares_none(size: int, tasks: int) -> None:
    """Numbers between two generations may have gone to a standby, or to a task that was restarted alone."""
    hosts = (HostPlan("a", slots=tasks),)
    placed = tuple(TaskPlan(TaskId("worker", index), "a") for index in range(tasks))
    ports = (20000, 20000 + max(size, 2 * tasks) - 1)
    plan = Plan("t", "processes", hosts, placed, "train.py", ports=ports)

    def taken(generation: int) -> set[int]:
        return {port for task in placed for port in port_candidates(plan, "t-1", generation, task.id)}

    for other in range(2, 40):
        if have_ports_apart(plan, 1, other):
            assert not taken(1) & taken(other), other
    assert have_ports_apart(plan, 1, 2)


def test_two_hosts_of_the_spec_on_one_machine_do_not_share_a_port() -> None:
    plan = plan_of(W0, W1)
    same = replace(plan, hosts=tuple(replace(host, data_address="127.0.0.1") for host in plan.hosts))
    assert ports_needed(plan) == 2
    assert ports_needed(same) == 4
    assert set(port_candidates(same, "x", 1, W0)).isdisjoint(port_candidates(same, "x", 1, W1))


def test_sixteen_candidates_where_the_range_has_room_and_each_run_begins_elsewhere() -> None:
    found = [port_candidates(plan_of(W0, W1), f"x-{number}", 1, W0) for number in range(20)]
    assert {len(ports) for ports in found} == {16}
    assert len(set(found)) > 10, "two runs that share a range seldom meet"


def test_a_range_that_is_too_small_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"^ports 20000-20002: 2 tasks need 4$"):
        port_candidates(plan_of(W0, W1, hosts=1, ports=(20000, 20002)), "x", 1, W0)


def test_the_environment_of_a_task() -> None:
    plan = replace(plan_of(W0, W1), env={"LANG": "C", "ORCH_RUN": "mine", "CUDA_VISIBLE_DEVICES": "9"})
    assert environment(plan, "x-1", 3, W1, 2, "/shared/gen-000003", "/logs") == {
        "PYTHONHASHSEED": "0",
        "LANG": "C",
        "no_grpc_proxy": "10.0.0.1,10.0.0.2",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "1",
        "ORCH_RUN": "x-1",
        "ORCH_TASK": "worker:1",
        "ORCH_HOST": "h1",
        "ORCH_GENERATION": "3",
        "ORCH_RESTARTS": "2",
        "ORCH_CHECKPOINT_DIR": "/shared/gen-000003",
        "ORCH_LOG_DIR": "/logs",
        "ORCH_RUNTIME": runtime_options(plan),
    }
    assert json.loads(runtime_options(plan))["strategy"] == "multi_worker_mirrored"


def test_a_script_is_told_of_how_many_replicas_some_may_be_missing() -> None:
    plan = replace(
        plan_of(W0), options=Options(on_shrink="hold_batch", replicas_planned=4, replicas_on_cpu=2)
    )
    told = environment(plan, "x-1", 1, W0, 0, None)
    assert {name: told[name] for name in told if "REPLICAS" in name or "SHRINK" in name} == {
        "ORCH_REPLICAS": "1",
        "ORCH_REPLICAS_PLANNED": "4",
        "ORCH_ON_SHRINK": "hold_batch",
    }
    assert json.loads(runtime_options(plan))["on_shrink"] == "hold_batch"
    assert "replicas_planned" not in runtime_options(plan)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("checkpoint", [None, CheckpointPlan("/shared", 3)])
def test_only_tasks_that_can_survive_and_save_prepare_to_hand_over(
    strategy: str, checkpoint: CheckpointPlan | None
) -> None:
    plan = replace(plan_of(W0, W1), strategy=strategy, checkpoint=checkpoint)
    plan = replace(plan, restart=replace(plan.restart, rescue_s=30.0))
    can = strategy == "multi_worker_mirrored" and checkpoint is not None
    assert json.loads(runtime_options(plan)).get("rescue", False) == can


@pytest.mark.parametrize(("keras", "expected"), [(2, "1"), (3, None), (None, None)])
def test_only_keras_2_is_said_to_tensorflow(keras: int | None, expected: str | None) -> None:
    plan = replace(plan_of(W0, W1), options=Options(keras=keras))
    assert environment(plan, "x-1", 1, W1, 0, None).get("TF_USE_LEGACY_KERAS") == expected


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_a_strategy_gives_is_known_to_those_who_keep_it_from_others(strategy: str) -> None:
    hosts = [TaskPlan(TaskId("worker", i), f"h{i}") for i in range(2)]
    plan = replace(plan_of(W0, W1), strategy=strategy, tasks=tuple(hosts))
    addresses = {task.id: f"10.0.0.{i}:2000{i}" for i, task in enumerate(plan.tasks)}
    given = wiring(plan, addresses, W1)
    users = {"HOROVOD_CPU_OPERATIONS"}  # a user may choose it
    assert {name for name in given if not name.startswith("ORCH_")} - users <= wired.ALL


def test_processes_are_wired_by_rank() -> None:
    plan = replace(plan_of(W0, W1), strategy="processes")
    told = wiring(plan, ADDRESSES, W1)
    assert told == {
        "ORCH_RANK": "1",
        "ORCH_WORLD_SIZE": "2",
        "ORCH_LOCAL_RANK": "0",
        "ORCH_COORDINATOR_ADDRESS": "10.0.0.1:20000",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "20000",
    }


def horovod_plan() -> Plan:
    """Ranks 0 to 2 on h0, 3 and 4 on h1, 5 on h2."""
    hosts = ["h0", "h0", "h0", "h1", "h1", "h2"]
    slots = [0, 1, 2, 0, 1, 0]
    tasks = [TaskPlan(TaskId("worker", i), hosts[i], (7 - i,), slots[i]) for i in range(6)]
    return replace(plan_of(W0, hosts=3), strategy="horovod", tasks=tuple(tasks))


def test_horovods_ranks_count_within_a_host_and_across_hosts() -> None:
    found = [
        (s.hostname, s.rank, s.local_rank, s.local_size, s.cross_rank, s.cross_size)
        for s in slots(horovod_plan()).values()
    ]
    assert found == [
        ("h0", 0, 0, 3, 0, 3),
        ("h0", 1, 1, 3, 0, 2),
        ("h0", 2, 2, 3, 0, 1),
        ("h1", 3, 0, 2, 1, 3),
        ("h1", 4, 1, 2, 1, 2),
        ("h2", 5, 0, 1, 2, 3),
    ]
    assert all(s.size == 6 for s in slots(horovod_plan()).values())


def test_horovod_is_told_what_horovodrun_would_tell_it_and_the_runtime_of_rank_0_all_places() -> None:
    plan = horovod_plan()
    addresses = {task.id: f"10.0.0.{i}:2000{i}" for i, task in enumerate(plan.tasks)}
    told = wiring(plan, addresses, TaskId("worker", 4))
    assert {name: value for name, value in told.items() if name.startswith("HOROVOD_")} == {
        "HOROVOD_HOSTNAME": "h1",
        "HOROVOD_RANK": "4",
        "HOROVOD_SIZE": "6",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "1",
        "HOROVOD_CROSS_SIZE": "2",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.0",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "20000",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
    assert (told["ORCH_RANK"], told["ORCH_LOCAL_RANK"]) == ("4", "1")
    assert json.loads(told["ORCH_HOROVOD"]) == {"alone": False, "slots": []}
    first = wiring(plan, addresses, W0)
    assert [slot["rank"] for slot in json.loads(first["ORCH_HOROVOD"])["slots"]] == list(range(6))
    by_mpi = replace(plan, env={"HOROVOD_CPU_OPERATIONS": "MPI"})
    assert wiring(by_mpi, addresses, W0)["HOROVOD_CPU_OPERATIONS"] == "MPI"


def test_a_rank_sees_the_runs_gpus_of_its_host_in_the_order_of_local_ranks() -> None:
    plan = horovod_plan()
    seen = [environment(plan, "x-1", 1, t.id, 0, None)["CUDA_VISIBLE_DEVICES"] for t in plan.tasks]
    assert seen == ["7,6,5"] * 3 + ["4,3"] * 2 + ["2"]


def test_a_tpu_is_named_and_waited_for_no_longer_than_a_start() -> None:
    plan = replace(plan_of(W0), strategy="tpu", options=Options(tpu="v4-8"))
    assert environment(plan, "x-1", 1, W0, 0, None)["TPU_NAME"] == "v4-8"
    assert json.loads(runtime_options(plan)) == {
        "strategy": "tpu",
        "frameworks": ["tensorflow", "keras", "tf_keras"],
        "packages": ["tensorflow", "keras", "tf_keras", "numpy"],
        "module": "tpu",
        "tpu": "v4-8",
        "tpu_wait_s": 120.0,
    }
    assert wiring(plan, ADDRESSES, W0) == {}


def test_a_single_task_is_told_of_nobody() -> None:
    assert wiring(replace(plan_of(W0), strategy="mirrored"), ADDRESSES, W0) == {}


def test_a_ps_sees_no_gpu_and_a_ps_that_is_gone_is_noticed_unless_the_user_says_otherwise() -> None:
    plan = replace(plan_of(CHIEF, W0, PS0, hosts=3), strategy="parameter_server")
    told = {task.id: environment(plan, "x-1", 1, task.id, 0, None) for task in plan.tasks}
    assert [told[task]["CUDA_VISIBLE_DEVICES"] for task in (CHIEF, W0, PS0)] == ["0", "1", ""]
    assert {env["GRPC_FAIL_FAST"] for env in told.values()} == {"use_caller"}
    own = replace(plan, env={"GRPC_FAIL_FAST": "false"})
    assert environment(own, "x-1", 1, W0, 0, None)["GRPC_FAIL_FAST"] == "false"


def test_who_saves_into_a_scratch() -> None:
    plan = replace(plan_of(W0, W1, E0), checkpoint=CheckpointPlan("/shared/x"))
    assert [has_scratch(plan, task) for task in (W0, W1, E0)] == [False, True, False]
    served = replace(plan_of(CHIEF, W0), strategy="parameter_server", checkpoint=CheckpointPlan("/shared/x"))
    assert [has_scratch(served, task) for task in (CHIEF, W0)] == [False, False]
    assert not has_scratch(replace(plan, checkpoint=None), W1)


def test_no_gpu_is_said_to_cuda_and_no_checkpoint_directory_is_not_said_at_all() -> None:
    plan = plan_of(W0)
    bare = replace(plan, tasks=(replace(plan.tasks[0], gpus=()),))
    env = environment(bare, "x-1", 1, W0, 0, None, "/logs")
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert "ORCH_CHECKPOINT_DIR" not in env


def test_several_gpus_are_listed_in_the_order_of_the_host() -> None:
    plan = plan_of(W0)
    many = replace(plan, tasks=(replace(plan.tasks[0], gpus=(5, 0, 3)),))
    assert environment(many, "x-1", 1, W0, 0, None, "/logs")["CUDA_VISIBLE_DEVICES"] == "5,0,3"


def test_only_the_chief_of_the_run_writes_into_the_generations_directory() -> None:
    plan = replace(plan_of(W0, W1, E0), checkpoint=CheckpointPlan("/shared/x/"))
    assert checkpoint_dir(plan, 12, W0) == "/shared/x/gen-000012"
    assert checkpoint_dir(plan, 12, W1) is None
    assert checkpoint_dir(plan, 12, E0) == "/shared/x/gen-000012", "it evaluates what the chief saves"
    assert checkpoint_dir(replace(plan, checkpoint=None), 12, W0) is None
    led = replace(plan_of(W0, CHIEF), checkpoint=CheckpointPlan("/shared/x"))
    assert checkpoint_dir(led, 1, CHIEF) == "/shared/x/gen-000001"
    assert checkpoint_dir(led, 1, W0) is None


def test_whatever_a_host_gains_is_of_its_connection_unless_it_is_of_the_run() -> None:
    of_the_run = {
        "data_address": "10.0.0.9",
        "gpus": (1,),
        "slots": 4,
        "spare": True,
        "seen_address": "10.0.0.8",
        "labels": (("gpu", "a100"),),
        "tasks_max": 2,
        "slots_lent": (1,),
    }
    plain = HostPlan("a", address="ssh.example", data_address="10.0.0.1")
    assert {field.name for field in fields(HostPlan)} - of_the_run.keys() == {
        "name",
        "transport",
        "address",
        "user",
        "port",
        "identity_file",
        "known_hosts",
        "proxy_jump",
        "python",
        "activate",
        "allocation",
        "spec",
    }
    assert replace(plain, **of_the_run).connection == plain.connection  # type: ignore[arg-type]
    assert replace(plain, port=2222).connection != plain.connection
    assert plain.connection.connection == plain.connection


def test_a_host_is_reached_by_its_peers_at_what_the_spec_says_of_it() -> None:
    assert HostPlan("a", address="x", data_address="10.0.0.1").peer_address == "10.0.0.1"
    assert HostPlan("a", address="x").peer_address == "x"
    assert HostPlan("a").peer_address == "a"


def test_a_runs_document_tells_where_its_newest_generation_is_and_the_ports_that_it_has() -> None:
    plan = replace(plan_of(W0, W1), checkpoint=CheckpointPlan(dir="/shared/x"), secrets=("API_TOKEN",))
    begun = new_run("x-1", plan, epoch=1, at=0.0)
    tasks = tuple(replace(task, port=20400 + 16 * i) for i, task in enumerate(begun.tasks))
    budget = replace(begun.budget, restarts=6)
    told = launch_document.launched_document(replace(begun, tasks=tasks, generation=7, budget=budget))
    assert (told["run_id"], told["generation"], told["ports_held"]) == ("x-1", 7, True)
    first, second = told["tasks"]
    assert first["tf_config"]["cluster"] == {"worker": [first["address"], second["address"]]}
    assert (first["port"], second["port"]) == (20400, 20416)
    env = first["env"]
    assert (env["ORCH_RUN"], env["ORCH_GENERATION"], env["ORCH_RESTARTS"]) == ("x-1", "7", "6")
    assert (env["ORCH_CHECKPOINT_DIR"], env["API_TOKEN"]) == ("/shared/x/gen-000007", "***")
    waiting = launch_document.launched_document(replace(begun, generation=7))
    assert waiting["ports_held"] is False
    assert waiting["tasks"][0]["port"] == port_candidates(plan, "x-1", 7, W0)[0], "which it tries first"


def test_an_ipv6_address_of_a_peer_is_named_to_grpc_without_brackets() -> None:
    plan = plan_of(W0, W1)
    hosts = tuple(
        replace(host, data_address=f"[fd00::{number}]") for number, host in enumerate(plan.hosts, start=1)
    )
    told = environment(replace(plan, hosts=hosts), "x-1", 3, W1, 2, None)
    assert told["no_grpc_proxy"] == "fd00::1,fd00::2"
    alone = environment(plan_of(W0, hosts=1), "x-1", 3, W0, 2, None)
    assert "no_grpc_proxy" not in alone


def test_a_new_generation_has_a_number_above_all_that_any_host_has_a_directory_of() -> None:
    run = new_run("x-1", plan_of(W0, W1), epoch=1, at=0.0)
    assert next_generation(run) == 1
    facts = [Facts(python="3.11.2", versions={}, code="c0de", highest_generation=n) for n in (2, 7)]
    hosts = tuple(replace(host, facts=known) for host, known in zip(run.hosts, facts, strict=True))
    assert next_generation(replace(run, hosts=hosts)) == 8
    assert next_generation(replace(run, hosts=hosts, generation_last=9)) == 10
