"""The walk itself: one prompt after the other over every path of the tier (under_load.py says which)."""

import json
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.kv_tiers.fidelity import text_of
from benchmarks.kv_tiers.shard_moments import Shards, victim_and_holder
from benchmarks.kv_tiers.steady_load import HUNG_AFTER_S
from benchmarks.kv_tiers.under_load_summary import BESIDE_L2, Way
from tests.support.stack import Stack

SHARDS = 8
SENTENCES = 48
"""1,114 tokens: four whole chunks."""
ANSWER_TOKENS = 12
TENANTS = ("a", "b", "c", "d")
IN_L1 = 3
"""Prompts whose chunks L1 surely holds beside those of the load."""
EVICTED_BY_MEMORY = 2
KILLED = 3
LONG_SHARD_BYTES = 512 * 1024 * 1024
"""In place of 256 MiB, of which eight prompts of 31 chunks take 195 MB a shard on average, and more of some."""
HEALED_WITHIN_S = 300.0
STORED_WITHIN_S = 5.0
"""Stores go on after the answer."""
IN_LOAD_S = 0.3
"""From the end of a lookup to the kill: the load is on its way by then, and far from its deadline of 2 s."""
PAGES = ("prime_kv_", "vllm:prime_kv_")


Held = dict[int, dict[bytes, int]]


class Walk:
    def __init__(self, stack: Stack, names: Sequence[str], began: float, sentences: int = SENTENCES) -> None:
        """`began`: zero of the samples' clock. `sentences`: of each prompt."""
        self.stack = stack
        self.names = names
        self.rows: list[dict[str, Any]] = []
        self.pages: list[dict[str, Any]] = []
        """What the tier's counters said, before each kill of the process that counts."""
        self.replaced: list[dict[str, Any]] = []
        """When processes were away."""
        self._began = began
        self._sentences = sentences
        self.shards = Shards([self._port_of(f"l2-{shard}") for shard in range(SHARDS)], self._pid_of_shard)

    def run(self) -> None:
        for tenant in TENANTS:
            for name in self.names:
                self.ask(Way.COLD, name, tenant)
                if tenant == "a":
                    self.ask(Way.OWN_CACHE, name, tenant)
        time.sleep(STORED_WITHIN_S)
        self.replace("prefill-0")
        for name in self.names[-IN_L1:]:  # stored last
            self.ask(Way.L1, name, "d")
        self.replace("prefill-0", "lmcache")
        for name in self.names:
            self.ask(Way.L2, name, "a")
            self.ask(Way.COLD, name, BESIDE_L2)
        for name in self.names:
            self.remove(Way.EVICTED, name, "b", self.shards.evict)
        # A shard's death and an eviction by memory take other prompts' chunks along, so that later ones find less.
        for name in self.names[-EVICTED_BY_MEMORY:]:
            self.remove(Way.EVICTED_BY_MEMORY, name, "c", self.shards.evict_by_memory)
        killed: set[int] = set()
        for name in self.names[:KILLED]:
            killed |= self.kill_in_load(name, "c", frozenset(killed))
        for name in self.names:
            self.ask(Way.RESTARTED, name, "d")
        self.read_pages("prefill-0", "lmcache")

    def run_once_each(self) -> None:
        """For prompts so long that the shards hold each only once: no copies for later paths. Before each path the engine and
        LMCache's server are replaced, so that only L2 can have it; what a path took away was computed and stored again."""
        self.shards.allow(LONG_SHARD_BYTES)
        for name in self.names:
            self.ask(Way.COLD, name, "a")
        time.sleep(STORED_WITHIN_S)
        self.replace("prefill-0")
        for name in self.names:
            self.ask(Way.L1, name, "a")
        self.replace("prefill-0", "lmcache")
        for name in self.names:
            self.ask(Way.L2, name, "a")
        self.replace("prefill-0", "lmcache")
        for name in self.names:
            self.remove(Way.EVICTED, name, "a", self.shards.evict)
        self.replace("prefill-0", "lmcache")
        killed: set[int] = set()
        for name in self.names[:KILLED]:
            killed |= self.kill_in_load(name, "a", frozenset(killed))
        self.read_pages("prefill-0", "lmcache")

    # ── asking ──

    def ask(self, way: Way, name: str, tenant: str, held: Held | None = None) -> dict[str, Any]:
        """`held`: what the shards hold of it, by one who knows already and has stopped one of them."""
        told = self._answer(name, tenant, self.shards.keys_of(salt_of(name, tenant)) if held is None else held)
        row = {"path": way, "name": name, "tenant": tenant, **told}
        self.rows.append(row)
        print(f"{way:18} {name:6} {tenant}  {json.dumps(told)}", flush=True)
        return row

    def _answer(self, name: str, tenant: str, before: Held) -> dict[str, Any]:
        """`from_l2`: chunks that the shards were asked for and had, by the keys' own time since they were last read."""
        at = time.monotonic()
        told: dict[str, Any] = {"at_s": round(at - self._began, 3), "status": None, "hung": False}
        prompt = text_of(name, self._sentences)
        body = {"model": self.stack.model, "prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0}
        try:
            answer = httpx.post(
                f"{self.stack.running['frontend_url']}/v1/completions",
                json=body,
                headers={"x-tenant-id": tenant_of(name, tenant)},
                timeout=HUNG_AFTER_S,
            )
            told["status"] = answer.status_code
            if answer.status_code == 200:
                usage = answer.json()["usage"]
                told["text"] = answer.json()["choices"][0]["text"]
                told["prompt_tokens"] = usage["prompt_tokens"]
                told["cached_tokens"] = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
            else:
                told["error"] = answer.text[:300]
        except httpx.TimeoutException:
            told["hung"] = True
        except httpx.TransportError as error:
            told["error"] = type(error).__name__
        told["seconds"] = round(time.monotonic() - at, 3)
        after = self.shards.keys_of(salt_of(name, tenant))
        told["in_l2"] = sum(map(len, before.values()))
        told["from_l2"] = sum(
            idle < before[shard][key]
            for shard, keys in after.items()
            for key, idle in keys.items()
            if key in before.get(shard, {})
        )
        return told

    # ── between lookup and load ──

    def remove(self, way: Way, name: str, tenant: str, removed: Callable[[int, Sequence[bytes]], int]) -> None:
        """Remove the victim's chunks of this prompt when the lookup has found them, then let the load come."""
        held = self.shards.keys_of(salt_of(name, tenant))
        chosen = victim_and_holder(held)
        if chosen is None:
            print(f"{way} {name}: fewer than two shards hold it", flush=True)
            return
        victim = chosen[0]
        keys = list(held[victim])
        self._ask_with_lookup_held(way, name, tenant, held, chosen, lambda: removed(victim, keys), lambda: None)

    def kill_in_load(self, name: str, tenant: str, spared: frozenset[int]) -> set[int]:
        """Stop a shard when the lookup has found its chunks, and kill it with the load in it; which it was, if any."""
        held = self.shards.keys_of(salt_of(name, tenant))
        chosen = victim_and_holder(held, spared)
        if chosen is None:
            print(f"{Way.KILLED} {name}: no shard left to kill", flush=True)
            return set()
        victim, keys = chosen[0], list(held[chosen[0]])
        dead = self.stack.pid_of(f"l2-{victim}")

        def stop() -> int:
            self.shards.send(victim, signal.SIGSTOP)
            return len(keys)

        def kill() -> None:
            time.sleep(IN_LOAD_S)
            self.stack.kill(f"l2-{victim}")

        self._ask_with_lookup_held(Way.KILLED, name, tenant, held, chosen, stop, kill)
        self.stack.until(lambda: self.stack.is_back(f"l2-{victim}", dead), HEALED_WITHIN_S, "shard back")
        return {victim}

    def _ask_with_lookup_held(
        self,
        way: Way,
        name: str,
        tenant: str,
        held: Held,
        victim_holder: tuple[int, int],
        at_moment: Callable[[], int],
        in_load: Callable[[], None],
    ) -> None:
        """`lost`: what the client says of this shard's loads that were not answered with a value, because of this one."""
        victim, holder = victim_holder
        lost_before = self._lost(victim)
        self.shards.log_commands(victim)
        self.shards.send(holder, signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(self.ask, way, name, tenant, held)
            moment: dict[str, Any] = {"victim": victim, "holder": holder, "touched": 0}
            try:
                moment["looked_up_after_s"] = self.shards.until_answered(victim, list(held[victim]), asking.done)
                began = time.monotonic()
                if moment["looked_up_after_s"] is not None:
                    moment["touched"] = at_moment()
                moment["held_s"] = time.monotonic() - began
            finally:
                self.shards.send(holder, signal.SIGCONT)
            if moment["looked_up_after_s"] is not None:
                in_load()
            row = asking.result()
        moment["lost"] = {end: count - lost_before.get(end, 0) for end, count in self._lost(victim).items()}
        row["moment"] = moment
        print(f"{'':18} {name:6}    {json.dumps(moment)}", flush=True)

    # ── the stack ──

    def replace(self, *processes: str) -> None:
        """Kill them and wait until new ones serve."""
        self.read_pages(*processes)
        dead = {name: self.stack.kill(name) for name in processes}
        began = time.monotonic()
        self.stack.until(
            lambda: all(self.stack.is_back(name, pid) for name, pid in dead.items()), HEALED_WITHIN_S, "started again"
        )
        self.stack.until(lambda: self.stack.answers(30), HEALED_WITHIN_S, "served again")
        seconds = round(time.monotonic() - began, 3)
        self.replaced.append({"processes": processes, "at_s": round(began - self._began, 3), "seconds": seconds})
        print(f"replaced {', '.join(processes)} in {seconds:.1f} s", flush=True)

    def read_pages(self, *processes: str) -> None:
        """Keep what these say of the tier."""
        for name in processes:
            self.pages.append(
                {"process": name, "at_s": round(time.monotonic() - self._began, 3), "page": self._page(name)}
            )

    def _page(self, process: str) -> list[dict[str, Any]]:
        running = self.stack.running
        url = running["lmcache_urls"][0] if process == "lmcache" else running["worker_urls"][process]
        text = httpx.get(f"{url}/metrics", timeout=30).text
        return [
            {"name": sample.name, "labels": dict(sample.labels), "value": sample.value}
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name.startswith(PAGES) and not sample.name.endswith("_created")
        ]

    def _lost(self, shard: int) -> dict[str, float]:
        return {
            row["labels"]["outcome"]: row["value"]
            for row in self._page("lmcache")
            if row["name"] == "prime_kv_l2_keys_total"
            and row["labels"]["operation"] == "load"
            and row["labels"]["outcome"] != "ok"
            and row["labels"]["shard"].endswith(f":{self.shards.ports[shard]}")
        }

    def _pid_of_shard(self, shard: int) -> int:
        return self.stack.pid_of(f"l2-{shard}")

    def _port_of(self, process: str) -> int:
        command = psutil.Process(self.stack.pid_of(process)).cmdline()
        if "--port" in command:
            return int(command[command.index("--port") + 1])
        return int(command[0].rpartition(":")[2])  # a Valkey writes its address over its command line


def tenant_of(name: str, tenant: str) -> str:
    """A tenant a prompt and copy: no two share anything."""
    return f"{name.lower()}-{tenant}"


def salt_of(name: str, tenant: str) -> str:
    """As it ends the tier's keys: Dynamo puts its own word before the tenant."""
    return f"dynamo-cache-salt:{tenant_of(name, tenant)}"
