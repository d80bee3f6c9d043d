/* The flow of an inventory: reading, expansion of `each`, and the scopes of values. */
#include "model/build.h"
#include "model/model.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUGGESTED_FROM = 4096, VALUES_MAX = 1024 /* in one list */, STEPS_MAX = 1 << 22 };

struct reader {
    struct ls_model *m;
    struct ls_error *err;
    size_t statements, uses;
    size_t steps; /* statements and items read: nested `each` without effect must not cost time uncounted */
    uint32_t *seen; /* [params]: number of the leaf that listed it last */
    uint32_t leaves;
};
struct place { uint32_t module, dollar; }; /* enclosing call; item of the innermost `each`, or LS_NO_ID */
typedef LS_VEC(struct ls_flow) flow_vec;

static enum ls_code read_body(struct reader *r, const struct ls_yaml_node *list, struct place where, flow_vec *out);

static enum ls_code read_names(struct reader *r, const struct ls_yaml_node *n, const char *what, uint32_t **out, size_t *count)
{
    enum ls_code rc = ls_yaml_list(n, what, r->err);
    if (rc != LS_OK)
        return rc;
    if (n->count > VALUES_MAX)
        return ls_fail(r->err, LS_EINPUT, n->at, "'%s' has %zu names, more than %d", what, n->count, VALUES_MAX);
    r->uses += n->count; /* `each` repeats a list as often as there are items */
    if (r->uses > LS_PARAM_USES_MAX)
        return ls_fail(r->err, LS_EINPUT, n->at, "the flow names more than %d values and parameters", LS_PARAM_USES_MAX);
    *out = LS_NEW(r->m->arena, uint32_t, n->count);
    for (size_t i = 0; rc == LS_OK && i < n->count; i++) {
        const char *text = NULL;
        rc = ls_yaml_text(n->item[i], what, &text, r->err);
        if (rc == LS_OK && (!text[0] || strlen(text) > LS_COMPONENT_MAX))
            rc = ls_fail(r->err, LS_EINPUT, n->item[i]->at, "a name in '%s' must have 1 to %d characters", what, LS_COMPONENT_MAX);
        uint32_t id = rc == LS_OK ? ls_name_id(r->m->names, text) : 0;
        for (size_t j = 0; rc == LS_OK && j < *count && n->count <= 64; j++)
            if ((*out)[j] == id)
                rc = ls_fail(r->err, LS_EINPUT, n->item[i]->at, "'%s' is twice in '%s'", text, what);
        if (rc == LS_OK)
            (*out)[(*count)++] = id;
    }
    return rc;
}

/* The module an FQN of the flow names; `$` stands for the item of the innermost `each`. */
static enum ls_code find_module(struct reader *r, const struct ls_yaml_node *n, const char *what, struct place where, uint32_t *out)
{
    const char *fqn = NULL;
    enum ls_code rc = ls_yaml_text(n, what, &fqn, r->err);
    if (rc != LS_OK)
        return rc;
    if (fqn[0] == '$' && (!fqn[1] || fqn[1] == '.')) {
        if (where.dollar == LS_NO_ID)
            return ls_fail(r->err, LS_EINPUT, n->at, "'%.60s' is outside of 'each'", fqn);
        fqn = ls_arena_printf(r->m->arena, "%s%s", ls_name_text(r->m->names, r->m->module[where.dollar].name), fqn + 1);
    }
    *out = ls_model_module(r->m, fqn);
    return *out != LS_NO_ID ? LS_OK : ls_fail_module(r->m, fqn, what, n->at, r->err);
}

static void use_param(struct reader *r, uint32_t param, struct ls_flow *f)
{
    uint32_t canonical = r->m->param[param].canonical;
    if (r->seen[canonical] == r->leaves)
        return; /* tied within the leaf */
    r->seen[canonical] = r->leaves;
    f->param[f->params++] = canonical;
}

static enum ls_code room_for_uses(struct reader *r, size_t count, struct ls_flow *f)
{
    r->uses += count;
    if (r->uses > LS_PARAM_USES_MAX)
        return ls_fail(r->err, LS_EINPUT, f->at, "the flow names more than %d values and parameters", LS_PARAM_USES_MAX);
    f->param = LS_NEW(r->m->arena, uint32_t, count);
    return LS_OK;
}

/* Parameters of `module`'s subtree: all of them, or those that `n` names relative to it. */
static enum ls_code read_uses(struct reader *r, const struct ls_yaml_node *n, uint32_t module, struct ls_flow *f)
{
    const struct ls_model *m = r->m;
    enum ls_code rc = LS_OK;
    r->leaves++;
    if (!n) {
        const struct ls_module *last = &m->module[module + m->module[module].subtree - 1];
        uint32_t first = m->module[module].first_param, end = last->first_param + last->params;
        rc = room_for_uses(r, end - first, f);
        for (uint32_t i = first; rc == LS_OK && i < end; i++)
            use_param(r, i, f);
        return rc;
    }
    rc = ls_yaml_list(n, "params", r->err);
    if (rc == LS_OK)
        rc = room_for_uses(r, n->count, f);
    for (size_t i = 0; rc == LS_OK && i < n->count; i++) {
        const char *name = NULL, *base = ls_name_text(m->names, m->module[module].name);
        rc = ls_yaml_text(n->item[i], "params", &name, r->err);
        if (rc != LS_OK)
            break;
        const char *fqn = base[0] ? ls_arena_printf(m->arena, "%s.%s", base, name) : name;
        uint32_t param = ls_model_param(m, fqn);
        if (param == LS_NO_ID)
            return ls_fail_param(m, fqn, "parameter", n->item[i]->at, r->err);
        use_param(r, param, f);
    }
    return rc;
}

static enum ls_code too_long(struct reader *r, struct ls_loc at)
{
    return ls_fail(r->err, LS_EINPUT, at, "the flow expands to too many statements");
}

static enum ls_code add(struct reader *r, flow_vec *out, const struct ls_flow *f)
{
    if (++r->statements > LS_STATEMENTS_MAX)
        return ls_fail(r->err, LS_EINPUT, f->at, "the flow has more than %d statements", LS_STATEMENTS_MAX);
    ls_push(out, *f);
    return LS_OK;
}

static enum ls_code read_nested(struct reader *r, const struct ls_yaml_node *list, struct place where, struct ls_flow *f)
{
    flow_vec body = { 0 };
    enum ls_code rc = read_body(r, list, where, &body);
    if (rc == LS_OK) {
        f->body = ls_arena_copy(r->m->arena, body.at, body.count * sizeof *f->body);
        f->count = body.count;
    }
    ls_vec_release(&body);
    return rc;
}

static enum ls_code read_flag(struct reader *r, const struct ls_yaml_node *n, const char *name, bool *out)
{
    const struct ls_yaml_node *key = ls_yaml_get(n, name);
    return key ? ls_yaml_bool(key, name, out, r->err) : LS_OK;
}

static bool among(uint32_t name, const uint32_t *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (list[i] == name)
            return true;
    return false;
}

/* What `pass` names goes in and comes out unchanged. */
static enum ls_code read_pass(struct reader *r, const struct ls_yaml_node *n, struct ls_flow *f)
{
    uint32_t *pass = NULL;
    size_t passes = 0;
    enum ls_code rc = read_names(r, n, "pass", &pass, &passes);
    if (rc != LS_OK)
        return rc;
    uint32_t **lists[2] = { &f->in, &f->out };
    size_t *counts[2] = { &f->ins, &f->outs };
    for (int k = 0; k < 2; k++) {
        uint32_t *joined = LS_NEW(r->m->arena, uint32_t, *counts[k] + passes);
        size_t count = 0;
        for (size_t i = 0; i < *counts[k]; i++)
            joined[count++] = (*lists[k])[i];
        for (size_t i = 0; i < passes; i++)
            if (!among(pass[i], *lists[k], *counts[k]))
                joined[count++] = pass[i];
        *lists[k] = joined, *counts[k] = count;
    }
    return LS_OK;
}

/* What a call and an op have in common: values in and out, and what becomes of gradients. */
static enum ls_code read_values(struct reader *r, const struct ls_yaml_node *n, struct ls_flow *f)
{
    const struct ls_yaml_node *key;
    if ((key = ls_yaml_get(n, "in")))
        LS_TRY(read_names(r, key, "in", &f->in, &f->ins));
    if ((key = ls_yaml_get(n, "out")))
        LS_TRY(read_names(r, key, "out", &f->out, &f->outs));
    LS_TRY(read_flag(r, n, "no_grad", &f->no_grad));
    return read_flag(r, n, "detach", &f->detach);
}

static enum ls_code read_call(struct reader *r, const struct ls_yaml_node *n, struct place where, flow_vec *out)
{
    static const char *const known[] = { "call", "in", "out", "entry", "no_grad", "detach", "checkpoint", "pass", "side", "params", "body",
                                         NULL };
    struct ls_flow f = { .kind = LS_FLOW_CALL, .at = n->at };
    const char *entry = "forward";
    const struct ls_yaml_node *body = ls_yaml_get(n, "body"), *key = NULL;
    enum ls_code rc = ls_yaml_check_keys(n, "call", known, r->err);
    if (rc == LS_OK)
        rc = find_module(r, ls_yaml_get(n, "call"), "call", where, &f.module);
    if (rc == LS_OK && f.module == 0)
        rc = ls_fail(r->err, LS_EINPUT, n->at, "the flow is the body of the root module already; it can't call it");
    if (rc == LS_OK && (key = ls_yaml_get(n, "entry")))
        rc = ls_yaml_text(key, "entry", &entry, r->err);
    if (rc == LS_OK)
        rc = read_values(r, n, &f);
    if (rc == LS_OK)
        rc = read_flag(r, n, "checkpoint", &f.checkpoint);
    if (rc != LS_OK)
        return rc;
    f.entry = ls_name_id(r->m->names, entry);
    f.leaf = !body;
    static const char *const leaf_only[] = { "params", NULL }, *const body_only[] = { "pass", "side", "checkpoint", NULL };
    for (const char *const *name = body ? leaf_only : body_only; *name; name++)
        if ((key = ls_yaml_get(n, *name)))
            return ls_fail(r->err, LS_EINPUT, key->at, "'%s' is for calls %s 'body'", *name, body ? "without" : "with");
    if (body && (key = ls_yaml_get(n, "pass")))
        rc = read_pass(r, key, &f);
    if (rc == LS_OK && body && (key = ls_yaml_get(n, "side")))
        rc = read_names(r, key, "side", &f.side, &f.sides);
    for (size_t i = 0; rc == LS_OK && i < f.sides; i++)
        if (!among(f.side[i], f.in, f.ins) && !among(f.side[i], f.out, f.outs))
            rc = ls_fail(r->err, LS_EINPUT, key->at, "'side' names '%.100s', which is neither under 'in' nor under 'out'",
                         ls_name_text(r->m->names, f.side[i]));
    if (rc == LS_OK)
        rc = body ? read_nested(r, body, (struct place){ f.module, where.dollar }, &f) : read_uses(r, ls_yaml_get(n, "params"), f.module, &f);
    return rc == LS_OK ? add(r, out, &f) : rc;
}

static enum ls_code read_op(struct reader *r, const struct ls_yaml_node *n, struct place where, flow_vec *out)
{
    static const char *const known[] = { "op", "in", "out", "no_grad", "detach", "params", NULL };
    struct ls_flow f = { .kind = LS_FLOW_OP, .at = n->at, .module = where.module };
    const char *name = NULL;
    const struct ls_yaml_node *key = NULL;
    enum ls_code rc = ls_yaml_check_keys(n, "op", known, r->err);
    if (rc == LS_OK)
        rc = ls_yaml_text(ls_yaml_get(n, "op"), "op", &name, r->err);
    if (rc == LS_OK)
        rc = read_values(r, n, &f);
    if (rc == LS_OK && (key = ls_yaml_get(n, "params")))
        rc = read_uses(r, key, where.module, &f);
    if (rc != LS_OK)
        return rc;
    f.name = ls_name_id(r->m->names, name);
    return add(r, out, &f);
}

static enum ls_code add_item(struct reader *r, const struct ls_yaml_node *body, struct place where, uint32_t item, flow_vec *out)
{
    if (++r->steps > STEPS_MAX)
        return too_long(r, body->at);
    return read_body(r, body, (struct place){ where.module, item }, out);
}

static enum ls_code read_each(struct reader *r, const struct ls_yaml_node *n, struct place where, flow_vec *out)
{
    static const char *const known[] = { "each", "items", "body", NULL };
    const struct ls_yaml_node *body = ls_yaml_get(n, "body"), *key = NULL;
    const struct ls_model *m = r->m;
    uint32_t list = 0;
    uint64_t first = 0, last = 0;
    const char *items = NULL;
    enum ls_code rc = ls_yaml_check_keys(n, "each", known, r->err);
    if (rc == LS_OK && !body)
        rc = ls_fail(r->err, LS_EINPUT, n->at, "'each' has no 'body'");
    if (rc == LS_OK)
        rc = find_module(r, ls_yaml_get(n, "each"), "each", where, &list);
    if (rc == LS_OK && (key = ls_yaml_get(n, "items")))
        rc = ls_yaml_text(key, "items", &items, r->err);
    if (rc != LS_OK)
        return rc;
    const struct ls_module *module = &m->module[list];
    const char *base = ls_name_text(m->names, module->name);
    if (!module->children)
        return ls_fail(r->err, LS_EINPUT, n->at, "'%.200s' has no items", base);
    if (!items) {
        for (size_t i = 0; rc == LS_OK && i < module->children; i++)
            rc = add_item(r, body, where, module->child[i], out);
        return rc;
    }
    if (strstr(items, "..") && (!ls_parse_range(items, &first, &last) || first > last))
        return ls_fail(r->err, LS_EINPUT, key->at, "'items' is '%.60s', which is not a range like 0..4", items);
    if (!strstr(items, ".."))
        last = first = 0;
    for (uint64_t i = first; rc == LS_OK && i <= last; i++) {
        char number[24];
        snprintf(number, sizeof number, "%llu", (unsigned long long)i);
        const char *fqn = ls_arena_printf(m->arena, "%s%s%s", base, base[0] ? "." : "", strstr(items, "..") ? number : items);
        uint32_t item = ls_model_module(m, fqn);
        rc = item == LS_NO_ID ? ls_fail_module(m, fqn, "item", key->at, r->err) : add_item(r, body, where, item, out);
    }
    return rc;
}

static enum ls_code find_condition(struct reader *r, const struct ls_yaml_node *n, const char *what, uint32_t *set)
{
    const struct ls_model *m = r->m;
    const char *text = NULL, *known[LS_CONDITIONS_MAX + 1] = { 0 };
    enum ls_code rc = ls_yaml_text(n, what, &text, r->err);
    if (rc != LS_OK)
        return rc;
    for (size_t i = 0; i < m->conditions; i++) {
        known[i] = ls_name_text(m->names, m->condition[i].name);
        if (strcmp(known[i], text) == 0) {
            *set |= 1u << i;
            return LS_OK;
        }
    }
    ls_fail(r->err, LS_EINPUT, n->at, "'%s' names '%.60s', which is not under 'conditions'", what, text);
    const char *near = ls_nearest(text, known);
    if (near)
        ls_hint(r->err, "did you mean '%s'?", near);
    return LS_EINPUT;
}

static enum ls_code read_when(struct reader *r, const struct ls_yaml_node *n, struct place where, flow_vec *out)
{
    static const char *const known[] = { "when", "unless", "body", NULL };
    const struct ls_yaml_node *when = ls_yaml_get(n, "when"), *unless = ls_yaml_get(n, "unless"), *body = ls_yaml_get(n, "body");
    const struct ls_yaml_node *key = when ? when : unless;
    const char *what = when ? "when" : "unless";
    struct ls_flow f = { .kind = LS_FLOW_WHEN, .at = n->at, .once = !when || key->kind == LS_YAML_LIST };
    enum ls_code rc = ls_yaml_check_keys(n, what, known, r->err);
    if (rc == LS_OK && when && unless)
        rc = ls_fail(r->err, LS_EINPUT, unless->at, "'when' and 'unless' are two statements; nest one in the other");
    if (rc == LS_OK && !body)
        rc = ls_fail(r->err, LS_EINPUT, n->at, "'%s' has no 'body'", what);
    if (rc == LS_OK && key->kind != LS_YAML_LIST)
        rc = find_condition(r, key, what, when ? &f.when : &f.unless);
    for (size_t i = 0; rc == LS_OK && key->kind == LS_YAML_LIST && i < key->count; i++)
        rc = find_condition(r, key->item[i], what, when ? &f.when : &f.unless);
    if (rc == LS_OK && !f.when && !f.unless)
        rc = ls_fail(r->err, LS_EINPUT, key->at, "'%s' names no condition", what);
    if (rc == LS_OK)
        rc = read_nested(r, body, where, &f);
    return rc == LS_OK ? add(r, out, &f) : rc;
}

static enum ls_code read_body(struct reader *r, const struct ls_yaml_node *list, struct place where, flow_vec *out)
{
    static const char *const leads[] = { "call", "op", "each", "when", "unless", NULL };
    enum ls_code rc = ls_yaml_list(list, "body", r->err);
    for (size_t i = 0; rc == LS_OK && i < list->count; i++) {
        const struct ls_yaml_node *n = list->item[i];
        rc = ls_yaml_map(n, "statement", r->err);
        if (rc != LS_OK)
            break;
        if (++r->steps > STEPS_MAX)
            return too_long(r, n->at);
        if (ls_yaml_get(n, "call"))
            rc = read_call(r, n, where, out);
        else if (ls_yaml_get(n, "op"))
            rc = read_op(r, n, where, out);
        else if (ls_yaml_get(n, "each"))
            rc = read_each(r, n, where, out);
        else if (ls_yaml_get(n, "when") || ls_yaml_get(n, "unless"))
            rc = read_when(r, n, where, out);
        else {
            rc = ls_fail(r->err, LS_EINPUT, n->at, "a statement needs one of the keys call, op, each, when, unless");
            const char *near = n->count ? ls_nearest(n->pair[0].key->text, leads) : NULL;
            if (near)
                ls_hint(r->err, "did you mean '%s'?", near);
        }
    }
    return rc;
}

/* ------------------------------------------------------------------------------------------------- scopes of values */

struct scopes {
    const struct ls_model *m;
    struct ls_error *err;
    uint32_t *stamp; /* [name id]: the last scope that binds it */
    size_t stamps;
    uint32_t now;
};

static void bind_outs(struct scopes *s, const struct ls_flow *body, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (body[i].kind == LS_FLOW_WHEN)
            bind_outs(s, body[i].body, body[i].count);
        for (size_t j = 0; j < body[i].outs; j++)
            s->stamp[body[i].out[j]] = s->now;
    }
}

static enum ls_code unknown_value(const struct scopes *s, uint32_t name, const char *what, struct ls_loc at, const struct ls_flow *scope)
{
    const char *text = ls_name_text(s->m->names, name), *where = ls_name_text(s->m->names, s->m->module[scope->module].name);
    ls_fail(s->err, LS_EINPUT, at, "%s '%.100s' is not a value of the call of '%.150s'", what, text, where[0] ? where : "the root");
    LS_VEC(const char *) names = { 0 };
    for (size_t i = 0; i < s->stamps && names.count < SUGGESTED_FROM; i++)
        if (s->stamp[i] == s->now)
            ls_push(&names, ls_name_text(s->m->names, (uint32_t)i));
    ls_push(&names, NULL);
    const char *near = ls_nearest(text, names.at);
    if (near)
        ls_hint(s->err, "did you mean '%s'?", near);
    else
        ls_hint(s->err, "a call sees the values in its own 'in:' and those bound in its body");
    ls_vec_release(&names);
    return LS_EINPUT;
}

static enum ls_code check_reads(struct scopes *s, const struct ls_flow *scope, const struct ls_flow *body, size_t count)
{
    enum ls_code rc = LS_OK;
    for (size_t i = 0; rc == LS_OK && i < count; i++) {
        for (size_t j = 0; rc == LS_OK && j < body[i].ins; j++)
            if (s->stamp[body[i].in[j]] != s->now)
                rc = unknown_value(s, body[i].in[j], "input", body[i].at, scope);
        if (rc == LS_OK && body[i].kind == LS_FLOW_WHEN)
            rc = check_reads(s, scope, body[i].body, body[i].count);
    }
    return rc;
}

static enum ls_code check_scope(struct scopes *s, const struct ls_flow *call);

static enum ls_code check_calls(struct scopes *s, const struct ls_flow *body, size_t count)
{
    enum ls_code rc = LS_OK;
    for (size_t i = 0; rc == LS_OK && i < count; i++) {
        if (body[i].kind == LS_FLOW_WHEN)
            rc = check_calls(s, body[i].body, body[i].count);
        else if (body[i].kind == LS_FLOW_CALL && !body[i].leaf)
            rc = check_scope(s, &body[i]);
    }
    return rc;
}

/* A scope is checked as a whole before the calls in it, so that one array of stamps serves all scopes. */
static enum ls_code check_scope(struct scopes *s, const struct ls_flow *call)
{
    s->now++;
    for (size_t i = 0; i < call->ins; i++)
        s->stamp[call->in[i]] = s->now;
    bind_outs(s, call->body, call->count);
    enum ls_code rc = check_reads(s, call, call->body, call->count);
    for (size_t i = 0; rc == LS_OK && i < call->outs; i++)
        if (s->stamp[call->out[i]] != s->now)
            rc = unknown_value(s, call->out[i], "output", call->at, call);
    return rc == LS_OK ? check_calls(s, call->body, call->count) : rc;
}

static enum ls_code check_subset(struct reader *r, const uint32_t *some, size_t count, const char *what, const uint32_t *all,
                                 size_t all_count, const char *of, struct ls_loc at)
{
    for (size_t i = 0; i < count; i++)
        if (!among(some[i], all, all_count))
            return ls_fail(r->err, LS_EINPUT, at, "'%s' names '%.100s', which is not under '%s'", what,
                           ls_name_text(r->m->names, some[i]), of);
    return LS_OK;
}

enum ls_code ls_flow_read(const struct ls_yaml_node *node, struct ls_model *m, struct ls_error *err)
{
    static const char *const known[] = { "inputs", "grad_inputs", "body", "outputs", "loss", NULL };
    struct ls_arena scratch;
    ls_arena_init(&scratch, 0);
    struct reader r = { .m = m, .err = err, .seen = LS_NEW(&scratch, uint32_t, m->params) };
    struct ls_flow *f = &m->flow;
    *f = (struct ls_flow){ .kind = LS_FLOW_CALL, .entry = ls_name_id(m->names, "forward"), .at = node->at };
    const struct ls_yaml_node *key = NULL;
    enum ls_code rc = ls_yaml_map(node, "flow", err);
    if (rc == LS_OK)
        rc = ls_yaml_check_keys(node, "flow", known, err);
    if (rc == LS_OK && (!ls_yaml_get(node, "body") || !ls_yaml_get(node, "outputs")))
        rc = ls_fail(err, LS_EINPUT, node->at, "'flow' has no '%s'", ls_yaml_get(node, "body") ? "outputs" : "body");
    if (rc == LS_OK && (key = ls_yaml_get(node, "inputs")))
        rc = read_names(&r, key, "inputs", &f->in, &f->ins);
    if (rc == LS_OK && (key = ls_yaml_get(node, "grad_inputs")))
        rc = read_names(&r, key, "grad_inputs", &m->grad_input, &m->grad_inputs);
    if (rc == LS_OK)
        rc = read_names(&r, ls_yaml_get(node, "outputs"), "outputs", &f->out, &f->outs);
    m->loss = f->out, m->losses = f->outs;
    if (rc == LS_OK && (key = ls_yaml_get(node, "loss"))) {
        m->loss = NULL, m->losses = 0;
        rc = read_names(&r, key, "loss", &m->loss, &m->losses);
    }
    if (rc == LS_OK)
        rc = check_subset(&r, m->grad_input, m->grad_inputs, "grad_inputs", f->in, f->ins, "inputs", node->at);
    if (rc == LS_OK)
        rc = check_subset(&r, m->loss, m->losses, "loss", f->out, f->outs, "outputs", node->at);
    if (rc == LS_OK)
        rc = read_nested(&r, ls_yaml_get(node, "body"), (struct place){ 0, LS_NO_ID }, f);
    if (rc == LS_OK) {
        struct scopes s = { .m = m, .err = err, .stamps = ls_names_count(m->names) };
        s.stamp = LS_NEW(&scratch, uint32_t, s.stamps);
        rc = check_scope(&s, f);
    }
    ls_arena_release(&scratch);
    m->has_flow = rc == LS_OK;
    return rc;
}

static size_t number(struct ls_flow *f, size_t next, const struct ls_flow **table)
{
    f->id = (uint32_t)next;
    if (table)
        table[next] = f;
    next++;
    for (size_t i = 0; i < f->count; i++)
        next = number(&f->body[i], next, table);
    return next;
}

void ls_flow_number(struct ls_model *m)
{
    if (!m->has_flow)
        return;
    m->statements = number(&m->flow, 0, NULL);
    m->statement = LS_NEW(m->arena, const struct ls_flow *, m->statements);
    number(&m->flow, 0, m->statement);
    m->statement[0] = NULL; /* the root call is part of *m, which may be copied */
}
