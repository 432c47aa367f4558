"""One copy of a replicated KV, spread over the ranks that all hold it.

Under latent attention every rank of a tensor- or prefill-context-parallel group has the whole KV, so any rank can store
any chunk. Chunk c belongs to rank c mod W: each rank stores, looks up and loads only its own, W ways in parallel, and
the total memory is that of one copy.

    ownership.py   chunk -> rank
    prefix.py      how much of a prompt all ranks together have, from answers that come at once or one by one
    agreement.py   what ranks tell each other before a load is broadcast, and what follows from it
    broadcast.py   the collective load itself (torch)
    shard_prompt.py, shard_client.py   the same in LMCache's terms: what a rank's server is asked for
    blocks.py      a chunk's KV as one row of bytes, out of the engine's blocks and back (torch)

The law of a load: every rank issues the same collectives in the same order, whatever it found, missed or failed at.
"""
