/* Races the L2 client's pool under a sanitizer: submitters with deadlines that pass, connections that are cut, replies that
 * come late, a closing in the middle. Exits 1 when a value that was reported as loaded is not the key's own, when a buffer is
 * written after its batch was complete, or when a batch does not end.
 *
 *   cc -g -O1 -fsanitize=thread  -pthread race.c batch.c exchange.c pool.c -lm && ./a.out 2
 *   cc -g -O1 -fsanitize=address,undefined ...
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pool.h"

#define SHARDS 2
#define SUBMITTERS 3
#define KEYS 12
#define LARGEST 140000 /* beyond what travels in a flight */

static const size_t THREADS[KINDS] = {1, 2, 2};
static const double EDGES[] = {0.001, 0.01};
static Pool *pool;
static atomic_int sockets[SHARDS * 5]; /* by slot, -1: none */
static atomic_ullong seen[OUTCOMES];
static double ends_at;

static void fail(const char *what) {
    fprintf(stderr, "race: %s\n", what);
    exit(1);
}

static unsigned chance(unsigned *seed, unsigned of) { return (unsigned)rand_r(seed) % of; }

static size_t size_of(unsigned key) { return key % 16 == 0 ? LARGEST : key * 37 % 3000 + 1; }

static char byte_of(unsigned key, size_t at) { return (char)(key * 31 + at % 251); }

/* One peer: answers keys named by a number, late or not at all now and then. */
static void *valkey(void *argument) {
    int fd = (int)(intptr_t)argument;
    unsigned seed = (unsigned)fd * 7919u + (unsigned)(now_s() * 1e6);
    FILE *in = fdopen(fd, "r");
    char line[64], name[64];
    unsigned parts;
    char *value = malloc(LARGEST + 64);
    while (fgets(line, sizeof line, in) && sscanf(line, "*%u", &parts) == 1) {
        unsigned key = 0;
        size_t bytes = 0;
        if (!fgets(line, sizeof line, in) || !fgets(name, sizeof name, in)) break;
        if (!fgets(line, sizeof line, in) || !fgets(line, sizeof line, in)) break;
        sscanf(line, "%u", &key);
        if (parts == 3) {
            if (!fgets(line, sizeof line, in) || sscanf(line, "$%zu", &bytes) != 1) break;
            if (fread(value, 1, bytes + 2, in) != bytes + 2) break;
        }
        unsigned dice = chance(&seed, 150);
        if (dice == 0) break;
        if (dice == 1) usleep(chance(&seed, 20000));
        size_t length;
        if (name[0] == 'G' && dice < 12) length = (size_t)sprintf(value, "$-1\r\n");
        else if (dice < 16) length = (size_t)sprintf(value, "-ERR so\r\n");
        else if (name[0] == 'G') {
            size_t size = size_of(key) + (dice < 20);
            length = (size_t)sprintf(value, "$%zu\r\n", size);
            for (size_t at = 0; at < size; at++) value[length + at] = byte_of(key, at);
            length += size;
            value[length++] = '\r';
            value[length++] = '\n';
        } else length = (size_t)sprintf(value, name[0] == 'S' ? "+OK\r\n" : ":1\r\n");
        if (dice == 21) length = (size_t)sprintf(value, "no RESP\r\n");
        if (dice == 20) length /= 2;
        if (send(fd, value, length, MSG_NOSIGNAL) < 0 || dice == 20) break;
    }
    free(value);
    fclose(in);
    return NULL;
}

/* What native.py does. */
static void *serve(void *argument) {
    size_t number = (size_t)(intptr_t)argument;
    Slot *slot = &pool->slots[number];
    int fd = -1;
    unsigned seed = (unsigned)number + 1;
    for (;;) {
        double deadline;
        enum served served = pool_serve(pool, slot, fd, &deadline);
        if (fd >= 0) {
            atomic_store(&sockets[number], -1);
            close(fd);
        }
        fd = -1;
        if (served == IS_CLOSED) return NULL;
        if (served == WANTS_DROP) continue;
        unsigned dice = chance(&seed, 12);
        if (dice == 0) pool_refuse(slot, now_s() + 0.002);
        else if (dice == 1) pool_charge(slot, CONNECTION_LOST);
        else {
            int pair[2];
            pthread_t peer;
            if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0) fail("no socket pair");
            fd = pair[0];
            pthread_create(&peer, NULL, valkey, (void *)(intptr_t)pair[1]);
            pthread_detach(peer);
            atomic_store(&sockets[number], fd);
        }
    }
}

static void *watch(void *unused) {
    pool_watch(pool);
    return unused;
}

static void *submit(void *argument) {
    unsigned seed = 99u + (unsigned)(intptr_t)argument;
    char *memory = malloc((size_t)KEYS * LARGEST), *before = malloc((size_t)KEYS * LARGEST);
    while (now_s() < ends_at) {
        enum operation operation = (enum operation)chance(&seed, OPERATIONS);
        size_t count = chance(&seed, KEYS + 1);
        unsigned names[KEYS];
        Batch *batch = batch_new(pool, operation, count, count * 128);
        char *at = batch->heads;
        memset(memory, 0x5a, (size_t)KEYS * LARGEST);
        for (size_t k = 0; k < count; k++) {
            Key *key = &batch->keys[k];
            char text[16];
            names[k] = chance(&seed, 1000);
            int digits = sprintf(text, "%u", names[k]);
            static const char *const HEADS[] = {"*2\r\n$6\r\nEXISTS", "*2\r\n$3\r\nGET", "*3\r\n$3\r\nSET", "*2\r\n$3\r\nDEL"};
            key->head = at;
            at += sprintf(at, "%s\r\n$%d\r\n%s\r\n", HEADS[operation], digits, text);
            if (operation == LOAD || operation == STORE) {
                key->value = memory + k * LARGEST;
                key->value_bytes = size_of(names[k]);
                key->line_bytes = (size_t)snprintf(NULL, 0, "$%zu\r\n", key->value_bytes);
            }
            if (operation == STORE) at += sprintf(at, "$%zu\r\n", key->value_bytes);
            key->head_bytes = (size_t)(at - key->head);
            key->shard = crc32_of(text, (size_t)digits) % SHARDS;
        }
        batch->began = now_s();
        batch->deadline = batch->began + 0.0005 * (double)chance(&seed, 200);
        pool_submit(pool, batch);
        if (!batch_wait(batch, 10.0)) fail("a batch did not end");
        memcpy(before, memory, (size_t)KEYS * LARGEST);
        for (size_t k = 0; k < count; k++) {
            enum outcome outcome = (enum outcome)(atomic_load(&batch->keys[k].state) - SETTLED);
            atomic_fetch_add(&seen[outcome], 1);
            for (size_t b = 0; operation == LOAD && outcome == OK && b < batch->keys[k].value_bytes; b++)
                if (memory[k * LARGEST + b] != byte_of(names[k], b)) fail("another value");
        }
        let_go(batch);
        if (chance(&seed, 8) == 0) usleep(2000);
        if (memcmp(before, memory, (size_t)KEYS * LARGEST) != 0) fail("written after the end");
    }
    free(memory);
    free(before);
    return NULL;
}

static void drain(void) {
    for (Batch *batch = pool_done(pool), *next; batch != NULL; batch = next) {
        next = batch->next_done;
        let_go(batch);
    }
    for (Batch *batch = pool_loose(pool), *next; batch != NULL; batch = next) {
        next = batch->next_loose;
        let_go(batch);
    }
}

int main(int count, char **arguments) {
    size_t slots = SHARDS * (THREADS[0] + THREADS[1] + THREADS[2]);
    pthread_t serving[SHARDS * 5], submitting[SUBMITTERS], watching;
    ends_at = now_s() + (count > 1 ? atof(arguments[1]) : 2.0);
    pool = pool_new(SHARDS, THREADS, EDGES, 2);
    for (size_t slot = 0; slot < slots; slot++) {
        atomic_init(&sockets[slot], -1);
        pthread_create(&serving[slot], NULL, serve, (void *)(intptr_t)slot);
    }
    pthread_create(&watching, NULL, watch, NULL);
    for (size_t each = 0; each < SUBMITTERS; each++) pthread_create(&submitting[each], NULL, submit, (void *)(intptr_t)each);
    while (now_s() < ends_at - 0.1) {
        usleep(500);
        drain();
    }
    pool_close(pool); /* with submitters at work: what they submit from now on is closed */
    for (size_t slot = 0; slot < slots; slot++)
        if (atomic_load(&sockets[slot]) >= 0) shutdown(atomic_load(&sockets[slot]), SHUT_RDWR);
    for (size_t each = 0; each < SUBMITTERS; each++) pthread_join(submitting[each], NULL);
    for (size_t slot = 0; slot < slots; slot++) pthread_join(serving[slot], NULL);
    pthread_join(watching, NULL);
    drain();
    pool_free(pool);
    usleep(100000); /* the peers' ends */
    for (size_t outcome = 0; outcome < OUTCOMES; outcome++) printf("%llu ", atomic_load(&seen[outcome]));
    printf("\n");
    return 0;
}
