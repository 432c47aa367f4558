import json
from dataclasses import replace
from pathlib import Path

import pytest

from prime_inference.local.devices import CPU_DEVICE, WorkerDevice, assign, visible_gpus
from prime_inference.local.environment import inherited
from prime_inference.local.errors import UpError
from prime_inference.local.model import LocalModel
from prime_inference.local.options import DeviceChoice, EngineChoice, UpOptions
from prime_inference.local.spec import ProcessSpec, Role
from prime_inference.local.stack import StackPlan, ports_needed, ports_of, specs_of
from prime_inference.local.state_dir import StateDir
from prime_inference.toolcalls.serving import ToolFormat


def plan(**options: object) -> StackPlan:
    wanted = replace(UpOptions(), **options)  # type: ignore[arg-type]
    workers = wanted.prefill + wanted.decode
    return StackPlan(
        options=wanted,
        model=LocalModel(Path("/models/m"), "m", 4096, 1),
        context_tokens=4096,
        state=StateDir(Path("/state")),
        ports=ports_of(8000, list(range(20_000, 20_000 + ports_needed(workers, wanted.tier_shards))), workers),
        devices=[CPU_DEVICE] * workers,
        cores=2,
        valkey_binary="/bin/valkey-server",
        gateway_secret="s",
        inherited={"NCCL_NVLS_ENABLE": "0"},
    )


def value_of(spec: ProcessSpec, option: str) -> str:
    return spec.argv[spec.argv.index(option) + 1]


def test_the_processes_start_from_the_store_to_the_door() -> None:
    specs = specs_of(plan(prefill=2, decode=3))
    assert [spec.name for spec in specs] == [
        *("valkey", "frontend", "prefill-0", "prefill-1", "decode-0", "decode-1", "decode-2", "gateway")
    ]


def test_each_role_says_what_it_is_to_nixl_and_only_prefill_publishes_blocks() -> None:
    by_role = {spec.role: spec for spec in specs_of(plan())}
    for role, kv_role in ((Role.PREFILL, "kv_producer"), (Role.DECODE, "kv_consumer")):
        config = json.loads(value_of(by_role[role], "--kv-transfer-config"))
        assert config["kv_role"] == kv_role
        assert value_of(by_role[role], "--disaggregation-mode") == role.value
    assert json.loads(value_of(by_role[Role.PREFILL], "--kv-events-config"))["enable_kv_cache_events"] is True
    assert "--kv-events-config" not in by_role[Role.DECODE].argv


def test_no_two_processes_share_a_port() -> None:
    specs = specs_of(plan(prefill=3, decode=3))
    ports = [
        *(
            spec.env[name]
            for spec in specs
            for name in ("DYN_SYSTEM_PORT", "VLLM_NIXL_SIDE_CHANNEL_PORT")
            if name in spec.env
        )
    ]
    events = [json.loads(value_of(s, "--kv-events-config"))["endpoint"] for s in specs if s.role is Role.PREFILL]
    assert len(set(ports + events)) == len(ports) + len(events) == 15


def test_every_port_fits_dynamos_signed_sixteen_bits() -> None:
    from prime_inference.local.ports import HIGHEST, free_ports

    ports = free_ports(40)
    assert len(set(ports)) == 40
    assert max(ports) <= HIGHEST == 2**15 - 1


def test_the_router_keeps_sessions_softly_and_reads_its_policy_from_a_file() -> None:
    frontend = next(spec for spec in specs_of(plan()) if spec.role is Role.FRONTEND)
    assert value_of(frontend, "--router-session-affinity-mode") == "soft"
    assert int(value_of(frontend, "--router-session-affinity-ttl-secs")) > 0
    assert value_of(frontend, "--router-policy-config") == "/state/router-policy.yaml"
    assert int(value_of(frontend, "--migration-limit")) > 0


def test_gpu_workers_get_their_gpu_and_their_share_of_it() -> None:
    gpu = replace(plan(), devices=[WorkerDevice("0", 0.45), WorkerDevice("3", 0.9)])
    prefill, decode = (spec for spec in specs_of(gpu) if spec.role in (Role.PREFILL, Role.DECODE))
    assert (prefill.env["CUDA_VISIBLE_DEVICES"], decode.env["CUDA_VISIBLE_DEVICES"]) == ("0", "3")
    assert value_of(prefill, "--gpu-memory-utilization") == "0.45"
    assert "--enforce-eager" not in decode.argv
    assert prefill.env["PRIME_NIXL_PROGRESS_SLEEP_US"] == "0"
    assert (prefill.memory_mapped_by, decode.memory_mapped_by) == (Role.DECODE, None)
    assert all(spec.memory_mapped_by is None for spec in specs_of(plan()))


def test_workers_that_share_a_gpu_start_one_after_another_and_others_at_once() -> None:
    devices = [WorkerDevice("0", 0.45), WorkerDevice("1", 0.9), WorkerDevice("0", 0.45)]
    after = {spec.name: spec.after for spec in specs_of(replace(plan(decode=2), devices=devices))}
    assert after["prefill-0"] == after["decode-0"] == ()
    assert after["decode-1"] == ("prefill-0",)


def test_the_mocker_takes_the_engines_place() -> None:
    specs = specs_of(plan(engine=EngineChoice.MOCKER))
    assert all("dynamo.mocker" in spec.argv for spec in specs if spec.role in (Role.PREFILL, Role.DECODE))


def test_fabric_variables_reach_every_child_and_others_do_not() -> None:
    environment = {"NCCL_NVLS_ENABLE": "0", "NVSHMEM_DISABLE_NVLS": "1", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    assert inherited({**environment, "AWS_SECRET": "x", "PRIME_GATEWAY_PORT": "1"}) == environment
    assert all(spec.env["NCCL_NVLS_ENABLE"] == "0" for spec in specs_of(plan()))


@pytest.mark.parametrize(
    ("choice", "gpus", "workers", "expected"),
    [
        (DeviceChoice.CPU, ["0"], 2, [CPU_DEVICE, CPU_DEVICE]),
        (DeviceChoice.AUTO, [], 2, [CPU_DEVICE, CPU_DEVICE]),
        (DeviceChoice.AUTO, ["0", "1"], 2, [WorkerDevice("0", 0.9), WorkerDevice("1", 0.9)]),
        (DeviceChoice.CUDA, ["5"], 2, [WorkerDevice("5", 0.45), WorkerDevice("5", 0.45)]),
    ],
)
def test_workers_are_placed_on_gpus(
    choice: DeviceChoice, gpus: list[str], workers: int, expected: list[WorkerDevice]
) -> None:
    assert assign(choice, gpus, workers, cuda_engine=True) == expected


def test_a_gpu_beside_a_cpu_engine_is_left_alone() -> None:
    assert assign(DeviceChoice.AUTO, ["0"], 2, cuda_engine=False) == [CPU_DEVICE, CPU_DEVICE]
    with pytest.raises(UpError, match="CPU build"):
        assign(DeviceChoice.CUDA, ["0"], 2, cuda_engine=False)


def test_a_visible_device_without_a_driver_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert visible_gpus("0") == visible_gpus(None) == []


def test_cuda_without_a_gpu_is_refused() -> None:
    with pytest.raises(UpError, match="no CUDA GPU"):
        assign(DeviceChoice.CUDA, [], 2, cuda_engine=True)


def test_decode_takes_every_core_and_prefill_leaves_it_one() -> None:
    threads = {spec.name: spec.env["OMP_NUM_THREADS"] for spec in specs_of(plan()) if "OMP_NUM_THREADS" in spec.env}
    assert threads == {"prefill-0": "1", "decode-0": "2"}
    crowded = specs_of(plan(prefill=3, decode=3))
    assert {spec.env["OMP_NUM_THREADS"] for spec in crowded if "OMP_NUM_THREADS" in spec.env} == {"1"}


def test_workers_of_a_model_whose_calls_the_gateway_reads_name_no_parser() -> None:
    glm = replace(plan(), model=LocalModel(Path("/models/m"), "m", 4096, 1, ToolFormat.GLM, thinks=True))
    for role in (Role.PREFILL, Role.DECODE):
        worker = next(spec for spec in specs_of(glm) if spec.role is role)
        assert value_of(worker, "--dyn-structural-tag") == "false"
        assert not {"--reasoning-parser", "--dyn-tool-call-parser", "--dyn-reasoning-parser"} & set(worker.argv)
        other = next(spec for spec in specs_of(plan()) if spec.role is role)
        assert not {"--reasoning-parser", "--dyn-structural-tag"} & set(other.argv)
