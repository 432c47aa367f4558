/* What the threads of one L2 client share: keys, batches, lanes. No Python in it, so that a C program can race it under a
 * sanitizer (tests/native/race.c).
 *
 * Who may touch what:
 * - A key's buffer: whoever claimed the key, until it is settled. Claim and settle are one atomic step each.
 * - A queue: under its lane's lock. A window: the one thread that serves its slot.
 * - The lists of batches and the timings: under the pool's lock. No lock is held while another is taken, nor over a call
 *   that waits for a peer.
 * - A batch's memory: everybody who holds it (hold / let_go); each of its keys in a queue or a window holds it once.
 */
#ifndef PRIME_L2_POOL_H
#define PRIME_L2_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* The order of outcomes.py's members; module.c hands it to Python, and a test holds both to it. */
enum operation { LOOKUP, LOAD, STORE, DELETE, OPERATIONS };
enum outcome {
    OK,
    ABSENT,
    WRONG_LENGTH,
    SERVER_ERROR,
    MALFORMED,
    CONNECTION_LOST,
    UNREACHABLE,
    DEADLINE,
    CLOSED,
    OUTCOMES
};
enum state { WAITING, CLAIMED, SETTLED /* and above: SETTLED + outcome */ };

#define WINDOW_KEYS 256 /* taken from the queue at a time */
#define AHEAD_BYTES 4096
#define ALONE (128 * 1024) /* a longer value is asked for or sent when all before it are answered */
#define KINDS 3 /* of lanes: lookups with deletes, loads, stores */
#define MOST_EDGES 31

typedef struct Pool Pool;
typedef struct Batch Batch;

typedef struct Key {
    Batch *batch;
    struct Key *next; /* in its lane's queue */
    const char *head; /* the request, up to its value */
    size_t head_bytes;
    char *value;
    size_t value_bytes;
    size_t line_bytes; /* of the first line of the reply that brings the value */
    uint32_t shard;
    uint32_t losses; /* connections that ended while this key's reply was awaited; its lane's */
    atomic_uchar state;
} Key;

struct Batch {
    Pool *pool;
    uint64_t number;
    enum operation operation;
    double began, deadline; /* CLOCK_MONOTONIC, seconds */
    size_t count;
    Key *keys;
    char *heads;
    atomic_size_t unsettled;
    atomic_size_t holders;
    int complete, expired;        /* under the pool's lock */
    Batch *previous, *next;       /* among the outstanding */
    Batch *next_done, *next_loose; /* complete: not yet drained; buffers not yet given back */
    void *views;                  /* the caller's handles of the buffers */
};

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    Key *first, *last;
    size_t queued, threads;
    double unreachable_until;
} Lane;

/* One connection's state between a window and the next. `keys` from `awaited` on are not answered yet. */
typedef struct {
    int fd;
    enum operation operation;
    Key *keys[WINDOW_KEYS];
    size_t count, awaited;
    size_t prepared;         /* keys before it may be sent: claimed if they are stores, unsettled otherwise */
    size_t sending, sent_of; /* the key being sent, and how much of it has left */
    size_t in_flight;        /* value bytes asked for or sent, and not yet answered */
    enum { LINE, VALUE, TERMINATOR, SKIP } part;
    size_t have;    /* VALUE: bytes in the buffer */
    long long skip; /* SKIP: bytes to read past */
    char ahead[AHEAD_BYTES];
    size_t start, end;
    double limit_for[2], limit_set[2]; /* receive, send: the deadline the kernel was told, and when */
} Exchange;

/* Why an exchange ended. LATE, GARBLED and LOST are the awaited key's. DROP: every key that was taken is settled, but the
 * stream is of no more use. */
enum status { DONE, LATE, GARBLED, LOST, DROP };

typedef struct {
    Lane *lane;
    Exchange exchange;
} Slot;

struct Pool {
    pthread_mutex_t lock;
    pthread_cond_t finished, due;
    size_t waiters;
    int event_fd;
    atomic_int closed;
    uint64_t last_number;
    Batch *outstanding, *done, *last_done, *loose;
    double watched_until;
    size_t shards, lane_count, slot_count, edge_count;
    Lane *lanes;
    Slot *slots;
    atomic_ullong *keys_by;  /* [shard][operation][outcome] */
    atomic_ullong *bytes_by; /* [shard][operation] */
    double edges[MOST_EDGES];
    unsigned long long took[OPERATIONS][MOST_EDGES + 1];
    double total_s[OPERATIONS], slowest_s[OPERATIONS];
};

double now_s(void);

/* batch.c */
Batch *batch_new(Pool *pool, enum operation operation, size_t count, size_t heads_bytes);
void let_go(Batch *batch);
void complete(Batch *batch);
int claim(Key *key);
void release(Key *key);
int is_settled(const Key *key);
int settle(Key *key, enum outcome outcome);
int settle_waiting(Key *key, enum outcome outcome);
int batch_wait(Batch *batch, double timeout_s);

/* exchange.c */
void exchange_attach(Exchange *exchange, int fd);
void exchange_begin(Exchange *exchange);
enum status exchange_run(Exchange *exchange);

/* pool.c */
enum served { WANTS_CONNECTION, WANTS_DROP, IS_CLOSED };

Pool *pool_new(size_t shards, const size_t threads[KINDS], const double *edges, size_t edge_count);
void pool_free(Pool *pool);
void pool_submit(Pool *pool, Batch *batch);
Batch *pool_done(Pool *pool);
Batch *pool_loose(Pool *pool);
void pool_watch(Pool *pool);
void pool_close(Pool *pool);
enum served pool_serve(Pool *pool, Slot *slot, int fd, double *deadline);
void pool_refuse(Slot *slot, double until);
void pool_charge(Slot *slot, enum outcome outcome);
uint32_t crc32_of(const char *bytes, size_t count);

#endif
