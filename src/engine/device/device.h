/* src/engine/device/device.h -- what a rank's programs run on: memory that is accounted for, streams, events, kernels.
 *
 * A device is a const table of functions; the host fills it in here, CUDA elsewhere. Nothing in the table assumes that memory can
 * be read by the caller or that work is done when a call returns:
 *
 *   stream     an in-order queue. launch, move, record and wait append to it and return at once
 *   event      one instance: made by record, done when its stream reaches it. Recording again makes another
 *   storage    memory, taken and given back in the order of one stream (its pool's): given back, it is reused without a wait by
 *              what that stream runs next. Work that uses it lists it, so that the host device may keep it until then
 *   kernels    launch appends a function with its arguments: on the host it is called, on a GPU it launches what it likes on the
 *              stream; move is the one kernel that the interpreter itself needs
 *
 * Bytes are accounted at the call, in host order, by who owns them (enum ls_category): a caching allocator's view, and
 * reproducible. One device serves one rank. Functions are called by that rank's host threads, under the scheduler's lock where
 * there is one. */
#ifndef LS_ENGINE_DEVICE_DEVICE_H
#define LS_ENGINE_DEVICE_DEVICE_H

#include "engine/device/sched.h"
#include "ir/program.h"

struct ls_device;
struct ls_stream;
struct ls_event;

/* Owned by its device. `at` is NULL where there is no data, only accounting. */
struct ls_storage {
    void *at; uint64_t bytes; uint8_t category;
    struct ls_device *device; struct ls_stream *pool;
    uint32_t refs, own;          /* the owner and pending work that uses it; of that work, what its pool's stream will run */
    bool lent;                   /* given back, and `at` may be another storage's already */
};

/* A run of elements in a storage. */
struct ls_tensor { struct ls_storage *of; uint64_t offset_bytes, elements; enum ls_dtype dtype; };

/* to = (add ? to : 0) + from, converted element by element through the wider type; from.of NULL: zeros. Equal dtypes are copied
 * bit by bit when nothing is added. */
struct ls_move { struct ls_tensor to, from; bool add; };

typedef void (*ls_launch_fn)(void *args, struct ls_stream *stream);

struct ls_memory { uint64_t now[LS_CATEGORY_COUNT], peak[LS_CATEGORY_COUNT], total, total_peak;
                   uint64_t at_peak[LS_CATEGORY_COUNT]; /* each category when the total peaked first */ };
void ls_memory_take(struct ls_memory *m, enum ls_category category, uint64_t bytes);
void ls_memory_give(struct ls_memory *m, enum ls_category category, uint64_t bytes);

enum { LS_NO_TAG = -1 };
/* When a stream began with something, when it was over, and how long it ran in between; CLOCK_MONOTONIC. The rest of the time it
 * waited: for an event, for the other members, or for a turn. */
struct ls_span { uint64_t begin_ns, end_ns, busy_ns; };
struct ls_device_options {
    struct ls_sched *sched;      /* of whoever drives the rank */
    size_t streams;
    int ordinal;                 /* which GPU */
    uint64_t bytes_max;          /* 0: no bound; the host refuses more */
    bool poison;                 /* host: new memory holds NaNs */
    bool accounting;             /* no memory but TEMPORARY: `at` is NULL, only bytes are counted */
    /* Work with tag >= 0 has run, under the lock. May be NULL. */
    void (*done)(void *context, int64_t tag); void *done_context;
    /* Work with tag >= 0 and what stood before it on its stream without a tag, or a step of a communicator (LS_NO_TAG), is over:
     * right after `done`, under the lock, with done's context. NULL: no clock is read. */
    void (*span)(void *context, unsigned stream, int64_t tag, const struct ls_span *span);
};

struct ls_device_ops {
    const char *name;            /* as in --device NAME */
    bool host_memory;            /* ls_storage.at may be dereferenced */
    bool wakes;                  /* a host thread that waits is an actor woken by the device; else it calls event_block */
    enum ls_code (*open)(struct ls_device **out, const struct ls_device_options *o, struct ls_error *err);
    void (*close)(struct ls_device *d);   /* accepts NULL; safe after any failure */
    struct ls_stream *(*stream)(struct ls_device *d, unsigned stream);

    /* errors  LS_EBACKEND: out of memory */
    enum ls_code (*alloc)(struct ls_device *d, struct ls_stream *pool, uint64_t bytes, enum ls_category category,
                          struct ls_storage **out, struct ls_error *err);
    void (*free)(struct ls_device *d, struct ls_stream *pool, struct ls_storage *s);
    void (*recount)(struct ls_device *d, struct ls_storage *s, enum ls_category category); /* it has another owner from now on */
    const struct ls_memory *(*memory)(const struct ls_device *d);

    void (*launch)(struct ls_device *d, struct ls_stream *s, ls_launch_fn fn, const void *args, size_t args_bytes,
                   struct ls_storage *const *uses, size_t uses_count, int64_t tag);
    void (*move)(struct ls_device *d, struct ls_stream *s, const struct ls_move *move, size_t count, int64_t tag);

    struct ls_event *(*record)(struct ls_device *d, struct ls_stream *s, int64_t tag);
    void (*wait)(struct ls_device *d, struct ls_stream *s, struct ls_event *e, int64_t tag);
    bool (*event_done)(struct ls_device *d, const struct ls_event *e);
    void (*event_wait)(struct ls_device *d, struct ls_event *e, struct ls_actor *who);   /* wakes: who is woken when it is done */
    enum ls_code (*event_block)(struct ls_device *d, struct ls_event *e, struct ls_error *err); /* !wakes */
    /* Between device and host, in stream order; host memory must stay until the stream has passed. */
    void (*upload)(struct ls_device *d, struct ls_stream *s, struct ls_storage *to, uint64_t offset, const void *from, uint64_t bytes);
    void (*download)(struct ls_device *d, struct ls_stream *s, void *to, const struct ls_storage *from, uint64_t offset, uint64_t bytes);
    enum ls_code (*poll)(struct ls_device *d, struct ls_error *err);   /* asynchronous errors */
};
struct ls_device { const struct ls_device_ops *ops; }; /* first member of each device's struct */

extern const struct ls_device_ops ls_device_host;

/* Element conversions, as `move` does them; on the host. */
double ls_element_get(const void *at, enum ls_dtype dtype, uint64_t i);
void ls_element_set(void *at, enum ls_dtype dtype, uint64_t i, double value); /* rounds to nearest even */
void ls_move_run(const struct ls_move *move, size_t count);
/* Elements [first, first + n) in float and back. */
void ls_elements_load(const void *at, enum ls_dtype dtype, uint64_t first, uint64_t n, float *to);
void ls_elements_store(void *at, enum ls_dtype dtype, uint64_t first, uint64_t n, const float *from);

/* memcpy of something large, or of a part of it: the caches are left alone where the machine can do that. */
void ls_bytes_pass(void *to, const void *from, uint64_t n);

/* Host device only: a step of its own on a stream, for what the host's communicators append. */
struct ls_host_task {
    bool (*ready)(struct ls_host_task *t, struct ls_actor *stream); /* under the lock, when it heads the stream; false: `stream`
                                                                       will be woken */
    void (*finished)(struct ls_host_task *t);                      /* under the lock, once, after the last ready */
};
void ls_host_append(struct ls_stream *s, struct ls_host_task *t);
/* Storage that the work appended last to `stream` uses. */
void ls_host_keep(struct ls_stream *stream, struct ls_storage *s);
void ls_host_drop(struct ls_storage *s);

#endif
