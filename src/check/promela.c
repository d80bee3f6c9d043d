#include "check/promela.h"

#include <assert.h>
#include <string.h>

enum { NEVER = 32767, OPS_MAX = 30000 };

/* An op at its place in a sequence of choices. Op 0 stands for "nothing there". */
struct entry {
    const struct ls_op *op;  /* NULL: the end of a node's list */
    int index, position;     /* in host order; in its stream */
    int wait_stream, wait_done;   /* the record it waits for is done when hd[stream] >= done; 0: none */
    int block_stream, block_done; /* the last blocking op before it */
    int sig;                      /* from 1 */
    int fifo;                     /* -1: none */
    bool host, local;        /* the host may pass it; it completes without partners */
};

/* The ops a rank issues after some choices and agreed values: everything from the start. A list ends where the rank chooses, at a decide,
 * or for good. */
struct tree_node {
    uint32_t at;                     /* node of the family that comes after `rest` */
    const struct ls_segment *rest;   /* the segment that goes on behind the list, NULL if none does */
    uint32_t from;                   /* in `rest`: the decide that ends the list; while the list grows, the next op */
    bool agrees;                     /* ends at a decide: child 0 if the value is not zero, else child 1 */
    uint32_t *op; size_t count;
    uint32_t child, children;
};
struct tree {
    LS_VEC(struct tree_node) node;
    const struct ls_family_rank *rank;
    size_t longest, widest;  /* ops of a node; choices */
};
/* What is paired by position: the collectives of a communicator, or the sends to (receives from) one member. */
struct fifo { uint32_t comm; enum ls_op_kind kind; int32_t peer; }; /* kind: BARRIER, SEND, RECV */
typedef LS_VEC(uint32_t) op_list;
struct model {
    const struct ls_family *f;
    const struct ls_run_options *run;
    struct ls_arena arena;
    LS_VEC(struct entry) entry;
    LS_VEC(struct ls_op) sig;
    LS_VEC(struct fifo) fifo;
    struct tree *tree; size_t trees;
    size_t *tree_of;
    size_t streams;
    bool agrees;             /* some op is a decide */
    struct ls_str *out;
};

static enum ls_code check_op(const struct model *m, const struct ls_op *o, struct ls_error *err)
{
    const char *what = NULL;
    if (o->thread > 0)
        what = "several host threads on a rank";
    else if (o->fused)
        what = "fused ops";
    else if (ls_op_uses_comm(o) && o->comm >= m->f->tables->comm.count)
        what = "an op on a communicator that does not exist";
    return what ? ls_fail(err, LS_EINPUT, LS_NOWHERE, "the Promela export does not cover %s", what) : LS_OK;
}

/* A communicator with a parent is created by a collective of the parent. */
static uint32_t comm_of(const struct model *m, const struct ls_op *o)
{
    uint32_t parent = o->kind == LS_OP_COMM_INIT ? m->f->tables->comm.at[o->comm].parent : LS_NO_ID;
    return parent == LS_NO_ID ? o->comm : parent;
}

static int sig_of(struct model *m, const struct ls_op *o)
{
    for (size_t i = 0; i < m->sig.count; i++) {
        const struct ls_op *s = &m->sig.at[i];
        if (comm_of(m, s) == comm_of(m, o) && ls_op_is_p2p(s) == ls_op_is_p2p(o) && ls_op_diff(m->f->tables, s, o) == LS_DIFF_NONE)
            return (int)i + 1;
    }
    ls_push(&m->sig, *o);
    return (int)m->sig.count;
}

static int find_fifo(const struct model *m, uint32_t comm, enum ls_op_kind kind, int32_t peer)
{
    for (size_t i = 0; i < m->fifo.count; i++)
        if (m->fifo.at[i].comm == comm && m->fifo.at[i].kind == kind && m->fifo.at[i].peer == peer)
            return (int)i;
    return -1;
}

static int fifo_of(struct model *m, const struct ls_op *o)
{
    bool p2p = ls_op_is_p2p(o);
    struct fifo x = { comm_of(m, o), p2p ? (enum ls_op_kind)o->kind : LS_OP_BARRIER, p2p ? o->peer : -1 };
    int at = find_fifo(m, x.comm, x.kind, x.peer);
    if (at >= 0)
        return at;
    ls_push(&m->fifo, x);
    return (int)m->fifo.count - 1;
}

static bool blocks(const struct model *m, const struct ls_op *o)
{
    return m->run->level == LS_L1 || o->blocking || o->kind == LS_OP_DECIDE || o->kind == LS_OP_COMM_INIT;
}

/* Appends an op to a list, resolving against the ops before it what it waits for. NULL: the end of the list. */
static void append(struct model *m, op_list *list, const struct ls_op *o)
{
    struct entry e = { .op = o, .index = (int)list->count, .fifo = -1 };
    for (size_t i = 0; i < list->count; i++) {
        const struct entry *b = &m->entry.at[list->at[i]];
        bool stream_op = !ls_op_is_host(b->op);
        if (stream_op && blocks(m, b->op)) {
            e.block_stream = b->op->stream;
            e.block_done = b->position + 1;
        }
        if (!o)
            continue;
        if (stream_op && !ls_op_is_host(o) && b->op->stream == o->stream)
            e.position++;
        if ((o->kind == LS_OP_WAIT || o->kind == LS_OP_HOST_WAIT) && b->op->kind == LS_OP_RECORD && b->op->event == o->event) {
            e.wait_stream = b->op->stream;
            e.wait_done = b->position + 1;
        }
    }
    e.host = o != NULL && o->kind != LS_OP_STOP;
    e.local = o && !ls_op_is_host(o) && !ls_op_uses_comm(o);
    if (o && ls_op_uses_comm(o)) {
        e.sig = sig_of(m, o);
        e.fifo = fifo_of(m, o);
        m->agrees = m->agrees || o->kind == LS_OP_DECIDE;
    }
    ls_push(list, (uint32_t)m->entry.count);
    ls_push(&m->entry, e);
    if (o && !ls_op_is_host(o) && o->stream >= m->streams)
        m->streams = o->stream + 1u;
}

/* Op `to` would be next for what lies where op `i` does; at the end of a first side, the second one is left out. */
static uint32_t leave_sides(const struct ls_segment *g, uint32_t i, uint32_t to)
{
    for (bool again = true; again;) {
        again = false;
        for (uint32_t d = 0; d < i; d++) {
            const struct ls_op *o = &g->op[d];
            if (o->kind == LS_OP_DECIDE && o->else_count && i <= d + o->then_count && to == d + 1 + o->then_count) {
                to += o->else_count;
                again = true;
            }
        }
    }
    return to;
}

static uint32_t after_decide(const struct ls_segment *g, uint32_t d, bool zero)
{
    const struct ls_op *o = &g->op[d];
    uint32_t end = d + 1 + o->then_count + o->else_count;
    if (zero ? o->else_count > 0 : o->then_count > 0)
        return zero ? d + 1 + o->then_count : d + 1;
    return leave_sides(g, d, end);
}

/* The sides of a decide lie in its segment, and in the side that the decide is in. */
static bool well_formed(const struct ls_segment *g)
{
    for (size_t d = 0; d < g->count; d++) {
        const struct ls_op *o = &g->op[d];
        if (o->kind != LS_OP_DECIDE)
            continue;
        uint64_t middle = (uint64_t)d + o->then_count, end = middle + o->else_count; /* the last op of either side */
        if (end >= g->count)
            return false;
        for (uint64_t i = d + 1; i <= end; i++) {
            uint64_t reach = i + (g->op[i].kind == LS_OP_DECIDE ? (uint64_t)g->op[i].then_count + g->op[i].else_count : 0);
            if (reach > (i <= middle ? middle : end))
                return false;
        }
    }
    return true;
}

static enum ls_code too_many(struct ls_error *err)
{
    return ls_fail(err, LS_EINPUT, LS_NOWHERE, "the Promela export does not cover more than %d ops along all choices", OPS_MAX);
}

/* From `from` in `rest` on, through rounds that leave no choice, to where the list ends. */
static enum ls_code grow(struct model *m, const struct tree *t, struct tree_node *n, op_list *list, struct ls_error *err)
{
    enum ls_code rc = LS_OK;
    for (;;) {
        if (n->rest && n->from == 0 && !well_formed(n->rest))
            return ls_fail(err, LS_EINPUT, LS_NOWHERE, "the branches of a decide reach past the end of its segment");
        while (n->rest && n->from < n->rest->count) {
            const struct ls_op *o = &n->rest->op[n->from];
            rc = check_op(m, o, err);
            if (rc != LS_OK)
                return rc;
            append(m, list, o);
            if (m->entry.count > OPS_MAX)
                return too_many(err);
            n->agrees = o->kind == LS_OP_DECIDE;
            n->children = 2;
            if (n->agrees)
                return LS_OK;
            n->from = leave_sides(n->rest, n->from, n->from + 1);
        }
        const struct ls_choices *c = &t->rank->node[n->at];
        n->rest = NULL;
        n->from = 0;
        n->children = (uint32_t)c->count;
        if (c->count != 1)
            return LS_OK;
        n->rest = c->choice[0].segment;
        n->at = c->choice[0].next;
    }
}

static enum ls_code add_node(struct model *m, struct tree *t, struct tree_node n, struct ls_error *err)
{
    op_list list = { 0 };
    for (size_t i = 0; i < n.count; i++) /* what its parent has */
        ls_push(&list, n.op[i]);
    n.agrees = false;
    enum ls_code rc = m->entry.count > OPS_MAX ? too_many(err) : grow(m, t, &n, &list, err);
    n.count = list.count;
    append(m, &list, NULL);
    n.op = ls_arena_copy(&m->arena, list.at, list.count * sizeof *list.at);
    ls_vec_release(&list);
    t->longest = n.count > t->longest ? n.count : t->longest;
    t->widest = !n.agrees && n.children > t->widest ? n.children : t->widest;
    ls_push(&t->node, n);
    return rc;
}

static enum ls_code open_tree(struct model *m, struct tree *t, struct ls_error *err)
{
    enum ls_code rc = add_node(m, t, (struct tree_node){ 0 }, err);
    for (size_t i = 0; i < t->node.count && rc == LS_OK; i++) {
        const struct tree_node up = t->node.at[i];
        t->node.at[i].child = (uint32_t)t->node.count;
        for (uint32_t c = 0; c < up.children && rc == LS_OK; c++) {
            struct tree_node n = up;
            if (up.agrees) {
                n.from = after_decide(up.rest, up.from, c == 1);
            } else {
                n.rest = t->rank->node[up.at].choice[c].segment;
                n.at = t->rank->node[up.at].choice[c].next;
            }
            rc = add_node(m, t, n, err);
        }
    }
    return rc;
}

/* ---- writing ---- */

static void array_begin(struct model *m, const char *name, size_t tree, size_t count)
{
    if (tree == SIZE_MAX)
        ls_str_printf(m->out, "hidden short %s[%zu] = {", name, count);
    else
        ls_str_printf(m->out, "hidden short %s%zu[%zu] = {", name, tree, count);
}
static void array_item(struct model *m, size_t i, long value)
{
    ls_str_printf(m->out, "%s%ld", i ? "," : " ", value);
}
static void array_end(struct model *m)
{
    ls_str_add(m->out, " };\n");
}

#define ENTRY_ARRAY(m, name, value)                                   \
    do {                                                              \
        array_begin((m), (name), SIZE_MAX, (m)->entry.count);         \
        for (size_t i_ = 0; i_ < (m)->entry.count; i_++) {            \
            const struct entry *e = &(m)->entry.at[i_];               \
            array_item((m), i_, (value));                             \
        }                                                             \
        array_end(m);                                                 \
    } while (0)

static void write_ops(struct model *m)
{
    ls_str_add(m->out, "/* ops: place in host order and in the stream, stream, signature, what is waited for */\n");
    ENTRY_ARRAY(m, "t_index", i_ == 0 ? NEVER : e->index);
    ENTRY_ARRAY(m, "t_position", e->position);
    ENTRY_ARRAY(m, "t_stream", e->op && !ls_op_is_host(e->op) ? e->op->stream : 0);
    ENTRY_ARRAY(m, "t_sig", e->sig);
    ENTRY_ARRAY(m, "t_wait_s", e->wait_stream);
    ENTRY_ARRAY(m, "t_wait_n", e->wait_done);
    ENTRY_ARRAY(m, "t_block_s", e->block_stream);
    ENTRY_ARRAY(m, "t_block_n", e->block_done);
    ENTRY_ARRAY(m, "t_local", e->local);
    if (m->agrees) {
        ls_str_add(m->out, "/* decides: 1 if any value will do, 2 if all must be set; is this one set? */\n");
        ENTRY_ARRAY(m, "t_agree", !e->op || e->op->kind != LS_OP_DECIDE ? 0 : e->op->reduce == LS_REDUCE_MIN || e->op->reduce == LS_REDUCE_PROD ? 2 : 1);
        ENTRY_ARRAY(m, "t_value", e->op && e->op->kind == LS_OP_DECIDE && e->op->value);
        ls_str_add(m->out, "hidden byte agree, zero;\n");
    }
    /* What the host waits for before it passes an op: an event (host_wait), or for ever (stop, the end of the list). */
    ENTRY_ARRAY(m, "t_host_s", e->op && e->op->kind == LS_OP_HOST_WAIT ? e->wait_stream : 0);
    ENTRY_ARRAY(m, "t_host_n", !e->host ? NEVER : e->op->kind == LS_OP_HOST_WAIT ? e->wait_done : 0);
}

static bool uses_fifo(const struct model *m, const struct tree *t, int fifo)
{
    for (size_t i = 0; i < t->node.count; i++)
        for (size_t k = 0; k < t->node.at[i].count; k++)
            if (m->entry.at[t->node.at[i].op[k]].fifo == fifo)
                return true;
    return false;
}

static void write_lists(struct model *m, size_t k)
{
    struct tree *t = &m->tree[k];
    size_t wide = t->longest + 1;
    array_begin(m, "t_ops", k, t->node.count * wide);
    for (size_t i = 0, at = 0; i < t->node.count; i++)
        for (size_t j = 0; j < wide; j++, at++)
            array_item(m, at, j <= t->node.at[i].count ? (long)t->node.at[i].op[j] : 0);
    array_end(m);
    for (size_t s = 0; s < m->streams; s++) {
        ls_str_printf(m->out, "hidden short t_queue%zu_%zu[%zu] = {", k, s, t->node.count * wide);
        for (size_t i = 0, at = 0; i < t->node.count; i++) {
            size_t n = 0;
            for (size_t j = 0; j < t->node.at[i].count; j++) {
                uint32_t id = t->node.at[i].op[j];
                if (!ls_op_is_host(m->entry.at[id].op) && m->entry.at[id].op->stream == s) {
                    array_item(m, at++, id);
                    n++;
                }
            }
            for (; n < wide; n++)
                array_item(m, at++, 0);
        }
        array_end(m);
    }
    for (int q = 0; q < (int)m->fifo.count; q++) {
        if (!uses_fifo(m, t, q))
            continue;
        ls_str_printf(m->out, "hidden short t_fifo%zu_%d[%zu] = {", k, q, t->node.count * wide);
        for (size_t i = 0, at = 0; i < t->node.count; i++) {
            size_t n = 0;
            for (size_t j = 0; j < t->node.at[i].count; j++) {
                uint32_t id = t->node.at[i].op[j];
                if (m->entry.at[id].fifo == q) {
                    array_item(m, at++, id);
                    n++;
                }
            }
            for (; n < wide; n++)
                array_item(m, at++, 0);
        }
        array_end(m);
    }
    array_begin(m, "t_length", k, t->node.count);
    for (size_t i = 0; i < t->node.count; i++)
        array_item(m, i, (long)t->node.at[i].count);
    array_end(m);
    array_begin(m, "t_child", k, t->node.count);
    for (size_t i = 0; i < t->node.count; i++)
        array_item(m, i, (long)t->node.at[i].child);
    array_end(m);
    array_begin(m, "t_choices", k, t->node.count);
    for (size_t i = 0; i < t->node.count; i++)
        array_item(m, i, t->node.at[i].agrees ? 0 : (long)t->node.at[i].children);
    array_end(m);
    array_begin(m, "t_total", k, t->node.count * m->streams);
    for (size_t i = 0, at = 0; i < t->node.count; i++)
        for (size_t s = 0; s < m->streams; s++, at++) {
            long n = 0;
            for (size_t j = 0; j < t->node.at[i].count; j++) {
                const struct ls_op *o = m->entry.at[t->node.at[i].op[j]].op;
                n += !ls_op_is_host(o) && o->stream == s;
            }
            array_item(m, at, n);
        }
    array_end(m);
}

static void write_rank(struct model *m, size_t r)
{
    size_t k = m->tree_of[r], wide = m->tree[k].longest + 1, streams = m->streams;
    ls_str_printf(m->out, "#define op%zu t_ops%zu[nd[%zu] * %zu + pc[%zu]]\n", r, k, r, wide, r);
    ls_str_printf(m->out, "#define free%zu (hd[%zu + t_block_s[op%zu]] >= t_block_n[op%zu])\n", r, r * streams, r, r);
    for (size_t s = 0; s < streams; s++)
        ls_str_printf(m->out, "#define head%zu_%zu t_queue%zu_%zu[nd[%zu] * %zu + hd[%zu]]\n", r, s, k, s, r, wide, r * streams + s);
    for (int q = 0; q < (int)m->fifo.count; q++)
        if (uses_fifo(m, &m->tree[k], q)) {
            ls_str_printf(m->out, "#define call%zu_%d t_fifo%zu_%d[nd[%zu] * %zu + fc[%zu]]\n", r, q, k, q, r, wide, r * m->fifo.count + (size_t)q);
            ls_str_printf(m->out, "#define at%zu_%d (t_index[call%zu_%d] < pc[%zu] && hd[%zu + t_stream[call%zu_%d]] == t_position[call%zu_%d])\n", r, q, r, q,
                          r, r * streams, r, q, r, q);
        }
}

static void write_steps(struct model *m, size_t r)
{
    const struct tree *t = &m->tree[m->tree_of[r]];
    size_t k = m->tree_of[r], streams = m->streams;
    if (t->longest > 0)
        ls_str_printf(m->out, "  :: d_step { hd[%zu + t_host_s[op%zu]] >= t_host_n[op%zu] && free%zu -> pc[%zu]++ }\n", r * streams, r, r, r, r);
    for (size_t c = 0; c < t->widest && t->node.count > 1; c++)
        ls_str_printf(m->out, "  :: d_step { t_choices%zu[nd[%zu]] > %zu && pc[%zu] == t_length%zu[nd[%zu]] && free%zu -> nd[%zu] = t_child%zu[nd[%zu]] + %zu }\n",
                      k, r, c, r, k, r, r, r, k, r, c);
    for (size_t s = 0; s < streams; s++) {
        bool any = false;
        for (size_t i = 0; i < t->node.count; i++)
            for (size_t j = 0; j < t->node.at[i].count; j++) {
                const struct entry *e = &m->entry.at[t->node.at[i].op[j]];
                any = any || (e->local && e->op->stream == s);
            }
        if (any)
            ls_str_printf(m->out, "  :: d_step { t_local[head%zu_%zu] && t_index[head%zu_%zu] < pc[%zu] && hd[%zu + t_wait_s[head%zu_%zu]] >= t_wait_n[head%zu_%zu] -> hd[%zu]++ }\n",
                          r, s, r, s, r, r * streams, r, s, r, s, r * streams + s);
    }
}

struct member { uint32_t rank; int fifo; };

static bool has_decide(const struct model *m, const struct member *member)
{
    for (size_t i = 0; i < m->entry.count; i++)
        if (m->entry.at[i].fifo == member->fifo && m->entry.at[i].op->kind == LS_OP_DECIDE)
            return true;
    return false;
}

/* Its value is read from the calls before they are counted, and leads to another list of the rank. */
static void write_agreed(struct model *m, const struct member *member, size_t members)
{
    ls_str_printf(m->out, "       agree = t_agree[call%u_%d]; zero = (agree == 1 -> !(", member->rank, member->fifo);
    for (int all = 0; all < 2; all++) {
        for (size_t i = 0; i < members; i++)
            ls_str_printf(m->out, "%st_value[call%u_%d]", i ? (all ? " && " : " || ") : "", member[i].rank, member[i].fifo);
        ls_str_add(m->out, all ? "));\n" : ") : !(");
    }
}

static void write_meeting(struct model *m, const struct member *member, size_t members)
{
    for (size_t i = 0; i < members; i++)
        if (member[i].fifo < 0 || !uses_fifo(m, &m->tree[m->tree_of[member[i].rank]], member[i].fifo))
            return; /* a member never calls it: the group never meets */
    bool decides = m->agrees && has_decide(m, member);
    ls_str_add(m->out, "  :: d_step { ");
    for (size_t i = 0; i < members; i++)
        ls_str_printf(m->out, "%sat%u_%d", i ? " && " : "", member[i].rank, member[i].fifo);
    for (size_t i = 1; i < members; i++)
        ls_str_printf(m->out, " && t_sig[call%u_%d] == t_sig[call%u_%d]", member[i].rank, member[i].fifo, member->rank, member->fifo);
    ls_str_add(m->out, " ->\n");
    if (decides)
        write_agreed(m, member, members);
    for (size_t i = 0; i < members; i++) {
        uint32_t r = member[i].rank;
        ls_str_printf(m->out, "       hd[%zu + t_stream[call%u_%d]]++; fc[%zu]++%s\n", r * m->streams, r, member[i].fifo,
                      r * m->fifo.count + (size_t)member[i].fifo, i + 1 == members && !decides ? " }" : ";");
    }
    if (!decides)
        return;
    ls_str_add(m->out, "       if :: agree ->");
    for (size_t i = 0; i < members; i++)
        ls_str_printf(m->out, "%s nd[%u] = t_child%zu[nd[%u]] + zero", i ? ";" : "", member[i].rank, m->tree_of[member[i].rank], member[i].rank);
    ls_str_add(m->out, " :: else fi }\n");
}

/* The collectives of a group, and what its members send each other. */
static void write_group(struct model *m, uint32_t comm, uint32_t group)
{
    const struct ls_groups *g = &m->f->comm[comm];
    uint32_t first = g->first[group], members = g->first[group + 1] - first;
    struct member *all = LS_NEW(&m->arena, struct member, members);
    for (uint32_t i = 0; i < members; i++)
        all[i] = (struct member){ g->rank[first + i], find_fifo(m, comm, LS_OP_BARRIER, -1) };
    if (members)
        write_meeting(m, all, members);
    for (uint32_t from = 0; from < members; from++)
        for (uint32_t to = 0; to < members; to++) {
            const struct member two[2] = { { all[from].rank, find_fifo(m, comm, LS_OP_SEND, (int32_t)to) },
                                           { all[to].rank, find_fifo(m, comm, LS_OP_RECV, (int32_t)from) } };
            write_meeting(m, two, 2);
        }
}

static void write_model(struct model *m, const char *name)
{
    const struct ls_family *f = m->f;
    size_t comms = f->tables->comm.count, longest = 0, nodes = 0;
    for (size_t k = 0; k < m->trees; k++) {
        longest = m->tree[k].longest > longest ? m->tree[k].longest : longest;
        nodes = m->tree[k].node.count > nodes ? m->tree[k].node.count : nodes;
    }
    const char *count = longest < 255 ? "byte" : "short", *node = nodes < 255 ? "byte" : "short";
    ls_str_add(m->out, "/* ");
    for (const char *p = name; *p; p++) /* a scenario may be called anything */
        ls_str_printf(m->out, p[0] == '*' && p[1] == '/' ? "%c " : "%c", *p);
    ls_str_printf(m->out, ": %zu ranks, level L%d. Written by lockstep.\n", f->ranks, (int)m->run->level);
    ls_str_add(m->out, "   spin -a FILE && cc -O2 -DSAFETY -DNOREDUCE -o pan pan.c && ./pan -m1000000\n"
                       "   An invalid end state is a hang or a mismatch. */\n");
    write_ops(m);
    for (size_t k = 0; k < m->trees; k++)
        write_lists(m, k);
    ls_str_printf(m->out, "/* choices made, ops issued, ops done by each stream and on each communicator */\n"
                          "%s nd[%zu]; %s pc[%zu]; %s hd[%zu];", node, f->ranks, count, f->ranks, count, f->ranks * m->streams);
    if (m->fifo.count)
        ls_str_printf(m->out, " %s fc[%zu];", count, f->ranks * m->fifo.count);
    ls_str_add(m->out, "\n");
    for (size_t r = 0; r < f->ranks; r++)
        write_rank(m, r);
    ls_str_add(m->out, "active proctype machine() {\n  do\n");
    for (size_t r = 0; r < f->ranks; r++)
        write_steps(m, r);
    for (uint32_t c = 0; c < comms; c++)
        for (uint32_t g = 0; g < f->comm[c].groups; g++)
            write_group(m, c, g);
    ls_str_add(m->out, "  :: (true"); /* everything done: stay there, so that it is no invalid end state */
    for (size_t r = 0; r < f->ranks; r++) {
        size_t k = m->tree_of[r];
        ls_str_printf(m->out, "\n      && t_choices%zu[nd[%zu]] == 0 && pc[%zu] == t_length%zu[nd[%zu]]", k, r, r, k, r);
        for (size_t s = 0; s < m->streams; s++)
            ls_str_printf(m->out, " && hd[%zu] == t_total%zu[nd[%zu] * %zu + %zu]", r * m->streams + s, k, r, m->streams, s);
    }
    ls_str_add(m->out, ")\n  od\n}\n");
}

enum ls_code ls_promela_write(const struct ls_family *f, const struct ls_run_options *run, const char *name, struct ls_str *out,
                              struct ls_error *err)
{
    size_t nodes_max;
    if (run->level == LS_L3 || run->run_ahead)
        return ls_fail(err, LS_EINPUT, LS_NOWHERE, "the Promela export covers L1 and L2 without a bounded run-ahead");
    enum ls_code rc = ls_family_check(f, &nodes_max, err);
    if (rc != LS_OK)
        return rc;
    struct model m = { .f = f, .run = run, .streams = 1, .out = out };
    ls_arena_init(&m.arena, 0);
    m.tree = LS_NEW(&m.arena, struct tree, f->ranks);
    m.tree_of = LS_NEW(&m.arena, size_t, f->ranks);
    ls_push(&m.entry, (struct entry){ .fifo = -1 });
    for (size_t r = 0; r < f->ranks && rc == LS_OK; r++) {
        size_t same = 0;
        while (same < r && f->rank[same].node != f->rank[r].node)
            same++;
        m.tree_of[r] = same < r ? m.tree_of[same] : m.trees;
        if (same < r)
            continue;
        m.tree[m.trees].rank = &f->rank[r];
        rc = open_tree(&m, &m.tree[m.trees++], err);
    }
    if (rc == LS_OK)
        write_model(&m, name);
    for (size_t k = 0; k < m.trees; k++)
        ls_vec_release(&m.tree[k].node);
    ls_vec_release(&m.entry);
    ls_vec_release(&m.sig);
    ls_vec_release(&m.fifo);
    ls_arena_release(&m.arena);
    return rc;
}
