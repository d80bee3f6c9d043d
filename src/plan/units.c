/* What fully_shard makes of a list of calls, and explicit units.
 *   source  torch/distributed/fsdp/_fully_shard: _fsdp_init.py (managed modules and states, mesh), _fully_shard.py */
#include "plan/planner.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void ls_planner_init(struct ls_planner *p, const struct ls_model *m, const struct ls_mesh *mesh, const struct ls_runtime *runtime)
{
    *p = (struct ls_planner){ .m = m, .mesh = mesh, .runtime = runtime, .arena = m->arena, .shared_param = LS_NO_ID };
    ls_arena_init(&p->scratch, 0);
    p->unit_of_module = LS_NEW(&p->scratch, uint32_t, m->modules);
    memset(p->unit_of_module, 0xff, m->modules * sizeof(uint32_t));
    p->listed = LS_NEW(&p->scratch, uint32_t, m->modules);
    p->owner = LS_NEW(p->arena, uint32_t, m->params);
    memset(p->owner, 0xff, m->params * sizeof(uint32_t));
    p->first_index = LS_NEW(&p->scratch, uint32_t, m->params);
    p->seen = LS_NEW(&p->scratch, uint32_t, m->params);
}

void ls_planner_release(struct ls_planner *p)
{
    ls_vec_release(&p->unit);
    ls_vec_release(&p->warning);
    ls_vec_release(&p->found);
    ls_vec_release(&p->kept_out);
    ls_arena_release(&p->scratch);
}

static const char *vformat(struct ls_arena *a, const char *format, va_list args)
{
    char text[600];
    vsnprintf(text, sizeof text, format, args);
    return ls_arena_str(a, text);
}

void ls_planner_refuse(struct ls_planner *p, const char *rule, struct ls_loc at, const char *format, ...)
{
    va_list args;
    if (p->refusal.rule)
        return;
    va_start(args, format);
    p->refusal = (struct ls_refusal){ rule, vformat(p->arena, format, args), at };
    va_end(args);
}

void ls_planner_warn(struct ls_planner *p, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    ls_push(&p->warning, vformat(p->arena, format, args));
    va_end(args);
}

static const char *name_of(const struct ls_planner *p, uint32_t module)
{
    const char *name = ls_name_text(p->m->names, p->m->module[module].name);
    return name[0] ? name : "root";
}

/* Post-order over managed modules: stops at modules that an earlier call claimed; `unit` is the call in progress. */
static void walk(struct ls_planner *p, uint32_t module, uint32_t unit, const bool *ignored, struct ls_loc at)
{
    const struct ls_module *m = &p->m->module[module];
    for (size_t i = 0; i < m->children; i++)
        if (p->unit_of_module[m->child[i]] == LS_NO_ID)
            walk(p, m->child[i], unit, ignored, at);
    for (uint32_t i = m->first_param; i < m->first_param + m->params; i++) {
        uint32_t c = p->m->param[i].canonical;
        const char *name = ls_name_text(p->m->names, p->m->param[i].name);
        if (p->seen[c] == unit + 1)
            continue; /* tied within the call: once, where it is met first */
        p->seen[c] = unit + 1;
        if (ignored && ignored[c]) {
            ls_push(&p->kept_out, c);
            continue;
        }
        if (p->m->param[c].dims == 0)
            ls_planner_refuse(p, "scalar_parameter", at, "fully_shard on '%.150s': it does not support scalar parameters like '%.150s'",
                              name_of(p, module), name);
        if (p->owner[c] == LS_NO_ID) {
            p->owner[c] = unit;
            p->first_index[c] = i;
        } else if (p->first_index[c] == i) {
            ls_planner_refuse(p, "outer_unit_first", at, "fully_shard on '%.150s': the unit '%.150s' around it owns '%.150s' already; "
                              "nested modules must come first", name_of(p, module),
                              ls_name_text(p->m->names, p->unit.at[p->owner[c]].name), name);
            continue;
        } else if (p->shared_param == LS_NO_ID) {
            p->shared_param = c;
            p->shared_unit[0] = p->owner[c];
            p->shared_unit[1] = unit;
        }
        ls_push(&p->found, c);
    }
}

static void check_reshard(struct ls_planner *p, struct ls_unit *u)
{
    if (u->reshard != LS_RESHARD_SMALL || p->mesh->shard == LS_SIZE_ANY)
        return;
    uint64_t k = u->reshard_size, shard = p->mesh->shard;
    if (k < 1 || k > shard || shard % k)
        ls_planner_refuse(p, "reshard_size", u->at, "'%.150s': reshard_after_forward is %llu, which does not divide the shard size %llu",
                          ls_name_text(p->m->names, u->name), (unsigned long long)k, (unsigned long long)shard);
    else if (k == shard)
        u->reshard = LS_RESHARD_TRUE;
    else if (k == 1)
        u->reshard = LS_RESHARD_FALSE;
    if (k == 1)
        ls_planner_warn(p, "'%.150s': reshard_after_forward 1 means a group of one rank, so never; true was meant?",
                        ls_name_text(p->m->names, u->name));
}

uint32_t ls_planner_shard(struct ls_planner *p, const uint32_t *module, size_t modules, bool grouped, const bool *ignored,
                          const struct ls_unit *like)
{
    const uint32_t unit = (uint32_t)p->unit.count;
    struct ls_unit u = *like;
    assert(modules > 0);
    u.module = LS_NEW(p->arena, uint32_t, modules);
    u.modules = 0;
    for (size_t i = 0; i < modules; i++)
        p->listed[module[i]] = unit + 1;
    for (size_t i = 0; i < modules; i++) { /* a list is reduced to its outermost modules */
        uint32_t above = p->m->module[module[i]].parent;
        while (above != LS_NO_ID && p->listed[above] != unit + 1)
            above = p->m->module[above].parent;
        if (above == LS_NO_ID)
            u.module[u.modules++] = module[i];
    }
    u.name = u.module[0] == 0 ? ls_name_id(p->m->names, "root") : p->m->module[u.module[0]].name;
    for (size_t i = 0; i < u.modules; i++) {
        uint32_t claimed = u.module[i];
        if (!grouped && p->m->module[claimed].container != LS_NOT_CONTAINER)
            ls_planner_refuse(p, "container_without_forward", u.at, "fully_shard on '%.150s': it does not support containers (%s) that do "
                              "not implement forward", name_of(p, claimed), ls_name_text(p->m->names, p->m->module[claimed].class_name));
        if (p->unit_of_module[claimed] != LS_NO_ID)
            ls_planner_refuse(p, "already_in_a_unit", u.at, "fully_shard on '%.150s': it has been applied to this module before",
                              name_of(p, claimed));
        p->unit_of_module[claimed] = unit;
    }
    p->found.count = p->kept_out.count = 0;
    for (size_t i = 0; i < u.modules; i++)
        walk(p, u.module[i], unit, ignored, u.at);
    u.param = ls_arena_copy(p->arena, p->found.at, p->found.count * sizeof(uint32_t));
    u.params = p->found.count;
    u.ignored = ls_arena_copy(p->arena, p->kept_out.at, p->kept_out.count * sizeof(uint32_t));
    u.ignoreds = p->kept_out.count;
    check_reshard(p, &u);
    if (u.unused_params == LS_UNUSED_NATIVE && p->runtime->version && p->runtime->version < 213)
        ls_planner_refuse(p, "unused_params_version", u.at, "set_reduce_scatter_unused_params is new in PyTorch 2.13; the runtime is %u.%u",
                          p->runtime->version / 100, p->runtime->version % 100);
    ls_push(&p->unit, u);
    return unit;
}

void ls_planner_finish(struct ls_planner *p, const bool *requires_grad, struct ls_plan *out, struct ls_refusal *refusal)
{
    for (size_t i = 0; i < p->m->params; i++)
        p->owner[i] = p->owner[p->m->param[i].canonical];
    *out = (struct ls_plan){
        .model = p->m,
        .requires_grad = requires_grad,
        .unit = ls_arena_copy(p->arena, p->unit.at, p->unit.count * sizeof *p->unit.at),
        .units = p->unit.count,
        .owner = p->owner,
        .root = p->unit_of_module[0],
        .runtime = *p->runtime,
        .warning = ls_arena_copy(p->arena, p->warning.at, p->warning.count * sizeof *p->warning.at),
        .warnings = p->warning.count,
        .shared_param = p->shared_param,
        .shared_unit = { p->shared_unit[0], p->shared_unit[1] },
    };
    *refusal = p->refusal;
}

/* ------------------------------------------------------------------------------------------------- explicit units */

static bool has_glob(const char *text) { return strpbrk(text, "*?") != NULL; }

typedef LS_VEC(uint32_t) id_vec;

/* Modules that the globs match: glob by glob, in tree order, each once. The root is matched by "" alone. */
static enum ls_code match_modules(const struct ls_model *m, const struct ls_unit_input *in, uint32_t *mark, uint32_t number,
                                  id_vec *out, struct ls_error *err)
{
    for (size_t g = 0; g < in->globs; g++) {
        const char *glob = in->glob[g];
        size_t before = out->count;
        if (!has_glob(glob)) {
            uint32_t module = ls_model_module(m, glob);
            if (module == LS_NO_ID)
                return ls_fail_module(m, glob, "unit", in->at, err);
            if (mark[module] != number)
                ls_push(out, module);
            mark[module] = number;
            continue;
        }
        bool any = false;
        for (uint32_t i = 1; i < m->modules; i++)
            if (ls_glob(glob, ls_name_text(m->names, m->module[i].name))) {
                any = true;
                if (mark[i] != number)
                    ls_push(out, i);
                mark[i] = number;
            }
        if (!any && out->count == before)
            return ls_fail(err, LS_EINPUT, in->at, "'%.200s' matches no module", glob);
    }
    return out->count ? LS_OK : ls_fail(err, LS_EINPUT, in->at, "the unit names no modules");
}

static enum ls_code match_ignored(const struct ls_model *m, const struct ls_unit_input *in, bool *ignored, struct ls_error *err)
{
    memset(ignored, 0, m->params);
    for (size_t g = 0; g < in->ignoreds; g++) {
        bool any = false;
        for (uint32_t i = 0; i < m->params; i++)
            if (ls_glob(in->ignored[g], ls_name_text(m->names, m->param[i].name)))
                ignored[m->param[i].canonical] = any = true;
        if (!any)
            return ls_fail(err, LS_EINPUT, in->at, "'ignored': '%.200s' matches no parameter", in->ignored[g]);
    }
    return LS_OK;
}

static enum ls_code read_prefetch(struct ls_planner *p, const char *const *name, size_t count, const char *what, struct ls_loc at,
                                  uint32_t **out, size_t *outs, struct ls_error *err)
{
    *out = LS_NEW(p->arena, uint32_t, count);
    for (size_t i = 0; i < count; i++) {
        uint32_t module = ls_model_module(p->m, name[i]);
        if (module == LS_NO_ID)
            return ls_fail_module(p->m, name[i], what, at, err);
        if (p->unit_of_module[module] == LS_NO_ID) {
            enum ls_code rc = ls_fail(err, LS_EINPUT, at, "'%s' names '%.200s', which is not a unit", what, name[i]);
            ls_hint(err, "only modules given to fully_shard can be prefetched");
            return rc;
        }
        (*out)[(*outs)++] = p->unit_of_module[module];
    }
    return LS_OK;
}

struct made { uint32_t first, count; };

static enum ls_code make_units(struct ls_planner *p, const struct ls_unit_input *in, uint32_t number, uint32_t *mark, bool *ignored,
                               struct made *made, struct ls_error *err)
{
    id_vec modules = { 0 };
    struct ls_unit like = {
        .reshard = in->reshard, .reshard_size = in->reshard_size, .param_dtype = in->param_dtype, .reduce_dtype = in->reduce_dtype,
        .output_dtype = in->output_dtype, .cast_inputs = in->cast_inputs, .unshard_in_backward = in->unshard_in_backward,
        .unused_params = in->unused_params, .has_backward_prefetch = in->has_backward_prefetch, .at = in->at, .why = "explicit unit",
    };
    enum ls_code rc = match_modules(p->m, in, mark, number, &modules, err);
    if (rc == LS_OK)
        rc = match_ignored(p->m, in, ignored, err);
    const bool lists = in->forward_prefetches || in->backward_prefetches || in->has_backward_prefetch;
    if (rc == LS_OK && lists && !in->grouped && modules.count > 1)
        rc = ls_fail(err, LS_EINPUT, in->at, "prefetch lists are for units with one match; this entry makes %zu units", modules.count);
    made->first = (uint32_t)p->unit.count;
    made->count = rc == LS_OK ? (in->grouped ? 1u : (uint32_t)modules.count) : 0;
    if (rc == LS_OK && in->grouped)
        ls_planner_shard(p, modules.at, modules.count, true, in->ignoreds ? ignored : NULL, &like);
    for (size_t i = 0; rc == LS_OK && !in->grouped && i < modules.count; i++)
        ls_planner_shard(p, &modules.at[i], 1, false, in->ignoreds ? ignored : NULL, &like);
    ls_vec_release(&modules);
    return rc;
}

enum ls_code ls_plan_from_units(const struct ls_model *m, const bool *requires_grad, const struct ls_mesh *mesh,
                                const struct ls_runtime *runtime, const struct ls_unit_input *in, size_t count, struct ls_plan *out,
                                struct ls_refusal *refusal, struct ls_error *err)
{
    struct ls_planner p;
    ls_planner_init(&p, m, mesh, runtime);
    uint32_t *mark = LS_NEW(&p.scratch, uint32_t, m->modules);
    bool *ignored = LS_NEW(&p.scratch, bool, m->params);
    struct made *made = LS_NEW(&p.scratch, struct made, count);
    enum ls_code rc = LS_OK;
    for (size_t i = 0; rc == LS_OK && i < count; i++)
        rc = make_units(&p, &in[i], (uint32_t)i + 1, mark, ignored, &made[i], err);
    for (size_t i = 0; rc == LS_OK && i < count; i++) { /* lists may name units that come later */
        struct ls_unit *u = &p.unit.at[made[i].first];
        if (made[i].count != 1)
            continue;
        rc = read_prefetch(&p, in[i].forward_prefetch, in[i].forward_prefetches, "forward_prefetch", in[i].at, &u->forward_prefetch,
                           &u->forward_prefetches, err);
        if (rc == LS_OK)
            rc = read_prefetch(&p, in[i].backward_prefetch, in[i].backward_prefetches, "backward_prefetch", in[i].at,
                               &u->backward_prefetch, &u->backward_prefetches, err);
    }
    if (rc == LS_OK)
        ls_planner_finish(&p, requires_grad, out, refusal);
    ls_planner_release(&p);
    return rc;
}
