/* Lanes, deadlines and completions of one client (lane.py and client.py's threads, in C).
 *
 * A thread of Python serves one slot, that is one connection of one lane: pool_serve takes windows of keys from the lane's
 * queue and exchanges them until something is to be decided that is Python's: to open a connection, to drop one, to end.
 * So a batch whose connections are open passes from the submit call to its completion without the interpreter's lock.
 */
#define _GNU_SOURCE
#include "pool.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_TRIED 2 /* one that died while idle shows it at the next request; on a second, fresh one, it is the shard */
/* Small values are sent in flights, so one connection is kept busy, and a second thread for a few of them costs more than it
 * saves: a window is long, and a batch wakes a thread for every so many bytes. Values that travel alone leave their connection
 * idle for a round trip, which other connections fill: all threads are woken, and each takes few at a time, so that the
 * last ones end together. With shares of 8 MiB of values of 1 MiB, the last of three threads was alone for a third of the
 * batch. */
#define WINDOW_BYTES (16 * 1024 * 1024)
#define SHARE_BYTES (8 * 1024 * 1024) /* with this much in it a window takes no more than its share of the queue */
#define WAKE_BYTES (16 * 1024 * 1024)
#define TURN_BYTES (1024 * 1024)

/* zlib's; four bits at a time, for which the table is short enough to write down. */
uint32_t crc32_of(const char *bytes, size_t count) {
    static const uint32_t NIBBLES[16] = {0x00000000, 0x1DB71064, 0x3B6E20C8, 0x26D930AC, 0x76DC4190, 0x6B6B51F4,
                                         0x4DB26158, 0x5005713C, 0xEDB88320, 0xF00F9344, 0xD6D6A3E8, 0xCB61B38C,
                                         0x9B64C2B0, 0x86D3D2D4, 0xA00AE278, 0xBDBDF21C};
    uint32_t crc = ~0u;
    for (size_t i = 0; i < count; i++) {
        crc ^= (unsigned char)bytes[i];
        crc = (crc >> 4) ^ NIBBLES[crc & 15];
        crc = (crc >> 4) ^ NIBBLES[crc & 15];
    }
    return ~crc;
}

/* Deadlines are on the monotonic clock, and so must be the waits. */
static void new_condition(pthread_cond_t *condition) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* Slots are in the order of kinds, then shards, then threads. NULL: no memory, or no eventfd. */
Pool *pool_new(size_t shards, const size_t threads[KINDS], const double *edges, size_t edge_count) {
    Pool *pool = calloc(1, sizeof(Pool));
    if (pool == NULL) return NULL;
    pool->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pool->shards = shards;
    pool->lane_count = shards * KINDS;
    for (size_t kind = 0; kind < KINDS; kind++) pool->slot_count += shards * threads[kind];
    pool->lanes = calloc(pool->lane_count, sizeof(Lane));
    pool->slots = calloc(pool->slot_count, sizeof(Slot));
    pool->keys_by = calloc(shards * OPERATIONS * OUTCOMES, sizeof(atomic_ullong));
    pool->bytes_by = calloc(shards * OPERATIONS, sizeof(atomic_ullong));
    pool->edge_count = edge_count;
    for (size_t edge = 0; edge < edge_count; edge++) pool->edges[edge] = edges[edge];
    pool->watched_until = INFINITY;
    atomic_init(&pool->closed, 0);
    pthread_mutex_init(&pool->lock, NULL);
    new_condition(&pool->finished);
    new_condition(&pool->due);
    if (pool->event_fd < 0 || !pool->lanes || !pool->slots || !pool->keys_by || !pool->bytes_by) {
        pool->lane_count = 0;
        pool_free(pool);
        return NULL;
    }
    Slot *slot = pool->slots;
    for (size_t number = 0; number < pool->lane_count; number++) {
        Lane *lane = &pool->lanes[number];
        pthread_mutex_init(&lane->lock, NULL);
        new_condition(&lane->wake);
        lane->threads = threads[number / shards];
        for (size_t thread = 0; thread < lane->threads; thread++) (slot++)->lane = lane;
    }
    return pool;
}

/* After pool_close, when no thread is in any call and all batches are drained. */
void pool_free(Pool *pool) {
    for (size_t lane = 0; lane < pool->lane_count; lane++) {
        pthread_mutex_destroy(&pool->lanes[lane].lock);
        pthread_cond_destroy(&pool->lanes[lane].wake);
    }
    if (pool->event_fd >= 0) close(pool->event_fd);
    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->finished);
    pthread_cond_destroy(&pool->due);
    free(pool->lanes);
    free(pool->slots);
    free(pool->keys_by);
    free(pool->bytes_by);
    free(pool);
}

static size_t kind_of(enum operation operation) { return operation == LOAD ? 1 : operation == STORE ? 2 : 0; }

static void put(Pool *pool, Lane *lane, Key *first, Key *last, size_t count, size_t bytes) {
    pthread_mutex_lock(&lane->lock);
    int closed = atomic_load(&pool->closed);
    if (!closed) {
        if (lane->first == NULL) lane->first = first;
        else lane->last->next = first;
        lane->last = last;
        lane->queued += count;
    }
    pthread_mutex_unlock(&lane->lock);
    while (closed && first != NULL) {
        Key *next = first->next;
        settle(first, CLOSED);
        let_go(first->batch);
        first = next;
    }
    size_t wanted = bytes / count > ALONE ? count : 1 + bytes / WAKE_BYTES;
    if (wanted > lane->threads) wanted = lane->threads;
    for (size_t woken = 0; !closed && woken < wanted; woken++) pthread_cond_signal(&lane->wake);
}

/* Queue a batch, whose keys have their shards. The caller holds it. */
void pool_submit(Pool *pool, Batch *batch) {
    pthread_mutex_lock(&pool->lock);
    batch->number = ++pool->last_number;
    batch->next = pool->outstanding;
    if (batch->next != NULL) batch->next->previous = batch;
    pool->outstanding = batch;
    int sooner = batch->deadline < pool->watched_until;
    if (sooner) pool->watched_until = batch->deadline;
    pthread_mutex_unlock(&pool->lock);
    if (sooner) pthread_cond_signal(&pool->due);
    if (batch->count == 0) {
        complete(batch);
        return;
    }
    Lane *lanes = &pool->lanes[kind_of(batch->operation) * pool->shards];
    for (uint32_t shard = 0; shard < pool->shards; shard++) {
        Key *first = NULL, *last = NULL;
        size_t count = 0, bytes = 0;
        for (size_t k = 0; k < batch->count; k++) {
            Key *key = &batch->keys[k];
            if (key->shard != shard) continue;
            if (first == NULL) first = key;
            else last->next = key;
            last = key;
            count++;
            bytes += key->value_bytes;
        }
        if (first != NULL) put(pool, &lanes[shard], first, last, count, bytes);
    }
}

/* The batches completed since the last call, by next_done; the caller lets each go. */
Batch *pool_done(Pool *pool) {
    uint64_t signals;
    while (read(pool->event_fd, &signals, sizeof signals) < 0 && errno == EINTR) continue;
    /* After the read: what completes in between is taken now, and its signal wakes somebody for nothing. */
    pthread_mutex_lock(&pool->lock);
    Batch *done = pool->done;
    pool->done = pool->last_done = NULL;
    pthread_mutex_unlock(&pool->lock);
    return done;
}

/* The completed batches whose views the caller is to give back, by next_loose; the caller lets each go. */
Batch *pool_loose(Pool *pool) {
    pthread_mutex_lock(&pool->lock);
    Batch *loose = pool->loose;
    pool->loose = NULL;
    pthread_mutex_unlock(&pool->lock);
    return loose;
}

/* Settles what is not claimed at its deadline, until the pool is closed. One thread's. */
void pool_watch(Pool *pool) {
    pthread_mutex_lock(&pool->lock);
    while (!atomic_load(&pool->closed)) {
        double now = now_s(), next = INFINITY;
        Batch *late = NULL;
        for (Batch *batch = pool->outstanding; batch != NULL && late == NULL; batch = batch->next) {
            if (batch->expired) continue;
            if (batch->deadline <= now) late = batch;
            else if (batch->deadline < next) next = batch->deadline;
        }
        if (late != NULL) {
            late->expired = 1;
            atomic_fetch_add(&late->holders, 1);
            pthread_mutex_unlock(&pool->lock);
            for (size_t k = 0; k < late->count; k++) settle_waiting(&late->keys[k], DEADLINE);
            let_go(late);
            pthread_mutex_lock(&pool->lock);
            continue;
        }
        /* Not lowered when a batch completes: so most submit calls find a sooner moment, and wake nobody. */
        pool->watched_until = next;
        if (isinf(next)) {
            pthread_cond_wait(&pool->due, &pool->lock);
        } else {
            struct timespec at = {.tv_sec = (time_t)next, .tv_nsec = (long)((next - (double)(time_t)next) * 1e9)};
            pthread_cond_timedwait(&pool->due, &pool->lock, &at);
        }
    }
    pthread_mutex_unlock(&pool->lock);
}

/* Settle what is not claimed, queue nothing more, and let every thread that waits for work go. The connections in use are
 * interrupted by the caller, after this. */
void pool_close(Pool *pool) {
    atomic_store(&pool->closed, 1);
    for (size_t number = 0; number < pool->lane_count; number++) {
        Lane *lane = &pool->lanes[number];
        pthread_mutex_lock(&lane->lock);
        Key *key = lane->first;
        lane->first = lane->last = NULL;
        lane->queued = 0;
        pthread_cond_broadcast(&lane->wake);
        pthread_mutex_unlock(&lane->lock);
        while (key != NULL) {
            Key *next = key->next;
            settle(key, CLOSED);
            let_go(key->batch);
            key = next;
        }
    }
    pthread_mutex_lock(&pool->lock);
    pthread_cond_signal(&pool->due);
    pthread_mutex_unlock(&pool->lock);
}

/* The next window: consecutive keys of one operation. 0 when the pool is closed. */
static int take(Pool *pool, Slot *slot) {
    Lane *lane = slot->lane;
    Exchange *x = &slot->exchange;
    size_t bytes = 0;
    int large = 0;
    pthread_mutex_lock(&lane->lock);
    while (lane->first == NULL && !atomic_load(&pool->closed)) pthread_cond_wait(&lane->wake, &lane->lock);
    int closed = atomic_load(&pool->closed);
    size_t share = (lane->queued + lane->threads - 1) / lane->threads;
    x->count = 0;
    while (!closed && lane->first != NULL && x->count < WINDOW_KEYS && bytes < WINDOW_BYTES &&
           (x->count < share || bytes < SHARE_BYTES) && (lane->threads == 1 || !large || bytes < TURN_BYTES)) {
        Key *key = lane->first;
        if (x->count > 0 && key->batch->operation != x->keys[0]->batch->operation) break;
        lane->first = key->next;
        lane->queued--;
        x->keys[x->count++] = key;
        bytes += key->value_bytes;
        large = key->value_bytes > ALONE;
    }
    if (lane->first == NULL) lane->last = NULL;
    pthread_mutex_unlock(&lane->lock);
    return !closed;
}

/* Forget the keys that are settled. */
static void keep_unsettled(Exchange *x) {
    size_t kept = 0;
    for (size_t k = 0; k < x->count; k++) {
        Key *key = x->keys[k];
        if (is_settled(key)) let_go(key->batch);
        else x->keys[kept++] = key;
    }
    x->count = kept;
}

static void settle_all(Exchange *x, enum outcome outcome) {
    for (size_t k = 0; k < x->count; k++) settle(x->keys[k], outcome);
    keep_unsettled(x);
}

static void settle_late(Exchange *x) {
    double now = now_s();
    for (size_t k = 0; k < x->count; k++)
        if (x->keys[k]->batch->deadline <= now) settle(x->keys[k], DEADLINE);
    keep_unsettled(x);
}

/* The first key left bears what went wrong; a lost connection only when it is the second. The others are tried again. */
void pool_charge(Slot *slot, enum outcome outcome) {
    Exchange *x = &slot->exchange;
    for (size_t k = 0; k < x->count; k++) release(x->keys[k]);
    if (x->count > 0 && (outcome != CONNECTION_LOST || ++x->keys[0]->losses >= CONNECTIONS_TRIED))
        settle(x->keys[0], outcome);
    keep_unsettled(x);
}

/* The lane's shard cannot be reached: its keys are answered at once until then. */
void pool_refuse(Slot *slot, double until) {
    pthread_mutex_lock(&slot->lane->lock);
    slot->lane->unreachable_until = until;
    pthread_mutex_unlock(&slot->lane->lock);
    settle_all(&slot->exchange, UNREACHABLE);
}

static int is_refused(Lane *lane) {
    pthread_mutex_lock(&lane->lock);
    double until = lane->unreachable_until;
    pthread_mutex_unlock(&lane->lock);
    return until > 0 && now_s() < until;
}

static void begin_again(Exchange *x, enum status status, Slot *slot) {
    size_t answered = x->awaited;
    for (size_t k = 0; k < answered; k++) let_go(x->keys[k]->batch);
    for (size_t k = answered; k < x->count; k++) x->keys[k - answered] = x->keys[k];
    x->count -= answered;
    if (status == DONE) return;
    if (status == DROP) {
        for (size_t k = 0; k < x->count; k++) release(x->keys[k]);
        keep_unsettled(x);
    } else {
        pool_charge(slot, status == LATE ? DEADLINE : status == GARBLED ? MALFORMED : CONNECTION_LOST);
    }
}

/* Serve the slot over `fd` (-1: none), window by window, until
 * WANTS_CONNECTION: it has keys and no connection; the first is awaited until *deadline;
 * WANTS_DROP: the connection is of no more use; call again without one;
 * IS_CLOSED. */
enum served pool_serve(Pool *pool, Slot *slot, int fd, double *deadline) {
    Exchange *x = &slot->exchange;
    exchange_attach(x, fd);
    for (;;) {
        if (x->count == 0 && !take(pool, slot)) return IS_CLOSED;
        if (atomic_load(&pool->closed)) settle_all(x, CLOSED);
        else if (is_refused(slot->lane)) settle_all(x, UNREACHABLE);
        else settle_late(x);
        if (x->count == 0) continue;
        if (fd < 0) {
            *deadline = x->keys[0]->batch->deadline;
            return WANTS_CONNECTION;
        }
        exchange_begin(x);
        enum status status = exchange_run(x);
        begin_again(x, status, slot);
        if (status != DONE) return WANTS_DROP;
    }
}
