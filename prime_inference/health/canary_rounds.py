"""Which pairs a node's agent asks, and what the answers say of its own workers: pure.

A wrong answer says that a pair is broken, not which half. So a node's worker is asked with a few partners, and the same
partners with a peer of it on another node: wrong with every partner, while one of these partners is right with the peer,
is the node's own fault. Anything else says nothing of the node. The number of questions does not grow with the fleet.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prime_inference.health.canary import Ending, Pair
from prime_inference.health.verdicts import Check, Finding, Severity, Verdict

PARTNERS = 2
"""Two that fail together by chance of their own are rare; more would be load."""

ROLES = ("prefill", "decode")

WRONG = frozenset({Ending.WRONG_TOKENS, Ending.BROKEN, Ending.LATE})


@dataclass(frozen=True)
class CanaryWorker:
    """As the frontend lists it."""

    instance: int
    role: str
    """prefill or decode"""
    host: str


def _pair(role: str, worker: int, partner: int) -> Pair:
    return Pair(worker, partner) if role == "prefill" else Pair(partner, worker)


def _tests(
    workers: Iterable[CanaryWorker], here: frozenset[str]
) -> Iterable[tuple[CanaryWorker, list[int], int | None]]:
    """Each worker of this node, its partners, and the peer on another node that is asked with them."""
    every = sorted(workers, key=lambda worker: worker.instance)
    for mine in every:
        if mine.host not in here:
            continue
        # Partners elsewhere first: with one of this node, a fault of the node would look like the partner's.
        others = [worker for worker in every if worker.role != mine.role]
        partners = sorted(others, key=lambda worker: worker.host in here)[:PARTNERS]
        peers = [worker for worker in every if worker.role == mine.role and worker.host not in here]
        yield mine, [partner.instance for partner in partners], peers[0].instance if peers else None


def questions(workers: Iterable[CanaryWorker], here: frozenset[str]) -> list[Pair]:
    asked: dict[Pair, None] = {}
    for mine, partners, peer in _tests(workers, here):
        for partner in partners:
            asked[_pair(mine.role, mine.instance, partner)] = None
            if peer is not None:
                asked[_pair(mine.role, peer, partner)] = None
    return list(asked)


def judged(workers: Iterable[CanaryWorker], here: frozenset[str], endings: Mapping[Pair, Ending]) -> list[Finding]:
    """Two findings a role: of its tokens, and of its transfers. The worst of this node's workers speaks."""
    found: dict[tuple[Check, str], Finding] = {}
    for mine, partners, peer in _tests(workers, here):
        own = {partner: endings[_pair(mine.role, mine.instance, partner)] for partner in partners}
        proven = [p for p in partners if peer is not None and endings[_pair(mine.role, peer, p)] is Ending.RIGHT]
        for finding in _of_worker(mine, own, bool(proven)):
            known = found.get(finding.key)
            if known is None or _rank(finding.verdict) > _rank(known.verdict):
                found[finding.key] = finding
    for role in ROLES:
        for check in (Check.CANARY_TOKENS, Check.CANARY_TRANSFER):
            # What was wrong went with the worker, and none can be asked. Unknown would hold the taint for ever, and the taint
            # the next worker off.
            found.setdefault((check, role), Finding(check, role, Verdict.OK, "no worker here"))
    return list(found.values())


def _of_worker(mine: CanaryWorker, own: Mapping[int, Ending], partner_proven: bool) -> list[Finding]:
    tokens = transfer = Verdict.UNKNOWN
    if own and all(ending in WRONG for ending in own.values()):
        if partner_proven and Ending.WRONG_TOKENS in own.values():
            tokens = Verdict.BAD
        elif partner_proven:
            transfer = Verdict.BAD
    elif Ending.RIGHT in own.values():
        # Right with one partner: what is wrong with another is not this worker's.
        tokens = transfer = Verdict.OK
    detail = f"{mine.instance:x}: {', '.join(sorted({ending.value for ending in own.values()}))}"
    return [
        Finding(Check.CANARY_TOKENS, mine.role, tokens, detail, Severity.FATAL),
        Finding(Check.CANARY_TRANSFER, mine.role, transfer, detail, Severity.FATAL),
    ]


def _rank(verdict: Verdict) -> int:
    return (Verdict.UNKNOWN, Verdict.OK, Verdict.BAD).index(verdict)
