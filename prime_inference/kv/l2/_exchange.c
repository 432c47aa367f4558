/* One pipelined exchange with a Valkey over a connected socket, without the interpreter lock.
 *
 * The same law as exchange.py and connection.py, which remain the reference and the fallback: a key is OK only after its
 * own value, of exactly the buffer's length and closed by its terminator, lies in its buffer; every wait ends by the
 * deadline of the key whose reply is awaited. Nothing is decided here about retries, claims or connections.
 *
 *   exchange(fd, operation, keys, buffers, deadlines, flight_bytes, discard_bytes) -> (codes, status)
 *
 * keys       list of bytes
 * buffers    list of buffers, or None where no value moves; written for LOAD, read for STORE
 * deadlines  list of floats on the clock of time.monotonic()
 * codes      bytes, one for each key that was settled, in order
 * status     why it ended; below DONE the next key is the one that was awaited
 *
 * The caller owns the buffers' exclusive use for the call. Values on the wire are RESP2.
 *
 * A value is read from its first byte into its buffer's first byte: a reply's first line is read alone, to the length that
 * it has when the value is there. Reading further and copying the rest put the kernel's copy at an odd address of the
 * buffer, which took a tenth longer.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

enum operation { LOOKUP, LOAD, STORE, DELETE };
enum code { OK, ABSENT, WRONG_LENGTH, SERVER_ERROR };
enum status { DONE, DEADLINE, MALFORMED, LOST, DROP };
enum state { LINE, VALUE, TERMINATOR, SKIP };

#define AHEAD_BYTES 4096
#define LARGEST_VALUE (512LL * 1024 * 1024)
#define IOVECS 96 /* a store takes three */
#define HEAD_ROOM 80 /* a request beside its key: names, lengths of up to 20 digits, line ends */
#define TERMINATOR_BYTES 2
#define WAIT_FOR_ALL (128 * 1024) /* a longer rest of a value is awaited in one call, without what follows it */
#define ALONE (128 * 1024) /* a longer value is asked for or sent when all before it are answered */
#define REUSE_S 0.01              /* a kernel timeout set for a deadline is kept for so long: late by this at most */

typedef struct {
    const char *head;
    size_t head_bytes;
    size_t line_bytes; /* of the first line of the reply that brings the value */
    char *value;
    size_t value_bytes;
    double deadline;
    Py_buffer view;
    int has_view;
} Key;

typedef struct {
    int fd;
    enum operation operation;
    Key *keys;
    size_t count;
    size_t flight_bytes, discard_bytes;
    unsigned char *codes;
    size_t settled;          /* keys with a code; the next one is awaited */
    size_t sending, sent_of; /* the key being sent, and how much of it has left */
    size_t in_flight;        /* value bytes asked for or sent, and not yet answered */
    enum state state;
    size_t have;  /* VALUE: bytes in the buffer */
    long long skip; /* SKIP: bytes to read past */
    char ahead[AHEAD_BYTES];
    size_t start, end;
    double limit_for[2], limit_set[2]; /* receive, send: the deadline the kernel was told, and when */
} Exchange;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Below half a flight the next half leaves in one call. A large value travels alone: two of 256 KiB in one flight took
 * longer than one after the other, both stored and loaded. */
static int may_send(const Exchange *x) {
    if (x->sending == x->count) return 0;
    if (x->sent_of > 0 || x->in_flight == 0) return 1;
    if (x->keys[x->sending].value_bytes > ALONE) return 0;
    return x->in_flight <= x->flight_bytes / 2;
}

/* Calls on the socket block, no longer than to the awaited key's deadline. */
static enum status limit(Exchange *x, int option) {
    int which = option == SO_SNDTIMEO;
    double deadline = x->keys[x->settled].deadline, now = now_s(), left = deadline - now;
    if (left <= 0) return DEADLINE;
    if (x->limit_for[which] == deadline && now - x->limit_set[which] < REUSE_S) return DONE;
    if (left < 0.001) left = 0.001; /* 0 would be none at all */
    struct timeval t = {.tv_sec = (time_t)left, .tv_usec = (suseconds_t)((left - (double)(time_t)left) * 1e6)};
    if (setsockopt(x->fd, SOL_SOCKET, option, &t, sizeof t) < 0) return LOST;
    x->limit_for[which] = deadline;
    x->limit_set[which] = now;
    return DONE;
}

static size_t add(struct iovec *parts, size_t n, const char *from, size_t bytes, size_t *skip) {
    if (*skip >= bytes) {
        *skip -= bytes;
        return n;
    }
    parts[n].iov_base = (void *)(from + *skip);
    parts[n].iov_len = bytes - *skip;
    *skip = 0;
    return n + 1;
}

/* A blocking send cannot wait for us: a Valkey reads on while its replies lie in its own memory. */
static enum status send_some(Exchange *x) {
    enum status limited = limit(x, SO_SNDTIMEO);
    if (limited != DONE) return limited;
    struct iovec parts[IOVECS];
    size_t n = 0, skip = x->sent_of, ahead = x->in_flight;
    for (size_t k = x->sending; k < x->count && n + 3 <= IOVECS; k++) {
        const Key *key = &x->keys[k];
        if (k > x->sending && (key->value_bytes > ALONE || ahead >= x->flight_bytes)) break;
        n = add(parts, n, key->head, key->head_bytes, &skip);
        if (x->operation == STORE) {
            n = add(parts, n, key->value, key->value_bytes, &skip);
            n = add(parts, n, "\r\n", 2, &skip);
        }
        ahead += key->value_bytes;
    }
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = n};
    ssize_t sent = sendmsg(x->fd, &message, MSG_NOSIGNAL);
    if (sent < 0) return errno == EINTR ? DONE : errno == EAGAIN || errno == EWOULDBLOCK ? DEADLINE : LOST;
    size_t left = (size_t)sent;
    while (left > 0) {
        const Key *key = &x->keys[x->sending];
        size_t whole = key->head_bytes + (x->operation == STORE ? key->value_bytes + 2 : 0);
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
    if (x->operation != LOAD || x->state == SKIP) return room;
    size_t next = x->settled + (x->state == LINE ? 0 : 1);
    if (x->state != LINE) wanted = TERMINATOR_BYTES;
    if (next < x->sending) wanted += x->keys[next].line_bytes;
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
    if (x->state == VALUE) { /* nothing is read ahead then */
        Key *key = &x->keys[x->settled];
        wanted = key->value_bytes - x->have;
        parts[n].iov_base = key->value + x->have;
        parts[n++].iov_len = wanted;
        all = wanted > WAIT_FOR_ALL;
    }
    parts[n].iov_base = x->ahead + x->end;
    parts[n++].iov_len = all ? TERMINATOR_BYTES : line_room(x); /* the terminator comes for certain */
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = n};
    ssize_t got = recvmsg(x->fd, &message, all ? MSG_WAITALL : 0);
    if (got < 0) return errno == EINTR ? DONE : errno == EAGAIN || errno == EWOULDBLOCK ? DEADLINE : LOST;
    if (got == 0) return LOST;
    if ((size_t)got <= wanted) {
        x->have += (size_t)got;
    } else {
        x->have += wanted;
        x->end += (size_t)got - wanted;
    }
    return DONE;
}

static void settle(Exchange *x, enum code code) {
    x->in_flight -= x->keys[x->settled].value_bytes;
    x->codes[x->settled++] = (unsigned char)code;
    x->state = LINE;
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
static enum status take_line(Exchange *x, const char *line, size_t bytes) {
    long long number = 0;
    if (bytes == 0) return MALFORMED;
    char sign = line[0];
    if (sign == '-') {
        settle(x, SERVER_ERROR);
        return DONE;
    }
    if (x->operation == STORE) {
        if (bytes != 3 || memcmp(line, "+OK", 3) != 0) return MALFORMED;
        settle(x, OK);
        return DONE;
    }
    if (!number_of(line + 1, bytes - 1, &number)) return MALFORMED;
    if (x->operation != LOAD) {
        if (sign != ':' || number < 0 || number > 1) return MALFORMED;
        settle(x, number ? OK : ABSENT);
        return DONE;
    }
    if (sign != '$' || number > LARGEST_VALUE) return MALFORMED;
    if (number < 0) {
        settle(x, ABSENT);
        return DONE;
    }
    Key *key = &x->keys[x->settled];
    if ((size_t)number != key->value_bytes) {
        if ((size_t)number > x->discard_bytes) {
            settle(x, WRONG_LENGTH);
            return DROP;
        }
        x->state = SKIP;
        x->skip = number + 2;
        return DONE;
    }
    size_t here = x->end - x->start;
    x->have = here < key->value_bytes ? here : key->value_bytes;
    memcpy(key->value, x->ahead + x->start, x->have);
    x->start += x->have;
    x->state = VALUE;
    return DONE;
}

/* Take what lies in `ahead` and the buffer; sets *more when bytes must come first. */
static enum status take_some(Exchange *x, int *more) {
    *more = 0;
    switch (x->state) {
    case VALUE:
        if (x->have == x->keys[x->settled].value_bytes) x->state = TERMINATOR;
        else *more = 1;
        return DONE;
    case TERMINATOR:
        if (x->end - x->start < 2) {
            *more = 1;
            return DONE;
        }
        if (memcmp(x->ahead + x->start, "\r\n", 2) != 0) return MALFORMED;
        x->start += 2;
        settle(x, OK);
        return DONE;
    case SKIP: {
        long long step = (long long)(x->end - x->start);
        if (step > x->skip) step = x->skip;
        x->start += (size_t)step;
        x->skip -= step;
        if (x->skip == 0) settle(x, WRONG_LENGTH);
        else *more = 1;
        return DONE;
    }
    default: {
        const char *from = x->ahead + x->start;
        const char *at = memmem(from, x->end - x->start, "\r\n", 2);
        if (at == NULL) {
            if (x->end - x->start == AHEAD_BYTES) return MALFORMED;
            *more = 1;
            return DONE;
        }
        x->start += (size_t)(at - from) + 2;
        return take_line(x, from, (size_t)(at - from));
    }
    }
}

static enum status run(Exchange *x) {
    while (x->settled < x->count) {
        enum status status = DONE;
        while (may_send(x))
            if ((status = send_some(x)) != DONE) return status;
        int more = 0;
        if ((status = take_some(x, &more)) != DONE) return status;
        if (more && (status = receive_some(x)) != DONE) return status;
    }
    return DONE;
}

static void free_keys(Key *keys, size_t count) {
    for (size_t k = 0; k < count; k++)
        if (keys[k].has_view) PyBuffer_Release(&keys[k].view);
    PyMem_Free(keys);
}

/* Writes the request to `head`, which has room for the key and HEAD_ROOM. */
static int fill_key(Key *key, enum operation operation, PyObject *name, char *head, PyObject *buffer,
                    PyObject *deadline) {
    static const char *const OPENINGS[] = {"*2\r\n$6\r\nEXISTS\r\n", "*2\r\n$3\r\nGET\r\n", "*3\r\n$3\r\nSET\r\n",
                                           "*2\r\n$3\r\nDEL\r\n"};
    key->deadline = PyFloat_AsDouble(deadline);
    if (PyErr_Occurred()) return -1;
    if (operation == LOAD || operation == STORE) {
        if (PyObject_GetBuffer(buffer, &key->view, operation == LOAD ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0) return -1;
        key->has_view = 1;
        key->value = key->view.buf;
        key->value_bytes = (size_t)key->view.len;
        key->line_bytes = (size_t)snprintf(NULL, 0, "$%zu\r\n", key->value_bytes);
    }
    size_t bytes = (size_t)PyBytes_GET_SIZE(name);
    char *at = head;
    at += sprintf(at, "%s$%zu\r\n", OPENINGS[operation], bytes);
    memcpy(at, PyBytes_AS_STRING(name), bytes);
    at += bytes;
    at += operation == STORE ? sprintf(at, "\r\n$%zu\r\n", key->value_bytes) : sprintf(at, "\r\n");
    key->head = head;
    key->head_bytes = (size_t)(at - head);
    return 0;
}

/* Room for all requests; 0 with an exception set when something in the list is no key. */
static size_t heads_bytes(PyObject *names) {
    size_t bytes = 1;
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(names); k++) {
        PyObject *name = PyList_GET_ITEM(names, k);
        if (!PyBytes_Check(name)) {
            PyErr_SetString(PyExc_TypeError, "a key must be bytes");
            return 0;
        }
        bytes += (size_t)PyBytes_GET_SIZE(name) + HEAD_ROOM;
    }
    return bytes;
}

static PyObject *exchange(PyObject *self, PyObject *arguments) {
    (void)self;
    int fd, operation;
    PyObject *names, *buffers, *deadlines;
    Py_ssize_t flight_bytes, discard_bytes;
    if (!PyArg_ParseTuple(arguments, "iiO!OO!nn", &fd, &operation, &PyList_Type, &names, &buffers, &PyList_Type,
                          &deadlines, &flight_bytes, &discard_bytes))
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(names);
    int moves = operation == LOAD || operation == STORE;
    if (operation < LOOKUP || operation > DELETE || PyList_GET_SIZE(deadlines) != count ||
        (moves && (!PyList_Check(buffers) || PyList_GET_SIZE(buffers) != count))) {
        PyErr_SetString(PyExc_ValueError, "keys, buffers and deadlines must be lists of one length");
        return NULL;
    }
    size_t room = heads_bytes(names);
    if (room == 0) return NULL;
    char *heads = PyMem_Malloc(room), *head = heads;
    Key *keys = PyMem_Calloc((size_t)count + 1, sizeof(Key));
    PyObject *codes = PyBytes_FromStringAndSize(NULL, count);
    Exchange *x = PyMem_Calloc(1, sizeof(Exchange));
    PyObject *result = NULL;
    if (heads == NULL || keys == NULL || codes == NULL || x == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    for (Py_ssize_t k = 0; k < count; k++) {
        if (fill_key(&keys[k], (enum operation)operation, PyList_GET_ITEM(names, k), head,
                     moves ? PyList_GET_ITEM(buffers, k) : NULL, PyList_GET_ITEM(deadlines, k)) < 0)
            goto end;
        head += keys[k].head_bytes;
    }
    x->fd = fd;
    x->operation = (enum operation)operation;
    x->keys = keys;
    x->count = (size_t)count;
    x->flight_bytes = (size_t)flight_bytes;
    x->discard_bytes = (size_t)discard_bytes;
    x->codes = (unsigned char *)PyBytes_AS_STRING(codes);
    enum status status;
    Py_BEGIN_ALLOW_THREADS
    status = run(x);
    Py_END_ALLOW_THREADS
    result = Py_BuildValue("y#i", PyBytes_AS_STRING(codes), (Py_ssize_t)x->settled, (int)status);
end:
    if (keys != NULL) free_keys(keys, (size_t)count);
    PyMem_Free(x);
    PyMem_Free(heads);
    Py_XDECREF(codes);
    return result;
}

static PyMethodDef methods[] = {
    {"exchange", exchange, METH_VARARGS, "One pipelined exchange; see the head of _exchange.c."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_exchange", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__exchange(void) { return PyModule_Create(&module); }
