import re

import pytest

from prime_inference.kv.l2.partition import shard_of
from prime_inference.kv.l2.settings import L2SettingsError, ShardAddress, parse_settings


def test_a_template_names_every_shard() -> None:
    settings = parse_settings("resp://valkey-{shard}.kv:6379", shards=3)
    assert settings.shards == tuple(ShardAddress(f"valkey-{number}.kv", 6379) for number in range(3))


def test_a_template_may_number_the_ports() -> None:
    assert [shard.port for shard in parse_settings("resp://127.0.0.1:710{shard}", shards=2).shards] == [7100, 7101]


def test_the_password_comes_from_the_environment_and_never_from_the_parameters() -> None:
    settings = parse_settings("resp://a:1", password_env="KV_PASSWORD", environment={"KV_PASSWORD": "secret"})
    assert settings.password == "secret"


@pytest.mark.parametrize(
    ("params", "cure"),
    [
        ({"urls": "resp://valkey-{rank}:6379"}, "give each server the URL of its own shard"),
        ({"urls": "resp://valkey-{shard}:6379"}, "shards=N"),
        ({"urls": "resp://valkey:6379", "shards": 8}, "put {shard} where"),
        ({"urls": []}, "at least one"),
        ({"urls": ["resp://a:1"], "shards": 2}, "make them agree"),
        ({"urls": ["resp://a:1", "resp://a:1"]}, "another Valkey"),
        ({"urls": "resp://a:1", "shards": 0}, "at least 1"),
        ({"urls": "http://a:1"}, "scheme must be one of"),
        ({"urls": "resp://a"}, "resp://host:port"),
        ({"urls": "resp://a:99999"}, "65535"),
        ({"urls": "resp://user:pw@a:1"}, "credentials apart"),
        ({"urls": "resp://" + "x" * 64 + ":1"}, "host name"),
        ({"urls": "resp://a:1", "load_timeout_s": 0}, "load_timeout_s must be a positive"),
        ({"urls": "resp://a:1", "load_connections": 1.5}, "whole number"),
        ({"urls": "resp://a:1", "load_timeout": 1}, "unknown key 'load_timeout'; allowed: urls"),
        ({"urls": "resp://a:1", "password_env": "NOT_SET", "environment": {}}, "export it"),
    ],
)
def test_a_bad_setting_is_refused_with_its_cure(params: dict[str, object], cure: str) -> None:
    with pytest.raises(L2SettingsError, match=re.escape(cure)):
        parse_settings(**params)  # type: ignore[arg-type]


def test_every_shard_holds_about_its_share_of_keys() -> None:
    counts = [0] * 8
    for number in range(8_000):
        counts[shard_of(f"model@00000000@0@{number:064x}".encode(), 8)] += 1
    assert min(counts) > 900
    assert max(counts) < 1_100


def test_the_partition_is_the_same_in_every_process_and_release() -> None:
    assert [shard_of(key, 8) for key in (b"a", b"b", b"model@0@0@ff")] == [3, 1, 2]
