#include "engine/comm/remote.h"

#include "engine/comm/internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct wire { uint32_t kind, comm, group, p2p, member[2], side, dtype; uint64_t number, base, elements, sent, received, pad; };
struct arrived { struct ls_op op; uint64_t fingerprint; int64_t tag; uint64_t counts; uint32_t dtype; bool data; }; /* counts follow */

static void *take(size_t bytes)
{
    void *at = calloc(1, bytes ? bytes : 1);
    if (!at)
        ls_out_of_memory(bytes);
    return at;
}

static void post(struct ls_hub *h, size_t to, void *at, size_t bytes, bool counts)
{
    ls_push(&h->remote->out, (struct mail){ to, at, bytes });
    h->remote->sent += counts;
}

static struct wire wire_to(const struct place *p, enum ls_wire kind, const struct ticket *t)
{
    return (struct wire){ .kind = kind, .comm = p->comm, .group = p->group, .p2p = p->p2p, .member = { p->member[0], p->member[1] },
                          .side = (uint32_t)t->side, .number = t->number };
}

/* --- who is where ---------------------------------------------------------------------------------------------------- */

static size_t me(const struct ls_hub *h) { return h->remote->world->number; }

void remote_open(struct ls_hub *h)
{
    struct ls_world *w = h->o.world;
    h->remote = take(sizeof *h->remote);
    *h->remote = (struct remote){ .world = w, .end = take(w->processes * sizeof *h->remote->end), .first = take(w->processes * sizeof *h->remote->first),
                                  .second = take(w->processes * sizeof *h->remote->second),
                                  .summed = take(w->processes * sizeof *h->remote->summed) };
}

void remote_free(struct ticket *t)
{
    free((void *)t->call.counts);
    free(t->input_message);
    free(t->result_message);
    free(t);
}

static void drop_queues(struct place *p)
{
    for (size_t i = 0; i < p->sides; i++)
        for (struct ticket *t = p->queue[i].head, *next; t; t = next) {
            next = t->next;
            if (!t->bundle)
                remote_free(t);
            else
                free(t->result_message);
        }
}

/* Before the bundles go: tickets of this process lie in them. */
void remote_close(struct ls_hub *h)
{
    struct remote *r = h->remote;
    for (uint32_t c = 0; c < h->job->tables->comm.count; c++)
        for (uint32_t g = 0; g < h->job->comm[c].groups; g++) {
            struct place *p = &h->collective[c][g];
            drop_queues(p);
            for (size_t i = 0; h->pair[c][g] && i < p->sides * p->sides; i++)
                drop_queues(&h->pair[c][g][i]);
        }
    for (size_t i = 0; i < r->out.count; i++)
        free(r->out.at[i].at);
    ls_vec_release(&r->out);
    ls_world_drop(r->world, r->end);
    free(r->end);
    free(r->first);
    free(r->second);
    free(r->summed);
    free(r);
    h->remote = NULL;
}

void remote_lay(struct ls_hub *h, struct place *p)
{
    const struct ls_groups *g = &h->job->comm[p->comm];
    uint32_t *process = LS_NEW(&h->arena, uint32_t, p->sides + 1);
    bool apart = false;
    p->local = 0;
    for (size_t i = 0; i < p->sides; i++) {
        uint32_t rank = g->rank[g->first[p->group] + (p->p2p ? p->member[i] : i)];
        process[i] = (uint32_t)ls_world_of_rank(h->remote->world, rank);
        apart |= process[i] != process[0];
        p->local += process[i] == me(h);
    }
    p->owner = p->sides && process[p->buffered ? 1 : 0] == me(h);
    p->process = apart ? process : NULL;
}

static bool has_member(const struct place *p, size_t process)
{
    for (size_t i = 0; i < p->sides; i++)
        if (p->process[i] == process)
            return true;
    return false;
}

/* --- data ------------------------------------------------------------------------------------------------------------ */

static bool offers_data(const struct ticket *t) { return t->bundle ? work_has_data(t) : t->data; }

static void widen(uint64_t *first, uint64_t *count, uint64_t more_first, uint64_t more_count)
{
    if (!more_count)
        return;
    uint64_t end = *count ? *first + *count : 0, more_end = more_first + more_count;
    *first = *count && *first < more_first ? *first : more_first;
    *count = (end > more_end ? end : more_end) - *first;
}

/* What a process needs of the input of member i: the elements from the first to the last one, none with count 0. Both sides ask. */
static void need(const struct place *p, size_t i, size_t process, uint64_t *first, uint64_t *count)
{
    const struct ticket *t = p->queue[i].head;
    size_t root = work_root(p, t);
    *first = *count = 0;
    if (!offers_data(t))
        return;
    switch ((enum ls_op_kind)t->op.kind) {
    case LS_OP_ALL_GATHER:
    case LS_OP_GATHER:
        if (t->op.kind == LS_OP_ALL_GATHER || p->process[root] == process) {
            work_part(t, i, first, count);
            *first = 0;
        }
        return;
    case LS_OP_BROADCAST:
        *count = i == root ? t->op.count : 0;
        return;
    case LS_OP_SCAN:
        *count = t->op.count;
        return;
    case LS_OP_SEND:
        *count = t->op.count;
        return;
    case LS_OP_ALL_REDUCE: case LS_OP_REDUCE: case LS_OP_DECIDE: case LS_OP_REDUCE_SCATTER: case LS_OP_ALL_TO_ALL: case LS_OP_SCATTER:
        break;
    case LS_OP_BARRIER: case LS_OP_COMM_INIT: case LS_OP_RECV: case LS_OP_COMPUTE: case LS_OP_COPY_IN: case LS_OP_COPY_OUT:
    case LS_OP_RECORD: case LS_OP_WAIT: case LS_OP_HOST_WAIT: case LS_OP_ALLOC: case LS_OP_FREE: case LS_OP_MARK: case LS_OP_STOP:
    case LS_OP_COUNT:
        return;
    }
    if (t->op.kind == LS_OP_SCATTER && i != root)
        return;
    for (size_t j = 0; j < p->sides; j++) {
        uint64_t f, c;
        if (p->process[j] != process)
            continue;
        if (t->op.kind == LS_OP_REDUCE_SCATTER || t->op.kind == LS_OP_SCATTER)
            work_part(p->queue[j].head, j, &f, &c);
        else if (t->op.kind == LS_OP_ALL_TO_ALL)
            work_part(t, j, &f, &c);
        else
            work_share(p, t, j, &f, &c);
        widen(first, count, f, c);
    }
}

static char *pack_input(const struct place *p, const struct ticket *t, uint64_t first, uint64_t count, size_t *bytes)
{
    struct wire w = wire_to(p, LS_WIRE_INPUT, t);
    size_t width = ls_dtype_bytes(t->call.in.dtype);
    *bytes = sizeof w + count * width;
    char *at = malloc(*bytes);
    if (!at)
        ls_out_of_memory(*bytes);
    w.base = first, w.elements = count, w.dtype = t->call.in.dtype;
    memcpy(at, &w, sizeof w);
    memcpy(at + sizeof w, (const char *)t->call.in.of->at + t->call.in.offset_bytes + first * width, count * width);
    return at;
}

void remote_send_buffered(struct ls_hub *h, struct place *p, struct ticket *t)
{
    size_t bytes;
    if (!work_has_data(t) || !t->op.count)
        return;
    char *at = pack_input(p, t, 0, t->op.count, &bytes);
    post(h, p->process[1], at, bytes, true);
}

void remote_send_inputs(struct ls_hub *h, struct place *p, struct ticket *t)
{
    for (size_t q = 0; q < h->remote->world->processes; q++) {
        uint64_t first, count;
        size_t bytes;
        if (q == me(h) || !has_member(p, q))
            continue;
        need(p, t->side, q, &first, &count);
        if (!count)
            continue;
        char *at = pack_input(p, t, first, count, &bytes);
        ls_sched_enter(h->sched);
        post(h, q, at, bytes, true);
        ls_sched_leave(h->sched);
    }
}

static bool has_results(const struct ticket *t)
{
    return t->op.kind == LS_OP_ALL_REDUCE || t->op.kind == LS_OP_DECIDE || t->op.kind == LS_OP_REDUCE;
}

bool remote_makes_result(const struct place *p, const struct ticket *t)
{
    return p->process && has_results(t) && (t->op.kind != LS_OP_REDUCE || p->process[work_root(p, t)] != p->process[t->side]);
}

void remote_make_result(struct ticket *t, uint64_t count)
{
    size_t bytes = sizeof(struct wire) + count * ls_dtype_bytes(t->call.in.dtype);
    t->result_message = take(bytes);
    t->result_storage = (struct ls_storage){ .at = t->result_message, .bytes = bytes };
    t->result = (struct ls_tensor){ &t->result_storage, sizeof(struct wire), count, t->call.in.dtype };
}

void remote_send_result(struct ls_hub *h, struct place *p, struct ticket *t)
{
    char *made = t->result_message;
    if (!made)
        return;
    struct wire w = wire_to(p, LS_WIRE_RESULT, t);
    w.elements = t->result.elements, w.dtype = t->result.dtype;
    memcpy(made, &w, sizeof w);
    for (size_t q = 0; q < h->remote->world->processes; q++) {
        bool wants = t->op.kind == LS_OP_REDUCE ? p->process[work_root(p, t)] == q : has_member(p, q);
        if (q == me(h) || !wants)
            continue;
        char *at = malloc(t->result_storage.bytes);
        if (!at)
            ls_out_of_memory(t->result_storage.bytes);
        memcpy(at, made, t->result_storage.bytes);
        ls_sched_enter(h->sched);
        post(h, q, at, t->result_storage.bytes, true);
        ls_sched_leave(h->sched);
    }
    free(made);
    t->result_message = NULL;
}

static bool inputs_are_here(const struct ls_hub *h, const struct place *p)
{
    for (size_t i = 0; i < p->sides; i++) {
        const struct ticket *t = p->queue[i].head;
        uint64_t first, count;
        if (t->bundle || t->input_message)
            continue;
        need(p, i, me(h), &first, &count);
        if (count)
            return false;
    }
    return true;
}

/* Shares of the result that other processes make for this one: are there any, and have they come? */
static bool awaits_results(const struct ls_hub *h, const struct place *p, bool missing_only)
{
    for (size_t i = 0; i < p->sides; i++)
        if (!offers_data(p->queue[i].head))
            return false;
    for (size_t i = 0; i < p->sides; i++) {
        const struct ticket *t = p->queue[i].head;
        uint64_t first, count;
        if (t->bundle || !has_results(t) || (t->op.kind == LS_OP_REDUCE && p->process[work_root(p, t)] != me(h)))
            continue;
        work_share(p, t, i, &first, &count);
        if (count && (!missing_only || !t->result_message))
            return true;
    }
    return false;
}

void remote_advance(struct ls_hub *h, struct place *p)
{
    switch (p->stage) {
    case STAGE_SEND:
        p->stage = STAGE_INPUTS;
        remote_advance(h, p);
        return;
    case STAGE_INPUTS:
        if (!inputs_are_here(h, p))
            return;
        p->stage = STAGE_WORK;
        hub_start(p);
        return;
    case STAGE_WORK:
        if (!awaits_results(h, p, false)) {
            hub_finish(h, p);
            return;
        }
        p->stage = STAGE_RESULTS;
        remote_advance(h, p);
        return;
    case STAGE_RESULTS:
        if (awaits_results(h, p, true))
            return;
        p->stage = STAGE_TAKE;
        hub_start(p);
        return;
    case STAGE_TAKE:
        hub_finish(h, p);
        return;
    }
}

/* --- messages of ops ------------------------------------------------------------------------------------------------- */

void remote_arrived(struct ls_hub *h, const struct ticket *t)
{
    const struct place *p = t->at;
    if (p->buffered && t->side == 1) /* no sender waits for its receiver */
        return;
    const struct ls_groups *g = &h->job->comm[p->comm];
    size_t members = g->first[p->group + 1] - g->first[p->group], counts = t->call.counts ? members : 0;
    struct wire w = wire_to(p, LS_WIRE_ARRIVED, t);
    struct arrived a = { .op = t->op, .fingerprint = t->call.fingerprint, .tag = t->call.tag, .counts = counts, .dtype = t->call.in.dtype,
                         .data = work_has_data(t) };
    size_t bytes = sizeof w + sizeof a + counts * sizeof *t->call.counts;
    for (size_t q = 0; q < h->remote->world->processes; q++) {
        if (q == me(h) || !has_member(p, q))
            continue;
        char *at = take(bytes);
        memcpy(at, &w, sizeof w);
        memcpy(at + sizeof w, &a, sizeof a);
        if (counts)
            memcpy(at + sizeof w + sizeof a, t->call.counts, counts * sizeof *t->call.counts);
        post(h, q, at, bytes, true);
    }
}

static struct place *place_of(struct ls_hub *h, const struct wire *w)
{
    assert(w->comm < h->job->tables->comm.count && w->group < h->job->comm[w->comm].groups);
    return w->p2p ? hub_pair(h, w->comm, w->group, w->member[0], w->member[1]) : hub_place(h, w->comm, w->group);
}

/* A member of another process has arrived: it joins its queue, by number. */
static void on_arrived(struct ls_hub *h, const struct wire *w, const char *rest)
{
    struct place *p = place_of(h, w);
    struct ticket *t = take(sizeof *t), **at;
    struct arrived a;
    uint64_t *counts = NULL;
    memcpy(&a, rest, sizeof a);
    if (a.counts) {
        counts = take(a.counts * sizeof *counts);
        memcpy(counts, rest + sizeof a, a.counts * sizeof *counts);
    }
    *t = (struct ticket){ .op = a.op, .progress = LS_COMM_STARTED, .at = p, .side = w->side, .number = w->number, .data = a.data };
    t->call = (struct ls_comm_call){ .counts = counts, .fingerprint = a.fingerprint, .tag = a.tag };
    t->call.in = (struct ls_tensor){ &t->input, sizeof *w, 0, (enum ls_dtype)a.dtype };
    assert(w->side < p->sides && w->number >= p->done);
    struct queue *q = &p->queue[w->side];
    for (at = &q->head; *at && (*at)->number < t->number;)
        at = &(*at)->next;
    t->next = *at;
    *at = t;
    if (!t->next)
        q->tail = &t->next;
    if (q->head == t && t->number == p->done)
        hub_meet(h, p);
}

/* Data of a member of another process; it arrived before. */
static void on_data(struct ls_hub *h, const struct wire *w, struct ls_message *m)
{
    struct place *p = place_of(h, w);
    struct ticket *t = p->queue[w->side].head;
    while (t && t->number != w->number)
        t = t->next;
    assert(t && !t->bundle);
    if (w->kind == LS_WIRE_INPUT) {
        t->input_message = m->at;
        t->input = (struct ls_storage){ .at = m->at, .bytes = m->bytes };
        t->call.in.elements = w->elements;
        t->base = w->base;
    } else {
        t->result_message = m->at;
        t->result_storage = (struct ls_storage){ .at = m->at, .bytes = m->bytes };
        t->result = (struct ls_tensor){ &t->result_storage, sizeof *w, w->elements, (enum ls_dtype)w->dtype };
    }
    m->at = NULL;
    if (p->met && p->done == w->number && (p->stage == STAGE_INPUTS || p->stage == STAGE_RESULTS))
        remote_advance(h, p);
}

/* --- the end --------------------------------------------------------------------------------------------------------- */

static struct tally own(const struct remote *r) { return (struct tally){ true, r->sent, r->received }; }
static bool same(const struct tally *a, const struct tally *b) { return a->known && b->known && a->sent == b->sent && a->received == b->received; }

static void tell(struct ls_hub *h, size_t to, enum ls_wire kind)
{
    struct wire w = { .kind = kind, .sent = h->remote->sent, .received = h->remote->received }, *at = take(sizeof w);
    *at = w;
    post(h, to, at, sizeof w, false);
}

/* Numbers only grow: the newer ones are the larger ones. */
static void note(struct tally *of, uint64_t sent, uint64_t received)
{
    if (!of->known || sent + received >= of->sent + of->received)
        *of = (struct tally){ true, sent, received };
}

/* Process 0, idle. */
static void count(struct ls_hub *h)
{
    struct remote *r = h->remote;
    size_t n = r->world->processes;
    uint64_t sent = 0, received = 0;
    bool all = true, unchanged = true;
    if (!r->asking) {
        r->first[0] = own(r);
        for (size_t i = 0; i < n; i++) {
            all = all && r->first[i].known;
            sent += r->first[i].sent;
            received += r->first[i].received;
        }
        if (!all || sent != received)
            return;
        r->asking = true;
        memcpy(r->summed, r->first, n * sizeof *r->first);
        for (size_t i = 0; i < n; i++)
            r->second[i] = (struct tally){ 0 };
        for (size_t i = 1; i < n; i++)
            tell(h, i, LS_WIRE_ASK);
    }
    r->second[0] = own(r);
    for (size_t i = 0; i < n; i++) {
        all = all && r->second[i].known;
        unchanged = unchanged && same(&r->summed[i], &r->second[i]);
    }
    if (!all)
        return;
    r->asking = false;
    if (!unchanged) {
        for (size_t i = 0; i < n; i++)
            note(&r->first[i], r->second[i].sent, r->second[i].received);
        return;
    }
    r->quiet = true;
    for (size_t i = 1; i < n; i++)
        tell(h, i, LS_WIRE_QUIET);
}

/* Nothing can move here, nothing is left to send. */
static void be_idle(struct ls_hub *h)
{
    struct remote *r = h->remote;
    struct tally now = own(r);
    if (me(h) == 0) {
        count(h);
        return;
    }
    if (r->asked)
        tell(h, 0, LS_WIRE_ANSWER);
    else if (!same(&now, &r->told))
        tell(h, 0, LS_WIRE_IDLE);
    r->asked = false;
    r->told = now;
}

static void on_end(struct ls_hub *h, struct ls_message *m)
{
    int32_t code = LS_OK;
    enum { HEAD = 8 };
    if (m->bytes >= HEAD + sizeof code)
        memcpy(&code, (const char *)m->at + HEAD, sizeof code);
    assert(!h->remote->end[m->from].at);
    h->remote->end[m->from] = *m;
    m->at = NULL;
    if (code != LS_OK)
        ls_sched_stop(h->sched);
}

static void on_message(struct ls_hub *h, struct ls_message *m)
{
    struct remote *r = h->remote;
    struct wire w = { 0 };
    memcpy(&w, m->at, m->bytes < sizeof w ? m->bytes : sizeof w);
    switch ((enum ls_wire)w.kind) {
    case LS_WIRE_EXCHANGE:
        on_end(h, m);
        return;
    case LS_WIRE_ARRIVED:
        r->received++;
        on_arrived(h, &w, (const char *)m->at + sizeof w);
        return;
    case LS_WIRE_INPUT:
    case LS_WIRE_RESULT:
        r->received++;
        on_data(h, &w, m);
        return;
    case LS_WIRE_IDLE:
        note(&r->first[m->from], w.sent, w.received); /* also while asking: it will not be told again */
        return;
    case LS_WIRE_ASK:
        r->asked = true;
        return;
    case LS_WIRE_ANSWER:
        r->second[m->from] = (struct tally){ true, w.sent, w.received };
        return;
    case LS_WIRE_QUIET:
        r->quiet = true;
        return;
    }
    assert(false && "no such message");
}

static void fail(struct ls_hub *h)
{
    h->remote->rc = LS_EBACKEND;
    ls_sched_stop(h->sched);
}

/* In the order in which they were posted. */
static void flush(struct ls_hub *h)
{
    struct remote *r = h->remote;
    while (r->out.count && r->rc == LS_OK) {
        struct mail *at = r->out.at;
        size_t n = r->out.count;
        struct ls_error err = { 0 };
        enum ls_code rc = LS_OK;
        memset(&r->out, 0, sizeof r->out);
        ls_sched_leave(h->sched);
        for (size_t i = 0; i < n; i++)
            if (rc == LS_OK)
                rc = r->world->ops->send(r->world, at[i].to, at[i].at, at[i].bytes, &err);
            else
                free(at[i].at);
        free(at);
        ls_sched_enter(h->sched);
        if (rc != LS_OK) {
            r->err = err;
            fail(h);
        }
    }
}

static bool receive(struct ls_hub *h, struct ls_message *m)
{
    struct remote *r = h->remote;
    struct ls_error err = { 0 };
    ls_sched_leave(h->sched);
    enum ls_code rc = ls_world_receive(r->world, m, &err);
    ls_sched_enter(h->sched);
    if (rc != LS_OK && r->rc == LS_OK) {
        r->err = err;
        fail(h);
    }
    return rc == LS_OK && m->at;
}

bool ls_hub_outside(struct ls_hub *h, bool idle)
{
    struct remote *r = h->remote;
    struct ls_message m = { 0 };
    bool any = r->out.count > 0;
    flush(h);
    while (r->rc == LS_OK && receive(h, &m)) {
        on_message(h, &m);
        free(m.at);
        any = true;
    }
    if (any)
        r->rounds = 0;
    if (r->rc != LS_OK || any || !idle)
        return true;
    if (r->quiet)
        return false;
    be_idle(h);
    if (r->out.count) {
        flush(h);
        return true;
    }
    if (r->quiet)
        return false;
    ls_sched_leave(h->sched);
    ls_world_nap(r->rounds++);
    ls_sched_enter(h->sched);
    return true;
}

enum ls_code ls_hub_end(struct ls_hub *h, const void *mine, size_t bytes, struct ls_message *all, struct ls_error *err)
{
    struct remote *r = h->remote;
    ls_sched_enter(h->sched);
    flush(h);
    ls_sched_leave(h->sched);
    if (r->rc != LS_OK) {
        if (err)
            *err = r->err;
        return r->rc;
    }
    memcpy(all, r->end, r->world->processes * sizeof *all);
    memset(r->end, 0, r->world->processes * sizeof *r->end);
    return ls_world_exchange(r->world, mine, bytes, all, err);
}
