/* What the load generator and the upstream share: one clock, sockets, and a buffer that grows. */
#ifndef COMMON_H
#define COMMON_H

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* Opens the time of an event's due write, in nanoseconds of CLOCK_MONOTONIC, inside its text. Both programs run on one
 * machine, so the two clocks are one. */
#define STAMP "@T"
#define STAMP_DIGITS 17

typedef struct {
    char *data;
    size_t length, room;
} Buffer;

static inline void fatal(const char *what) {
    perror(what);
    exit(2);
}

static inline int64_t now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static inline void append(Buffer *buffer, const char *data, size_t length) {
    if (buffer->length + length + 1 > buffer->room) {
        buffer->room = (buffer->length + length + 1) * 2;
        buffer->data = realloc(buffer->data, buffer->room);
        if (buffer->data == NULL) fatal("realloc");
    }
    memcpy(buffer->data + buffer->length, data, length);
    buffer->length += length;
    buffer->data[buffer->length] = 0;
}

static inline void consume(Buffer *buffer, size_t length) {
    buffer->length -= length;
    memmove(buffer->data, buffer->data + length, buffer->length + 1);
}

/* Of a header block that ends in a blank line: the value of `name`, or NULL. */
static inline const char *header(const char *block, const char *end, const char *name) {
    size_t length = strlen(name);
    for (const char *line = memchr(block, '\n', end - block); line != NULL && line + 1 < end;
         line = memchr(line, '\n', end - line)) {
        line++;
        if ((size_t)(end - line) > length && strncasecmp(line, name, length) == 0 && line[length] == ':') {
            line += length + 1;
            while (*line == ' ') line++;
            return line;
        }
    }
    return NULL;
}

static inline void prepare_process(void) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    prctl(PR_SET_TIMERSLACK, 1); /* the default of 50 us would round every event's time */
    prctl(PR_SET_PDEATHSIG, 15);
}

static inline void without_delay(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/* Waits until `due` at the latest (never longer than a second), to the nanosecond that the kernel allows. */
static inline int wait_until(int epoll, struct epoll_event *events, int room, int64_t due) {
    int64_t left = due - now_ns();
    if (left < 0) left = 0;
    if (left > 1000000000LL) left = 1000000000LL;
    struct timespec timeout = {left / 1000000000LL, left % 1000000000LL};
    int count = epoll_pwait2(epoll, events, room, &timeout, NULL);
    if (count < 0 && errno != EINTR) fatal("epoll_pwait2");
    return count < 0 ? 0 : count;
}

#endif
