#include "sim/profile.h"

#include "base/str.h"
#include "base/vec.h"
#include "yaml/yaml.h"

#include <stdlib.h>
#include <string.h>

enum { PS_PER_US = 1000000 };
static const struct { const char *name; enum ls_pass pass; } passes[] = { { "forward", LS_PASS_F }, { "backward", LS_PASS_B },
                                                                        { "recompute", LS_PASS_R }, { "step", LS_PASS_OPT } };

static enum ls_code read_row(const struct ls_yaml_node *n, struct ls_profile_row *out, struct ls_error *err)
{
    static const char *const keys[] = { "pass", "module", "us", NULL }, *const names[] = { "forward", "backward", "recompute", "step", NULL };
    const struct ls_yaml_node *v;
    size_t which = 0;
    *out = (struct ls_profile_row){ .at = n->at };
    LS_TRY(ls_yaml_check_keys(n, "times", keys, err));
    for (size_t i = 0; i < 3; i++)
        if (i != 1 && !ls_yaml_get(n, keys[i]))
            return ls_fail(err, LS_EINPUT, n->at, "'%s' is missing", keys[i]);
    LS_TRY(ls_yaml_choice(ls_yaml_get(n, "pass"), "pass", names, &which, err));
    out->pass = passes[which].pass;
    v = ls_yaml_get(n, "module");
    if (out->pass == LS_PASS_OPT ? v != NULL : v == NULL)
        return ls_fail(err, LS_EINPUT, v ? v->at : n->at, v ? "the step of the optimizer has no module" : "'module' is missing");
    if (v)
        LS_TRY(ls_yaml_text(v, "module", &out->module, err));
    v = ls_yaml_get(n, "us");
    LS_TRY(ls_yaml_real(v, "us", &out->us, err));
    return out->us > 0 && out->us < 1e12 ? LS_OK : ls_fail(err, LS_EINPUT, v->at, "'us' is %g, not a time in microseconds", out->us);
}

enum ls_code ls_profile_load(const char *path, struct ls_arena *arena, struct ls_profile *out, struct ls_error *err)
{
    static const char *const keys[] = { "profile", "times", NULL };
    const struct ls_yaml_node *root, *n;
    uint64_t version = 0;
    *out = (struct ls_profile){ 0 };
    LS_TRY(ls_yaml_load_file(path, arena, &root, err));
    LS_TRY(ls_yaml_check_keys(root, "profile", keys, err));
    if (!(n = ls_yaml_get(root, "profile")))
        return ls_fail(err, LS_EINPUT, root->at, "'profile' is missing: its version, 1");
    LS_TRY(ls_yaml_uint(n, "profile", 1, 1, &version, err));
    if (!(n = ls_yaml_get(root, "times")))
        return ls_fail(err, LS_EINPUT, root->at, "'times' is missing");
    LS_TRY(ls_yaml_list(n, "times", err));
    out->row = LS_NEW(arena, struct ls_profile_row, n->count);
    for (; out->rows < n->count; out->rows++)
        LS_TRY(read_row(n->item[out->rows], &out->row[out->rows], err));
    return LS_OK;
}

static bool matches(const struct ls_profile_row *r, const struct ls_model *m, uint32_t module)
{
    return r->module && ls_glob(r->module, ls_name_text(m->names, m->module[module].name));
}

enum ls_code ls_profile_check(const struct ls_profile *p, const struct ls_model *m, struct ls_error *err)
{
    for (size_t i = 0; i < p->rows; i++) {
        bool found = !p->row[i].module;
        for (uint32_t k = 0; k < m->modules && !found; k++)
            found = matches(&p->row[i], m, k);
        if (!found)
            return ls_fail(err, LS_EINPUT, p->row[i].at, "no module of the model is '%.100s'", p->row[i].module);
    }
    return LS_OK;
}

/* One module of one row: its kernels, their roofline, and how often its most frequent statement runs. */
struct share { uint32_t row, module; double ps; uint32_t kernels, runs; };

static enum ls_pass pass_of(const struct ls_kernel *k)
{
    switch ((enum ls_kernel_what)k->what) {
    case LS_KERNEL_FORWARD: return LS_PASS_F;
    case LS_KERNEL_BACKWARD: return LS_PASS_B;
    case LS_KERNEL_RECOMPUTE: return LS_PASS_R;
    case LS_KERNEL_ACCUMULATE: case LS_KERNEL_LOSS: case LS_KERNEL_LOSS_BACKWARD: case LS_KERNEL_OPTIMIZER:
    case LS_KERNEL_LEFT_OUT: break;
    }
    return LS_PASS_NONE;
}

/* The last row that covers the kernel, and the module around its statement that it means. */
static bool find(const struct ls_profile *p, const struct ls_model *m, const struct ls_kernel *k, struct share *out)
{
    for (size_t i = p->rows; i-- > 0;) {
        if (p->row[i].pass != pass_of(k) || !p->row[i].module)
            continue;
        for (uint32_t at = m->statement[k->statement]->module; at != LS_NO_ID; at = m->module[at].parent)
            if (matches(&p->row[i], m, at)) {
                *out = (struct share){ .row = (uint32_t)i, .module = at };
                return true;
            }
    }
    return false;
}

void ls_profile_apply(const struct ls_profile *p, const struct ls_model *m, const struct ls_tables *t, const struct ls_segment *s,
                      const struct ls_round_work *w, double *ps)
{
    LS_VEC(struct share) all = { 0 };
    uint32_t *of = malloc((w->kernels + 1) * sizeof *of), *runs = calloc((m->statements + 1) * 3, sizeof *runs), n = 0;
    if (!of || !runs)
        ls_out_of_memory(w->kernels * sizeof *of);
    for (size_t i = 0; i < s->count; i++)
        for (uint32_t j = 0; j < s->op[i].kernels; j++, n++) {
            const struct ls_kernel *k = &t->kernel.at[s->op[i].kernel + j];
            struct share x;
            of[n] = LS_NO_ID;
            if (pass_of(k) == LS_PASS_NONE || !find(p, m, k, &x))
                continue;
            uint32_t at = 0;
            while (at < all.count && (all.at[at].row != x.row || all.at[at].module != x.module))
                at++;
            if (at == all.count)
                ls_push(&all, x);
            uint32_t times = ++runs[3 * k->statement + (pass_of(k) == LS_PASS_F ? 0 : pass_of(k) == LS_PASS_B ? 1 : 2)];
            all.at[at].ps += ps[n];
            all.at[at].kernels++;
            all.at[at].runs = times > all.at[at].runs ? times : all.at[at].runs;
            of[n] = at;
        }
    for (uint32_t i = 0; i < n; i++)
        if (of[i] != LS_NO_ID) {
            const struct share *x = &all.at[of[i]];
            double wanted = p->row[x->row].us * PS_PER_US * x->runs;
            ps[i] = x->ps > 0 ? ps[i] / x->ps * wanted : wanted / x->kernels;
        }
    ls_vec_release(&all);
    free(runs);
    free(of);
}

bool ls_profile_step(const struct ls_profile *p, uint64_t *ps)
{
    for (size_t i = p->rows; i-- > 0;)
        if (p->row[i].pass == LS_PASS_OPT) {
            *ps = (uint64_t)(p->row[i].us * PS_PER_US + 0.5);
            return true;
        }
    return false;
}
