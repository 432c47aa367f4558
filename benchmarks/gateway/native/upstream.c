/* A Dynamo frontend as far as a gateway can tell, on one thread.
 *
 *   upstream PORT
 *
 * POST: a chat completion. Its prompt says how long: `bench:events=N,gap_us=G;`. Without `"stream":true` the answer is
 * one JSON body with usage. With it, event k is due k gaps after the request, and is written when due, in a write of its
 * own, whatever the number of streams; an event that could not be written in time (the socket is full) is written later,
 * still by itself, and carries the time at which it was due. `nvext` and the usage chunk come when asked for, as
 * Dynamo's do. GET /stats tells what was written (/stats/anew: and counts the most streams at once anew), /v1/models lists
 * one model; any other GET is healthy.
 */
#define _GNU_SOURCE
#include "common.h"

#define MODEL "bench-model"
#define USAGE "{\"prompt_tokens\":128,\"completion_tokens\":%d,\"total_tokens\":%d,\"prompt_tokens_details\":{\"cached_tokens\":64}}"
#define TIMING "\"nvext\":{\"timing\":{\"request_received_ms\":1,\"prefill_time_ms\":0.5,\"ttft_ms\":0.7,\"total_time_ms\":2.5}}"
#define BATCH 256
#define LARGEST_REQUEST (16 << 20)
#define IDLE -1

typedef struct {
    int fd;
    Buffer in, out;
    size_t sent;                  /* of `out` */
    int streaming, usage, nvext;  /* what the request asked for */
    int events, gap_us, next;     /* `next`: the event to be written; events..events+3 close the stream */
    int64_t began;
    int heap_at;                  /* place in the heap of what is due, or IDLE */
    int id;
    int dead;
} Connection;

static Connection **heap;
static int heap_size, heap_room, epoll;
static long requests, events_written, held_back, open_streams, most_streams;

static int64_t due_of(const Connection *c) {
    int step = c->next < c->events ? c->next : c->events - 1; /* what closes a stream comes with its last event */
    return c->began + (int64_t)step * c->gap_us * 1000;
}

static void place(Connection *c, int at) {
    heap[at] = c;
    c->heap_at = at;
}

static void sift(int at) {
    Connection *c = heap[at];
    int64_t due = due_of(c);
    while (at > 0 && due_of(heap[(at - 1) / 2]) > due) {
        place(heap[(at - 1) / 2], at);
        at = (at - 1) / 2;
    }
    for (;;) {
        int child = 2 * at + 1;
        if (child >= heap_size) break;
        if (child + 1 < heap_size && due_of(heap[child + 1]) < due_of(heap[child])) child++;
        if (due_of(heap[child]) >= due) break;
        place(heap[child], at);
        at = child;
    }
    place(c, at);
}

static void schedule(Connection *c) {
    if (c->heap_at == IDLE) {
        if (heap_size == heap_room) {
            heap_room = heap_room ? heap_room * 2 : 1024;
            heap = realloc(heap, heap_room * sizeof *heap);
            if (heap == NULL) fatal("realloc");
        }
        place(c, heap_size++);
    }
    sift(c->heap_at);
}

static void unschedule(Connection *c) {
    int at = c->heap_at;
    if (at == IDLE) return;
    c->heap_at = IDLE;
    Connection *last = heap[--heap_size];
    if (last != c) {
        place(last, at);
        sift(at);
    }
}

static void drop(Connection *c) {
    if (c->dead) return;
    unschedule(c);
    if (c->streaming) open_streams--;
    c->dead = 1;
    c->streaming = 0;
    close(c->fd);
}

static void watch(Connection *c, uint32_t what) {
    struct epoll_event event = {.events = what, .data.ptr = c};
    if (epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event) < 0) fatal("epoll_ctl");
}

/* 1: all is sent. 0: the socket is full, and will tell. -1: the peer has gone. */
static int flush(Connection *c) {
    while (c->sent < c->out.length) {
        ssize_t wrote = send(c->fd, c->out.data + c->sent, c->out.length - c->sent, MSG_NOSIGNAL);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0 && errno == EAGAIN) {
            held_back++;
            watch(c, EPOLLIN | EPOLLOUT);
            return 0;
        }
        if (wrote < 0) return -1;
        c->sent += wrote;
    }
    c->out.length = c->sent = 0;
    return 1;
}

/* The bytes of event `next`: one HTTP chunk, which is one SSE event. 0 for one that was not asked for. */
static int event_of(const Connection *c, char *out, size_t room) {
    char data[768];
    int length, number = c->next;
    if (number < c->events) {
        length = snprintf(data, sizeof data,
            "data: {\"id\":\"chatcmpl-%08d\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" " STAMP "%017lld\",\"role\":\"assistant\"},"
            "\"finish_reason\":null,\"logprobs\":null}],\"created\":1790000000,\"model\":\"" MODEL "\",\"object\":\"chat.completion.chunk\"}\n\n",
            c->id, (long long)due_of(c));
    } else if (number == c->events) {
        length = snprintf(data, sizeof data,
            "data: {\"id\":\"chatcmpl-%08d\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"finish_reason\":\"stop\",\"logprobs\":null}],"
            "\"created\":1790000000,\"model\":\"" MODEL "\",\"object\":\"chat.completion.chunk\"%s}\n\n",
            c->id, c->nvext ? "," TIMING : "");
    } else if (number == c->events + 1) {
        if (!c->usage) return 0;
        length = snprintf(data, sizeof data,
            "data: {\"id\":\"chatcmpl-%08d\",\"choices\":[],\"created\":1790000000,\"model\":\"" MODEL "\",\"object\":\"chat.completion.chunk\","
            "\"usage\":" USAGE "}\n\n", c->id, c->events, c->events + 128);
    } else if (number == c->events + 2) {
        length = snprintf(data, sizeof data, "data: [DONE]\n\n");
    } else {
        return snprintf(out, room, "0\r\n\r\n");
    }
    return snprintf(out, room, "%x\r\n%s\r\n", length, data);
}

/* Writes every event that is due, each with its own send. */
static void pump(Connection *c) {
    char text[1024];
    int64_t now = now_ns();
    while (c->streaming && due_of(c) <= now) {
        if (c->sent < c->out.length) return; /* held back: EPOLLOUT comes here again */
        int length = event_of(c, text, sizeof text);
        if (length > 0) {
            append(&c->out, text, length);
            events_written += c->next < c->events;
        }
        c->next++;
        int state = length > 0 ? flush(c) : 1;
        if (state < 0) {
            drop(c);
            return;
        }
        if (c->next == c->events + 4) {
            c->streaming = 0;
            open_streams--;
            unschedule(c);
            return;
        }
        if (state == 0) {
            unschedule(c);
            return;
        }
    }
    if (c->streaming) schedule(c);
}

static void answer_whole(Connection *c, const char *body) {
    char head[256];
    int length = snprintf(head, sizeof head,
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n", strlen(body));
    append(&c->out, head, length);
    append(&c->out, body, strlen(body));
    if (flush(c) < 0) drop(c);
}

static void answer_get(Connection *c, const char *path) {
    char body[512] = "{\"status\":\"healthy\"}";
    if (strncmp(path, "/v1/models ", 11) == 0) {
        snprintf(body, sizeof body, "{\"object\":\"list\",\"data\":[{\"id\":\"" MODEL "\",\"object\":\"model\",\"created\":1,\"owned_by\":\"bench\"}]}");
    } else if (strncmp(path, "/stats", 6) == 0) {
        snprintf(body, sizeof body, "{\"requests\":%ld,\"events\":%ld,\"held_back\":%ld,\"open_streams\":%ld,\"most_streams\":%ld}",
            requests, events_written, held_back, open_streams, most_streams);
        if (strncmp(path, "/stats/anew ", 12) == 0) most_streams = open_streams;
    }
    answer_whole(c, body);
}

static void answer_post(Connection *c, const char *body) {
    requests++;
    c->id = (int)(requests % 100000000);
    const char *how = strstr(body, "bench:");
    c->events = 1;
    c->gap_us = 0;
    if (how != NULL) sscanf(how, "bench:events=%d,gap_us=%d", &c->events, &c->gap_us);
    if (c->events < 1) c->events = 1;
    c->nvext = strstr(body, "\"nvext\"") != NULL;
    if (strstr(body, "\"stream\":true") == NULL && strstr(body, "\"stream\": true") == NULL) {
        char text[1024];
        snprintf(text, sizeof text,
            "{\"id\":\"chatcmpl-%08d\",\"choices\":[{\"index\":0,\"message\":{\"content\":\"The capital of France is Paris, which lies on "
            "the Seine and has been the seat of its government for most of a thousand years.\",\"role\":\"assistant\"},"
            "\"finish_reason\":\"stop\",\"logprobs\":null}],\"created\":1790000000,\"model\":\"" MODEL "\",\"object\":\"chat.completion\","
            "\"usage\":" USAGE "%s}", c->id, c->events, c->events + 128, c->nvext ? "," TIMING : "");
        answer_whole(c, text);
        return;
    }
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
                               "transfer-encoding: chunked\r\n\r\n";
    c->usage = strstr(body, "\"include_usage\":true") != NULL || strstr(body, "\"include_usage\": true") != NULL;
    c->streaming = 1;
    c->next = 0;
    c->began = now_ns();
    if (++open_streams > most_streams) most_streams = open_streams;
    append(&c->out, head, sizeof head - 1);
    if (flush(c) < 0) {
        drop(c);
        return;
    }
    pump(c);
}

static void take_requests(Connection *c) {
    while (!c->dead && !c->streaming && c->in.length > 0) {
        char *end = strstr(c->in.data, "\r\n\r\n");
        if (end == NULL) return;
        const char *given = header(c->in.data, end + 2, "content-length");
        size_t head = end + 4 - c->in.data, body = given ? strtoul(given, NULL, 10) : 0;
        if (head + body > LARGEST_REQUEST || header(c->in.data, end + 2, "transfer-encoding") != NULL) {
            fprintf(stderr, "a request that this upstream does not read\n");
            drop(c);
            return;
        }
        if (c->in.length < head + body) return;
        char kept = c->in.data[head + body];
        c->in.data[head + body] = 0;
        if (strncmp(c->in.data, "GET ", 4) == 0) {
            answer_get(c, c->in.data + 4);
        } else {
            answer_post(c, c->in.data + head);
        }
        c->in.data[head + body] = kept;
        if (!c->dead) consume(&c->in, head + body);
    }
}

static void readable(Connection *c) {
    char data[65536];
    for (;;) {
        ssize_t got = recv(c->fd, data, sizeof data, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) break;
        if (got <= 0) {
            drop(c);
            return;
        }
        append(&c->in, data, got);
        if ((size_t)got < sizeof data) break;
    }
    take_requests(c);
}

static int listen_on(int port) {
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, 4096) < 0) fatal("listen");
    return fd;
}

static void accept_all(int listener) {
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        Connection *c = calloc(1, sizeof *c);
        if (c == NULL) fatal("calloc");
        c->fd = fd;
        c->heap_at = IDLE;
        without_delay(fd);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0) fatal("epoll_ctl");
    }
}

static void discard(Connection *c) {
    free(c->in.data);
    free(c->out.data);
    free(c);
}

int main(int count, char **arguments) {
    if (count != 2) {
        fprintf(stderr, "usage: upstream PORT\n");
        return 2;
    }
    prepare_process();
    int listener = listen_on(atoi(arguments[1]));
    epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, ready[BATCH];
    if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) < 0) fatal("epoll");
    for (;;) {
        int number = wait_until(epoll, ready, BATCH, heap_size ? due_of(heap[0]) : INT64_MAX);
        for (int i = 0; i < number; i++) {
            Connection *c = ready[i].data.ptr;
            if (c == NULL) {
                accept_all(listener);
                continue;
            }
            if (!c->dead && ready[i].events & EPOLLOUT) {
                int state = flush(c);
                if (state < 0) drop(c);
                if (state == 1) {
                    watch(c, EPOLLIN);
                    if (c->streaming) pump(c);
                    take_requests(c);
                }
            }
            if (!c->dead && ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) readable(c);
            if (c->dead) discard(c);
        }
        int64_t now = now_ns();
        for (int i = 0; i < BATCH && heap_size && due_of(heap[0]) <= now; i++) {
            Connection *c = heap[0];
            pump(c);
            take_requests(c);
            if (c->dead) discard(c);
        }
    }
}
