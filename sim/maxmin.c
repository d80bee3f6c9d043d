/* sim/maxmin.c -- our network: weighted max-min, one variable per class of equal flows.
 *
 * Exact when others join or leave: rates are a function of the set of flows alone, computed from the start each time; a rate is a
 * whole number of 2^-64 bytes per picosecond (rounded once, from a fraction), what remains is a whole number of 2^-64 bytes, and a
 * flow ends at the nearest picosecond. So an interlude that leaves a flow's rate as it was leaves its end as it was, and the end is off by
 * 1 ps + time * 2^-64 / rate at most.
 *
 * Links that are equal (capacity, and which kinds use them with which weight) constrain alike and are merged at open. A change is
 * solved for the flows that it can reach through shared links only. */
#include "sim/network.h"

#include "base/hash.h"
#include "base/vec.h"
#include "sim/queue.h"
#include "sim/wide.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef ls_wide wide;
enum { FRACTION = 64 };

struct member { uint64_t nth, tag; }; /* nth: in order of start */
struct flow { /* a class of equal flows */
    uint32_t route, count, mark;
    uint64_t cap;
    wide rate, left;
    uint64_t since, end;
    uint32_t version;
    bool fixed;
    LS_VEC(struct member) member;
};
struct link {
    wide capacity, used; /* used: by flows whose rate is fixed */
    uint64_t weight;     /* of the others */
    uint32_t mark;
    LS_VEC(uint32_t) on; /* live flows */
};
struct route { uint32_t first, uses; };

struct ls_network {
    const struct ls_net_plan *plan;
    struct route *route;
    uint32_t routes, *route_of;     /* [kinds] */
    LS_VEC(struct ls_net_use) use;  /* of merged links */
    struct link *link;
    uint32_t links;
    LS_VEC(struct flow) flow;
    LS_VEC(uint32_t) unused;        /* flows to use again */
    LS_VEC(uint32_t) fresh;         /* started now: not solved for */
    LS_VEC(uint32_t) touched;       /* links whose flows changed */
    LS_VEC(uint32_t) reach, over;   /* scratch: flows and links of a component */
    struct ls_queue ends;           /* what: version << 32 | flow */
    LS_VEC(struct member) ended;    /* tags to hand out, from `handed` */
    size_t handed;
    uint32_t mark;
    uint64_t now;
    struct ls_net_counts counts;
};

/* a / b as a rate, rounded to nearest. */
static wide per_ps(wide amount_per_s)
{
    return (amount_per_s + LS_PS_PER_S / 2) / LS_PS_PER_S;
}

static bool same_uses(const struct ls_net_kind *a, const struct ls_net_kind *b)
{
    return a->uses == b->uses && (a->use == b->use || memcmp(a->use, b->use, a->uses * sizeof *a->use) == 0);
}

/* Kinds with equal uses share a route. */
static void find_routes(struct ls_network *n)
{
    const struct ls_net_plan *p = n->plan;
    size_t room = 64;
    while (room < 2 * p->kinds)
        room *= 2;
    uint32_t *slot = calloc(room, sizeof *slot);
    n->route_of = calloc(p->kinds + 1, sizeof *n->route_of);
    n->route = calloc(p->kinds + 1, sizeof *n->route);
    uint32_t *first = calloc(p->kinds + 1, sizeof *first); /* a kind of each route */
    if (!slot || !n->route_of || !n->route || !first)
        ls_out_of_memory(room * sizeof *slot);
    for (uint32_t k = 0; k < p->kinds; k++) {
        size_t at = ls_hash(p->kind[k].use, p->kind[k].uses * sizeof *p->kind[k].use, 0) & (room - 1);
        while (slot[at] && !same_uses(&p->kind[k], &p->kind[first[slot[at] - 1]]))
            at = (at + 1) & (room - 1);
        if (!slot[at]) {
            first[n->routes] = k;
            n->route[n->routes].uses = p->kind[k].uses;
            slot[at] = ++n->routes;
        }
        n->route_of[k] = slot[at] - 1;
    }
    /* Partition of the links, refined route by route: links of one part are used by the same routes with the same weights. */
    uint32_t *part = calloc(p->links + 1, sizeof *part), parts = 0;
    LS_VEC(uint64_t) capacity = { 0 };
    for (uint32_t l = 0; l < p->links; l++) {
        uint32_t i = 0;
        while (i < capacity.count && capacity.at[i] != p->link_Bps[l])
            i++;
        if (i == capacity.count)
            ls_push(&capacity, p->link_Bps[l]);
        part[l] = i;
    }
    ls_vec_release(&capacity);
    parts = (uint32_t)p->links; /* ids above those of capacities */
    struct split { uint32_t part, weight, to; };
    LS_VEC(struct split) split = { 0 };
    for (uint32_t r = 0; r < n->routes; r++) {
        const struct ls_net_kind *k = &p->kind[first[r]];
        split.count = 0;
        for (uint32_t i = 0; i < k->uses; i++) {
            uint32_t *of = &part[k->use[i].link];
            size_t s = split.count; /* recent splits first: neighbours are alike */
            while (s > 0 && (split.at[s - 1].part != *of || split.at[s - 1].weight != k->use[i].weight))
                s--;
            if (s == 0) {
                ls_push(&split, (struct split){ *of, k->use[i].weight, parts++ });
                s = split.count;
            }
            *of = split.at[s - 1].to;
        }
    }
    ls_vec_release(&split);
    /* Parts that a route uses become merged links. */
    uint32_t *id = calloc((size_t)parts + 1, sizeof *id);
    uint32_t *seen = calloc((size_t)parts + 1, sizeof *seen);
    n->link = calloc(p->links + 1, sizeof *n->link);
    if (!part || !id || !seen || !n->link)
        ls_out_of_memory(p->links * sizeof *n->link);
    for (uint32_t r = 0; r < n->routes; r++) {
        const struct ls_net_kind *k = &p->kind[first[r]];
        n->route[r].first = (uint32_t)n->use.count;
        for (uint32_t i = 0; i < k->uses; i++) {
            uint32_t of = part[k->use[i].link];
            if (seen[of] == r + 1)
                continue;
            seen[of] = r + 1;
            if (!id[of]) {
                n->link[n->links].capacity = (wide)p->link_Bps[k->use[i].link] << FRACTION;
                id[of] = ++n->links;
            }
            ls_push(&n->use, (struct ls_net_use){ id[of] - 1, k->use[i].weight });
        }
        n->route[r].uses = (uint32_t)n->use.count - n->route[r].first;
    }
    free(seen);
    free(id);
    free(part);
    free(first);
    free(slot);
}

static void start_flow(struct ls_network *n, uint32_t kind, uint64_t bytes, uint64_t tag)
{
    uint32_t route = n->route_of[kind];
    uint64_t cap = n->plan->kind[kind].cap_Bps;
    assert(bytes && bytes >> 56 == 0);
    n->counts.flows++;
    for (size_t i = 0; i < n->fresh.count; i++) {
        struct flow *f = &n->flow.at[n->fresh.at[i]];
        if (f->route == route && f->cap == cap && f->left == (wide)bytes << FRACTION) {
            f->count++;
            ls_push(&f->member, (struct member){ n->counts.flows, tag });
            return;
        }
    }
    if (!n->unused.count) {
        ls_push(&n->unused, (uint32_t)n->flow.count);
        ls_push(&n->flow, (struct flow){ 0 });
    }
    uint32_t id = n->unused.at[--n->unused.count];
    struct flow *f = &n->flow.at[id];
    f->route = route;
    f->count = 1;
    f->cap = cap;
    f->rate = 0;
    f->left = (wide)bytes << FRACTION;
    f->since = n->now;
    f->version++;
    f->member.count = 0;
    ls_push(&f->member, (struct member){ n->counts.flows, tag });
    ls_push(&n->fresh, id);
    const struct route *r = &n->route[route];
    for (uint32_t i = 0; i < r->uses; i++) {
        uint32_t l = n->use.at[r->first + i].link;
        ls_push(&n->link[l].on, id);
    }
}

static void reach_link(struct ls_network *n, uint32_t l)
{
    if (n->link[l].mark == n->mark)
        return;
    n->link[l].mark = n->mark;
    ls_push(&n->over, l);
}

static void reach_flow(struct ls_network *n, uint32_t id)
{
    if (n->flow.at[id].mark == n->mark)
        return;
    n->flow.at[id].mark = n->mark;
    ls_push(&n->reach, id);
}

static void set_rate(struct ls_network *n, uint32_t id, wide rate)
{
    struct flow *f = &n->flow.at[id];
    const struct route *r = &n->route[f->route];
    f->fixed = true;
    for (uint32_t i = 0; i < r->uses; i++) {
        const struct ls_net_use *u = &n->use.at[r->first + i];
        n->link[u->link].used += (wide)((uint64_t)u->weight * f->count) * rate * LS_PS_PER_S;
        n->link[u->link].weight -= (uint64_t)u->weight * f->count;
    }
    if (rate == f->rate)
        return;
    assert(rate);
    f->left -= f->rate * (n->now - f->since);
    f->since = n->now;
    f->rate = rate;
    f->version++;
    f->end = n->now + (uint64_t)((f->left + rate / 2) / rate);
    ls_queue_push(&n->ends, f->end, (uint64_t)f->version << 32 | id);
}

/* Rates of the flows in `reach`, which share links with no other. Progressive filling: the smallest fair share is final for
 * all flows that it holds back. Shares are per second here, times 2^64, so that comparing them is exact. */
static void solve(struct ls_network *n)
{
    size_t open = n->reach.count;
    n->counts.solves++;
    for (size_t i = 0; i < n->over.count; i++)
        n->link[n->over.at[i]].used = n->link[n->over.at[i]].weight = 0;
    for (size_t i = 0; i < n->reach.count; i++) {
        struct flow *f = &n->flow.at[n->reach.at[i]];
        const struct route *r = &n->route[f->route];
        f->fixed = false;
        for (uint32_t u = 0; u < r->uses; u++)
            n->link[n->use.at[r->first + u].link].weight += (uint64_t)n->use.at[r->first + u].weight * f->count;
    }
    while (open) {
        wide left = 0;        /* the smallest share is left / weight */
        uint64_t weight = 0;
        for (size_t i = 0; i < n->over.count; i++) {
            const struct link *l = &n->link[n->over.at[i]];
            wide free = l->capacity > l->used ? l->capacity - l->used : 1;
            if (!l->weight)
                continue;
            /* free / l->weight < left / weight, by quotients first: products would not fit. */
            if (!weight || free / l->weight < left / weight ||
                (free / l->weight == left / weight && free % l->weight * weight < left % weight * l->weight)) {
                left = free;
                weight = l->weight;
            }
        }
        for (size_t i = 0; i < n->reach.count; i++) {
            const struct flow *f = &n->flow.at[n->reach.at[i]];
            wide cap = (wide)f->cap << FRACTION;
            if (!f->fixed && f->cap && (!weight || cap < left / weight || (cap == left / weight && left % weight))) {
                left = cap;
                weight = 1;
            }
        }
        assert(weight);
        wide share = left / weight, rest = left % weight, rate = per_ps(share);
        rate = rate ? rate : 1;
        /* Mark first: fixing one changes the shares of the others. */
        n->touched.count = 0;
        for (size_t i = 0; i < n->over.count; i++) {
            const struct link *l = &n->link[n->over.at[i]];
            wide free = l->capacity > l->used ? l->capacity - l->used : 1;
            if (l->weight && free / l->weight == share && free % l->weight * weight == rest * l->weight)
                ls_push(&n->touched, n->over.at[i]);
        }
        for (size_t i = 0; i < n->touched.count; i++)
            for (size_t j = 0; j < n->link[n->touched.at[i]].on.count; j++) {
                uint32_t id = n->link[n->touched.at[i]].on.at[j];
                if (!n->flow.at[id].fixed) {
                    set_rate(n, id, rate);
                    open--;
                }
            }
        for (size_t i = 0; i < n->reach.count; i++) {
            const struct flow *f = &n->flow.at[n->reach.at[i]];
            if (!f->fixed && f->cap && rest == 0 && (wide)f->cap << FRACTION == share) {
                set_rate(n, n->reach.at[i], rate);
                open--;
            }
        }
    }
    n->touched.count = 0;
}

/* Solves for what is reached from `reach` and `over`. */
static void solve_component(struct ls_network *n)
{
    for (size_t f = 0, l = 0; f < n->reach.count || l < n->over.count;) {
        if (f < n->reach.count) {
            const struct route *r = &n->route[n->flow.at[n->reach.at[f++]].route];
            for (uint32_t i = 0; i < r->uses; i++)
                reach_link(n, n->use.at[r->first + i].link);
        } else {
            const struct link *x = &n->link[n->over.at[l++]];
            for (size_t i = 0; i < x->on.count; i++)
                reach_flow(n, x->on.at[i]);
        }
    }
    if (n->reach.count)
        solve(n);
    n->reach.count = n->over.count = 0;
}

static void solve_fresh(struct ls_network *n)
{
    n->mark++;
    for (size_t i = 0; i < n->fresh.count; i++)
        if (n->flow.at[n->fresh.at[i]].mark != n->mark) {
            reach_flow(n, n->fresh.at[i]);
            solve_component(n);
        }
    n->fresh.count = 0;
}

static void end_flow(struct ls_network *n, uint32_t id)
{
    struct flow *f = &n->flow.at[id];
    const struct route *r = &n->route[f->route];
    for (size_t i = 0; i < f->member.count; i++)
        ls_push(&n->ended, f->member.at[i]);
    f->version++;
    for (uint32_t i = 0; i < r->uses; i++) {
        struct link *l = &n->link[n->use.at[r->first + i].link];
        size_t j = 0;
        while (l->on.at[j] != id)
            j++;
        memmove(&l->on.at[j], &l->on.at[j + 1], (--l->on.count - j) * sizeof *l->on.at);
        ls_push(&n->touched, n->use.at[r->first + i].link);
    }
    ls_push(&n->unused, id);
}

/* Flows that ended made room. */
static void solve_touched(struct ls_network *n)
{
    LS_VEC(uint32_t) links = { n->touched.at, n->touched.count, n->touched.room };
    memset(&n->touched, 0, sizeof n->touched);
    n->mark++;
    for (size_t i = 0; i < links.count; i++)
        if (n->link[links.at[i]].mark != n->mark) {
            reach_link(n, links.at[i]);
            solve_component(n);
        }
    ls_vec_release(&links);
}

static int by_start(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    return x->nth < y->nth ? -1 : x->nth > y->nth;
}

static bool advance(struct ls_network *n, uint64_t until, uint64_t *now, uint64_t *tag)
{
    for (;;) {
        uint64_t time;
        if (n->handed < n->ended.count) {
            *now = n->now;
            *tag = n->ended.at[n->handed++].tag;
            return true;
        }
        n->handed = n->ended.count = 0;
        if (n->fresh.count)
            solve_fresh(n);
        if (!ls_queue_next(&n->ends, &time) || time > until) {
            if (until != UINT64_MAX)
                n->now = until;
            *now = n->now;
            return false;
        }
        /* All that end at this instant, then one solution for those that stay. */
        for (bool any = false; ls_queue_next(&n->ends, &time) && time <= until && (!any || time == n->now);) {
            struct ls_due e;
            ls_queue_pop(&n->ends, &e);
            uint32_t id = (uint32_t)e.what;
            if ((uint32_t)(e.what >> 32) != n->flow.at[id].version)
                continue;
            n->now = time;
            any = true;
            end_flow(n, id);
        }
        if (n->ended.count > 1)
            qsort(n->ended.at, n->ended.count, sizeof *n->ended.at, by_start);
        if (n->touched.count)
            solve_touched(n);
    }
}

static struct ls_net_counts counts(const struct ls_network *n)
{
    return n->counts;
}

static enum ls_code run(const struct ls_net_plan *plan, void (*body)(void *, struct ls_network *), void *context, struct ls_error *err)
{
    struct ls_network n = { .plan = plan };
    if (plan->setup && *plan->setup)
        return ls_fail(err, LS_EUSAGE, LS_NOWHERE, "the network 'maxmin' has no setup, not '%s'", plan->setup);
    ls_queue_init(&n.ends);
    find_routes(&n);
    body(context, &n);
    for (size_t i = 0; i < n.flow.count; i++)
        ls_vec_release(&n.flow.at[i].member);
    for (uint32_t i = 0; i < n.links; i++)
        ls_vec_release(&n.link[i].on);
    ls_vec_release(&n.use);
    ls_vec_release(&n.flow);
    ls_vec_release(&n.unused);
    ls_vec_release(&n.fresh);
    ls_vec_release(&n.touched);
    ls_vec_release(&n.reach);
    ls_vec_release(&n.over);
    ls_vec_release(&n.ended);
    ls_queue_release(&n.ends);
    free(n.link);
    free(n.route);
    free(n.route_of);
    return LS_OK;
}

const struct ls_network_ops ls_network_maxmin = {
    .name = "maxmin", .run = run, .start = start_flow, .advance = advance, .counts = counts,
};
