/* Open-loop load with latencies from the intended time of sending (as wrk2 does it), on one thread.
 *
 *   load closed  HOST:PORT PATH KEY CONNECTIONS WARM_S SECONDS
 *   load open    HOST:PORT PATH KEY CONNECTIONS WARM_S SECONDS RATE
 *   load streams HOST:PORT PATH KEY CONNECTIONS WARM_S SECONDS EVENTS_A_SECOND EVENTS_A_STREAM SPREAD
 *   load idle    HOST:PORT PATH KEY CONNECTIONS
 *
 * closed   every connection sends its next request when its answer is complete: the rate is what the target bears.
 * open     request i is due at i / RATE, whatever became of the others; it waits for a free connection, and that counts.
 * streams  as open; CONNECTIONS streams are open at once, together with so many events a second. The warm-up opens them;
 *          then a new one is due each EVENTS_A_STREAM / EVENTS_A_SECOND. That time and the one between two events of a stream
 *          divide each other, so that most streams' events fall due together, and with the next stream's first. With
 *          SPREAD 1 each stream is due at a place of its own within its interval, and events fall anywhere.
 * idle     opens CONNECTIONS streams, prints a line when each has had its first event, and keeps them until its input
 *          ends.
 *
 * Prints JSON: counts of the measured seconds, and histograms of nanoseconds as [bucket, count, ...]
 * (benchmarks/gateway/histogram.py says what a bucket is). A request is ok when it was answered 200 and whole: with usage,
 * or with every event and [DONE]. `open_at_start` and `open_at_end` are the requests that were due and not answered when
 * the measured seconds began and ended: what grows between them is a backlog.
 */
#define _GNU_SOURCE
#include "common.h"

#define SUB_BITS 6 /* 64 steps an octave: a bucket is at most 1.6 % wide */
#define BUCKETS ((64 - SUB_BITS) << SUB_BITS)
#define SESSIONS 1024
#define BATCH 256
#define DRAIN_S 5.0
#define SETTLE_S 0.5

enum mode { CLOSED, OPEN, STREAMS, KEEP };
enum part { HEAD, BODY, CHUNK_SIZE, CHUNK, CHUNK_END };

typedef struct {
    int fd, busy, counted, events_expected;
    enum part part;
    int64_t intended, last_event;
    Buffer in, text;       /* as received; the SSE events or the body, without HTTP's framing */
    long left;             /* of the body or chunk; -1: until the peer closes */
    int status, events, done, chunked;
} Connection;

static long histograms[4][BUCKETS];
enum { LATENCY, FIRST, GAP, DELAY };
static const char *const names[] = {"latency", "first_event", "gap", "delay"};

static enum mode mode;
static int epoll, connections, events_a_stream = 1, first_events, spread;
static const char *path, *key;
static struct sockaddr_in target;
static Connection *all;
static int *free_list, free_count;
static int64_t began, warm_until, ends, gap_ns;
static long sent, ok, failed, events_seen, serial, unanswered, most_waiting, open_at_start = -1, open_at_end;
static int64_t worst_lateness;

static void count_in(int which, int64_t ns) {
    uint64_t value = ns < 0 ? 0 : ns;
    int shift = value >> SUB_BITS ? 63 - SUB_BITS - __builtin_clzll(value) : 0;
    histograms[which][((uint64_t)shift << SUB_BITS) + (value >> shift)]++;
}

static int measured(int64_t at) { return at >= warm_until && at < ends; }

static void open_connection(Connection *c) {
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&target, sizeof target) < 0) fatal("connect");
    without_delay(c->fd);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event) < 0) fatal("epoll_ctl");
}

static void release(Connection *c) {
    c->busy = 0;
    free_list[free_count++] = c - all;
}

static void ask(Connection *c, int64_t intended, int events) {
    static const char filler[] =
        "You are a careful assistant that answers questions about geography from the notes below. Notes: the country lies in "
        "the west of its continent; it borders eight others and two seas; its longest river runs for a thousand kilometres. "
        "Its largest city is also its capital, and has been for most of a thousand years. Cite a note for each claim you make. ";
    char body[2048], head[512];
    int64_t gap_us = mode == KEEP ? 600000000 : gap_ns / 1000;
    int length = snprintf(body, sizeof body,
        "{\"model\":\"bench-model\",\"messages\":[{\"role\":\"system\",\"content\":\"%s\"},{\"role\":\"user\",\"content\":\"Session %ld. "
        "What is the capital? bench:events=%d,gap_us=%lld;\"}],\"max_tokens\":256%s}",
        filler, serial++ % SESSIONS, events, (long long)gap_us, mode >= STREAMS ? ",\"stream\":true" : "");
    int head_length = snprintf(head, sizeof head,
        "POST %s HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer %s\r\ncontent-type: application/json\r\n"
        "content-length: %d\r\n\r\n", path, key, length);
    if (c->fd < 0) open_connection(c);
    memmove(body + head_length, body, length + 1);
    memcpy(body, head, head_length);
    c->busy = 1;
    c->part = HEAD;
    c->intended = intended;
    c->events_expected = events;
    c->last_event = 0;
    c->status = c->events = c->done = c->chunked = 0;
    c->text.length = 0;
    int64_t now = now_ns();
    c->counted = mode == CLOSED || measured(intended);
    if (c->counted) {
        sent++;
        if (now - intended > worst_lateness) worst_lateness = now - intended;
    }
    /* About 900 bytes into an empty socket: they always fit. */
    if (send(c->fd, body, head_length + length, MSG_NOSIGNAL) != head_length + length) {
        close(c->fd);
        c->fd = -1;
        failed += c->counted;
        release(c);
    }
}

static void finished(Connection *c, int whole) {
    int64_t now = now_ns();
    int good = whole && c->status == 200;
    if (mode >= STREAMS) good = good && c->done && c->events == c->events_expected;
    else good = good && c->text.length > 0 && strstr(c->text.data, "\"completion_tokens\"") != NULL;
    if (mode == CLOSED) c->counted = measured(now);
    if (c->counted) {
        ok += good;
        failed += !good;
        if (good && mode < STREAMS) count_in(LATENCY, now - c->intended);
        if (!good && failed <= 3) fprintf(stderr, "status %d, %d events: %.300s\n", c->status, c->events, c->text.data ? c->text.data : "");
    }
    c->counted = 0;
    release(c);
}

/* One SSE event, without its blank line. */
static void event(Connection *c, const char *text, int64_t now) {
    if (strstr(text, "data: [DONE]") != NULL) c->done = 1;
    const char *stamp = strstr(text, STAMP);
    if (stamp == NULL) return;
    c->events++;
    if (c->events == 1) first_events++;
    if (c->events == 1 && c->counted) count_in(FIRST, now - c->intended);
    if (measured(now)) {
        events_seen++;
        count_in(DELAY, now - strtoll(stamp + strlen(STAMP), NULL, 10));
        if (c->last_event) count_in(GAP, now - c->last_event);
    }
    c->last_event = now;
}

static void text_of(Connection *c, const char *data, size_t length, int64_t now) {
    append(&c->text, data, length);
    if (mode < STREAMS || c->status != 200) return;
    char *start = c->text.data, *end;
    while ((end = strstr(start, "\n\n")) != NULL) {
        *end = 0;
        event(c, start, now);
        start = end + 2;
    }
    consume(&c->text, start - c->text.data);
}

/* Reads as much of `in` as there is. 1: the answer is complete. */
static int parse(Connection *c, int64_t now) {
    char *end;
    for (;;) {
        if (c->in.length == 0) return 0;
        switch (c->part) {
        case HEAD:
            if ((end = strstr(c->in.data, "\r\n\r\n")) == NULL) return 0;
            c->status = atoi(c->in.data + 9);
            const char *length = header(c->in.data, end + 2, "content-length");
            c->chunked = length == NULL && header(c->in.data, end + 2, "transfer-encoding") != NULL;
            c->left = length ? strtol(length, NULL, 10) : -1;
            c->part = c->chunked ? CHUNK_SIZE : BODY;
            consume(&c->in, end + 4 - c->in.data);
            if (c->left == 0) return 1;
            break;
        case CHUNK_SIZE:
            if ((end = strstr(c->in.data, "\r\n")) == NULL) return 0;
            c->left = strtol(c->in.data, NULL, 16);
            consume(&c->in, end + 2 - c->in.data);
            c->part = c->left ? CHUNK : CHUNK_END;
            break;
        case CHUNK_END:
            if (c->in.length < 2) return 0;
            consume(&c->in, 2);
            if (c->left == 0) return 1;
            c->part = CHUNK_SIZE;
            break;
        case CHUNK:
        case BODY: {
            size_t take = c->left < 0 || c->in.length < (size_t)c->left ? c->in.length : (size_t)c->left;
            text_of(c, c->in.data, take, now);
            consume(&c->in, take);
            if (c->left > 0) c->left -= take;
            if (c->left == 0) {
                if (c->part == BODY) return 1;
                c->left = 1; /* not the last chunk */
                c->part = CHUNK_END;
            }
            break;
        }
        }
    }
}

static void readable(Connection *c) {
    char data[65536];
    for (;;) {
        ssize_t got = recv(c->fd, data, sizeof data, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) return;
        if (got <= 0) {
            close(c->fd);
            c->fd = -1;
            c->in.length = 0;
            if (c->busy) finished(c, c->part == BODY && c->left < 0);
            return;
        }
        append(&c->in, data, got);
        if (parse(c, now_ns())) finished(c, 1);
        if ((size_t)got < sizeof data) return;
    }
}

/* Of a stream that is met at a random place of its life, what is left. */
static int rest_of_a_life(int number) { return 1 + (int)((number * 2654435761u) % (unsigned)events_a_stream); }

/* 0 to 1, of the interval of stream `number`: as even as so few numbers can be. */
static double place_of(long number) { return (uint32_t)(number * 2654435761u) / 4294967296.0; }

static void print_histograms(void) {
    for (int which = 0; which < 4; which++) {
        printf(",\"%s\":[", names[which]);
        const char *comma = "";
        for (int i = 0; i < BUCKETS; i++) {
            if (histograms[which][i] == 0) continue;
            printf("%s%d,%ld", comma, i, histograms[which][i]);
            comma = ",";
        }
        printf("]");
    }
}

static int keep(void) {
    struct epoll_event ready[BATCH];
    int opened = 0, told = 0;
    int64_t give_up = now_ns() + 60000000000LL;
    fcntl(0, F_SETFL, O_NONBLOCK);
    for (;;) {
        /* A few at a time, so that opening them is no burst that leaves its mark on the memory. */
        for (int i = 0; i < 16 && opened < connections && opened - first_events < 32; i++) ask(&all[opened++], now_ns(), 2);
        int count = wait_until(epoll, ready, BATCH, now_ns() + 10000000);
        for (int i = 0; i < count; i++) readable(ready[i].data.ptr);
        if (!told && first_events == connections) {
            printf("{\"open\":%d}\n", first_events);
            fflush(stdout);
            told = 1;
        }
        char byte;
        if (read(0, &byte, 1) == 0) return 0;
        if (failed || (!told && now_ns() > give_up)) {
            printf("{\"open\":%d}\n", first_events);
            return 1;
        }
    }
}

int main(int count, char **arguments) {
    static const char *const modes[] = {"closed", "open", "streams", "idle"};
    int wanted[] = {8, 9, 11, 6};
    for (mode = CLOSED; mode <= KEEP && (count < 2 || strcmp(arguments[1], modes[mode]) != 0); mode++) continue;
    if (mode > KEEP || count != wanted[mode]) {
        fprintf(stderr, "usage: load closed|open|streams|idle HOST:PORT PATH KEY CONNECTIONS ... (see load.c)\n");
        return 2;
    }
    prepare_process();
    signed port = atoi(strchr(arguments[2], ':') + 1);
    target = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    path = arguments[3];
    key = arguments[4];
    connections = atoi(arguments[5]);
    /* Streams that start anew may for a moment be more than are open on average. */
    int room = mode == STREAMS ? connections * 4 : connections;
    all = calloc(room, sizeof *all);
    free_list = calloc(room, sizeof *free_list);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    if (all == NULL || free_list == NULL || epoll < 0) fatal("start");
    for (int i = room - 1; i >= 0; i--) {
        all[i].fd = -1;
        if (mode != KEEP) free_list[free_count++] = i;
    }
    if (mode == KEEP) return keep();

    double warm_s = atof(arguments[6]), seconds = atof(arguments[7]), rate = 0;
    if (mode == OPEN) rate = atof(arguments[8]);
    if (mode == STREAMS) {
        double events_a_second = atof(arguments[8]);
        events_a_stream = atoi(arguments[9]);
        spread = atoi(arguments[10]);
        gap_ns = (int64_t)(1e9 * connections / events_a_second);
        rate = events_a_second / events_a_stream;
    }
    began = now_ns();
    warm_until = began + (int64_t)(warm_s * 1e9);
    ends = warm_until + (int64_t)(seconds * 1e9);
    int opened = 0;
    double step_ns = rate > 0 ? 1e9 / rate : 0, ramp_ns = mode == STREAMS ? (warm_s - SETTLE_S) * 1e9 : 0;
    double first_due = (double)began + ramp_ns + (mode == STREAMS ? step_ns : 0), next_due = first_due;
    long begun = 0;
    if (spread) next_due += place_of(0) * step_ns;
    struct epoll_event ready[BATCH];
    for (;;) {
        int64_t now = now_ns();
        if (now >= ends) break;
        while (mode == CLOSED && free_count > 0) ask(&all[free_list[--free_count]], now_ns(), 1);
        /* The streams that are open from the start come one by one, the last SETTLE_S before the measured time. Then each
         * is at a random place of its life, and new ones begin to come. */
        while (mode == STREAMS && opened < connections && free_count > 0 &&
               now >= began + (int64_t)(ramp_ns * (opened + (spread ? place_of(opened) : 0)) / connections)) {
            int until_all_are = (int)((began + ramp_ns - now) / gap_ns);
            ask(&all[free_list[--free_count]], now, rest_of_a_life(opened++) + (until_all_are > 0 ? until_all_are : 0));
        }
        long waiting = 0;
        while (mode != CLOSED && next_due <= now && free_count > 0) {
            ask(&all[free_list[--free_count]], (int64_t)next_due, events_a_stream);
            begun++;
            next_due = first_due + (begun + (spread ? place_of(begun) : 0)) * step_ns;
        }
        if (mode != CLOSED && next_due <= now) waiting = (long)((now - next_due) / step_ns) + 1;
        if (waiting > most_waiting) most_waiting = waiting;
        if (open_at_start < 0 && now >= warm_until) open_at_start = room - free_count + waiting;
        int64_t due = ends;
        if (mode != CLOSED && free_count > 0 && next_due < due) due = (int64_t)next_due;
        if (mode == STREAMS && opened < connections && due > now + 1000000) due = now + 1000000;
        int number = wait_until(epoll, ready, BATCH, due);
        for (int i = 0; i < number; i++) readable(ready[i].data.ptr);
    }
    /* What was due in time and is not answered yet still counts: it is slow, not absent. */
    int64_t last = ends + (int64_t)(DRAIN_S * 1e9);
    long late = mode == OPEN && next_due < ends ? (long)((ends - next_due) / step_ns) : 0;
    open_at_end = room - free_count + late;
    for (;;) {
        int open = 0;
        for (int i = 0; i < room; i++) open += all[i].busy && all[i].counted;
        if (mode != OPEN || open == 0 || now_ns() > last) {
            unanswered = mode == OPEN ? open + late : 0;
            break;
        }
        int number = wait_until(epoll, ready, BATCH, now_ns() + 5000000);
        for (int i = 0; i < number; i++) readable(ready[i].data.ptr);
    }
    printf("{\"seconds\":%.3f,\"sent\":%ld,\"ok\":%ld,\"failed\":%ld,\"unanswered\":%ld,\"most_waiting\":%ld,\"events\":%ld,"
           "\"open_at_start\":%ld,\"open_at_end\":%ld,\"worst_lateness_us\":%lld", seconds, sent, ok, failed, unanswered,
           most_waiting, events_seen, open_at_start, open_at_end, (long long)(worst_lateness / 1000));
    print_histograms();
    printf("}\n");
    return 0;
}
