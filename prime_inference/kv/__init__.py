"""KV tiers: how much a cached prefix is worth, who holds which chunk, and how it is fetched.

    capacity.py   bytes a token, break-even bandwidth, load on a queue (shared with the planner)
    sharding/     chunk -> rank, the prefix all ranks can use, the exchange and broadcast that load it
    gate/         load or recompute: estimates, decision, deadline
    l2/           the sharded Valkey client that LMCache's multiprocess server loads as a native plugin

Decisions take plain values and `now`; sockets, threads and torch are in the modules that say so in their first line.
"""
