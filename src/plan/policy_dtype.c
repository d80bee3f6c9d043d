/*   source  AutoModel components/distributed/parallelizer_utils.py (fully_shard_by_dtype, iter_maximal_uniform_dtype_subtrees) */
#include "plan/policy.h"

#include <stdio.h>
#include <string.h>

enum { KEYS = LS_DTYPE_COUNT * LS_DTYPE_COUNT };

struct subtree { uint32_t module, key; };
struct splitter {
    struct ls_planner *p;
    const struct ls_unit *like;
    const bool *ignored; /* [params] by canonical index, or NULL */
    size_t name_skip; /* names are relative to the module that is split */
    uint32_t count[KEYS], order[KEYS];
    size_t keys;
    uint32_t chosen; /* key whose subtrees are units, or KEYS: all */
    LS_VEC(struct subtree) subtree;
};

static bool is_floating(enum ls_dtype d)
{
    return d == LS_DTYPE_F64 || d == LS_DTYPE_F32 || d == LS_DTYPE_F16 || d == LS_DTYPE_BF16 || d == LS_DTYPE_F8;
}

static uint32_t key_of(const struct splitter *s, const char *name, enum ls_dtype stored)
{
    enum ls_dtype compute = stored;
    const size_t length = strlen(name);
    if (is_floating(stored)) {
        if (strstr(name + (s->name_skip < length ? s->name_skip : length), "_fp32_params"))
            compute = LS_DTYPE_F32;
        else if (stored == LS_DTYPE_F32 && s->like->param_dtype != LS_DTYPE_NONE)
            compute = s->like->param_dtype;
    }
    return (uint32_t)stored * LS_DTYPE_COUNT + (uint32_t)compute;
}

static void shard(struct splitter *s, uint32_t module, uint32_t key)
{
    struct ls_unit like = *s->like;
    const enum ls_dtype compute = (enum ls_dtype)(key % LS_DTYPE_COUNT);
    if (s->like->param_dtype != LS_DTYPE_NONE) {
        like.param_dtype = compute;
        if (compute == LS_DTYPE_F32)
            like.reduce_dtype = like.output_dtype = LS_DTYPE_F32, like.cast_inputs = false;
    }
    ls_planner_shard(s->p, &module, 1, false, s->ignored, &like);
}

static bool is_ignored(const struct splitter *s, uint32_t param)
{
    return s->ignored && s->ignored[s->p->m->param[param].canonical];
}

/* Keys of a subtree's floating parameters and buffers: none (KEYS), one (the key), or several (KEYS + 1). Uniform subtrees
 * replace those found inside them. */
static uint32_t find_subtrees(struct splitter *s, uint32_t module)
{
    const struct ls_model *m = s->p->m;
    const struct ls_module *at = &m->module[module];
    const size_t before = s->subtree.count;
    uint32_t all = KEYS;
    for (uint32_t i = at->first_param; i < at->first_param + at->params; i++)
        if (is_floating(m->param[i].dtype) && !is_ignored(s, i)) {
            const uint32_t key = key_of(s, ls_name_text(m->names, m->param[i].name), m->param[i].dtype);
            all = all == KEYS || all == key ? key : KEYS + 1;
        }
    for (size_t i = 0; i < at->buffers; i++)
        if (is_floating(at->buffer[i].dtype)) {
            char name[2048];
            snprintf(name, sizeof name, "%s.%s", ls_name_text(m->names, at->name), ls_name_text(m->names, at->buffer[i].leaf));
            const uint32_t key = key_of(s, name, at->buffer[i].dtype);
            all = all == KEYS || all == key ? key : KEYS + 1;
        }
    for (size_t i = 0; i < at->children; i++) {
        const uint32_t key = find_subtrees(s, at->child[i]);
        if (key != KEYS)
            all = all == KEYS || all == key ? key : KEYS + 1;
    }
    if (all < KEYS) {
        s->subtree.count = before;
        ls_push(&s->subtree, (struct subtree){ module, all });
    }
    return all;
}

static bool is_selected(const struct splitter *s, uint32_t key) { return s->chosen == KEYS || s->chosen == key; }

static void shard_subtree(struct splitter *s, uint32_t module, uint32_t key)
{
    const struct ls_module *at = &s->p->m->module[module];
    if (at->container != LS_MODULE_LIST) {
        shard(s, module, key);
        return;
    }
    for (size_t i = 0; i < at->children; i++)
        shard_subtree(s, at->child[i], key);
}

void ls_planner_shard_by_dtype(struct ls_planner *p, uint32_t module, const bool *ignored, const struct ls_unit *like)
{
    const struct ls_model *m = p->m;
    const struct ls_module *first = &m->module[module], *last = first + first->subtree - 1;
    const uint32_t end = last->first_param + last->params;
    struct splitter s = { .p = p, .like = like, .ignored = ignored, .name_skip = strlen(ls_name_text(m->names, first->name)), .chosen = KEYS };
    bool any_ignored = false;
    for (uint32_t i = first->first_param; i < end; i++) {
        if (is_ignored(&s, i)) {
            any_ignored = true;
            continue;
        }
        const uint32_t key = key_of(&s, ls_name_text(m->names, m->param[i].name), m->param[i].dtype);
        if (!s.count[key]++)
            s.order[s.keys++] = key;
    }
    if (s.keys == 0) {
        if (any_ignored)
            ls_planner_shard(p, &module, 1, false, ignored, like);
        return;
    }
    if (s.keys == 1) {
        shard(&s, module, s.order[0]);
        return;
    }
    if (s.keys == 2)
        s.chosen = s.count[s.order[1]] < s.count[s.order[0]] ? s.order[1] : s.order[0];
    find_subtrees(&s, module);
    struct ls_arena scratch;
    ls_arena_init(&scratch, 0);
    bool *covered = LS_NEW(&scratch, bool, end - first->first_param);
    for (size_t i = 0; i < s.subtree.count; i++) {
        const struct ls_module *top = &m->module[s.subtree.at[i].module], *bottom = top + top->subtree - 1;
        for (uint32_t k = top->first_param; is_selected(&s, s.subtree.at[i].key) && k < bottom->first_param + bottom->params; k++)
            covered[k - first->first_param] = true;
    }
    for (uint32_t i = first->first_param; i < end; i++)
        if (!covered[i - first->first_param] && !is_ignored(&s, i) && is_selected(&s, key_of(&s, ls_name_text(m->names, m->param[i].name), m->param[i].dtype)))
            ls_planner_refuse(p, "dtype_islands", like->at, "'%.200s' (%s) shares its module with parameters of another dtype; by-dtype units "
                              "need a module of its own for it", ls_name_text(m->names, m->param[i].name), ls_dtype_name(m->param[i].dtype));
    for (size_t i = 0; i < s.subtree.count; i++)
        if (is_selected(&s, s.subtree.at[i].key))
            shard_subtree(&s, s.subtree.at[i].module, s.subtree.at[i].key);
    if (s.keys == 2)
        shard(&s, module, s.order[0] == s.chosen ? s.order[1] : s.order[0]);
    else if (any_ignored)
        ls_planner_shard(p, &module, 1, false, ignored, like);
    ls_arena_release(&scratch);
    ls_vec_release(&s.subtree);
}
