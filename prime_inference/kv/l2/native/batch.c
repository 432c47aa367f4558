/* One batch: who may touch a buffer, what became of each key, and when the batch is complete (batch.py, in C).
 *
 * A key is waiting, claimed or settled, in one atomic byte that also says how it was settled. Whoever settles the last key
 * completes the batch, once.
 */
#define _GNU_SOURCE
#include "pool.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Held by the caller, by the list of the outstanding or done, by the list of the loose, and by each key. NULL: no memory. */
Batch *batch_new(Pool *pool, enum operation operation, size_t count, size_t heads_bytes) {
    Batch *batch = calloc(1, sizeof(Batch));
    if (batch == NULL) return NULL;
    batch->pool = pool;
    batch->operation = operation;
    batch->count = count;
    batch->keys = calloc(count + 1, sizeof(Key));
    batch->heads = malloc(heads_bytes + 1);
    atomic_init(&batch->unsettled, count);
    atomic_init(&batch->holders, count + 3);
    if (batch->keys == NULL || batch->heads == NULL) {
        free(batch->keys);
        free(batch->heads);
        free(batch);
        return NULL;
    }
    for (size_t k = 0; k < count; k++) {
        batch->keys[k].batch = batch;
        atomic_init(&batch->keys[k].state, WAITING);
    }
    return batch;
}

void let_go(Batch *batch) {
    if (atomic_fetch_sub_explicit(&batch->holders, 1, memory_order_acq_rel) != 1) return;
    free(batch->keys);
    free(batch->heads);
    free(batch);
}

/* Called by whoever settles the last key; by pool_submit only for a batch of no keys. */
void complete(Batch *batch) {
    Pool *pool = batch->pool;
    double took_s = now_s() - batch->began;
    size_t edge = 0;
    pthread_mutex_lock(&pool->lock);
    if (batch->previous != NULL) batch->previous->next = batch->next;
    else if (pool->outstanding == batch) pool->outstanding = batch->next;
    if (batch->next != NULL) batch->next->previous = batch->previous;
    batch->complete = 1;
    while (edge < pool->edge_count && pool->edges[edge] < took_s) edge++;
    pool->took[batch->operation][edge]++;
    pool->total_s[batch->operation] += took_s;
    if (took_s > pool->slowest_s[batch->operation]) pool->slowest_s[batch->operation] = took_s;
    batch->next_loose = pool->loose;
    pool->loose = batch;
    int first = pool->done == NULL;
    if (first) pool->done = batch;
    else pool->last_done->next_done = batch;
    pool->last_done = batch;
    int waited_for = pool->waiters > 0;
    pthread_mutex_unlock(&pool->lock);
    /* Outside the lock, which whoever is woken takes at once. Only for the first: the others are drained with it. */
    if (first) {
        uint64_t one = 1;
        while (write(pool->event_fd, &one, sizeof one) < 0 && errno == EINTR) continue;
    }
    if (waited_for) pthread_cond_broadcast(&pool->finished);
}

/* Take the right to touch this key's buffer; 0 if the key is settled, or claimed already. */
int claim(Key *key) {
    unsigned char waiting = WAITING;
    return atomic_compare_exchange_strong(&key->state, &waiting, CLAIMED);
}

/* Give a claim back unsettled: the exchange failed and will be tried again. */
void release(Key *key) {
    unsigned char claimed = CLAIMED;
    atomic_compare_exchange_strong(&key->state, &claimed, WAITING);
}

int is_settled(const Key *key) { return atomic_load(&key->state) >= SETTLED; }

/* The key's batch may be complete, drained and, for want of a holder, gone when this returns. */
static void count_settled(Key *key, enum outcome outcome) {
    Batch *batch = key->batch;
    Pool *pool = batch->pool;
    size_t row = key->shard * OPERATIONS + batch->operation;
    atomic_fetch_add_explicit(&pool->keys_by[row * OUTCOMES + outcome], 1, memory_order_relaxed);
    if (outcome == OK) atomic_fetch_add_explicit(&pool->bytes_by[row], key->value_bytes, memory_order_relaxed);
    if (atomic_fetch_sub_explicit(&batch->unsettled, 1, memory_order_acq_rel) == 1) complete(batch);
}

/* Set what became of a key; 0, and nothing changes, if it was settled before. */
int settle(Key *key, enum outcome outcome) {
    unsigned char state = atomic_load(&key->state);
    do {
        if (state >= SETTLED) return 0;
    } while (!atomic_compare_exchange_weak(&key->state, &state, (unsigned char)(SETTLED + outcome)));
    count_settled(key, outcome);
    return 1;
}

/* The same for a key that nobody has claimed. */
int settle_waiting(Key *key, enum outcome outcome) {
    unsigned char waiting = WAITING;
    if (!atomic_compare_exchange_strong(&key->state, &waiting, (unsigned char)(SETTLED + outcome))) return 0;
    count_settled(key, outcome);
    return 1;
}

/* 1 when every key is settled, 0 when `timeout_s` passed first. */
int batch_wait(Batch *batch, double timeout_s) {
    Pool *pool = batch->pool;
    double until = now_s() + timeout_s;
    struct timespec at = {.tv_sec = (time_t)until, .tv_nsec = (long)((until - (double)(time_t)until) * 1e9)};
    pthread_mutex_lock(&pool->lock);
    pool->waiters++;
    while (!batch->complete)
        if (pthread_cond_timedwait(&pool->finished, &pool->lock, &at) == ETIMEDOUT) break;
    pool->waiters--;
    int complete = batch->complete;
    pthread_mutex_unlock(&pool->lock);
    return complete;
}
