#include "check/unroll.h"

#include "check/intern.h"

enum { VISITS_MAX = 1000000 };

static bool allowed(const struct ls_driver_node *n, uint32_t letter)
{
    return !n->allowed || (n->allowed[letter / 64] >> letter % 64 & 1);
}

static bool may_stop_after(const struct ls_driver *d, uint32_t node)
{
    bool stop = d->node[node].nexts == 0;
    for (size_t i = 0; i < d->node[node].nexts; i++)
        stop = stop || d->node[d->node[node].next[i]].may_stop;
    return stop;
}

static bool issues(const struct ls_step *step, size_t roles)
{
    for (size_t y = 0; y < roles; y++)
        if (step->role[y]->count)
            return true;
    return false;
}

/* Breadth first: before a round, a driver node, a replica's state, whether some round had operations, and how many rounds there were. */
struct visit { uint32_t node, state, active, depth, from; };
struct visits { LS_VEC(struct visit) list; struct ls_intern known; size_t rounds_min; };

static void add_visit(struct visits *v, struct visit x)
{
    uint32_t capped = x.depth < v->rounds_min ? x.depth : (uint32_t)v->rounds_min;
    if (ls_intern_put(&v->known, (uint32_t[]){ x.node, x.state, x.active, capped }, 4) == v->list.count)
        ls_push(&v->list, x);
}

static void take_path(const struct visits *v, uint32_t last, struct ls_arena *arena, struct ls_unrolled *out)
{
    size_t rounds = v->list.at[last].depth + 1, i = rounds;
    uint32_t *node = LS_NEW(arena, uint32_t, rounds);
    for (uint32_t at = last; at != LS_NO_ID; at = v->list.at[at].from)
        node[--i] = v->list.at[at].node;
    out->node = node;
    out->rounds = rounds;
}

static enum ls_code find_run(const struct ls_system *s, size_t rounds_min, struct ls_arena *arena, struct ls_unrolled *out, struct ls_error *err)
{
    struct ls_transducer *t = s->replica;
    struct visits v = { .rounds_min = rounds_min };
    enum ls_code rc = LS_OK;
    add_visit(&v, (struct visit){ 0, t->start, false, 0, LS_NO_ID });
    for (uint32_t i = 0; i < v.list.count && rc == LS_OK && !out->rounds && v.list.count < VISITS_MAX; i++) {
        const struct visit x = v.list.at[i];
        const struct ls_driver_node *n = &s->driver.node[x.node];
        bool stop = may_stop_after(&s->driver, x.node) && x.depth + 1 >= rounds_min;
        for (uint32_t z = 0; z < t->letters && rc == LS_OK && !out->rounds; z++) {
            struct ls_step step;
            if (!allowed(n, z))
                continue;
            rc = t->step(t, x.state, n->round, z, &step, err);
            bool active = rc == LS_OK && (x.active || issues(&step, t->roles));
            if (active && stop)
                take_path(&v, i, arena, out);
            for (size_t k = 0; k < n->nexts && rc == LS_OK; k++)
                add_visit(&v, (struct visit){ n->next[k], step.next, active, x.depth + 1, i });
        }
    }
    if (rc == LS_OK && !out->rounds)
        rc = ls_fail(err, LS_EINPUT, s->contract.at, "no run of at least %zu rounds issues an operation and reaches a point where the job may stop%s",
                     rounds_min, v.list.count < VISITS_MAX ? "" : ", among a million beginnings");
    ls_vec_release(&v.list);
    ls_intern_release(&v.known);
    return rc;
}

static enum ls_code table_run(const struct ls_system *s, const size_t size[LS_FREE_DIMS], struct ls_arena *arena, struct ls_unrolled *out,
                              struct ls_error *err)
{
    const struct ls_contract *c = &s->contract;
    if (c->columns != size[0] * size[1])
        return ls_fail(err, LS_EINPUT, c->at, "'table' has %zu columns, but there are %zu replicas", c->columns, size[0] * size[1]);
    uint32_t *node = LS_NEW(arena, uint32_t, c->rows), at = 0;
    out->node = node;
    for (bool more = c->rows > 0; more;) {
        node[out->rounds++] = at;
        more = out->rounds < c->rows && s->driver.node[at].nexts > 0;
        if (more)
            at = s->driver.node[at].next[0];
    }
    return LS_OK;
}

static bool leaves_choice(const struct ls_system *s, const struct ls_unrolled *u)
{
    for (size_t i = 0; i < u->rounds; i++) {
        size_t letters = 0;
        for (uint32_t z = 0; z < s->replica->letters; z++)
            letters += allowed(&s->driver.node[u->node[i]], z);
        if (letters > 1)
            return true;
    }
    return false;
}

/* Every level but the last leaves everything open, and the last one's agents are the replicas. */
static bool replicas_choose_freely(const struct ls_system *s)
{
    const struct ls_contract *c = &s->contract;
    if (c->extra != LS_CONTRACT_FREE)
        return false;
    if (!s->free_dims || !c->levels)
        return true;
    for (size_t i = 0; i + 1 < c->levels; i++)
        for (size_t z = 1; z < s->replica->letters; z++)
            if (!c->class_of[i] || c->class_of[i][z] != c->class_of[i][0])
                return false;
    return c->dims[c->levels - 1] == s->free_dims;
}

static enum ls_code check_contract(const struct ls_system *s, const struct ls_unrolled *u, struct ls_error *err)
{
    const struct ls_contract *c = &s->contract;
    if (c->extra == LS_CONTRACT_TABLE || (c->extra == LS_CONTRACT_FREE && !leaves_choice(s, u)))
        return LS_OK;
    if (s->replica->roles != 1)
        return ls_fail(err, LS_EINPUT, c->at, "the %zu ranks of a replica take the same batch: ranks that choose together cannot be unrolled",
                       s->replica->roles);
    if (!replicas_choose_freely(s))
        return ls_fail(err, LS_EINPUT, c->at, "'execution: %s' is no free choice of every replica: such a family cannot be unrolled", c->name);
    return LS_OK;
}

static enum ls_code check_sizes(const struct ls_system *s, const size_t size[LS_FREE_DIMS], struct ls_error *err)
{
    static const char *const name[LS_FREE_DIMS] = { "replicated", "sharded" };
    for (size_t d = 0; d < LS_FREE_DIMS; d++) {
        size_t step, least;
        ls_system_sizes(s, d, &step, &least);
        if ((s->free_dims >> d & 1) && !s->size[d] && (size[d] < least || size[d] % step))
            return ls_fail(err, LS_EINPUT, s->contract.at, "%zu %s replicas do not carry this plan: its groups need a multiple of %zu, at least %zu",
                           size[d], name[d], step, least);
    }
    return LS_OK;
}

struct place { uint32_t step, state; };
typedef LS_VEC(struct place) place_vec;

static enum ls_code place_choices(const struct ls_system *s, const struct ls_unrolled *u, struct place at, size_t x, size_t role, place_vec *places,
                                  struct ls_arena *arena, struct ls_choices *out, struct ls_error *err)
{
    const struct ls_contract *c = &s->contract;
    const struct ls_driver_node *node = &s->driver.node[u->node[at.step]];
    struct ls_choice *choice = LS_NEW(arena, struct ls_choice, s->replica->letters);
    out->choice = choice;
    for (uint32_t z = 0; z < s->replica->letters; z++) {
        if (c->extra == LS_CONTRACT_TABLE ? z != c->table[at.step * c->columns + x] : !allowed(node, z))
            continue;
        struct ls_step step;
        enum ls_code rc = s->replica->step(s->replica, at.state, node->round, z, &step, err);
        if (rc != LS_OK)
            return rc;
        uint32_t next = 0;
        while (next < places->count && (places->at[next].step != at.step + 1 || places->at[next].state != step.next))
            next++;
        if (next == places->count)
            ls_push(places, (struct place){ at.step + 1, step.next });
        choice[out->count++] = (struct ls_choice){ .segment = step.role[role], .next = next, .letter = z };
    }
    return LS_OK;
}

static enum ls_code unroll_rank(const struct ls_system *s, const struct ls_unrolled *u, size_t x, size_t role, struct ls_arena *arena,
                                struct ls_family_rank *out, struct ls_error *err)
{
    place_vec places = { 0 };
    LS_VEC(struct ls_choices) nodes = { 0 };
    enum ls_code rc = LS_OK;
    ls_push(&places, (struct place){ 0, s->replica->start });
    for (size_t n = 0; n < places.count && rc == LS_OK; n++) {
        struct ls_choices choices = { 0 };
        if (places.at[n].step < u->rounds)
            rc = place_choices(s, u, places.at[n], x, role, &places, arena, &choices, err);
        ls_push(&nodes, choices);
    }
    *out = (struct ls_family_rank){ ls_arena_copy(arena, nodes.at, nodes.count * sizeof *nodes.at), nodes.count };
    ls_vec_release(&places);
    ls_vec_release(&nodes);
    return rc;
}

enum ls_code ls_family_of_system(const struct ls_system *s, const size_t size[LS_FREE_DIMS], size_t rounds_min, struct ls_arena *arena,
                                 struct ls_unrolled *out, struct ls_error *err)
{
    *out = (struct ls_unrolled){ 0 };
    bool table = s->contract.extra == LS_CONTRACT_TABLE;
    enum ls_code rc = check_sizes(s, size, err);
    if (rc == LS_OK)
        rc = table ? table_run(s, size, arena, out, err) : find_run(s, rounds_min, arena, out, err);
    if (rc == LS_OK)
        rc = check_contract(s, out, err);
    size_t replicas = size[0] * size[1], roles = s->replica->roles;
    struct ls_family_rank *rank = LS_NEW(arena, struct ls_family_rank, ls_mul_size(replicas, roles));
    for (size_t x = 0; x < replicas; x++)
        for (size_t y = 0; y < roles && rc == LS_OK; y++)
            if (x > 0 && !table)
                rank[x * roles + y] = rank[y];
            else
                rc = unroll_rank(s, out, x, y, arena, &rank[x * roles + y], err);
    struct ls_groups *comm = LS_NEW(arena, struct ls_groups, s->replica->tables->comm.count);
    for (uint32_t i = 0; i < s->replica->tables->comm.count && rc == LS_OK; i++)
        ls_system_groups(s, i, size, arena, &comm[i]);
    out->family = (struct ls_family){ .tables = s->replica->tables, .ranks = ls_mul_size(replicas, roles), .rank = rank, .comm = comm };
    return rc;
}
