"""What the canary's answers say of a node, and that the agent believes it."""

from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.health.canary import Ending, Pair
from prime_inference.health.canary_client import FrontendError, canary_workers
from prime_inference.health.canary_rounds import PARTNERS, WRONG, CanaryWorker, judged, questions
from prime_inference.health.canary_watch import CanaryWatch
from prime_inference.health.faults import State
from prime_inference.health.settings import HealthSettingsError, load_health_settings
from prime_inference.health.verdicts import Check, Finding, Verdict
from tests.unit.health.node import Node, agent_of, port

CHECKS = ("canary_tokens", "canary_transfer")
HERE = frozenset({"10.0.0.1"})


def fleet(prefill: int, decode: int) -> list[CanaryWorker]:
    """Worker n of each pool on node n + 1."""
    pools = [("prefill", prefill, 100), ("decode", decode, 200)]
    return [CanaryWorker(base + n, role, f"10.0.0.{n + 1}") for role, size, base in pools for n in range(size)]


def verdicts(found: list[Finding]) -> dict[tuple[str, str], Verdict]:
    return {(finding.entity, finding.check.value): finding.verdict for finding in found}


@given(st.integers(0, 5), st.integers(0, 5), st.data())
def test_a_broken_worker_is_found_on_its_node_and_only_there(prefill: int, decode: int, data: st.DataObject) -> None:
    workers = fleet(prefill, decode)
    broken = data.draw(st.sets(st.sampled_from(workers), max_size=1)) if workers else set()
    bad = {worker.instance for worker in broken}
    for node in {worker.host for worker in workers}:
        here = frozenset({node})
        asked = questions(workers, here)
        assert len(asked) <= 4 * PARTNERS
        endings = {p: Ending.WRONG_TOKENS if {p.prefill, p.decode} & bad else Ending.RIGHT for p in asked}
        for finding in judged(workers, here, endings):
            if finding.verdict is Verdict.BAD:
                assert finding.entity in {worker.role for worker in broken if worker.host == node}
        mine = [worker for worker in broken if worker.host == node]
        partners = {"prefill": decode, "decode": prefill}
        peers = {"prefill": prefill, "decode": decode}
        for worker in mine:
            if partners[worker.role] >= 1 and peers[worker.role] >= 2:
                assert verdicts(judged(workers, here, endings))[worker.role, "canary_tokens"] is Verdict.BAD


@given(st.lists(st.sampled_from(list(Ending)), min_size=8, max_size=8))
def test_without_a_proof_of_the_partner_nothing_is_blamed(drawn: list[Ending]) -> None:
    workers = fleet(2, 2)
    asked = questions(workers, HERE)
    endings = dict(zip(asked, drawn, strict=False))
    for finding in judged(workers, HERE, endings):
        if finding.verdict is Verdict.BAD:
            own = [
                e for p, e in endings.items() if (100 if finding.entity == "prefill" else 200) in (p.prefill, p.decode)
            ]
            assert all(ending in WRONG for ending in own)
            assert Ending.RIGHT in endings.values()


def test_an_error_is_a_fault_of_the_transfer_and_a_refusal_says_nothing() -> None:
    workers = fleet(2, 2)
    endings = {pair: Ending.BROKEN if pair.prefill == 100 else Ending.RIGHT for pair in questions(workers, HERE)}
    said = verdicts(judged(workers, HERE, endings))
    assert said["prefill", "canary_transfer"] is Verdict.BAD
    assert said["prefill", "canary_tokens"] is Verdict.UNKNOWN
    refused = dict.fromkeys(questions(workers, HERE), Ending.REFUSED)
    assert set(verdicts(judged(workers, HERE, refused)).values()) == {Verdict.UNKNOWN}


def test_the_only_pair_there_is_accuses_nobody() -> None:
    workers = fleet(1, 1)
    assert questions(workers, HERE) == [Pair(100, 200)]
    found = judged(workers, HERE, {Pair(100, 200): Ending.WRONG_TOKENS})
    assert set(verdicts(found).values()) == {Verdict.UNKNOWN}


def test_an_agent_fails_its_node_for_a_canary_and_heals_it_after_quiet() -> None:
    node = Node((), (port(),))
    agent = agent_of(node, clear_after_s=10)
    wrong = Finding(Check.CANARY_TOKENS, "decode", Verdict.BAD, "c8: wrong_tokens")
    agent.canary = lambda: (wrong,)
    agent.round()
    assert agent.state() is State.FAILED
    agent.canary = tuple
    node.at += 60
    agent.round()
    assert agent.state() is State.FAILED, "silence heals nothing"
    agent.canary = lambda: (Finding(Check.CANARY_TOKENS, "decode", Verdict.OK),)
    for _ in range(4):
        node.at += 5
        agent.round()
    assert agent.state() is State.HEALTHY


def test_a_worker_that_left_the_node_takes_its_fault_along() -> None:
    """Else nothing could ever ask again: the node is tainted, so that no worker comes back to be asked."""
    elsewhere = judged(fleet(2, 2), frozenset(), {})
    assert set(verdicts(elsewhere)) == {(r, c) for r in ("prefill", "decode") for c in CHECKS}
    assert set(verdicts(elsewhere).values()) == {Verdict.OK}
    workers = [worker for worker in fleet(2, 2) if worker.instance != 200]
    endings = dict.fromkeys(questions(workers, HERE), Ending.RIGHT)
    assert {f.detail for f in judged(workers, HERE, endings) if f.entity == "decode"} == {"no worker here"}


def scripted(answer: object) -> httpx.Client:
    return httpx.Client(base_url="http://f", transport=httpx.MockTransport(lambda _: httpx.Response(200, json=answer)))


def test_workers_are_read_as_dynamo_lists_them() -> None:
    listed = [
        {"component": "backend", "endpoint": "generate", "instance_id": 7, "transport": {"tcp": "10.0.0.2:35499/x/y"}},
        {"component": "prefill", "endpoint": "generate", "instance_id": 8, "transport": {"tcp": "[fd00::1]:1/x"}},
        {"component": "prefill", "endpoint": "clear_kv_blocks", "instance_id": 8, "transport": {"tcp": "h:1/x"}},
        {"component": "router", "endpoint": "generate", "instance_id": 9, "transport": "nats"},
    ]
    assert canary_workers(scripted({"instances": listed})) == [
        CanaryWorker(7, "decode", "10.0.0.2"),
        CanaryWorker(8, "prefill", "fd00::1"),
    ]
    with pytest.raises(FrontendError):
        canary_workers(scripted({"instances": [{"endpoint": "generate"}]}))


def answering(request: httpx.Request) -> httpx.Response:
    """Two pairs of workers; decode worker 200 says something else than the others."""
    if request.url.path == "/health":
        listed = [
            {
                "component": "prefill" if worker.role == "prefill" else "backend",
                "endpoint": "generate",
                "instance_id": worker.instance,
                "transport": {"tcp": f"{worker.host}:1/x"},
            }
            for worker in fleet(2, 2)
        ]
        return httpx.Response(200, json={"instances": listed})
    prefill = int(request.headers["x-dynamo-prefill-instance-id"])
    decode = int(request.headers["x-dynamo-worker-instance-id"])
    said = {"prefill_worker_id": prefill, "decode_worker_id": decode}
    text = "garbage" if decode == 200 else "two, three, five"
    return httpx.Response(200, json={"choices": [{"message": {"content": text}}], "nvext": {"worker_id": said}})


@pytest.mark.parametrize(("node", "bad"), [("10.0.0.1", {"decode"}), ("10.0.0.2", set())])
def test_over_http_it_names_the_node_with_the_worker_that_answers_wrongly(node: str, bad: set[str]) -> None:
    watch = CanaryWatch("http://f", "m", lambda: frozenset({node}), 60)
    watch._http = httpx.Client(base_url="http://f", transport=httpx.MockTransport(answering))
    watch._golden = "two, three, five"
    assert watch.findings() == ()
    watch.look()
    assert {f.entity for f in watch.findings() if f.verdict is Verdict.BAD} == bad


def watching(node: str, said: dict[str, str]) -> CanaryWatch:
    """Of a fleet whose every pair says `said["text"]`, but for what decode worker 200 says."""

    def answer(request: httpx.Request) -> httpx.Response:
        usual = answering(request)
        text = usual.text.replace("garbage", said.get("200", "two, three, five"))
        return httpx.Response(200, text=text.replace("two, three, five", said["text"]))

    watch = CanaryWatch("http://f", "m", lambda: frozenset({node}), 60)
    watch._http = httpx.Client(base_url="http://f", transport=httpx.MockTransport(answer))
    return watch


def test_a_node_whose_workers_left_says_so_without_a_golden_answer() -> None:
    watch = watching("10.0.0.9", {"text": "2, 3, 5"})
    watch.look()
    assert {f.verdict for f in watch.findings()} == {Verdict.OK}


def test_another_model_under_the_same_name_is_learned_when_nobody_knows_the_former() -> None:
    said = {"text": "2, 3, 5"}
    watch = watching("10.0.0.1", said)
    for said["text"] in ("2, 3, 5", "two and three"):
        watch.look()
        assert {f.verdict for f in watch.findings()} == {Verdict.OK}
    said["200"] = "garbage"
    watch.look()
    assert {f.entity for f in watch.findings() if f.verdict is Verdict.BAD} == {"decode"}, (
        "one that differs teaches nobody"
    )


def test_a_frontend_that_is_gone_leaves_no_findings(tmp_path: Path) -> None:
    watch = CanaryWatch("http://127.0.0.1:1", "m", lambda: HERE, 60)
    watch.look()
    assert watch.findings() == ()


def test_half_a_canary_stops_the_start() -> None:
    with pytest.raises(HealthSettingsError, match="canary_model"):
        load_health_settings({"PRIME_HEALTH_NODE": "n", "PRIME_HEALTH_CANARY_FRONTEND": "http://f"})
