import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from prime_inference.local.discovery import DiscoveryKeeper, Key, owner_of, read_key

INSTANCE = json.dumps({"instance_id": 7, "transport": {"tcp": "127.0.0.1:5001/7/dynamo/backend/generate"}})
CARD = json.dumps({"type": "Model", "instance_id": 7, "card_json": {}})


def test_a_key_names_its_owner_by_address_or_by_instance() -> None:
    assert read_key(INSTANCE) == Key(frozenset({5001}), frozenset({7}))
    assert owner_of(read_key(INSTANCE), {5001: "decode-0"}, {}) == "decode-0"
    assert owner_of(read_key(CARD), {}, {7: "decode-0"}) == "decode-0"
    assert owner_of(read_key(CARD), {}, {}) is None


def test_a_key_half_written_names_nobody_yet() -> None:
    assert read_key(INSTANCE[:40]) == Key(frozenset(), frozenset())


def test_keys_of_the_living_stay_fresh_and_those_of_the_dead_go(tmp_path: Path) -> None:
    listening = "import socket,time\ns=socket.socket()\ns.bind(('127.0.0.1',0))\ns.listen()\n"
    worker = subprocess.Popen(
        [sys.executable, "-c", listening + "print(s.getsockname()[1],flush=True)\ntime.sleep(60)"],
        stdout=subprocess.PIPE,
    )
    try:
        assert worker.stdout is not None
        port = int(worker.stdout.readline())
        instance, card, stranger = (tmp_path / name for name in ("v1-instances", "v1-mdc", "v1-other"))
        instance.write_text(INSTANCE.replace("5001", str(port)))
        card.write_text(CARD)
        stranger.write_text("{}")
        long_ago = time.time() - 60
        for path in (instance, card, stranger):
            os.utime(path, (long_ago, long_ago))
        keeper = DiscoveryKeeper(tmp_path)
        keeper.tend({"decode-0": worker.pid})
        assert instance.stat().st_mtime > long_ago + 30
        assert card.stat().st_mtime > long_ago + 30
        assert stranger.stat().st_mtime < long_ago + 30
    finally:
        worker.kill()
        worker.communicate()
    keeper.tend({"decode-0": worker.pid + 1})
    assert not instance.exists()
    assert not card.exists()
    assert stranger.exists()


def test_a_key_that_its_owner_withdrew_does_not_come_back(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        path = tmp_path / "key"
        path.write_text(INSTANCE.replace("5001", str(listener.getsockname()[1])))
        keeper = DiscoveryKeeper(tmp_path)
        keeper.tend({"us": os.getpid()})
        path.unlink()
        keeper.tend({"us": os.getpid()})
        assert not path.exists()
