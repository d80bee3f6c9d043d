/* The host as a device: memory from the C library, a stream is a queue with an actor that takes its head. */
#include "engine/device/device.h"

#include "base/arena.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum kind { LAUNCH, MOVE, RECORD, WAIT, GIVE, TASK, UPLOAD, DOWNLOAD };
/* How far each stream of the device has come: appended items, counted from 1. */
typedef uint64_t *progress;
struct ls_event { bool done; ls_waiters waiters; struct ls_event *next; progress seen; };
struct storage { struct ls_storage s; void *block; /* `at`, for its next owner */ progress used; /* by each stream's last item that uses it */ };

struct item {
    struct item *next;
    enum kind kind;
    int64_t tag;
    ls_launch_fn fn;
    void *args;                      /* LAUNCH: the arguments, MOVE: the moves; behind the item */
    size_t count;                    /* of moves */
    struct ls_storage **use; size_t uses;
    struct ls_event *event;
    struct ls_host_task *task;
    const void *from; void *to;
    uint64_t bytes;
};
struct host;
/* Memory that was given back, by size, of one pool. A step takes the same sizes again and again, and pages from the system must be
 * cleared. As with CUDA's caching allocator, memory is there again for its pool's stream when the host has given it back, not when the
 * stream has come so far: the host runs ahead by many steps. Unlike there, it is left alone while another stream uses it for which the
 * pool's stream has not waited. */
enum { CLASSES = 256, CACHED_MIN = 64 * 1024 };
typedef LS_VEC(struct storage *) blocks;
struct ls_stream {
    struct ls_actor actor;
    struct host *host;
    struct item *head, **tail;
    ls_waiters waiters;              /* for work */
    progress seen;                      /* what is appended next comes after these; its own: all items so far */
    struct ls_span span;
    blocks cached[CLASSES];
};

struct host {
    struct ls_device d;              /* first */
    struct ls_device_options o;
    struct ls_stream *stream;
    struct ls_event *events;         /* all that were made */
    LS_VEC(struct ls_storage *) storage;
    struct ls_memory memory;
    bool caches;
};

static struct host *host_of(const struct ls_device *d) { return (struct host *)d; }

/* Sizes in steps of an eighth of their power of two; CLASSES: not cached. */
static size_t class_of(uint64_t bytes, uint64_t *room)
{
    *room = bytes ? bytes : 1;
    if (bytes < CACHED_MIN)
        return CLASSES;
    unsigned power = 63u - (unsigned)__builtin_clzll(bytes);
    uint64_t step = (uint64_t)1 << (power - 3), up = (bytes + step - 1) / step;
    if (up == 16)
        power++, step *= 2, up = 8;
    *room = up * step;
    return (power - 16) * 8 + (up - 8);
}

/* Does all pending work that uses it come before what its pool's stream is given next? */
static bool is_over_for_pool(const struct host *h, const struct storage *held)
{
    const struct ls_storage *s = &held->s;
    bool over = true;
    for (size_t i = 0; i < h->o.streams; i++)
        over = over && held->used[i] <= s->pool->seen[i];
    return over || s->refs == s->own;
}

static void *storage_take(struct host *h, struct ls_stream *pool, uint64_t bytes)
{
    uint64_t room;
    size_t class = class_of(bytes, &room);
    blocks *b = class < CLASSES ? &pool->cached[class] : NULL;
    for (size_t i = b ? b->count : 0; i-- > 0;) {
        if (!is_over_for_pool(h, b->at[i]))
            continue;
        void *at = b->at[i]->block; /* which its pending work uses before */
        b->at[i] = b->at[--b->count];
        return at;
    }
    void *at = NULL;
    return posix_memalign(&at, 64, room) == 0 ? at : NULL;
}

static bool storage_cache(struct host *h, struct storage *held)
{
    uint64_t room;
    size_t class = class_of(held->s.bytes, &room);
    if (!h->caches || class == CLASSES || !held->s.at)
        return false;
    held->block = held->s.at;
    ls_push(&held->s.pool->cached[class], held);
    return true;
}

static size_t number_of(const struct ls_stream *s) { return (size_t)(s - s->host->stream); }

void ls_host_keep(struct ls_stream *stream, struct ls_storage *s)
{
    if (!s)
        return;
    s->refs++;
    if (s->device == &stream->host->d)
        ((struct storage *)s)->used[number_of(stream)] = stream->seen[number_of(stream)];
}

void ls_host_drop(struct ls_storage *s)
{
    if (!s)
        return;
    assert(s->refs);
    if (--s->refs > 0)
        return;
    if (!s->lent)
        free(s->at);
    s->at = NULL;
}

static void item_run(struct item *i, struct ls_stream *s)
{
    switch (i->kind) {
    case LAUNCH:
        i->fn(i->args, s);
        return;
    case MOVE:
        ls_move_run(i->args, i->count);
        return;
    case UPLOAD:
    case DOWNLOAD:
        memcpy(i->to, i->from, i->bytes);
        return;
    case RECORD:
    case WAIT:
    case GIVE:
    case TASK:
        return;
    }
}

/* Under the lock again: what the item held is let go, what waits for it is woken. */
static void item_end(struct item *i, struct ls_stream *s)
{
    struct host *h = s->host;
    for (size_t k = 0; k < i->uses; k++) {
        if (i->use[k] && i->use[k]->pool == s && i->kind != GIVE)
            i->use[k]->own--;
        ls_host_drop(i->use[k]);
    }
    if (i->kind == RECORD) {
        i->event->done = true;
        ls_sched_wake_all(&i->event->waiters);
    }
    if (i->tag >= 0 && h->o.done)
        h->o.done(h->o.done_context, i->tag);
    if (i->kind == TASK)
        i->task->finished(i->task);
}

static uint64_t now_ns(const struct host *h)
{
    struct timespec t;
    if (!h->o.span)
        return 0;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The item's turn, which began at `from`, is over; its span ends if it was the last of an op. */
static void clock_turn(struct ls_stream *s, const struct item *i, uint64_t from, bool ended)
{
    struct host *h = s->host;
    if (!h->o.span || i->kind == GIVE)
        return;
    s->span.end_ns = now_ns(h);
    if (!s->span.begin_ns)
        s->span.begin_ns = from;
    if (i->kind != WAIT && i->kind != RECORD)
        s->span.busy_ns += s->span.end_ns - from;
    if (ended && (i->tag >= 0 || i->kind == TASK)) {
        h->o.span(h->o.done_context, (unsigned)(s - h->stream), i->tag, &s->span);
        s->span = (struct ls_span){ 0 };
    }
}

static enum ls_turn stream_step(struct ls_actor *actor)
{
    struct ls_stream *s = (struct ls_stream *)actor;
    struct item *i = s->head;
    if (!i) {
        ls_sched_wait(actor, &s->waiters);
        return LS_TURN_BLOCKED;
    }
    uint64_t from = now_ns(s->host);
    if (i->kind == WAIT && !i->event->done) {
        ls_sched_wait(actor, &i->event->waiters);
        clock_turn(s, i, from, false);
        return LS_TURN_BLOCKED;
    }
    if (i->kind == TASK && !i->task->ready(i->task, actor)) {
        clock_turn(s, i, from, false);
        return LS_TURN_BLOCKED;
    }
    if (i->kind == LAUNCH || i->kind == MOVE || i->kind == UPLOAD || i->kind == DOWNLOAD) {
        ls_sched_leave(actor->sched);
        item_run(i, s);
        ls_sched_enter(actor->sched);
    }
    s->head = i->next;
    if (!s->head)
        s->tail = &s->head;
    item_end(i, s);
    clock_turn(s, i, from, true);
    free(i);
    return LS_TURN_MOVED;
}

static void *take(size_t bytes)
{
    void *p = calloc(1, bytes);
    if (!p)
        ls_out_of_memory(bytes);
    return p;
}

static enum ls_code host_open(struct ls_device **out, const struct ls_device_options *o, struct ls_error *err)
{
    (void)err;
    struct host *h = take(sizeof *h);
    h->d.ops = &ls_device_host;
    h->o = *o;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which watch memory that was given back */
    h->caches = !o->poison;
#endif
    h->stream = take((o->streams + 1) * sizeof *h->stream);
    for (size_t i = 0; i < o->streams; i++) {
        h->stream[i].seen = take(o->streams * sizeof *h->stream[i].seen);
        h->stream[i].host = h;
        h->stream[i].tail = &h->stream[i].head;
        ls_sched_add(o->sched, &h->stream[i].actor, stream_step);
    }
    *out = &h->d;
    return LS_OK;
}

static void host_close(struct ls_device *d)
{
    if (!d)
        return;
    struct host *h = host_of(d);
    for (size_t i = 0; i < h->o.streams; i++) {
        for (struct item *t = h->stream[i].head, *next; t; t = next) {
            next = t->next;
            free(t); /* tasks are their communicator's */
        }
        ls_vec_release(&h->stream[i].waiters);
        free(h->stream[i].seen);
    }
    for (struct ls_event *e = h->events, *next; e; e = next) {
        next = e->next;
        ls_vec_release(&e->waiters);
        free(e);
    }
    for (size_t i = 0; i < h->o.streams; i++)
        for (size_t k = 0; k < CLASSES; k++) {
            blocks *b = &h->stream[i].cached[k];
            for (size_t n = 0; n < b->count; n++)
                free(b->at[n]->block);
            ls_vec_release(b);
        }
    for (size_t i = 0; i < h->storage.count; i++) {
        if (!h->storage.at[i]->lent)
            free(h->storage.at[i]->at);
        free(h->storage.at[i]);
    }
    ls_vec_release(&h->storage);
    free(h->stream);
    free(h);
}

static struct ls_stream *host_stream(struct ls_device *d, unsigned stream)
{
    assert(stream < host_of(d)->o.streams);
    return &host_of(d)->stream[stream];
}

static struct item *append(struct ls_stream *s, enum kind kind, int64_t tag, size_t args, size_t uses)
{
    size_t room = (args + 15) / 16 * 16;
    struct item *i = take((sizeof *i + 15) / 16 * 16 + room + uses * sizeof *i->use);
    i->kind = kind;
    i->tag = tag;
    i->args = (char *)i + (sizeof *i + 15) / 16 * 16;
    i->use = (struct ls_storage **)(void *)((char *)i->args + room);
    i->uses = uses;
    *s->tail = i;
    s->tail = &i->next;
    s->seen[number_of(s)]++;
    ls_sched_wake_all(&s->waiters);
    return i;
}

static void use(struct ls_stream *stream, struct item *i, size_t k, struct ls_storage *s)
{
    i->use[k] = s;
    ls_host_keep(stream, s);
    if (s && s->pool == stream)
        s->own++;
}

static enum ls_code host_alloc(struct ls_device *d, struct ls_stream *pool, uint64_t bytes, enum ls_category category,
                               struct ls_storage **out, struct ls_error *err)
{
    struct host *h = host_of(d);
    void *at = NULL;
    if (h->o.bytes_max && h->memory.total + bytes > h->o.bytes_max)
        return ls_fail(err, LS_EBACKEND, LS_NOWHERE, "out of device memory: %llu bytes of %s do not fit beside %llu",
                       (unsigned long long)bytes, ls_category_name(category), (unsigned long long)h->memory.total);
    bool real = !h->o.accounting || category == LS_CATEGORY_TEMPORARY;
    if (real && !(at = storage_take(h, pool, bytes)))
        return ls_fail(err, LS_EBACKEND, LS_NOWHERE, "out of memory: %llu bytes of %s", (unsigned long long)bytes,
                       ls_category_name(category));
    /* As in the memory of a device, nothing may rely on what is there; this is a NaN in every floating format. */
    if (h->o.poison && real)
        memset(at, 0xff, bytes);
    struct storage *held = take(sizeof *held + h->o.streams * sizeof *held->used);
    held->used = (progress)(held + 1);
    struct ls_storage *s = &held->s;
    *s = (struct ls_storage){ .at = at, .device = d, .pool = pool, .bytes = bytes, .category = (uint8_t)category, .refs = 1 };
    ls_push(&h->storage, s);
    ls_memory_take(&h->memory, category, bytes);
    *out = s;
    return LS_OK;
}

static void host_free(struct ls_device *d, struct ls_stream *pool, struct ls_storage *s)
{
    if (!s)
        return;
    ls_memory_give(&host_of(d)->memory, (enum ls_category)s->category, s->bytes);
    if (storage_cache(host_of(d), (struct storage *)s)) {
        s->lent = true;
        ls_host_drop(s);
        return;
    }
    struct item *i = append(pool, GIVE, LS_NO_TAG, 0, 1);
    i->use[0] = s; /* the owner's reference */
}

static void host_recount(struct ls_device *d, struct ls_storage *s, enum ls_category category)
{
    ls_memory_give(&host_of(d)->memory, (enum ls_category)s->category, s->bytes);
    ls_memory_take(&host_of(d)->memory, category, s->bytes);
    s->category = (uint8_t)category;
}

static const struct ls_memory *host_memory(const struct ls_device *d)
{
    return &host_of(d)->memory;
}

static void host_launch(struct ls_device *d, struct ls_stream *s, ls_launch_fn fn, const void *args, size_t args_bytes,
                        struct ls_storage *const *uses, size_t uses_count, int64_t tag)
{
    (void)d;
    struct item *i = append(s, LAUNCH, tag, args_bytes, uses_count);
    i->fn = fn;
    if (args_bytes)
        memcpy(i->args, args, args_bytes);
    for (size_t k = 0; k < uses_count; k++)
        use(s, i, k, uses[k]);
}

static void host_move(struct ls_device *d, struct ls_stream *s, const struct ls_move *move, size_t count, int64_t tag)
{
    (void)d;
    struct item *i = append(s, MOVE, tag, count * sizeof *move, 2 * count);
    if (count)
        memcpy(i->args, move, count * sizeof *move);
    i->count = count;
    for (size_t k = 0; k < count; k++) {
        use(s, i, 2 * k, move[k].to.of);
        use(s, i, 2 * k + 1, move[k].from.of);
    }
}

static struct ls_event *host_record(struct ls_device *d, struct ls_stream *s, int64_t tag)
{
    struct host *h = host_of(d);
    struct ls_event *e = take(sizeof *e + h->o.streams * sizeof *e->seen);
    e->seen = (progress)(e + 1);
    e->next = h->events;
    h->events = e;
    append(s, RECORD, tag, 0, 0)->event = e;
    memcpy(e->seen, s->seen, h->o.streams * sizeof *e->seen);
    return e;
}

static void host_wait(struct ls_device *d, struct ls_stream *s, struct ls_event *e, int64_t tag)
{
    append(s, WAIT, tag, 0, 0)->event = e;
    for (size_t i = 0; i < host_of(d)->o.streams; i++)
        s->seen[i] = e->seen[i] > s->seen[i] ? e->seen[i] : s->seen[i];
}

static bool host_event_done(struct ls_device *d, const struct ls_event *e)
{
    (void)d;
    return e->done;
}

static void host_event_wait(struct ls_device *d, struct ls_event *e, struct ls_actor *who)
{
    (void)d;
    ls_sched_wait(who, &e->waiters);
}

static enum ls_code host_event_block(struct ls_device *d, struct ls_event *e, struct ls_error *err)
{
    (void)d;
    (void)e;
    return ls_fail(err, LS_EBACKEND, LS_NOWHERE, "the host device wakes actors, it blocks no thread");
}

static void host_upload(struct ls_device *d, struct ls_stream *s, struct ls_storage *to, uint64_t offset, const void *from,
                        uint64_t bytes)
{
    (void)d;
    struct item *i = append(s, UPLOAD, LS_NO_TAG, 0, 1);
    i->from = from;
    i->to = (char *)to->at + offset;
    i->bytes = bytes;
    use(s, i, 0, to);
}

static void host_download(struct ls_device *d, struct ls_stream *s, void *to, const struct ls_storage *from, uint64_t offset,
                          uint64_t bytes)
{
    (void)d;
    struct item *i = append(s, DOWNLOAD, LS_NO_TAG, 0, 1);
    i->from = (const char *)from->at + offset;
    i->to = to;
    i->bytes = bytes;
    use(s, i, 0, (struct ls_storage *)from);
}

static enum ls_code host_poll(struct ls_device *d, struct ls_error *err)
{
    (void)d;
    (void)err;
    return LS_OK;
}

void ls_host_append(struct ls_stream *s, struct ls_host_task *t)
{
    append(s, TASK, LS_NO_TAG, 0, 0)->task = t;
}

const struct ls_device_ops ls_device_host = {
    .name = "host", .host_memory = true, .wakes = true, .open = host_open, .close = host_close, .stream = host_stream,
    .alloc = host_alloc, .free = host_free, .recount = host_recount, .memory = host_memory, .launch = host_launch, .move = host_move,
    .record = host_record, .wait = host_wait, .event_done = host_event_done, .event_wait = host_event_wait,
    .event_block = host_event_block, .upload = host_upload, .download = host_download, .poll = host_poll,
};
