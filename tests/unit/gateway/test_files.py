from pathlib import Path

import pytest

from gateway.accounts.keys import KeysFileError, load_keys
from gateway.fleet.registry import FleetFileError, load_fleet
from gateway.fleet.reload import FileWatch, ReloadResult
from gateway.fleet.snapshot import Snapshot
from gateway.settings import SettingsError, load_settings
from prime_inference.keys import hash_of, new_key

FLEET = """
models: [{name: m, deployments: [d]}]
deployments: [{name: d, frontends: ["http://127.0.0.1:1"]}]
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    return path


def test_a_fleet_file_becomes_a_snapshot(tmp_path: Path) -> None:
    fleet = load_fleet(write(tmp_path, FLEET))
    assert fleet.models["m"].deployments[0].frontends == ("http://127.0.0.1:1",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (FLEET.replace("deployments: [d]", "deployments: [e]"), "unknown deployments: e"),
        (FLEET.replace("{name: m,", "{name: m, colour: red,"), "colour"),
        (FLEET.replace("http://127.0.0.1:1", "ftp://x"), "frontends"),
        (FLEET.replace("127.0.0.1:1", "127.0.0.1:1/v1"), "nothing else"),
        (FLEET.replace("127.0.0.1:1", "user:word@127.0.0.1:1"), "nothing else"),
        (FLEET + "sites: [{name: s, valkey: {address: '127.0.0.1:99999'}}]", "99999 is no port"),
        (FLEET + "sites: [{name: s, valkey: {sentinels: ['a..b:1'], primary_name: p}}]", "no host's name"),
        ("models: [", "not YAML"),
        ("", "wrong at the file"),
        (FLEET + "extra: 1", "extra"),
    ],
)
def test_a_wrong_fleet_file_is_refused_with_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(FleetFileError, match=words):
        load_fleet(write(tmp_path, text))


async def test_a_snapshot_that_cannot_be_taken_is_an_alarm_and_the_files_are_looked_at_again(tmp_path: Path) -> None:
    fleet, keys = write(tmp_path, FLEET), tmp_path / "keys.yaml"
    keys.write_text("keys: []")
    told: list[ReloadResult] = []
    taken: list[Snapshot] = []

    async def take(snapshot: Snapshot) -> None:
        if not told:
            raise OverflowError("a bug of ours")
        taken.append(snapshot)

    watch = FileWatch(fleet, keys, take, told.append)
    for text in (FLEET + "sites: []", FLEET + "sites:   []"):
        fleet.write_text(text)
        await watch.look()
    assert told == [ReloadResult.REFUSED, ReloadResult.TAKEN]
    assert len(taken) == 1


def test_a_missing_fleet_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FleetFileError, match="no-such-file"):
        load_fleet(tmp_path / "no-such-file")


def test_a_key_is_found_by_its_hash_only(tmp_path: Path) -> None:
    key = new_key()
    ring = load_keys(write(tmp_path, f"keys: [{{name: k, tenant: t, sha256: {hash_of(key)}}}]"))
    caller = ring.caller_of(key)
    assert caller is not None
    assert caller.tenant == "t"
    for wrong in ("", key[:-1], key + "x", "x" * 10_000, hash_of(key), "\udcff"):
        assert ring.caller_of(wrong) is None


def test_a_wrong_keys_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeysFileError, match="sha256"):
        load_keys(write(tmp_path, "keys: [{name: k, tenant: t, sha256: abc}]"))


def settings(**more: str) -> dict[str, str]:
    files = {"PRIME_GATEWAY_FLEET_FILE": "f", "PRIME_GATEWAY_KEYS_FILE": "k", "PRIME_GATEWAY_SECRET": "s"}
    return {**files, **{f"PRIME_GATEWAY_{name}": value for name, value in more.items()}}


def test_settings_are_read_from_the_environment() -> None:
    assert load_settings(settings(PORT="9000")).port == 9000


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (settings(PROT="9000"), "unknown settings: PRIME_GATEWAY_PROT"),
        (settings(PORT="99999"), "PRIME_GATEWAY_PORT"),
        ({}, "PRIME_GATEWAY_FLEET_FILE"),
        (settings(LOG_LEVEL="loud"), "PRIME_GATEWAY_LOG_LEVEL"),
    ],
)
def test_a_wrong_setting_stops_the_start_by_name(environment: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load_settings(environment)


def test_a_secret_is_not_shown() -> None:
    assert "hush" not in repr(load_settings({**settings(), "PRIME_GATEWAY_SECRET": "hush"}))
