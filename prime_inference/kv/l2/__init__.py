"""Sharded client of N Valkeys for LMCache's multiprocess server.

    settings.py    what LMCache hands over, checked at start
    partition.py   key -> shard, fixed
    wire.py        RESP2 requests and reply headers (pure)
    outcomes.py    what may become of one key
    timings.py     how long batches took (pure)
    client.py      the object LMCache loads (`native_plugin`)
    native.py      its core in C (native/) and the threads that serve it
    portable.py    the same core in Python: reference, and fallback where no C compiler was
    batch.py       who may touch a buffer, and when a batch is complete
    lane.py        the threads of one shard for one kind of work
    exchange.py    one pipelined round trip: requests out, replies into the caller's buffers
    connection.py  one socket, every call under a deadline
    check.py       is every shard there, and how fast is it

The law of this package: **a key is reported as loaded only after its own value, of exactly the buffer's length and
closed by its terminator, lies in that buffer**. Everything else is a miss or an error of that key alone, told within
the deadline, after which nothing here reads or writes the buffer again.
"""
