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
    bool host, local;        /* the host may pass it; it completes without partners */
};

/* The ops a rank issues after some choices: everything from the start. */
struct tree_node { uint32_t at; uint32_t *op; size_t count; uint32_t child, children; }; /* at: node of the family */
struct tree {
    LS_VEC(struct tree_node) node;
    const struct ls_family_rank *rank;
    size_t longest, widest;  /* ops of a node; choices */
};
struct model {
    const struct ls_family *f;
    const struct ls_run_options *run;
    struct ls_arena arena;
    LS_VEC(struct entry) entry;
    LS_VEC(struct ls_op) sig;
    struct tree *tree; size_t trees;
    size_t *tree_of;
    size_t streams;
    struct ls_str *out;
};

static enum ls_code check_op(const struct model *m, const struct ls_op *o, struct ls_error *err)
{
    const char *what = NULL;
    if (o->thread > 0)
        what = "several host threads on a rank";
    else if (o->fused)
        what = "fused ops";
    else if (ls_op_is_p2p(o) || o->kind == LS_OP_DECIDE || o->kind == LS_OP_COMM_INIT)
        what = ls_op_kind_name((enum ls_op_kind)o->kind);
    else if (ls_op_uses_comm(o) && o->comm >= m->f->tables->comm.count)
        what = "an op on a communicator that does not exist";
    return what ? ls_fail(err, LS_EINPUT, LS_NOWHERE, "the Promela export does not cover %s", what) : LS_OK;
}

static int sig_of(struct model *m, const struct ls_op *o)
{
    for (size_t i = 0; i < m->sig.count; i++)
        if (m->sig.at[i].comm == o->comm && ls_op_diff(m->f->tables, &m->sig.at[i], o) == LS_DIFF_NONE)
            return (int)i + 1;
    ls_push(&m->sig, *o);
    return (int)m->sig.count;
}

/* Appends an op to a list, resolving against the ops before it what it waits for. */
static void append(struct model *m, struct tree_node *n, const struct ls_op *o)
{
    struct entry e = { .op = o, .index = (int)n->count };
    for (size_t i = 0; i < n->count; i++) {
        const struct entry *b = &m->entry.at[n->op[i]];
        bool stream_op = !ls_op_is_host(b->op);
        if (stream_op && (m->run->level == LS_L1 || b->op->blocking)) {
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
    if (o && ls_op_uses_comm(o))
        e.sig = sig_of(m, o);
    n->op[n->count++] = (uint32_t)m->entry.count;
    ls_push(&m->entry, e);
    if (o && !ls_op_is_host(o) && o->stream >= m->streams)
        m->streams = o->stream + 1u;
}

static enum ls_code append_segment(struct model *m, struct tree_node *n, const struct ls_segment *g, struct ls_error *err)
{
    enum ls_code rc = LS_OK;
    uint32_t *room = LS_NEW(&m->arena, uint32_t, n->count + g->count + 1); /* one more for the end */
    if (n->count)
        memcpy(room, n->op, n->count * sizeof *room);
    n->op = room;
    for (size_t i = 0; i < g->count && rc == LS_OK; i++) {
        rc = check_op(m, &g->op[i], err);
        if (rc == LS_OK)
            append(m, n, &g->op[i]);
    }
    if (rc == LS_OK && m->entry.count > OPS_MAX)
        rc = ls_fail(err, LS_EINPUT, LS_NOWHERE, "the Promela export does not cover more than %d ops along all choices", OPS_MAX);
    return rc;
}

/* Plays the rounds that leave no choice, then closes the list. */
static enum ls_code finish_node(struct model *m, struct tree *t, struct tree_node *n, struct ls_error *err)
{
    enum ls_code rc = LS_OK;
    static const struct ls_segment nothing;
    if (!n->op)
        rc = append_segment(m, n, &nothing, err);
    while (rc == LS_OK && t->rank->node[n->at].count == 1) {
        const struct ls_choice *c = &t->rank->node[n->at].choice[0];
        rc = append_segment(m, n, c->segment, err);
        n->at = c->next;
    }
    if (rc != LS_OK)
        return rc;
    append(m, n, NULL);
    n->count--; /* the end is not an op */
    n->children = (uint32_t)t->rank->node[n->at].count;
    t->longest = n->count > t->longest ? n->count : t->longest;
    t->widest = n->children > t->widest ? n->children : t->widest;
    return LS_OK;
}

static enum ls_code open_tree(struct model *m, struct tree *t, struct ls_error *err)
{
    enum ls_code rc = LS_OK;
    ls_push(&t->node, (struct tree_node){ 0 });
    rc = finish_node(m, t, &t->node.at[0], err);
    for (size_t i = 0; i < t->node.count && rc == LS_OK; i++) {
        t->node.at[i].child = (uint32_t)t->node.count;
        for (uint32_t c = 0; c < t->node.at[i].children && rc == LS_OK; c++) {
            struct tree_node n = t->node.at[i];
            const struct ls_choice *choice = &t->rank->node[n.at].choice[c];
            n.at = choice->next;
            rc = append_segment(m, &n, choice->segment, err);
            if (rc == LS_OK)
                rc = finish_node(m, t, &n, err);
            ls_push(&t->node, n);
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
    /* What the host waits for before it passes an op: an event (host_wait), or for ever (stop, the end of the list). */
    ENTRY_ARRAY(m, "t_host_s", e->op && e->op->kind == LS_OP_HOST_WAIT ? e->wait_stream : 0);
    ENTRY_ARRAY(m, "t_host_n", !e->host ? NEVER : e->op->kind == LS_OP_HOST_WAIT ? e->wait_done : 0);
}

static size_t uses_comm(const struct model *m, const struct tree *t, uint32_t comm)
{
    size_t most = 0;
    for (size_t i = 0; i < t->node.count; i++) {
        size_t n = 0;
        for (size_t k = 0; k < t->node.at[i].count; k++) {
            const struct ls_op *o = m->entry.at[t->node.at[i].op[k]].op;
            n += ls_op_uses_comm(o) && o->comm == comm;
        }
        most = n > most ? n : most;
    }
    return most;
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
    for (uint32_t c = 0; c < m->f->tables->comm.count; c++) {
        if (uses_comm(m, t, c) == 0)
            continue;
        ls_str_printf(m->out, "hidden short t_fifo%zu_%u[%zu] = {", k, c, t->node.count * wide);
        for (size_t i = 0, at = 0; i < t->node.count; i++) {
            size_t n = 0;
            for (size_t j = 0; j < t->node.at[i].count; j++) {
                uint32_t id = t->node.at[i].op[j];
                if (ls_op_uses_comm(m->entry.at[id].op) && m->entry.at[id].op->comm == c) {
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
        array_item(m, i, (long)t->node.at[i].children);
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
    for (uint32_t c = 0; c < m->f->tables->comm.count; c++)
        if (uses_comm(m, &m->tree[k], c)) {
            ls_str_printf(m->out, "#define call%zu_%u t_fifo%zu_%u[nd[%zu] * %zu + fc[%zu]]\n", r, c, k, c, r, wide,
                          r * m->f->tables->comm.count + c);
            ls_str_printf(m->out, "#define at%zu_%u (t_index[call%zu_%u] < pc[%zu] && hd[%zu + t_stream[call%zu_%u]] == t_position[call%zu_%u])\n", r, c, r, c,
                          r, r * streams, r, c, r, c);
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

static void write_meeting(struct model *m, uint32_t c, uint32_t g)
{
    const struct ls_groups *groups = &m->f->comm[c];
    uint32_t first = groups->rank[groups->first[g]];
    for (uint32_t i = groups->first[g]; i < groups->first[g + 1]; i++)
        if (uses_comm(m, &m->tree[m->tree_of[groups->rank[i]]], c) == 0)
            return; /* a member never calls it: the group never meets */
    ls_str_add(m->out, "  :: d_step { ");
    for (uint32_t i = groups->first[g]; i < groups->first[g + 1]; i++)
        ls_str_printf(m->out, "%sat%u_%u", i == groups->first[g] ? "" : " && ", groups->rank[i], c);
    for (uint32_t i = groups->first[g] + 1; i < groups->first[g + 1]; i++)
        ls_str_printf(m->out, " && t_sig[call%u_%u] == t_sig[call%u_%u]", groups->rank[i], c, first, c);
    ls_str_add(m->out, " ->\n");
    for (uint32_t i = groups->first[g]; i < groups->first[g + 1]; i++) {
        uint32_t r = groups->rank[i];
        ls_str_printf(m->out, "       hd[%zu + t_stream[call%u_%u]]++; fc[%zu]++%s\n", r * m->streams, r, c,
                      r * m->f->tables->comm.count + c, i + 1 == groups->first[g + 1] ? " }" : ";");
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
    ls_str_printf(m->out, "/* %s: %zu ranks, level L%d. Written by lockstep.\n", name, f->ranks, (int)m->run->level);
    ls_str_add(m->out, "   spin -a FILE && cc -O2 -DSAFETY -DNOREDUCE -o pan pan.c && ./pan -m1000000\n"
                       "   An invalid end state is a hang or a mismatch. */\n");
    write_ops(m);
    for (size_t k = 0; k < m->trees; k++)
        write_lists(m, k);
    ls_str_printf(m->out, "/* choices made, ops issued, ops done by each stream and on each communicator */\n"
                          "%s nd[%zu]; %s pc[%zu]; %s hd[%zu];", node, f->ranks, count, f->ranks, count, f->ranks * m->streams);
    if (comms)
        ls_str_printf(m->out, " %s fc[%zu];", count, f->ranks * comms);
    ls_str_add(m->out, "\n");
    for (size_t r = 0; r < f->ranks; r++)
        write_rank(m, r);
    ls_str_add(m->out, "active proctype machine() {\n  do\n");
    for (size_t r = 0; r < f->ranks; r++)
        write_steps(m, r);
    for (uint32_t c = 0; c < comms; c++)
        for (uint32_t g = 0; g < f->comm[c].groups; g++)
            if (f->comm[c].first[g + 1] > f->comm[c].first[g])
                write_meeting(m, c, g);
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
    ls_push(&m.entry, (struct entry){ 0 });
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
    ls_arena_release(&m.arena);
    return rc;
}
