/* Level L3: how many kernels of communicators are resident on a rank, and sends that are buffered. semantics.md defines both. */
#include "engine/comm/internal.h"

#include <stdlib.h>
#include <string.h>

static uint32_t rank_of(const struct bundle *b)
{
    const struct comm *c = (const struct comm *)b->ticket[0].call.comm;
    return c->group.rank[c->group.member];
}

/* For each communicator in it, the most slots that one of its ops asks for; at most all there are. */
static unsigned need(const struct ls_hub *h, const struct bundle *b)
{
    unsigned all = 0;
    for (size_t i = 0; i < b->count; i++) {
        unsigned most = 0;
        bool counted = false;
        for (size_t k = 0; k < i && !counted; k++)
            counted = b->ticket[k].at->comm == b->ticket[i].at->comm;
        for (size_t k = i; k < b->count && !counted; k++) {
            const struct ls_op *o = &b->ticket[k].op;
            unsigned want = o->slots ? o->slots : o->kind != LS_OP_COMM_INIT;
            if (b->ticket[k].at->comm == b->ticket[i].at->comm && want > most)
                most = want;
        }
        all += most;
    }
    return h->o.resident->kernels && all > h->o.resident->kernels ? h->o.resident->kernels : all;
}

/* Every call heads its queue, or is behind calls of the bundle only. */
static bool heads_queues(const struct bundle *b)
{
    for (size_t i = 0; i < b->count; i++) {
        const struct ticket *t = b->ticket[i].at->queue[b->ticket[i].side].head;
        while (t && !t->bundle) /* a buffered send's copy: it has left */
            t = t->next;
        if (!t || t->bundle != b)
            return false;
    }
    return true;
}

static bool has_turn(const struct ls_hub *h, const struct bundle *b)
{
    if (!h->o.resident->next)
        return true;
    int64_t tag = h->o.resident->next(h->o.progress_context, rank_of(b));
    for (size_t i = 0; i < b->count; i++)
        if (b->ticket[i].call.tag == tag)
            return true;
    return false;
}

bool slots_take(struct ls_hub *h, struct bundle *b, struct ls_actor *stream)
{
    if (!h->o.resident || !(h->o.resident->kernels || h->o.resident->next) || !(b->slots = need(h, b)))
        return true;
    struct slots *s = &h->slots[rank_of(b)];
    if (heads_queues(b) && has_turn(h, b) && (!h->o.resident->kernels || s->used + b->slots <= h->o.resident->kernels)) {
        s->used += b->slots;
        return true;
    }
    ls_sched_wait(stream, &s->waiting);
    return false;
}

void slots_give(struct ls_hub *h, const struct bundle *b)
{
    if (!h->o.resident)
        return;
    h->slots[rank_of(b)].used -= b->slots;
    ls_hub_recheck(h, rank_of(b));
}

void ls_hub_recheck(struct ls_hub *h, uint32_t rank)
{
    if (h->o.resident)
        ls_sched_wake_all(&h->slots[rank].waiting);
}

void slots_recheck(struct ls_hub *h, const struct bundle *b)
{
    if (h->o.resident)
        ls_hub_recheck(h, rank_of(b));
}

static struct ticket *copy_of(const struct ticket *t)
{
    struct ticket *c = calloc(1, sizeof *c);
    if (!c)
        ls_out_of_memory(sizeof *c);
    *c = *t;
    c->bundle = NULL;
    c->working = false;
    c->call.in = (struct ls_tensor){ 0 };
    c->call.counts = NULL;
    if (t->call.counts && !(c->call.counts = calloc(1, sizeof *c->call.counts))) /* there are some: no more is compared */
        ls_out_of_memory(sizeof *c->call.counts);
    if (!t->call.in.of || !t->call.in.of->at)
        return c;
    uint64_t bytes = t->call.in.elements * ls_dtype_bytes(t->call.in.dtype);
    if (!(c->input_message = malloc(bytes ? bytes : 1)))
        ls_out_of_memory(bytes);
    memcpy(c->input_message, (const char *)t->call.in.of->at + t->call.in.offset_bytes, bytes);
    c->input = (struct ls_storage){ .at = c->input_message, .bytes = bytes };
    c->call.in = (struct ls_tensor){ &c->input, 0, t->call.in.elements, t->call.in.dtype };
    return c;
}

void slots_post(struct ls_hub *h, struct place *p)
{
    bool elsewhere = p->process != NULL; /* the copy travels */
    for (struct ticket **at = &p->queue[0].head; *at;) {
        struct ticket *t = *at;
        if (!t->bundle) {
            at = &t->next;
            continue;
        }
        if (t->progress == LS_COMM_QUEUED)
            return;
        if (elsewhere)
            remote_send_buffered(h, p, t);
        struct ticket *copy = elsewhere ? NULL : copy_of(t), **behind = copy ? &copy->next : at;
        *at = copy ? copy : t->next;
        if (!t->next)
            p->queue[0].tail = behind;
        at = behind;
        hub_tell(h, t, LS_COMM_PAIRED);
        t->progress = LS_COMM_DONE; /* told when its stream leaves it */
        slots_recheck(h, t->bundle);
        ls_sched_wake(t->bundle->stream);
    }
}

void slots_close(struct ls_hub *h)
{
    for (uint32_t c = 0; c < h->job->tables->comm.count && !h->remote; c++) /* remote_close empties the queues otherwise */
        for (uint32_t g = 0; g < h->job->comm[c].groups; g++) {
            size_t n = h->collective[c][g].sides;
            for (size_t i = 0; h->pair[c][g] && i < n * n; i++)
                for (struct ticket *t = h->pair[c][g][i].sides ? h->pair[c][g][i].queue[0].head : NULL, *next; t; t = next) {
                    next = t->next;
                    if (!t->bundle)
                        remote_free(t);
                }
        }
    for (size_t r = 0; r < h->job->ranks; r++)
        ls_vec_release(&h->slots[r].waiting);
}
