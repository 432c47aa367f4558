/* One pipelined exchange with a Valkey over a connected socket.
 *
 * The same law as exchange.py and connection.py, which remain the reference and the fallback: a key is OK only after its
 * own value, of exactly the buffer's length and closed by its terminator, lies in its buffer; every wait ends by the
 * deadline of the key whose reply is awaited. Values on the wire are RESP2.
 *
 * A value is read from its first byte into its buffer's first byte: a reply's first line is read alone, to the length that
 * it has when the value is there. Reading further and copying the rest put the kernel's copy at an odd address of the
 * buffer, which took a tenth longer.
 */
#define _GNU_SOURCE
#include "pool.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define LARGEST_VALUE (512LL * 1024 * 1024)
#define LARGEST_DISCARD (64LL * 1024 * 1024) /* past a larger foreign value a new connection is cheaper */
#define FLIGHT_BYTES (512 * 1024)            /* with more, values leave the processor's cache in the socket (docs/kv.md) */
#define IOVECS 96                            /* a store takes three */
#define TERMINATOR_BYTES 2
#define WAIT_FOR_ALL (128 * 1024) /* a longer rest of a value is awaited in one call, without what follows it */
#define REUSE_S 0.01              /* a kernel timeout set for a deadline is kept for so long: late by this at most */

void exchange_attach(Exchange *x, int fd) {
    x->fd = fd;
    x->start = x->end = 0;
    memset(x->limit_for, 0, sizeof x->limit_for);
}

void exchange_begin(Exchange *x) {
    x->awaited = x->prepared = x->sending = x->sent_of = x->in_flight = 0;
    x->part = LINE;
    x->operation = x->keys[0]->batch->operation;
}

/* Below half a flight the next half leaves in one call. A large value travels alone: two of 256 KiB in one flight took
 * longer than one after the other, both stored and loaded. */
static int may_send(const Exchange *x) {
    if (x->sending == x->count) return 0;
    if (x->sent_of > 0 || x->in_flight == 0) return 1;
    if (x->keys[x->sending]->value_bytes > ALONE) return 0;
    return x->in_flight <= FLIGHT_BYTES / 2;
}

/* Calls on the socket block, no longer than to the awaited key's deadline. */
static enum status limit(Exchange *x, int option) {
    int which = option == SO_SNDTIMEO;
    double deadline = x->keys[x->awaited]->batch->deadline, now = now_s(), left = deadline - now;
    if (left <= 0) return LATE;
    if (x->limit_for[which] == deadline && now - x->limit_set[which] < REUSE_S) return DONE;
    if (left < 0.001) left = 0.001; /* 0 would be none at all */
    struct timeval t = {.tv_sec = (time_t)left, .tv_usec = (suseconds_t)((left - (double)(time_t)left) * 1e6)};
    if (setsockopt(x->fd, SOL_SOCKET, option, &t, sizeof t) < 0) return LOST;
    x->limit_for[which] = deadline;
    x->limit_set[which] = now;
    return DONE;
}

static enum status failure(void) {
    return errno == EINTR ? DONE : errno == EAGAIN || errno == EWOULDBLOCK ? LATE : LOST;
}

/* Requests that lie one behind the other go as one piece. */
static size_t add(struct iovec *parts, size_t n, const char *from, size_t bytes, size_t *skip) {
    if (*skip >= bytes) {
        *skip -= bytes;
        return n;
    }
    from += *skip;
    bytes -= *skip;
    *skip = 0;
    if (n > 0 && (char *)parts[n - 1].iov_base + parts[n - 1].iov_len == from) {
        parts[n - 1].iov_len += bytes;
        return n;
    }
    parts[n].iov_base = (void *)from;
    parts[n].iov_len = bytes;
    return n + 1;
}

/* A store is claimed from before its first byte leaves: a buffer that is reused while half sent would store garbage. Keys
 * that were settled meanwhile are not asked for. 0 when there is no such key any more. */
static int prepare(Exchange *x, size_t k) {
    while (k >= x->prepared) {
        if (k >= x->count) return 0;
        Key *key = x->keys[k];
        if (x->operation == STORE ? claim(key) : !is_settled(key)) {
            x->prepared = k + 1;
            return 1;
        }
        x->count--;
        memmove(&x->keys[k], &x->keys[k + 1], (x->count - k) * sizeof(Key *));
        let_go(key->batch);
    }
    return 1;
}

/* A blocking send cannot wait for us: a Valkey reads on while its replies lie in its own memory. */
static enum status send_some(Exchange *x) {
    struct iovec parts[IOVECS];
    size_t n = 0, skip = x->sent_of, ahead = x->in_flight;
    for (size_t k = x->sending; n + 3 <= IOVECS && prepare(x, k); k++) {
        const Key *key = x->keys[k];
        if (k > x->sending && (key->value_bytes > ALONE || ahead >= FLIGHT_BYTES)) break;
        n = add(parts, n, key->head, key->head_bytes, &skip);
        if (x->operation == STORE) {
            n = add(parts, n, key->value, key->value_bytes, &skip);
            n = add(parts, n, "\r\n", TERMINATOR_BYTES, &skip);
        }
        ahead += key->value_bytes;
    }
    if (n == 0) return DONE; /* all of them settled meanwhile */
    enum status limited = limit(x, SO_SNDTIMEO);
    if (limited != DONE) return limited;
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = n};
    ssize_t sent = sendmsg(x->fd, &message, MSG_NOSIGNAL);
    if (sent < 0) return failure();
    size_t left = (size_t)sent;
    while (left > 0) {
        const Key *key = x->keys[x->sending];
        size_t whole = key->head_bytes + (x->operation == STORE ? key->value_bytes + TERMINATOR_BYTES : 0);
        size_t rest = whole - x->sent_of;
        if (left < rest) {
            x->sent_of += left;
            break;
        }
        left -= rest;
        x->sent_of = 0;
        x->sending++;
        x->in_flight += key->value_bytes;
    }
    return DONE;
}

/* How much to read of what is not a value: with more, the first bytes of a value would have to be copied on. */
static size_t line_room(const Exchange *x) {
    size_t room = AHEAD_BYTES - x->end, have = x->end - x->start, wanted = 0;
    if (x->operation != LOAD || x->part == SKIP) return room;
    size_t next = x->awaited + (x->part == LINE ? 0 : 1);
    if (x->part != LINE) wanted = TERMINATOR_BYTES;
    if (next < x->sending) wanted += x->keys[next]->line_bytes;
    if (wanted <= have) return room; /* a longer line: an error's */
    return wanted - have < room ? wanted - have : room;
}

static enum status receive_some(Exchange *x) {
    enum status limited = limit(x, SO_RCVTIMEO);
    if (limited != DONE) return limited;
    int all = 0;
    struct iovec parts[2];
    size_t n = 0, wanted = 0;
    if (x->start == x->end) {
        x->start = x->end = 0;
    } else if (x->end == AHEAD_BYTES) {
        memmove(x->ahead, x->ahead + x->start, x->end - x->start);
        x->end -= x->start;
        x->start = 0;
    }
    if (x->part == VALUE) { /* nothing is read ahead then */
        Key *key = x->keys[x->awaited];
        wanted = key->value_bytes - x->have;
        parts[n].iov_base = key->value + x->have;
        parts[n++].iov_len = wanted;
        all = wanted > WAIT_FOR_ALL;
    }
    parts[n].iov_base = x->ahead + x->end;
    parts[n++].iov_len = all ? TERMINATOR_BYTES : line_room(x); /* the terminator comes for certain */
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = n};
    ssize_t got = recvmsg(x->fd, &message, all ? MSG_WAITALL : 0);
    if (got < 0) return failure();
    if (got == 0) return LOST;
    if ((size_t)got <= wanted) {
        x->have += (size_t)got;
    } else {
        x->have += wanted;
        x->end += (size_t)got - wanted;
    }
    return DONE;
}

static void answered(Exchange *x, enum outcome outcome) {
    Key *key = x->keys[x->awaited++];
    x->in_flight -= key->value_bytes;
    x->part = LINE;
    settle(key, outcome); /* may find it settled: its deadline passed before its reply came */
}

/* Digits only, or -1: strtoll would take signs and spaces. 0 when it is no number. */
static int number_of(const char *at, size_t bytes, long long *number) {
    if (bytes == 2 && at[0] == '-' && at[1] == '1') {
        *number = -1;
        return 1;
    }
    if (bytes == 0 || bytes > 18) return 0;
    *number = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (at[i] < '0' || at[i] > '9') return 0;
        *number = *number * 10 + (at[i] - '0');
    }
    return 1;
}

/* DONE: go on. */
static enum status take_value(Exchange *x, long long bytes) {
    Key *key = x->keys[x->awaited];
    if ((size_t)bytes == key->value_bytes && claim(key)) {
        size_t here = x->end - x->start;
        x->have = here < key->value_bytes ? here : key->value_bytes;
        memcpy(key->value, x->ahead + x->start, x->have);
        x->start += x->have;
        x->part = VALUE;
        return DONE;
    }
    /* A foreign length, or a key that the deadline settled meanwhile: its buffer is not ours to write to. */
    if (bytes > LARGEST_DISCARD) {
        answered(x, WRONG_LENGTH);
        return DROP;
    }
    x->part = SKIP;
    x->skip = bytes + TERMINATOR_BYTES;
    return DONE;
}

static enum status take_line(Exchange *x, const char *line, size_t bytes) {
    long long number = 0;
    if (bytes == 0) return GARBLED;
    char sign = line[0];
    if (sign == '-') {
        answered(x, SERVER_ERROR);
        return DONE;
    }
    if (x->operation == STORE) {
        if (bytes != 3 || memcmp(line, "+OK", 3) != 0) return GARBLED;
        answered(x, OK);
        return DONE;
    }
    if (!number_of(line + 1, bytes - 1, &number)) return GARBLED;
    if (x->operation != LOAD) {
        if (sign != ':' || number < 0 || number > 1) return GARBLED;
        answered(x, number ? OK : ABSENT);
        return DONE;
    }
    if (sign != '$' || number > LARGEST_VALUE) return GARBLED;
    if (number < 0) {
        answered(x, ABSENT);
        return DONE;
    }
    return take_value(x, number);
}

/* Take what lies in `ahead` and the buffer; sets *more when bytes must come first. */
static enum status take_some(Exchange *x, int *more) {
    *more = 0;
    switch (x->part) {
    case VALUE:
        if (x->have == x->keys[x->awaited]->value_bytes) x->part = TERMINATOR;
        else *more = 1;
        return DONE;
    case TERMINATOR:
        if (x->end - x->start < TERMINATOR_BYTES) {
            *more = 1;
            return DONE;
        }
        if (memcmp(x->ahead + x->start, "\r\n", TERMINATOR_BYTES) != 0) return GARBLED;
        x->start += TERMINATOR_BYTES;
        answered(x, OK);
        return DONE;
    case SKIP: {
        long long step = (long long)(x->end - x->start);
        if (step > x->skip) step = x->skip;
        x->start += (size_t)step;
        x->skip -= step;
        if (x->skip == 0) answered(x, WRONG_LENGTH);
        else *more = 1;
        return DONE;
    }
    default: {
        const char *from = x->ahead + x->start;
        const char *at = memmem(from, x->end - x->start, "\r\n", TERMINATOR_BYTES);
        if (at == NULL) {
            if (x->end - x->start == AHEAD_BYTES) return GARBLED;
            *more = 1;
            return DONE;
        }
        x->start += (size_t)(at - from) + TERMINATOR_BYTES;
        return take_line(x, from, (size_t)(at - from));
    }
    }
}

/* Between exchanges a peer has nothing to say. What lies there would be taken for the first key's reply, and every key
 * behind it would get its neighbour's value; a connection that ended while idle shows here before anything is sent on it. */
static enum status is_quiet(const Exchange *x) {
    char byte;
    ssize_t got = recv(x->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? DONE : LOST;
    return got == 0 ? LOST : GARBLED;
}

/* Afterwards the keys before `awaited` are settled. */
enum status exchange_run(Exchange *x) {
    enum status quiet = is_quiet(x);
    if (quiet != DONE) return quiet;
    while (x->awaited < x->count) {
        enum status status = DONE;
        while (may_send(x))
            if ((status = send_some(x)) != DONE) return status;
        if (x->awaited == x->count) break;
        int more = 0;
        if ((status = take_some(x, &more)) != DONE) return status;
        if (more && (status = receive_some(x)) != DONE) return status;
    }
    return x->start == x->end ? DONE : DROP; /* the same, when it was read already */
}
