"""What `up --tiers lmcache` starts and tells the workers, as data."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prime_inference.kv.l2.check import ShardCheck, ShardState
from prime_inference.kv.l2.settings import ShardAddress
from prime_inference.kv.server import StartRefused, check, cure_of_import, refusal
from prime_inference.local.model import LocalModel
from prime_inference.local.mooncake import MooncakePorts, mooncake_config
from prime_inference.local.options import TiersChoice, UpOptions
from prime_inference.local.spec import ProcessSpec, Role
from prime_inference.local.stack import ports_needed, ports_of, specs_of, tier_servers
from prime_inference.local.tiers import SHARD_BYTES, tier_bytes
from tests.unit.local.test_stack import plan, value_of


def with_tiers(shards: int = 3) -> list[ProcessSpec]:
    return specs_of(plan(tiers=TiersChoice.LMCACHE, shards=shards, prefill=2, decode=2))


def test_shards_and_their_server_start_before_the_gateway_and_beside_the_engines() -> None:
    specs = with_tiers()
    assert [spec.name for spec in specs][:6] == ["valkey", "l2-0", "l2-1", "l2-2", "lmcache", "frontend"]
    server = next(spec for spec in specs if spec.role is Role.LMCACHE)
    assert server.after == ("l2-0", "l2-1", "l2-2")
    assert value_of(server, "--chunk-size") == "256"
    assert value_of(server, "--supported-transfer-mode") == "auto"
    assert all(spec.after == () for spec in specs if spec.role in (Role.PREFILL, Role.DECODE))


def test_the_server_is_told_of_every_shard_and_no_port_is_used_twice() -> None:
    specs = with_tiers()
    ports = [value_of(spec, "--port") for spec in specs if spec.role in (Role.L2_SHARD, Role.LMCACHE, Role.VALKEY)]
    server = next(spec for spec in specs if spec.role is Role.LMCACHE)
    urls = json.loads(server.argv[3])["urls"]
    assert [url.rpartition(":")[2] for url in urls] == ports[1:4]
    systems = [spec.env["DYN_SYSTEM_PORT"] for spec in specs if "DYN_SYSTEM_PORT" in spec.env]
    assert len({*ports, *systems, value_of(server, "--http-port")}) == len(ports) + len(systems) + 1


def test_prefill_has_nixl_and_the_tier_and_decode_has_nixl_alone() -> None:
    specs = with_tiers()
    server = next(spec for spec in specs if spec.role is Role.LMCACHE)
    for spec in specs:
        if spec.role not in (Role.PREFILL, Role.DECODE):
            continue
        config = json.loads(value_of(spec, "--kv-transfer-config"))
        if spec.role is Role.DECODE:
            assert config["kv_connector"] == "NixlConnector"
            continue
        assert (config["kv_connector"], config["kv_role"]) == ("MultiConnector", "kv_producer")
        assert config["kv_load_failure_policy"] == "recompute"
        nixl, tier = config["kv_connector_extra_config"]["connectors"]
        assert (nixl["kv_connector"], nixl["kv_role"]) == ("NixlConnector", "kv_producer")
        assert (tier["kv_connector"], tier["kv_load_failure_policy"]) == ("TierConnector", "recompute")
        extra = tier["kv_connector_extra_config"]
        assert extra["lmcache.mp.server_urls"] == [f"tcp://127.0.0.1:{value_of(server, '--port')}"]
        assert extra["prime.gate.bytes_per_s"] > 0
        assert extra["prime.gate.prefill_tokens_per_s"] > 0


def test_shards_forget_what_is_oldest_and_write_nothing_to_disk() -> None:
    shard = next(spec for spec in with_tiers() if spec.role is Role.L2_SHARD)
    assert value_of(shard, "--maxmemory") == str(SHARD_BYTES)
    assert value_of(shard, "--maxmemory-policy") == "allkeys-lru"
    assert value_of(shard, "--save") == ""


def test_without_tiers_nothing_of_them_is_there() -> None:
    assert all(spec.role not in (Role.L2_SHARD, Role.LMCACHE) for spec in specs_of(plan()))
    assert tier_bytes(0, l1_gib=1.0) == 0
    assert tier_bytes(1, l1_gib=2.0) - tier_bytes(1, l1_gib=1.0) == 2**30
    assert ports_of(8000, list(range(ports_needed(2))), 2).tier is None


def with_two_ranks() -> list[ProcessSpec]:
    """A worker of two ranks that hold the same KV, over four shards."""
    one = plan(tiers=TiersChoice.LMCACHE, shards=4, prefill_ranks=2, l1_gib=3.0)
    model = replace(one.model, latent_attention=True)
    servers = tier_servers(one.options, model)
    ports = ports_of(8000, list(range(20_000, 20_000 + ports_needed(2, 4, servers))), 2, servers)
    return specs_of(replace(one, model=model, ports=ports))


def test_ranks_that_hold_the_same_kv_have_a_server_each_with_its_own_shards_and_share_of_l1() -> None:
    specs = {spec.name: spec for spec in with_two_ranks()}
    servers = [specs["lmcache-0"], specs["lmcache-1"]]
    assert [server.after for server in servers] == [("l2-0", "l2-2"), ("l2-1", "l2-3")]
    for server in servers:
        urls = json.loads(server.argv[3])["urls"]
        assert [url.rpartition(":")[2] for url in urls] == [value_of(specs[name], "--port") for name in server.after]
        assert float(value_of(server, "--l1-size-gb")) == 1.5
    names = {value_of(server, "--shm-name") for server in servers}
    assert len(names) == 2
    prefill, decode = specs["prefill-0"], specs["decode-0"]
    assert value_of(prefill, "--tensor-parallel-size") == "2"
    assert "--tensor-parallel-size" not in decode.argv
    tier = json.loads(value_of(prefill, "--kv-transfer-config"))["kv_connector_extra_config"]["connectors"][1]
    assert tier["kv_connector"] == "ShardedTierConnector"
    urls = tier["kv_connector_extra_config"]["lmcache.mp.server_urls"]
    assert urls == [f"tcp://127.0.0.1:{value_of(server, '--port')}" for server in servers]


def test_ranks_of_a_model_whose_kv_is_split_share_one_server() -> None:
    options = UpOptions(tiers=TiersChoice.LMCACHE, prefill_ranks=2)
    assert tier_servers(options, LocalModel(Path("/m"), "m", 4096, 1)) == 1


ADDRESS = ShardAddress("h", 1)
READY = ShardCheck(ADDRESS, ShardState.READY)


@pytest.mark.parametrize(
    ("states", "refused"),
    [
        ([ShardState.READY, ShardState.READY], False),
        ([ShardState.READY, ShardState.UNREACHABLE], False),
        ([ShardState.READY, ShardState.SLOW], False),
        ([ShardState.UNREACHABLE, ShardState.SLOW], True),
        ([ShardState.READY, ShardState.NOT_VALKEY], True),
        ([ShardState.READY, ShardState.REFUSED], True),
    ],
)
def test_the_server_starts_with_shards_away_but_not_with_wrong_ones(states: list[ShardState], refused: bool) -> None:
    checks = [ShardCheck(ADDRESS, state, cure=f"cure of {state}") for state in states]
    because = refusal(checks)
    assert (because is not None) is refused
    if because is not None:
        assert "cure of" in because


def test_a_missing_library_names_its_package() -> None:
    error = ImportError("libibverbs.so.1: cannot open shared object file: No such file or directory")
    assert "libibverbs1" in cure_of_import(error)
    assert "requirements" in cure_of_import(ImportError("No module named 'lmcache'"))


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"urls": "resp://a-{rank}:1"}, "still holds {rank}"),
        ({"urls": ["resp://127.0.0.1:1"], "shard": 1}, "unknown key"),
        ({"urls": ["resp://127.0.0.1:1"]}, "start this Valkey"),
        ({}, "urls"),
    ],
)
def test_l2_parameters_that_cannot_work_stop_the_start_with_the_cure(parameters: dict[str, object], words: str) -> None:
    with pytest.raises(StartRefused, match=words.replace("{", r"\{")):
        check(parameters)


def with_mooncake() -> list[ProcessSpec]:
    one = plan(tiers=TiersChoice.MOONCAKE)
    ports = ports_of(8000, list(range(20_000, 20_000 + ports_needed(2, mooncake=True))), 2, mooncake=True)
    return specs_of(replace(one, ports=ports))


def test_mooncakes_master_and_store_start_and_the_store_gives_the_memory() -> None:
    specs = {spec.name: spec for spec in with_mooncake()}
    master, store = specs["mooncake-master"], specs["mooncake-store"]
    rpc = next(part.partition("=")[2] for part in master.argv if part.startswith("--rpc_port="))
    assert f"--master_server_address=127.0.0.1:{rpc}" in store.argv
    assert store.after == ("mooncake-master",)
    assert all(spec.role not in (Role.L2_SHARD, Role.LMCACHE) for spec in specs.values())
    written = mooncake_config(MooncakePorts(int(rpc), 1, 2, 3))
    assert written["master_server_address"] == f"127.0.0.1:{rpc}"
    assert written["global_segment_size"] == 0


def test_prefill_finds_mooncake_through_its_file_and_decode_has_nixl_alone() -> None:
    specs = {spec.name: spec for spec in with_mooncake()}
    prefill, decode = specs["prefill-0"], specs["decode-0"]
    assert prefill.env["MOONCAKE_CONFIG_PATH"] == "/state/mooncake.json"
    assert "MOONCAKE_CONFIG_PATH" not in decode.env
    tier = json.loads(value_of(prefill, "--kv-transfer-config"))["kv_connector_extra_config"]["connectors"][1]
    assert (tier["kv_connector"], tier["kv_load_failure_policy"]) == ("MooncakeTierConnector", "recompute")
    assert tier["kv_connector_extra_config"]["prime.salt"] == "required"
    assert not any(key.startswith(("lmcache.", "prime.server.")) for key in tier["kv_connector_extra_config"])
