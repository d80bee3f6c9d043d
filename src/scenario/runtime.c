/* runtime, loss, platform, expect. */
#include "scenario/internal.h"

#include <stdlib.h>
#include <string.h>

/* PyTorch versions whose FSDP2 is modelled: two-part numbers as MAJOR * 100 + MINOR. */
enum { VERSION_MIN = 206, VERSION_MAX = 215, VERSION_DEFAULT = 212, AUTOMODEL_DEFAULT = 6 };

static enum ls_code load_version(struct loader *l, const struct ls_yaml_node *n, unsigned *out)
{
    const char *text;
    LS_TRY(ls_yaml_text(n, "version", &text, l->err));
    char *end = NULL;
    unsigned long major = text[0] >= '0' && text[0] <= '9' ? strtoul(text, &end, 10) : 0, minor = 0;
    bool good = end && *end == '.' && end[1] >= '0' && end[1] <= '9';
    if (good) {
        minor = strtoul(end + 1, &end, 10);
        good = *end == 0 || (*end == '.' && end[1] >= '0' && end[1] <= '9' && !end[1 + strspn(end + 1, "0123456789")]);
    }
    if (!good || major > 99 || minor > 99)
        return ls_fail(l->err, LS_EINPUT, n->at, "'version' is '%.20s', not a PyTorch version such as \"2.12\"", text);
    *out = (unsigned)(major * 100 + minor);
    if (*out < VERSION_MIN || *out > VERSION_MAX)
        return ls_fail(l->err, LS_EINPUT, n->at, "'version' is '%.20s', which is not between 2.%d and 2.%d", text, VERSION_MIN % 100,
                       VERSION_MAX % 100);
    return LS_OK;
}

static enum ls_code load_fsdp2(struct loader *l, const struct ls_yaml_node *n, struct ls_runtime *r)
{
    static const char *const keys[] = { "version", "unused_params", "lazy_state_guard", "uniform_reduce_dtype",
                                        "separate_reduce_scatter_group", "default_group", "reduce_scatter_max_input_buffers", NULL };
    const struct ls_yaml_node *v;
    bool *const to[] = { &r->lazy_state_guard, &r->uniform_reduce_dtype, &r->separate_reduce_scatter_group, &r->default_group };
    r->at = n->at;
    LS_TRY(ls_yaml_check_keys(n, "fsdp2", keys, l->err));
    if ((v = ls_yaml_get(n, "version")))
        LS_TRY(load_version(l, v, &r->version));
    if ((v = ls_yaml_get(n, "unused_params")))
        LS_TRY(ls_load_unused(l, v, "unused_params", &r->unused_params));
    for (size_t i = 0; i < sizeof to / sizeof *to; i++)
        if ((v = ls_yaml_get(n, keys[2 + i])))
            LS_TRY(ls_yaml_bool(v, keys[2 + i], to[i], l->err));
    if ((v = ls_yaml_get(n, "reduce_scatter_max_input_buffers"))) {
        uint64_t buffers = 0;
        LS_TRY(ls_yaml_uint(v, "reduce_scatter_max_input_buffers", 1, 64, &buffers, l->err));
        r->reduce_scatter_max_input_buffers = (unsigned)buffers;
    }
    return LS_OK;
}

static enum ls_code load_l3(struct loader *l, const struct ls_yaml_node *n)
{
    static const char *const keys[] = { "kernels", "start", NULL }, *const starts[] = { "any", "issue_order", NULL };
    struct ls_scenario *s = l->s;
    const struct ls_yaml_node *v;
    LS_TRY(ls_yaml_check_keys(n, "l3", keys, l->err));
    if (s->level != LS_L3)
        return ls_fail(l->err, LS_EINPUT, n->at, "'l3' needs 'level: L3'");
    if ((v = ls_yaml_get(n, "kernels"))) {
        uint64_t kernels = 0;
        LS_TRY(ls_yaml_uint(v, "kernels", 1, 1024, &kernels, l->err));
        s->kernels = (unsigned)kernels;
    }
    if ((v = ls_yaml_get(n, "start"))) {
        size_t which = 0;
        LS_TRY(ls_yaml_choice(v, "start", starts, &which, l->err));
        s->start = which ? LS_START_ISSUE_ORDER : LS_START_ANY;
    }
    return LS_OK;
}

enum ls_code ls_load_runtime(struct loader *l)
{
    #define STYLE_NAME(id, name) name,
    static const char *const keys[] = { "fsdp2", "automodel", "activations", "level", "l3", NULL }, *const levels[] = { "L1", "L2", "L3", NULL },
                      *const styles[] = { LS_ACTIVATION_STYLES(STYLE_NAME) NULL };
    struct ls_scenario *s = l->s;
    const struct ls_yaml_node *n = section(l, "runtime"), *v;
    /* AutoModel installs the guard in its parallelizers; explicit units are plain PyTorch, which has none. */
    s->runtime = (struct ls_runtime){ .version = VERSION_DEFAULT, .lazy_state_guard = s->kind == LS_PLAN_POLICY,
                                      .reduce_scatter_max_input_buffers = 1, .at = l->root->at };
    s->level = LS_L2;
    s->automodel = AUTOMODEL_DEFAULT;
    if (!n)
        return LS_OK;
    s->runtime.at = n->at;
    LS_TRY(ls_yaml_check_keys(n, "runtime", keys, l->err));
    if ((v = ls_yaml_get(n, "automodel"))) {
        static const char *const versions[] = { "0.6", "0.7", NULL };
        size_t which = 0;
        LS_TRY(ls_yaml_choice(v, "automodel", versions, &which, l->err));
        s->automodel = (unsigned)(6 + which);
    }
    if ((v = ls_yaml_get(n, "level"))) {
        size_t which = 0;
        LS_TRY(ls_yaml_choice(v, "level", levels, &which, l->err));
        s->level = (enum ls_level)(LS_L1 + (int)which);
    }
    if ((v = ls_yaml_get(n, "l3")))
        LS_TRY(load_l3(l, v));
    if ((v = ls_yaml_get(n, "activations"))) {
        size_t which = 0;
        if (s->kind == LS_PLAN_RAW)
            return ls_fail(l->err, LS_EINPUT, v->at, "'activations' has no meaning for a raw program");
        LS_TRY(ls_yaml_choice(v, "activations", styles, &which, l->err));
        s->activations = (enum ls_activation_style)which;
    }
    if (!(v = ls_yaml_get(n, "fsdp2")))
        return LS_OK;
    if (s->kind == LS_PLAN_RAW)
        return ls_fail(l->err, LS_EINPUT, v->at, "'fsdp2' has no meaning for a raw program");
    return load_fsdp2(l, v, &s->runtime);
}

static enum ls_code load_expect(struct loader *l, const struct ls_yaml_node *n)
{
    static const char *const keys[] = { "verdict", "seen_as", "ranks", "microbatches", "op", "payload", "unit", "rule", NULL };
    static const char *const seen[] = { "hang", "silent", "crash", NULL };
    const char *verdicts[LS_VERDICT_COUNT + 1], *ops[LS_OP_COUNT + 1];
    struct ls_expect *e = &l->s->expect;
    const struct ls_yaml_node *v;
    size_t which = 0;
    for (int i = 0; i < LS_VERDICT_COUNT; i++)
        verdicts[i] = ls_verdict_name((enum ls_verdict)i);
    for (int i = 0; i < LS_OP_COUNT; i++)
        ops[i] = ls_op_kind_name((enum ls_op_kind)i);
    verdicts[LS_VERDICT_COUNT] = ops[LS_OP_COUNT] = NULL;
    LS_TRY(ls_yaml_check_keys(n, "expect", keys, l->err));
    e->present = true;
    e->at = n->at;
    if (!(v = ls_yaml_get(n, "verdict")))
        return ls_fail(l->err, LS_EINPUT, n->at, "'verdict' is missing in 'expect'");
    LS_TRY(ls_yaml_choice(v, "verdict", verdicts, &which, l->err));
    e->verdict = (enum ls_verdict)which;
    /* What the other keys describe: a violation, or a refusal. */
    for (size_t i = 0; i < n->count; i++) {
        const char *key = n->pair[i].key->text;
        bool rule = strcmp(key, "rule") == 0, plain = e->verdict == LS_SAFE || e->verdict == LS_UNDECIDED;
        if (strcmp(key, "verdict") != 0 && (plain || rule != (e->verdict == LS_SETUP_ERROR)))
            return ls_fail(l->err, LS_EINPUT, n->pair[i].key->at, "'%s' does not go with the verdict '%s'", key, verdicts[which]);
    }
    if ((v = ls_yaml_get(n, "seen_as"))) {
        LS_TRY(ls_yaml_choice(v, "seen_as", seen, &which, l->err));
        e->seen_as = seen[which];
    }
    if ((v = ls_yaml_get(n, "op"))) {
        LS_TRY(ls_yaml_choice(v, "op", ops, &which, l->err));
        e->op = ops[which];
    }
    if ((v = ls_yaml_get(n, "ranks")))
        LS_TRY(ls_yaml_uint(v, "ranks", 1, 1 << 20, &e->ranks, l->err));
    if ((v = ls_yaml_get(n, "microbatches")))
        LS_TRY(ls_yaml_uint(v, "microbatches", 1, 1 << 20, &e->microbatches, l->err));
    const char **const to[] = { &e->payload, &e->unit, &e->rule };
    for (size_t i = 0; i < 3; i++)
        if ((v = ls_yaml_get(n, keys[5 + i])))
            LS_TRY(ls_yaml_text(v, keys[5 + i], to[i], l->err));
    return LS_OK;
}

enum ls_code ls_load_rest(struct loader *l)
{
    static const char *const keys[] = { "reduction", NULL }, *const reductions[] = { "mean", "sum", NULL };
    const struct ls_yaml_node *n = section(l, "loss"), *v;
    if (n) {
        size_t which = 0;
        LS_TRY(ls_yaml_check_keys(n, "loss", keys, l->err));
        if ((v = ls_yaml_get(n, "reduction")))
            LS_TRY(ls_yaml_choice(v, "reduction", reductions, &which, l->err));
        l->s->mean = which == 0;
    }
    if ((n = section(l, "platform")))
        LS_TRY(ls_load_path(l, n, "platform", false, &l->s->platform));
    LS_TRY(ls_timing_read(section(l, "simulate"), l->s->arena, &l->s->timing, l->err));
    return (n = section(l, "expect")) ? load_expect(l, n) : LS_OK;
}
