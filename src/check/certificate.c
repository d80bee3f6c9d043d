#include "check/certificate.h"

#include "check/fold.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MACRO_STATES_DEFAULT = 200000, AGENTS_MAX = 1 << 20, NUMBERS_MAX = 100000000, OP_WORDS = sizeof(struct ls_cert_op) / 4 };
static_assert(sizeof(struct ls_cert_op) == 4 * OP_WORDS, "an op is a list of words");

struct edge { uint32_t from, to, weight; };
struct maker {
    const struct ls_system *s;
    const struct ls_tables *tables;
    struct ls_fold fold;
    struct ls_arena *arena, scratch;
    struct ls_certificate *c;
    struct ls_error *err;
    struct ls_names *sigs, *payloads;
    struct ls_intern reach, triple, program, order; /* by content; (state, round, letter) for steps */
    LS_VEC(struct ls_cert_step) step;
    LS_VEC(struct ls_cert_round) round;
    ls_word_vec payload_id;         /* payload -> index in the certificate + 1 */
    ls_word_vec ops;                /* a program while it is made */
    ls_word_vec guard, fused;       /* by op: the side of a branch; the group as the segment numbers it */
    size_t numbers;                 /* in all orders */
    /* the order graph of one round */
    LS_VEC(struct edge) edge;
    uint32_t nodes;
};

static enum ls_code cannot(struct maker *m, const char *why)
{
    return ls_fail(m->err, LS_EUNDECIDED, LS_NOWHERE, "no certificate for '%s': %s", m->c->name, why);
}

/* One line of printable ASCII or UTF-8 without quotes. */
static const char *plain(struct ls_arena *arena, const char *text)
{
    char *out = ls_arena_str(arena, text ? text : "");
    for (char *p = out; *p; p++)
        if ((unsigned char)*p < ' ' || *p == '"' || *p == 127)
            *p = '?';
    return out;
}

static uint32_t payload_of(struct maker *m, uint32_t payload)
{
    while (m->payload_id.count <= payload)
        ls_push(&m->payload_id, 0);
    if (!m->payload_id.at[payload]) {
        const struct ls_payload *p = &m->tables->payload.at[payload];
        struct ls_str text = { 0 };
        ls_str_printf(&text, "%" PRIu32 " %s:", payload, ls_tables_name(m->tables, p->name)); /* names may repeat, indices do not */
        for (size_t i = 0; i < p->count; i++)
            ls_str_printf(&text, "%s%s", i ? ", " : " ", ls_tables_name(m->tables, p->items[i]));
        m->payload_id.at[payload] = ls_name_id(m->payloads, ls_str_text(&text));
        ls_str_release(&text);
    }
    return m->payload_id.at[payload] - 1;
}

/* Everything that the two sides of a pairing must have in common (ls_op_diff), as text: equal texts, compatible ops. */
static uint32_t sig_of(struct maker *m, const struct ls_op *op)
{
    const struct ls_tables *t = m->tables;
    bool p2p = ls_op_is_p2p(op);
    struct ls_str text = { 0 };
    ls_str_add(&text, p2p ? "transfer" : ls_op_kind_name(op->kind));
    if (op->kind == LS_OP_COMM_INIT)
        ls_str_printf(&text, " of %u %s", op->comm, ls_tables_name(t, t->comm.at[op->comm].name));
    if (op->counts == LS_NO_ID || op->kind != LS_OP_ALL_TO_ALL)
        ls_str_printf(&text, " count %" PRIu64, op->count);
    if (op->symbol != LS_NO_ID)
        ls_str_printf(&text, " symbol %u %s", op->symbol, ls_tables_name(t, op->symbol));
    if (op->counts != LS_NO_ID) {
        const uint64_t *v = &t->vector.at[op->counts];
        ls_str_printf(&text, " counts of %" PRIu64 " peers", v[0]);
        for (uint64_t i = 1; i <= v[0] && op->kind != LS_OP_ALL_TO_ALL; i++)
            ls_str_printf(&text, " %" PRIu64, v[i]);
    }
    ls_str_printf(&text, " %s", ls_dtype_name(op->dtype));
    uint32_t num = op->factor.num, den = op->factor.den;
    if (op->reduce != LS_REDUCE_NONE)
        ls_str_printf(&text, " %s", ls_reduce_name(op->reduce));
    if (num || den) {
        uint32_t a = num, b = den;
        while (b) {
            uint32_t r = a % b;
            a = b;
            b = r;
        }
        if (num / a != 1 || den / a != 1)
            ls_str_printf(&text, " factor %u/%u", num / a, den / a);
    }
    if (!p2p && op->peer >= 0)
        ls_str_printf(&text, " root %d", op->peer);
    if (op->kind == LS_OP_DECIDE)
        ls_str_printf(&text, " value %u", op->value);
    if (op->payload != LS_NO_ID)
        ls_str_printf(&text, " payload %u", payload_of(m, op->payload));
    uint32_t id = ls_name_id(m->sigs, plain(&m->scratch, ls_str_text(&text))) - 1;
    ls_str_release(&text);
    return id;
}

/* Peers are member indices; the certificate names roles. */
static uint32_t peer_role(const struct maker *m, const struct ls_op *op, size_t role)
{
    const struct ls_fold *f = &m->fold;
    const uint32_t *order = m->s->comm[op->comm].order;
    for (uint32_t y = 0; y < f->roles; y++) {
        if (f->folded[y * f->comms + op->comm] != f->folded[role * f->comms + op->comm])
            continue;
        uint32_t before = 0;
        for (uint32_t z = 0; z < f->roles; z++)
            if (f->folded[z * f->comms + op->comm] == f->folded[y * f->comms + op->comm])
                before += order ? order[z] < order[y] || (order[z] == order[y] && z < y) : z < y;
        if (before == (uint32_t)op->peer)
            return y;
    }
    return LS_NO_ID;
}

static void add_op(struct maker *m, const struct ls_op *op, size_t role, uint32_t guard)
{
    struct ls_cert_op o = { .stream = op->stream, .object = LS_NO_ID, .sig = LS_NO_ID, .peer = LS_NO_ID, .blocking = op->blocking };
    if (op->kind == LS_OP_ALLOC || op->kind == LS_OP_FREE || op->kind == LS_OP_MARK)
        return; /* they order nothing, and do not interrupt a fused group */
    if (ls_op_uses_comm(op)) {
        o.kind = ls_op_is_collective(op) ? LS_CERT_COLLECTIVE : op->kind == LS_OP_SEND ? LS_CERT_SEND : LS_CERT_RECV;
        o.object = ls_word_comm(m->tables, op);
        o.sig = sig_of(m, op);
        o.blocking = op->blocking || op->kind == LS_OP_DECIDE || op->kind == LS_OP_COMM_INIT;
        if (ls_op_is_p2p(op))
            o.peer = peer_role(m, op, role);
    } else if (op->kind == LS_OP_RECORD || op->kind == LS_OP_WAIT || op->kind == LS_OP_HOST_WAIT) {
        o.kind = op->kind == LS_OP_RECORD ? LS_CERT_RECORD : op->kind == LS_OP_WAIT ? LS_CERT_WAIT : LS_CERT_HOST_WAIT;
        o.object = op->event;
        if (o.kind == LS_CERT_HOST_WAIT)
            o.stream = LS_NO_ID;
    } else {
        o.kind = LS_CERT_RUN;
    }
    size_t n = m->fused.count;
    if (op->fused) { /* numbers of a group are its own, so that neighbours in two groups do not merge */
        bool same = n && m->fused.at[n - 1] == op->fused && m->guard.at[n - 1] == guard;
        uint32_t before = 0;
        for (size_t i = n; i-- > 0 && !before;)
            before = m->ops.at[i * OP_WORDS + offsetof(struct ls_cert_op, fused) / 4];
        o.fused = same ? before : before + 1;
    }
    ls_push(&m->fused, op->fused);
    ls_push(&m->guard, guard);
    uint32_t word[OP_WORDS];
    memcpy(word, &o, sizeof o);
    for (size_t i = 0; i < OP_WORDS; i++)
        ls_push(&m->ops, word[i]);
}

/* Branches as the values that the segment contributes take them: the rounds certified are those where all agree on them. */
static void add_ops(struct maker *m, const struct ls_op *op, size_t count, size_t role, uint32_t guard, uint32_t *guards)
{
    for (size_t i = 0; i < count; i++) {
        add_op(m, &op[i], role, guard);
        if (op[i].kind != LS_OP_DECIDE)
            continue;
        size_t then = op[i].then_count, other = op[i].else_count;
        uint32_t side = ++*guards;
        add_ops(m, op + i + 1 + (op[i].value ? 0 : then), op[i].value ? then : other, role, side, guards);
        i += then + other;
    }
}

static uint32_t program_of(struct maker *m, const struct ls_segment *segment, size_t role)
{
    uint32_t guards = 0;
    m->ops.count = m->fused.count = m->guard.count = 0;
    add_ops(m, segment->op, segment->count, role, 0, &guards);
    return ls_intern_put(&m->program, m->ops.at, m->ops.count);
}

static const struct ls_cert_op *program_at(const struct maker *m, uint32_t id, size_t *count)
{
    const uint32_t *word = ls_intern_at(&m->program, id, count);
    *count /= OP_WORDS;
    return (const struct ls_cert_op *)(const void *)word;
}

/* The programs of a leaf agent, by role. */
static const uint32_t *programs_of(struct maker *m, const struct ls_tree *t, uint32_t node, uint32_t leaf)
{
    size_t l = m->fold.levels - 1;
    uint32_t key[3] = { ls_fold_leaf_macro(&m->fold, t, leaf), m->s->driver.node[node].round, t->agent[l][leaf].klass };
    uint32_t id = ls_intern_put(&m->triple, key, 3);
    if (id == m->step.count) {
        struct ls_cert_step step = { key[0], key[1], key[2], t->agent[l][leaf].next, LS_NEW(m->arena, uint32_t, m->fold.roles) };
        for (size_t y = 0; y < m->fold.roles; y++)
            step.program[y] = program_of(m, t->digest[leaf * m->fold.roles + y]->segment, y);
        ls_push(&m->step, step);
    }
    return m->step.at[id].program;
}

static uint32_t new_node(struct maker *m)
{
    return m->nodes++;
}

static void link(struct maker *m, uint32_t from, uint32_t to, uint32_t weight)
{
    if (from != LS_NO_ID)
        ls_push(&m->edge, (struct edge){ from, to, weight });
}

/* One rank's local edges. `meet` names the node of the k-th op of a queue; weights are 0 at nodes that only collect others. */
struct queues {
    uint32_t *first;       /* [scope's index][folded]: node of the first collective, or LS_NO_ID */
    struct ls_intern p2p;  /* leaf, folded communicator, from, to, k */
    ls_word_vec p2p_node, p2p_sides, p2p_sig;
    struct ls_intern kinds; /* parent, programs */
    ls_word_vec one;        /* an agent of each */
};

static enum ls_code walk(struct maker *m, const struct ls_tree *t, uint32_t leaf, uint32_t role, uint32_t program, struct queues *q,
                         uint32_t *number_node)
{
    const struct ls_fold *f = &m->fold;
    size_t ops, streams = 0, events = 0;
    const struct ls_cert_op *op = program_at(m, program, &ops);
    for (size_t i = 0; i < ops; i++) {
        streams = op[i].kind != LS_CERT_HOST_WAIT && op[i].stream >= streams ? (size_t)op[i].stream + 1 : streams;
        events = op[i].sig == LS_NO_ID && op[i].object != LS_NO_ID && op[i].object >= events ? (size_t)op[i].object + 1 : events;
    }
    size_t words = 3 * streams + events + f->comms + 2 * f->comms * f->roles;
    uint32_t *done = LS_NEW(&m->scratch, uint32_t, words + 1); /* of a stream: its bundles so far */
    memset(done, 0xff, words * sizeof *done);
    uint32_t *before = done + streams, *bundle = before + streams, *record = bundle + streams, *fifo = record + events, *queue = fifo + f->comms;
    uint32_t *k = LS_NEW(&m->scratch, uint32_t, f->comms * (1 + 2 * f->roles) + 1);
    bool *pending = LS_NEW(&m->scratch, bool, streams + 1), any = false;
    uint32_t host = LS_NO_ID;
    for (size_t i = 0; i <= ops; i++) {
        bool same = i < ops && i > 0 && op[i].fused && op[i].fused == op[i - 1].fused;
        if (any && !same) { /* a fused group blocks at its end */
            uint32_t now = new_node(m);
            link(m, host, now, 0);
            for (size_t s = 0; s < streams; s++)
                if (pending[s])
                    link(m, done[s], now, 0);
            memset(pending, 0, streams);
            any = false;
            host = now;
        }
        if (i == ops)
            break;
        const struct ls_cert_op *o = &op[i];
        if (o->kind == LS_CERT_HOST_WAIT) {
            number_node[i] = LS_NO_ID;
            if (o->object != LS_NO_ID && record[o->object] != LS_NO_ID) {
                uint32_t now = new_node(m);
                link(m, host, now, 0);
                link(m, record[o->object], now, 0);
                host = now;
            }
            continue;
        }
        uint32_t n, s = o->stream;
        if (o->kind == LS_CERT_COLLECTIVE) {
            size_t scope = ls_fold_scope(f, t, leaf, f->level_of[o->object]);
            uint32_t *first = &q->first[scope * f->foldeds + f->folded[role * f->comms + o->object]];
            if (*first == LS_NO_ID) { /* all words of the scope are equal: this one's length is everybody's */
                *first = m->nodes;
                for (size_t j = i; j < ops; j++)
                    m->nodes += op[j].kind == LS_CERT_COLLECTIVE && op[j].object == o->object;
            }
            n = *first + k[o->object]++;
            link(m, fifo[o->object], n, 1);
            fifo[o->object] = n;
        } else if (o->kind == LS_CERT_SEND || o->kind == LS_CERT_RECV) {
            bool send = o->kind == LS_CERT_SEND;
            if (o->peer == LS_NO_ID)
                return cannot(m, "a send or receive names a peer that is not in its group");
            size_t at = (o->object * f->roles + o->peer) * 2 + send;
            uint32_t key[5] = { leaf, f->folded[role * f->comms + o->object], send ? role : o->peer, send ? o->peer : role,
                                k[f->comms + at]++ };
            uint32_t id = ls_intern_put(&q->p2p, key, 5);
            if (id == q->p2p_node.count) {
                ls_push(&q->p2p_node, new_node(m));
                ls_push(&q->p2p_sides, 0);
                ls_push(&q->p2p_sig, o->sig);
            }
            q->p2p_sides.at[id] |= send ? 1 : 2;
            if (q->p2p_sig.at[id] != o->sig)
                return cannot(m, "a send and its receive differ");
            n = q->p2p_node.at[id];
            link(m, queue[at], n, 1);
            queue[at] = n;
        } else {
            n = new_node(m);
            if (o->kind == LS_CERT_WAIT && o->object != LS_NO_ID)
                link(m, record[o->object], n, 1);
            if (o->kind == LS_CERT_RECORD && o->object != LS_NO_ID)
                record[o->object] = n;
        }
        number_node[i] = n;
        if (!o->fused || bundle[s] != o->fused) {
            before[s] = done[s];
            done[s] = new_node(m);
            link(m, before[s], done[s], 0);
            bundle[s] = o->fused ? o->fused : LS_NO_ID;
        }
        link(m, before[s], n, 1);
        link(m, n, done[s], 0);
        link(m, host, n, 1);
        if (o->blocking || m->c->level == LS_L1)
            pending[s] = any = true;
    }
    return LS_OK;
}

/* The least numbers that rise along every edge; NULL when there is a cycle. */
static const uint32_t *least(struct maker *m)
{
    size_t n = m->nodes, taken = 0;
    uint32_t *number = LS_NEW(&m->scratch, uint32_t, n + 1), *degree = LS_NEW(&m->scratch, uint32_t, n + 1);
    uint32_t *queue = LS_NEW(&m->scratch, uint32_t, n + 1), *first = LS_NEW(&m->scratch, uint32_t, n + 2);
    uint32_t *edge = LS_NEW(&m->scratch, uint32_t, m->edge.count + 1);
    for (size_t i = 0; i < m->edge.count; i++) {
        first[m->edge.at[i].from + 2]++;
        degree[m->edge.at[i].to]++;
    }
    for (size_t i = 2; i < n + 2; i++)
        first[i] += first[i - 1];
    for (uint32_t i = 0; i < m->edge.count; i++)
        edge[first[m->edge.at[i].from + 1]++] = i;
    for (uint32_t i = 0; i < n; i++)
        if (!degree[i])
            queue[taken++] = i;
    for (size_t head = 0; head < taken; head++)
        for (uint32_t i = first[queue[head]]; i < first[queue[head] + 1]; i++) {
            const struct edge *e = &m->edge.at[edge[i]];
            uint32_t least_here = number[e->from] + e->weight;
            number[e->to] = least_here > number[e->to] ? least_here : number[e->to];
            if (--degree[e->to] == 0)
                queue[taken++] = e->to;
        }
    return taken == n ? number : NULL;
}

/* Numbers of every op of a folded round. Agents with equal programs below one parent have equal numbers: one stands for all. */
static enum ls_code number_round(struct maker *m, uint32_t node, const struct ls_tree *t, struct ls_cert_round *out)
{
    struct ls_fold *f = &m->fold;
    size_t l = f->levels - 1, leaves = t->agents[l], scopes = 0;
    struct queues q = { 0 };
    uint32_t *twin = LS_NEW(&m->scratch, uint32_t, leaves), ***at = LS_NEW(&m->scratch, uint32_t **, leaves);
    enum ls_code rc = LS_OK;
    for (size_t i = 0; i <= l; i++)
        scopes = t->agents[i] > scopes ? t->agents[i] : scopes;
    q.first = LS_NEW(&m->scratch, uint32_t, scopes * f->foldeds + 1);
    memset(q.first, 0xff, scopes * f->foldeds * sizeof *q.first);
    m->edge.count = m->nodes = 0;
    for (uint32_t a = 0; a < leaves && rc == LS_OK; a++) {
        const uint32_t *program = programs_of(m, t, node, a);
        m->ops.count = 0;
        ls_push(&m->ops, t->agent[l][a].parent);
        for (size_t y = 0; y < f->roles; y++)
            ls_push(&m->ops, program[y]);
        uint32_t kind = ls_intern_put(&q.kinds, m->ops.at, m->ops.count);
        if (kind == q.one.count)
            ls_push(&q.one, a);
        twin[a] = q.one.at[kind];
        if (twin[a] < a)
            continue;
        at[a] = LS_NEW(&m->scratch, uint32_t *, f->roles);
        for (uint32_t y = 0; y < f->roles && rc == LS_OK; y++) {
            size_t ops;
            (void)program_at(m, program[y], &ops);
            at[a][y] = LS_NEW(&m->scratch, uint32_t, ops + 1);
            rc = walk(m, t, a, y, program[y], &q, at[a][y]);
        }
    }
    for (size_t i = 0; i < q.p2p_sides.count && rc == LS_OK; i++)
        if (q.p2p_sides.at[i] != 3)
            rc = cannot(m, "a send or receive has no partner");
    const uint32_t *number = rc == LS_OK ? least(m) : NULL;
    if (rc == LS_OK && !number)
        rc = cannot(m, "a folded round has a wait cycle, which only the mesh of given sizes does not have");
    out->orders = leaves * f->roles;
    out->order = LS_NEW(m->arena, uint32_t, out->orders);
    for (uint32_t a = 0; a < leaves && rc == LS_OK; a++)
        for (uint32_t y = 0; y < f->roles; y++) {
            if (twin[a] != a) {
                out->order[a * f->roles + y] = out->order[twin[a] * f->roles + y];
                continue;
            }
            size_t ops;
            uint32_t program = programs_of(m, t, node, a)[y];
            (void)program_at(m, program, &ops);
            m->ops.count = 0;
            ls_push(&m->ops, program);
            for (size_t i = 0; i < ops; i++)
                ls_push(&m->ops, at[a][y][i] == LS_NO_ID ? 0 : number[at[a][y][i]] + 1);
            size_t have = ls_intern_count(&m->order);
            out->order[a * f->roles + y] = ls_intern_put(&m->order, m->ops.at, m->ops.count);
            m->numbers += ls_intern_count(&m->order) > have ? ops : 0;
        }
    m->numbers += out->orders;
    ls_intern_release(&q.p2p);
    ls_intern_release(&q.kinds);
    ls_vec_release(&q.one);
    ls_vec_release(&q.p2p_node);
    ls_vec_release(&q.p2p_sides);
    ls_vec_release(&q.p2p_sig);
    if (rc == LS_OK && m->numbers > NUMBERS_MAX)
        rc = cannot(m, "it would hold more than a hundred million numbers");
    return rc;
}

static enum ls_code one_round(struct maker *m, uint32_t node, uint32_t macro, uint32_t klass)
{
    struct ls_fold *f = &m->fold;
    struct ls_tree t;
    enum ls_code rc = ls_fold_round(f, node, macro, klass, &m->scratch, &t, m->err);
    if (rc != LS_OK)
        return rc == LS_EUNDECIDED ? cannot(m, "more replica states than the limit") : rc;
    if (t.limit)
        return cannot(m, t.limit);
    if (t.problem)
        return cannot(m, "its folded plan has a violation; it may be safe for the given sizes, by unfolding them, which a certificate "
                         "does not express");
    if (t.late_after)
        return cannot(m, "an operation may be issued a round later on some replicas; that proof looks at several rounds together, "
                         "which a certificate does not express");
    if (t.concrete)
        return cannot(m, "ranks of a replica contribute different values to a decision");
    if (t.agents[f->levels - 1] > AGENTS_MAX)
        return cannot(m, "a folded round with more than a million replicas");
    struct ls_cert_round round = { .node = node, .macro = macro, .klass = klass };
    rc = number_round(m, node, &t, &round);
    if (rc != LS_OK)
        return rc;
    ls_push(&m->round, round);
    const struct ls_driver_node *d = &m->s->driver.node[node];
    for (size_t i = 0; i < d->nexts; i++) {
        uint32_t pair[2] = { d->next[i], t.agent[0][0].next };
        (void)ls_intern_put(&m->reach, pair, 2);
    }
    return LS_OK;
}

static enum ls_code search(struct maker *m, size_t most)
{
    uint32_t start[2] = { 0, ls_fold_start(&m->fold) };
    enum ls_code rc = LS_OK;
    (void)ls_intern_put(&m->reach, start, 2);
    for (uint32_t at = 0; at < ls_intern_count(&m->reach) && rc == LS_OK; at++) {
        size_t n;
        const uint32_t *pair = ls_intern_at(&m->reach, at, &n);
        uint32_t node = pair[0], macro = pair[1];
        for (uint32_t k = 0; k < m->fold.classes[0] && rc == LS_OK; k++)
            if (ls_fold_class_allowed(&m->fold, node, k)) {
                struct ls_arena_mark mark = ls_arena_mark(&m->scratch);
                rc = one_round(m, node, macro, k);
                ls_arena_rewind(&m->scratch, mark);
            }
        if (rc == LS_OK && ls_intern_count(&m->reach) > most)
            rc = cannot(m, "more joint sets of replica states than the limit");
    }
    return rc;
}

static int by_words(const void *a, const void *b) /* rounds, steps and reached pairs start with their key */
{
    const uint32_t *x = a, *y = b;
    for (int i = 0; i < 3; i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}

static int by_pair(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return x[0] != y[0] ? (x[0] < y[0] ? -1 : 1) : x[1] != y[1] ? (x[1] < y[1] ? -1 : 1) : 0;
}

static const char **texts(struct maker *m, const struct ls_names *names, size_t *count)
{
    *count = ls_names_count(names) - 1; /* 0 is the empty text */
    const char **out = LS_NEW(m->arena, const char *, *count + 1);
    for (size_t i = 0; i < *count; i++)
        out[i] = plain(m->arena, ls_name_text(names, (uint32_t)i + 1));
    return out;
}

static void copy_contract(struct maker *m)
{
    const struct ls_fold *f = &m->fold;
    struct ls_certificate *c = m->c;
    c->levels = f->levels;
    for (size_t i = 0; i < f->levels; i++)
        c->tier[i] = (struct ls_cert_level){ f->dims[i], ls_arena_copy(m->arena, f->class_of[i], c->letters * sizeof(uint32_t)) };
    c->comms = f->comms;
    c->comm = LS_NEW(m->arena, struct ls_cert_comm, f->comms + 1);
    for (size_t x = 0; x < f->comms; x++) {
        const struct ls_comm_info *info = &m->tables->comm.at[x];
        const uint32_t *part = m->s->comm[x].part;
        c->comm[x] = (struct ls_cert_comm){ plain(m->arena, ls_tables_name(m->tables, info->name)), info->free_dims & c->dims,
                                            LS_NEW(m->arena, uint32_t, c->roles) };
        for (size_t y = 0; y < c->roles; y++) { /* a part is named after its first role */
            c->comm[x].part[y] = LS_NO_ID;
            for (uint32_t z = 0; z <= y && part[y] != LS_NO_ID && c->comm[x].part[y] == LS_NO_ID; z++)
                if (part[z] == part[y])
                    c->comm[x].part[y] = z;
        }
    }
    c->nodes = m->s->driver.nodes;
    c->node = LS_NEW(m->arena, struct ls_cert_node, c->nodes);
    for (uint32_t n = 0; n < c->nodes; n++) {
        const struct ls_driver_node *d = &m->s->driver.node[n];
        struct ls_cert_node *node = &c->node[n];
        *node = (struct ls_cert_node){ plain(m->arena, d->name), d->round, ls_arena_copy(m->arena, d->next, d->nexts * sizeof *d->next),
                                       LS_NEW(m->arena, uint32_t, c->letters), d->nexts, 0 };
        for (uint32_t z = 0; z < c->letters; z++) /* also without letters under which nobody can hold what somebody must hold */
            if (ls_fold_allowed(f, n, z) && ls_fold_class_allowed(f, n, f->class_of[0][z]))
                node->letter[node->letters++] = z;
    }
}

static void copy_proof(struct maker *m)
{
    struct ls_certificate *c = m->c;
    size_t n;
    c->sig = texts(m, m->sigs, &c->sigs);
    c->payload = texts(m, m->payloads, &c->payloads);
    c->programs = ls_intern_count(&m->program);
    c->program = LS_NEW(m->arena, struct ls_cert_program, c->programs + 1);
    for (uint32_t i = 0; i < c->programs; i++) {
        const struct ls_cert_op *op = program_at(m, i, &c->program[i].ops);
        c->program[i].op = ls_arena_copy(m->arena, op, c->program[i].ops * sizeof *op);
    }
    c->orders = ls_intern_count(&m->order);
    c->order = LS_NEW(m->arena, struct ls_cert_order, c->orders + 1);
    for (uint32_t i = 0; i < c->orders; i++) {
        const uint32_t *word = ls_intern_at(&m->order, i, &n);
        c->order[i] = (struct ls_cert_order){ word[0], ls_arena_copy(m->arena, word + 1, (n - 1) * sizeof *word) };
    }
    for (size_t i = 0; i + 1 < c->levels; i++) {
        c->sets[i] = ls_intern_count(&m->fold.set[i]);
        c->set[i] = LS_NEW(m->arena, struct ls_cert_set, c->sets[i] + 1);
        for (uint32_t k = 0; k < c->sets[i]; k++) {
            const uint32_t *word = ls_intern_at(&m->fold.set[i], k, &n);
            c->set[i][k] = (struct ls_cert_set){ ls_arena_copy(m->arena, word, n * sizeof *word), n };
        }
    }
    c->reaches = ls_intern_count(&m->reach);
    c->reach = LS_NEW(m->arena, struct ls_cert_reach, c->reaches);
    for (uint32_t i = 0; i < c->reaches; i++) {
        const uint32_t *word = ls_intern_at(&m->reach, i, &n);
        c->reach[i] = (struct ls_cert_reach){ word[0], word[1] };
    }
    c->steps = m->step.count;
    c->step = ls_arena_copy(m->arena, m->step.at, c->steps * sizeof *c->step);
    c->rounds = m->round.count;
    c->round = ls_arena_copy(m->arena, m->round.at, c->rounds * sizeof *c->round);
    qsort(c->reach, c->reaches, sizeof *c->reach, by_pair);
    qsort(c->step, c->steps, sizeof *c->step, by_words);
    qsort(c->round, c->rounds, sizeof *c->round, by_words);
}

enum ls_code ls_certificate_make(const struct ls_system *s, const char *name, size_t macro_states_max, struct ls_arena *arena,
                                 struct ls_certificate *out, struct ls_error *err)
{
    struct maker m = { .s = s, .tables = s->replica->tables, .arena = arena, .c = out, .err = err };
    *out = (struct ls_certificate){ .name = plain(arena, name), .dims = s->free_dims, .roles = s->replica->roles,
                                    .letters = s->replica->letters };
    out->level = s->level == LS_L1 || (s->level == LS_L3 && s->start_rule == LS_START_ISSUE_ORDER) ? LS_L1 : LS_L2;
    if (s->contract.extra == LS_CONTRACT_TABLE)
        return cannot(&m, "a table of batches is executed, not proved");
    enum ls_code rc = ls_fold_open(&m.fold, s, arena, err);
    if (rc != LS_OK)
        return rc;
    ls_arena_init(&m.scratch, 0);
    m.sigs = ls_names_open();
    m.payloads = ls_names_open();
    rc = search(&m, macro_states_max ? macro_states_max : MACRO_STATES_DEFAULT);
    if (rc == LS_OK) {
        out->start = 0; /* the fold numbers states as it meets them */
        out->letter_name = LS_NEW(arena, const char *, out->letters);
        for (uint32_t z = 0; z < out->letters; z++)
            out->letter_name[z] = plain(arena, s->replica->letter_name ? s->replica->letter_name(s->replica, z) : "");
        copy_contract(&m);
        copy_proof(&m);
    }
    ls_names_close(m.sigs);
    ls_names_close(m.payloads);
    ls_intern_release(&m.reach);
    ls_intern_release(&m.triple);
    ls_intern_release(&m.program);
    ls_intern_release(&m.order);
    ls_vec_release(&m.step);
    ls_vec_release(&m.round);
    ls_vec_release(&m.payload_id);
    ls_vec_release(&m.ops);
    ls_vec_release(&m.guard);
    ls_vec_release(&m.fused);
    ls_vec_release(&m.edge);
    ls_arena_release(&m.scratch);
    ls_fold_close(&m.fold);
    return rc;
}
