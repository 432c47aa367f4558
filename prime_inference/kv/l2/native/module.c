/* prime_inference.kv.l2._native: the pool for Python (native.py is its only user).
 *
 *   Pool(shards, threads, edges)     threads: a lane, for lookups, loads, stores; edges: of the timings' buckets, seconds
 *     .event_fd                      readable while there is something to drain
 *     .submit(operation, keys, buffers or None, began, deadline) -> Batch
 *     .drain() -> [(number, whole, error, [bool])]     LMCache's native-client tuples
 *     .serve(slot, fd) -> None closed | -1.0 drop the connection | the deadline by which to open one
 *     .refuse(slot, until)           its keys and those that come until then are unreachable
 *     .charge(slot, outcome)         its first key bears what went wrong
 *     .watch()                       settles what is late, until the pool is closed
 *     .close()
 *     .counts() -> ([(shard, operation, outcome, keys)], [(shard, operation, bytes)])
 *     .timings() -> [([batches by bucket], total_s, slowest_s)] by operation
 *   Batch
 *     .number, .wait(timeout_s or None) -> bool, .codes() -> bytes: an outcome a key
 *
 * Buffers are held from submit until the batch is complete and given back by the next call that has the interpreter's lock.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include "pool.h"

#define HEAD_ROOM 80      /* a request beside its key: names, lengths of up to 20 digits, line ends */
#define WAIT_SLICE_S 0.25 /* how soon a waiting caller sees a signal */

static const char *const NAMES[OUTCOMES] = {"ok",         "absent",          "wrong_length", "server_error", "malformed",
                                            "connection_lost", "unreachable", "deadline",     "closed"};
static const enum outcome BY_NAME[] = {ABSENT,    CLOSED,       CONNECTION_LOST, DEADLINE,
                                       MALFORMED, SERVER_ERROR, UNREACHABLE,     WRONG_LENGTH};

typedef struct {
    PyObject_HEAD
    Pool *pool;
} PoolObject;

typedef struct {
    PyObject_HEAD
    PyObject *owner; /* the pool outlives its batches' handles */
    Batch *batch;
} BatchObject;

static PyTypeObject PoolType, BatchType;

static void free_views(Batch *batch) {
    Py_buffer *views = batch->views;
    if (views == NULL) return;
    for (size_t k = 0; k < batch->count && views[k].obj != NULL; k++) PyBuffer_Release(&views[k]);
    PyMem_Free(views);
    batch->views = NULL;
}

static void give_back(Pool *pool) {
    Batch *batch = pool_loose(pool);
    while (batch != NULL) {
        Batch *next = batch->next_loose;
        free_views(batch);
        let_go(batch);
        batch = next;
    }
}

static enum outcome outcome_of(const Key *key) {
    unsigned char state = atomic_load(&key->state);
    return state < SETTLED ? DEADLINE : (enum outcome)(state - SETTLED);
}

/* ── Batch ── */

static void batch_dealloc(BatchObject *self) {
    let_go(self->batch);
    Py_DECREF(self->owner);
    PyObject_Free(self);
}

static PyObject *batch_number(BatchObject *self, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLongLong(self->batch->number);
}

static PyObject *batch_wait_for(BatchObject *self, PyObject *timeout) {
    double until = timeout == Py_None ? -1 : PyFloat_AsDouble(timeout);
    if (PyErr_Occurred()) return NULL;
    if (timeout != Py_None) until += now_s();
    for (;;) {
        double left = timeout == Py_None ? WAIT_SLICE_S : until - now_s();
        int complete, last = left <= WAIT_SLICE_S && timeout != Py_None;
        if (left > WAIT_SLICE_S) left = WAIT_SLICE_S;
        Py_BEGIN_ALLOW_THREADS
        complete = batch_wait(self->batch, left > 0 ? left : 0);
        Py_END_ALLOW_THREADS
        if (complete || last) {
            give_back(((PoolObject *)self->owner)->pool);
            return PyBool_FromLong(complete);
        }
        if (PyErr_CheckSignals() < 0) return NULL;
    }
}

static PyObject *batch_codes(BatchObject *self, PyObject *unused) {
    (void)unused;
    PyObject *codes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)self->batch->count);
    if (codes == NULL) return NULL;
    for (size_t k = 0; k < self->batch->count; k++)
        PyBytes_AS_STRING(codes)[k] = (char)outcome_of(&self->batch->keys[k]);
    return codes;
}

static PyGetSetDef batch_getters[] = {{"number", (getter)batch_number, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef batch_methods[] = {
    {"wait", (PyCFunction)batch_wait_for, METH_O, NULL},
    {"codes", (PyCFunction)batch_codes, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject BatchType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "prime_inference.kv.l2._native.Batch",
    .tp_basicsize = sizeof(BatchObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)batch_dealloc,
    .tp_getset = batch_getters,
    .tp_methods = batch_methods,
};

/* ── Pool ── */

static PyObject *pool_make(PyTypeObject *type, PyObject *arguments, PyObject *named) {
    Py_ssize_t shards, lookup, load, store;
    PyObject *edge_list;
    if (named != NULL || !PyArg_ParseTuple(arguments, "n(nnn)O!", &shards, &lookup, &load, &store, &PyTuple_Type, &edge_list))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "no keyword arguments");
    Py_ssize_t edge_count = PyTuple_GET_SIZE(edge_list);
    if (shards < 1 || lookup < 1 || load < 1 || store < 1 || edge_count > MOST_EDGES)
        return PyErr_Format(PyExc_ValueError, "at least one shard and thread, at most %d edges", MOST_EDGES);
    double edges[MOST_EDGES];
    for (Py_ssize_t edge = 0; edge < edge_count; edge++) edges[edge] = PyFloat_AsDouble(PyTuple_GET_ITEM(edge_list, edge));
    if (PyErr_Occurred()) return NULL;
    PoolObject *self = PyObject_New(PoolObject, type);
    if (self == NULL) return NULL;
    size_t threads[KINDS] = {(size_t)lookup, (size_t)load, (size_t)store};
    self->pool = pool_new((size_t)shards, threads, edges, (size_t)edge_count);
    if (self->pool == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

/* Every thread in a call and every handle of a batch holds the pool, so nothing is in use any more. */
static void pool_dealloc(PoolObject *self) {
    if (self->pool != NULL) {
        pool_close(self->pool);
        for (Batch *batch = pool_done(self->pool), *next; batch != NULL; batch = next) {
            next = batch->next_done;
            let_go(batch);
        }
        give_back(self->pool);
        pool_free(self->pool);
    }
    PyObject_Free(self);
}

static char *put_text(char *at, const char *text, size_t bytes) {
    memcpy(at, text, bytes);
    return at + bytes;
}

static char *put_number(char *at, size_t number) {
    char digits[20];
    size_t count = 0;
    do digits[count++] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    while (count > 0) *at++ = digits[--count];
    return at;
}

/* Writes the request to `at`, which has room for the key and HEAD_ROOM; the end of what was written. */
static char *fill_head(Key *key, enum operation operation, const char *name, size_t bytes, char *at) {
    static const char *const OPENINGS[] = {"*2\r\n$6\r\nEXISTS\r\n$", "*2\r\n$3\r\nGET\r\n$", "*3\r\n$3\r\nSET\r\n$",
                                           "*2\r\n$3\r\nDEL\r\n$"};
    key->head = at;
    at = put_text(at, OPENINGS[operation], strlen(OPENINGS[operation]));
    at = put_number(at, bytes);
    at = put_text(at, "\r\n", 2);
    at = put_text(at, name, bytes);
    at = put_text(at, "\r\n", 2);
    if (operation == STORE) {
        at = put_text(at, "$", 1);
        at = put_number(at, key->value_bytes);
        at = put_text(at, "\r\n", 2);
    }
    key->head_bytes = (size_t)(at - key->head);
    return at;
}

static int fill_view(Key *key, enum operation operation, PyObject *buffer, Py_buffer *view) {
    if (PyObject_GetBuffer(buffer, view, operation == LOAD ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0) {
        if (operation == LOAD && PyErr_ExceptionMatches(PyExc_BufferError))
            PyErr_SetString(PyExc_ValueError, "a buffer to load into is read-only");
        return -1;
    }
    char digits[20];
    key->value = view->buf;
    key->value_bytes = (size_t)view->len;
    key->line_bytes = (size_t)(put_number(digits, key->value_bytes) - digits) + 3; /* its sign and line end */
    return 0;
}

/* A batch that nobody else has seen. */
static Batch *new_batch(Pool *pool, enum operation operation, PyObject *keys, PyObject *buffers) {
    Py_ssize_t count = PySequence_Fast_GET_SIZE(keys);
    size_t room = 0;
    for (Py_ssize_t k = 0; k < count; k++) {
        Py_ssize_t bytes;
        if (PyUnicode_AsUTF8AndSize(PySequence_Fast_GET_ITEM(keys, k), &bytes) == NULL) return NULL;
        room += (size_t)bytes + HEAD_ROOM;
    }
    Batch *batch = batch_new(pool, operation, (size_t)count, room);
    Py_buffer *views = buffers == NULL ? NULL : PyMem_Calloc((size_t)count + 1, sizeof(Py_buffer));
    if (batch == NULL || (buffers != NULL && views == NULL)) {
        PyErr_NoMemory();
        goto failed;
    }
    batch->views = views;
    char *at = batch->heads;
    for (Py_ssize_t k = 0; k < count; k++) {
        Key *key = &batch->keys[k];
        Py_ssize_t bytes;
        const char *name = PyUnicode_AsUTF8AndSize(PySequence_Fast_GET_ITEM(keys, k), &bytes);
        if (views != NULL && fill_view(key, operation, PySequence_Fast_GET_ITEM(buffers, k), &views[k]) < 0) goto failed;
        if (pool->shards > 1) key->shard = crc32_of(name, (size_t)bytes) % (uint32_t)pool->shards;
        at = fill_head(key, operation, name, (size_t)bytes, at);
    }
    return batch;
failed:
    if (batch != NULL) {
        free_views(batch);
        for (size_t holder = batch->count + 3; holder > 0; holder--) let_go(batch);
    }
    return NULL;
}

static PyObject *pool_submit_batch(PoolObject *self, PyObject *const *arguments, Py_ssize_t given) {
    if (given != 5) return PyErr_Format(PyExc_TypeError, "submit(operation, keys, buffers, began, deadline)");
    long operation = PyLong_AsLong(arguments[0]);
    double began = PyFloat_AsDouble(arguments[3]), deadline = PyFloat_AsDouble(arguments[4]);
    if (PyErr_Occurred()) return NULL;
    int moves = operation == LOAD || operation == STORE;
    if (operation < LOOKUP || operation > DELETE || moves == (arguments[2] == Py_None))
        return PyErr_Format(PyExc_ValueError, "buffers go with loads and stores, and only with them");
    give_back(self->pool);
    PyObject *keys = PySequence_Fast(arguments[1], "keys must be a sequence");
    PyObject *buffers = moves ? PySequence_Fast(arguments[2], "buffers must be a sequence") : NULL;
    BatchObject *handle = NULL;
    if (keys == NULL || (moves && buffers == NULL)) goto end;
    if (moves && PySequence_Fast_GET_SIZE(buffers) != PySequence_Fast_GET_SIZE(keys)) {
        PyErr_Format(PyExc_ValueError, "%zd keys but %zd buffers", PySequence_Fast_GET_SIZE(keys),
                     PySequence_Fast_GET_SIZE(buffers));
        goto end;
    }
    handle = PyObject_New(BatchObject, &BatchType);
    if (handle == NULL) goto end;
    Batch *batch = new_batch(self->pool, (enum operation)operation, keys, buffers);
    if (batch == NULL) {
        PyObject_Free(handle);
        handle = NULL;
        goto end;
    }
    batch->began = began;
    batch->deadline = deadline;
    handle->batch = batch;
    handle->owner = Py_NewRef((PyObject *)self);
    pool_submit(self->pool, batch);
end:
    Py_XDECREF(keys);
    Py_XDECREF(buffers);
    return (PyObject *)handle;
}

/* What a store's keys ended as, beside ok: names in order, by commas. */
static PyObject *error_of(const unsigned *of_each) {
    char text[160] = "";
    for (size_t at = 0; at < sizeof BY_NAME / sizeof BY_NAME[0]; at++) {
        if (of_each[BY_NAME[at]] == 0) continue;
        if (text[0] != '\0') strcat(text, ", ");
        strcat(text, NAMES[BY_NAME[at]]);
    }
    return PyUnicode_FromString(text);
}

/* A store is all or nothing to LMCache; of lookups and loads it reads the answers key by key. */
static PyObject *completion_of(const Batch *batch) {
    unsigned of_each[OUTCOMES] = {0};
    PyObject *succeeded = PyList_New((Py_ssize_t)batch->count);
    if (succeeded == NULL) return NULL;
    for (size_t k = 0; k < batch->count; k++) {
        enum outcome outcome = outcome_of(&batch->keys[k]);
        of_each[outcome]++;
        PyList_SET_ITEM(succeeded, (Py_ssize_t)k, Py_NewRef(outcome == OK ? Py_True : Py_False));
    }
    int whole = batch->operation != STORE || of_each[OK] == batch->count;
    PyObject *error = whole ? PyUnicode_FromStringAndSize("", 0) : error_of(of_each);
    return Py_BuildValue("KNNN", (unsigned long long)batch->number, PyBool_FromLong(whole), error, succeeded);
}

static PyObject *pool_drain(PoolObject *self, PyObject *unused) {
    (void)unused;
    PyObject *drained = PyList_New(0);
    for (Batch *batch = pool_done(self->pool), *next; batch != NULL; batch = next) {
        next = batch->next_done;
        PyObject *completion = drained == NULL ? NULL : completion_of(batch);
        if (drained != NULL && (completion == NULL || PyList_Append(drained, completion) < 0)) Py_CLEAR(drained);
        Py_XDECREF(completion);
        let_go(batch);
    }
    give_back(self->pool);
    return drained;
}

static Slot *slot_of(PoolObject *self, Py_ssize_t number) {
    if (number >= 0 && (size_t)number < self->pool->slot_count) return &self->pool->slots[number];
    PyErr_SetString(PyExc_IndexError, "no such slot");
    return NULL;
}

static PyObject *pool_serve_slot(PoolObject *self, PyObject *arguments) {
    Py_ssize_t number;
    int fd;
    if (!PyArg_ParseTuple(arguments, "ni", &number, &fd)) return NULL;
    Slot *slot = slot_of(self, number);
    if (slot == NULL) return NULL;
    double deadline = 0;
    enum served served;
    Py_BEGIN_ALLOW_THREADS
    served = pool_serve(self->pool, slot, fd, &deadline);
    Py_END_ALLOW_THREADS
    if (served == IS_CLOSED) Py_RETURN_NONE;
    return PyFloat_FromDouble(served == WANTS_DROP ? -1.0 : deadline);
}

static PyObject *pool_refuse_slot(PoolObject *self, PyObject *arguments) {
    Py_ssize_t number;
    double until;
    if (!PyArg_ParseTuple(arguments, "nd", &number, &until)) return NULL;
    Slot *slot = slot_of(self, number);
    if (slot == NULL) return NULL;
    pool_refuse(slot, until);
    Py_RETURN_NONE;
}

static PyObject *pool_charge_slot(PoolObject *self, PyObject *arguments) {
    Py_ssize_t number;
    int outcome;
    if (!PyArg_ParseTuple(arguments, "ni", &number, &outcome)) return NULL;
    Slot *slot = slot_of(self, number);
    if (slot == NULL) return NULL;
    if (outcome < OK || outcome >= OUTCOMES) return PyErr_Format(PyExc_ValueError, "no such outcome");
    pool_charge(slot, (enum outcome)outcome);
    Py_RETURN_NONE;
}

static PyObject *pool_watch_all(PoolObject *self, PyObject *unused) {
    (void)unused;
    Py_BEGIN_ALLOW_THREADS
    pool_watch(self->pool);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *pool_close_all(PoolObject *self, PyObject *unused) {
    (void)unused;
    pool_close(self->pool);
    give_back(self->pool);
    Py_RETURN_NONE;
}

static int append(PyObject *list, PyObject *row) {
    int failed = row == NULL || PyList_Append(list, row) < 0;
    Py_XDECREF(row);
    return failed ? -1 : 0;
}

static PyObject *pool_counts(PoolObject *self, PyObject *unused) {
    (void)unused;
    Pool *pool = self->pool;
    PyObject *keys = PyList_New(0), *moved = PyList_New(0);
    if (keys == NULL || moved == NULL) goto failed;
    for (size_t row = 0; row < pool->shards * OPERATIONS; row++) {
        int any = 0;
        for (size_t outcome = 0; outcome < OUTCOMES; outcome++) {
            unsigned long long count = atomic_load(&pool->keys_by[row * OUTCOMES + outcome]);
            if (count == 0) continue;
            any = 1;
            if (append(keys, Py_BuildValue("nnnK", row / OPERATIONS, row % OPERATIONS, outcome, count)) < 0) goto failed;
        }
        unsigned long long bytes = atomic_load(&pool->bytes_by[row]);
        if (any && append(moved, Py_BuildValue("nnK", row / OPERATIONS, row % OPERATIONS, bytes)) < 0) goto failed;
    }
    return Py_BuildValue("NN", keys, moved);
failed:
    Py_XDECREF(keys);
    Py_XDECREF(moved);
    return NULL;
}

static PyObject *pool_timings(PoolObject *self, PyObject *unused) {
    (void)unused;
    Pool *pool = self->pool;
    unsigned long long took[OPERATIONS][MOST_EDGES + 1];
    double total_s[OPERATIONS], slowest_s[OPERATIONS];
    pthread_mutex_lock(&pool->lock);
    memcpy(took, pool->took, sizeof took);
    memcpy(total_s, pool->total_s, sizeof total_s);
    memcpy(slowest_s, pool->slowest_s, sizeof slowest_s);
    pthread_mutex_unlock(&pool->lock);
    PyObject *told = PyList_New(0);
    for (size_t operation = 0; told != NULL && operation < OPERATIONS; operation++) {
        PyObject *counts = PyList_New(0);
        for (size_t edge = 0; counts != NULL && edge <= pool->edge_count; edge++)
            if (append(counts, PyLong_FromUnsignedLongLong(took[operation][edge])) < 0) Py_CLEAR(counts);
        if (counts == NULL || append(told, Py_BuildValue("Ndd", counts, total_s[operation], slowest_s[operation])) < 0)
            Py_CLEAR(told);
    }
    return told;
}

static PyObject *pool_event_fd(PoolObject *self, void *closure) {
    (void)closure;
    return PyLong_FromLong(self->pool->event_fd);
}

static PyGetSetDef pool_getters[] = {{"event_fd", (getter)pool_event_fd, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef pool_methods[] = {
    {"submit", (PyCFunction)(void (*)(void))pool_submit_batch, METH_FASTCALL, NULL},
    {"drain", (PyCFunction)pool_drain, METH_NOARGS, NULL},
    {"serve", (PyCFunction)pool_serve_slot, METH_VARARGS, NULL},
    {"refuse", (PyCFunction)pool_refuse_slot, METH_VARARGS, NULL},
    {"charge", (PyCFunction)pool_charge_slot, METH_VARARGS, NULL},
    {"watch", (PyCFunction)pool_watch_all, METH_NOARGS, NULL},
    {"close", (PyCFunction)pool_close_all, METH_NOARGS, NULL},
    {"counts", (PyCFunction)pool_counts, METH_NOARGS, NULL},
    {"timings", (PyCFunction)pool_timings, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject PoolType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "prime_inference.kv.l2._native.Pool",
    .tp_basicsize = sizeof(PoolObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = pool_make,
    .tp_dealloc = (destructor)pool_dealloc,
    .tp_getset = pool_getters,
    .tp_methods = pool_methods,
};

/* For the test that holds it to partition.py. */
static PyObject *module_crc32(PyObject *module, PyObject *name) {
    (void)module;
    char *bytes;
    Py_ssize_t count;
    if (PyBytes_AsStringAndSize(name, &bytes, &count) < 0) return NULL;
    return PyLong_FromUnsignedLong(crc32_of(bytes, (size_t)count));
}

static PyMethodDef functions[] = {{"crc32", module_crc32, METH_O, NULL}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    if (PyType_Ready(&PoolType) < 0 || PyType_Ready(&BatchType) < 0) return NULL;
    PyObject *made = PyModule_Create(&module), *names = PyTuple_New(OUTCOMES);
    for (int outcome = 0; names != NULL && outcome < OUTCOMES; outcome++)
        PyTuple_SET_ITEM(names, outcome, PyUnicode_FromString(NAMES[outcome]));
    if (made == NULL || names == NULL || PyModule_AddObjectRef(made, "OUTCOMES", names) < 0 ||
        PyModule_AddObjectRef(made, "Pool", (PyObject *)&PoolType) < 0)
        Py_CLEAR(made);
    Py_XDECREF(names);
    return made;
}
