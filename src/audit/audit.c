#include "audit/audit.h"

#include "base/vec.h"
#include "scenario/scenario.h"
#include "yaml/yaml.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS_MAX = 1 << 20 };
typedef LS_VEC(const char *) texts;

static const char *const *keep(struct ls_arena *arena, texts *v, size_t *count)
{
    const char *const *out = v->count ? ls_arena_copy(arena, v->at, v->count * sizeof *v->at) : NULL;
    *count = v->count;
    ls_vec_release(v);
    return out;
}

static bool fits(const struct ls_recipe *r, uint64_t dp, bool batch)
{
    if (dp % r->dp_replicate || (r->dp_replicate > 1 && r->dp_replicate >= dp) || (dp * r->cp * r->tp) % r->ep)
        return false;
    return !batch || !r->global_batch || !r->local_batch || r->global_batch % (r->local_batch * dp) == 0;
}

uint64_t ls_audit_world_size(const struct ls_recipe *r, struct ls_arena *arena, const char **why)
{
    const uint64_t most = RANKS_MAX, size[] = { r->cp, r->tp, r->pp };
    uint64_t inner = 1, dp = r->dp, found = 0;
    *why = NULL;
    for (size_t k = 0; k < 3; k++) {
        if (size[k] > most / inner)
            return 0;
        inner *= size[k];
    }
    if (dp) {
        *why = ls_arena_printf(arena, "%" PRIu64 " ranks: the recipe gives dp_size", inner <= most / dp ? dp * inner : 0);
        return inner <= most / dp ? dp * inner : 0;
    }
    const uint64_t bound = most / inner;
    for (dp = 2; dp <= bound && !found; dp++)
        found = fits(r, dp, true) ? dp : 0;
    if (found) {
        *why = ls_arena_printf(arena, "%" PRIu64 " ranks: the smallest size that satisfies mesh and batch with dp >= 2", found * inner);
        return found * inner;
    }
    if (fits(r, 1, true)) {
        *why = ls_arena_printf(arena, "%" PRIu64 " ranks: the batch allows one data-parallel rank only", inner);
        return inner;
    }
    for (dp = 2; dp <= bound && !found; dp++)
        found = fits(r, dp, false) ? dp : 0;
    if (found)
        *why = ls_arena_printf(arena, "%" PRIu64 " ranks: the smallest size that satisfies the mesh with dp >= 2; no size satisfies the batch",
                               found * inner);
    return found * inner;
}

static const char *parallelizer(const struct ls_recipe *r, struct ls_arena *arena)
{
    const struct ls_yaml_node *strategy = ls_recipe_get(r, "distributed.strategy");
    if (r->ddp)
        return "ddp";
    if (strategy && strategy->kind == LS_YAML_SCALAR && strcmp(strategy->text, "fsdp2") != 0)
        return ls_arena_strn(arena, strategy->text, strnlen(strategy->text, 40));
    return r->ep > 1 ? r->pp > 1 ? "ep+pp" : "ep" : r->pp > 1 ? "dense+pp" : "dense";
}

/* "pipeline parallelism is not modelled yet (distributed.pp_size: 4, line 57)"; each part once. */
static void list_parts(const struct ls_import *import, struct ls_arena *arena, texts *why, texts *part)
{
    for (size_t i = 0; i < import->notes; i++) {
        const struct ls_import_note *n = &import->note[i];
        if (n->kind != LS_IMPORT_UNSUPPORTED || strncmp(n->key, "model.pretrained", 16) == 0 || strncmp(n->key, "model.config", 12) == 0 ||
            strcmp(n->key, "model") == 0)
            continue; /* what has no inventory is said by that */
        size_t same = 0;
        while (same < part->count && strcmp(part->at[same], n->part) != 0)
            same++;
        if (same < part->count)
            continue;
        ls_push(part, n->part);
        ls_push(why, ls_arena_printf(arena, "%s is not modelled yet (%s%s%s, line %zu)", n->part, n->key, n->value ? ": " : "",
                                     n->value ? n->value : "", n->at.line));
    }
}

/* Ranks that the verdict takes for one. import/mesh.c says why. */
static const char *together(const struct ls_recipe *r, struct ls_arena *arena)
{
    const char *cp = r->cp > 1 ? ls_arena_printf(arena, "%" PRIu64 " of a context-parallel group", r->cp) : NULL;
    const char *tp = r->tp > 1 ? ls_arena_printf(arena, "%" PRIu64 " of a tensor-parallel group", r->tp) : NULL;
    if (r->pp > 1 || (!cp && !tp))
        return NULL;
    return ls_arena_printf(arena, "ranks that hold one batch (%s%s%s) do the same: collectives among them are taken to match", cp ? cp : tp,
                           cp && tp ? ", " : "", cp && tp ? tp : "");
}

static bool inside(const struct ls_model *m, const struct ls_specs *specs, uint32_t module)
{
    for (size_t i = 0; i < specs->count; i++)
        if (ls_module_contains(m, specs->spec[i].module, module))
            return true;
    return false;
}

static bool has_params(const struct ls_model *m, uint32_t module)
{
    const struct ls_module *first = &m->module[module], *last = first + first->subtree - 1;
    return last->first_param + last->params > first->first_param;
}

/* The modules that run only when a batch holds their medium, as they stand when AutoModel shards. */
static enum ls_code list_modules(const struct ls_scenario *s, struct ls_arena *arena, struct ls_audit_row *row, struct ls_error *err)
{
    const struct ls_model *m = &s->model;
    texts frozen = { 0 }, trainable = { 0 }, outside = { 0 };
    struct ls_specs known; /* by declaration or table: may have names that AutoModel does not look for */
    enum ls_code rc = ls_multimodal_resolve(m, LS_RULES_PROPOSED, NULL, 0, &known, err);
    if (rc != LS_OK)
        return rc;
    for (size_t i = 0; i < s->specs.count; i++) {
        uint32_t module = s->specs.spec[i].module;
        const char *name = ls_arena_str(arena, ls_name_text(m->names, m->module[module].name));
        if (ls_module_fully_frozen(m, module, s->at_sharding))
            ls_push(&frozen, name);
        else if (has_params(m, module))
            ls_push(&trainable, name);
    }
    for (size_t i = 0; i < known.count; i++) {
        uint32_t module = known.spec[i].module;
        if (!known.spec[i].conditionally_executed || inside(m, &s->specs, module) || !has_params(m, module))
            continue;
        ls_push(&outside, ls_arena_printf(arena, "%s (%s)", ls_name_text(m->names, m->module[module].name),
                                          ls_module_fully_frozen(m, module, s->at_sharding) ? "frozen" : "trainable"));
    }
    row->frozen = keep(arena, &frozen, &row->frozens);
    row->trainable = keep(arena, &trainable, &row->trainables);
    row->outside = keep(arena, &outside, &row->outsides);
    row->facts = true;
    return LS_OK;
}

struct seen { const char *text; enum ls_media media; bool fake_images; struct ls_audit_row row; }; /* of `row` the verdicts alone */
struct ls_audit_memo { struct ls_arena arena; LS_VEC(struct seen) seen; };

struct ls_audit_memo *ls_audit_memo_open(void)
{
    struct ls_audit_memo *memo = calloc(1, sizeof *memo);
    if (!memo)
        ls_out_of_memory(sizeof *memo);
    ls_arena_init(&memo->arena, 0);
    return memo;
}

void ls_audit_memo_close(struct ls_audit_memo *memo)
{
    if (!memo)
        return;
    ls_vec_release(&memo->seen);
    ls_arena_release(&memo->arena);
    free(memo);
}

static void own_texts(struct ls_audit_row *row, struct ls_arena *arena)
{
    struct ls_audit_verdict *const verdict[] = { &row->uniform, &row->mixed, &row->assumed };
    for (size_t i = 0; i < 3; i++)
        verdict[i]->cause = verdict[i]->cause ? ls_arena_str(arena, verdict[i]->cause) : NULL;
    row->repair = row->repair ? ls_arena_str(arena, row->repair) : NULL;
    row->repair_note = row->repair_note ? ls_arena_str(arena, row->repair_note) : NULL;
}

static void take_verdicts(struct ls_audit_row *to, const struct ls_audit_row *from)
{
    to->uniform = from->uniform, to->mixed = from->mixed, to->assumed = from->assumed;
    to->repair = from->repair, to->repair_note = from->repair_note, to->repaired = from->repaired;
}

/* The scenario without its name: what a verdict depends on, with the assumption about the data. */
static const char *plan_text(const char *part)
{
    const char *model = strstr(part, "\nmodel:\n");
    return model ? model : part;
}

static struct seen *find_seen(struct ls_audit_memo *memo, const char *part, const struct ls_audit_data *d)
{
    for (size_t i = 0; memo && i < memo->seen.count; i++) {
        struct seen *s = &memo->seen.at[i];
        if (s->media == d->media && s->fake_images == d->fake_images && strcmp(s->text, plan_text(part)) == 0)
            return s;
    }
    return NULL;
}

/* One verdict; the assessment is released by the caller. */
static enum ls_code judge(const struct ls_scenario *s, int execution, bool repairs, const struct ls_audit_options *o,
                          struct ls_arena *arena, struct ls_audit_verdict *out, struct ls_assessment *a, struct ls_error *err)
{
    struct ls_assess_options assess = { .variant = LS_AS_WRITTEN, .repairs = repairs };
    assess.variant.execution = execution;
    assess.check.gradients = assess.check.races = true;
    assess.check.seconds_max = o->seconds_max;
    enum ls_code rc = ls_assess(s, &assess, arena, a, err);
    if (rc != LS_OK)
        return rc;
    struct ls_str cause = { 0 };
    ls_assessment_cause(s, a, &cause);
    *out = (struct ls_audit_verdict){ .given = true, .verdict = a->verdict, .known = a->check.known, .seen_as = a->seen_as,
                                      .cause = cause.length ? ls_arena_str(arena, ls_str_text(&cause)) : NULL };
    ls_str_release(&cause);
    return LS_OK;
}

/* The sample that every batch is made of, or NULL: the data may mix, or its medium is not among the scenario's samples. */
static struct ls_sample *assumed_sample(const struct ls_scenario *s, const struct ls_audit_data *d)
{
    const bool image = d->media == LS_MEDIA_IMAGE || (d->media == LS_MEDIA_NONE && d->fake_images);
    const bool audio = d->media == LS_MEDIA_AUDIO;
    for (size_t i = 0; d->uniform && i < s->batch.samples; i++) {
        struct ls_sample *sample = &s->batch.sample[i];
        if ((sample->images > 0) == image && (sample->audios > 0) == audio && !sample->videos)
            return sample;
    }
    return NULL;
}

static enum ls_code judge_all(const struct ls_scenario *s, const struct ls_audit_options *o, struct ls_arena *arena,
                              struct ls_audit_row *row, struct ls_error *err)
{
    struct ls_assessment a;
    enum ls_code rc = judge(s, LS_EXEC_RANK_UNIFORM, false, o, arena, &row->uniform, &a, err);
    if (rc != LS_OK)
        return rc;
    ls_assessment_release(&a);
    struct ls_sample *sample = assumed_sample(s, &row->data);
    if (sample) {
        struct ls_scenario narrow = *s;
        narrow.batch.sample = sample;
        narrow.batch.samples = 1;
        rc = judge(&narrow, LS_EXEC_ANY, false, o, arena, &row->assumed, &a, err);
        if (rc != LS_OK)
            return rc;
        ls_assessment_release(&a);
    }
    rc = judge(s, -1, true, o, arena, &row->mixed, &a, err); /* any, unless all ranks share one batch */
    if (rc != LS_OK)
        return rc;
    row->repaired = a.verdict != LS_SAFE && a.verdict != LS_UNDECIDED;
    for (size_t i = 0; i < a.repairs && !row->repair; i++)
        if (a.repair[i].proved)
            row->repair = a.repair[i].change, row->repair_note = a.repair[i].note;
    ls_assessment_release(&a);
    return LS_OK;
}

/* The facts from the modelled part of the recipe; the verdicts only where that is all of it. */
static enum ls_code ask_scenario(const char *text, bool whole, const struct ls_audit_options *o, struct ls_audit_memo *memo,
                                 struct ls_arena *arena, struct ls_audit_row *row, struct ls_error *err)
{
    struct ls_arena scratch;
    ls_arena_init(&scratch, 0);
    struct ls_names *names = ls_names_open();
    struct ls_scenario s;
    enum ls_code rc = ls_scenario_read(text, strlen(text), "imported.yaml", &scratch, names, &s, err);
    if (rc == LS_OK)
        rc = list_modules(&s, arena, row, err);
    const struct seen *seen = find_seen(memo, text, &row->data);
    if (rc == LS_OK && whole && seen) {
        take_verdicts(row, &seen->row);
        own_texts(row, arena);
    } else if (rc == LS_OK && whole) {
        rc = judge_all(&s, o, &scratch, row, err);
        own_texts(row, arena);
        if (rc == LS_OK && memo) {
            struct seen new = { ls_arena_str(&memo->arena, plan_text(text)), row->data.media, row->data.fake_images, *row };
            own_texts(&new.row, &memo->arena);
            ls_push(&memo->seen, new);
        }
    }
    ls_names_close(names);
    ls_arena_release(&scratch);
    return rc;
}

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum ls_code ls_audit_recipe(const char *path, const struct ls_inventories *known, const struct ls_audit_options *o,
                             struct ls_audit_memo *memo, struct ls_arena *arena, struct ls_audit_row *out, struct ls_error *err)
{
    const double start = now_seconds();
    struct ls_recipe r;
    struct ls_import import;
    struct ls_error problem = { 0 };
    texts why = { 0 }, part = { 0 };
    *out = (struct ls_audit_row){ .path = ls_arena_str(arena, path) };
    enum ls_code rc = ls_recipe_load(path, known, arena, &r, &out->err);
    if (rc != LS_OK)
        return LS_OK;
    out->model_id = r.model_id;
    out->inventory = r.inventory ? r.inventory->path : NULL;
    out->dp_replicate = r.dp_replicate, out->cp = r.cp, out->tp = r.tp, out->pp = r.pp, out->ep = r.ep;
    out->parallelizer = parallelizer(&r, arena);
    out->data = ls_audit_data(&r, arena);
    out->policy = r.frozen_sharding ? r.frozen_sharding : "root";
    const uint64_t smallest = ls_audit_world_size(&r, arena, &out->size);
    out->world = o->world_size ? o->world_size : smallest;
    out->size = o->world_size ? NULL : out->size;
    out->together = together(&r, arena);
    const uint64_t inner = r.cp * r.tp * r.pp;
    out->dp = r.dp ? r.dp : inner ? out->world / inner : 0;
    if (!out->world) {
        ls_push(&why, "no number of ranks up to 2^20 satisfies the recipe's mesh");
        out->why = keep(arena, &why, &out->whys);
        return LS_OK;
    }
    rc = ls_recipe_import(&r, &(struct ls_import_options){ out->world, r.inventory ? r.inventory->path : NULL, o->proposed }, arena, &import,
                          &problem);
    list_parts(&import, arena, &why, &part);
    if (!r.inventory)
        ls_push(&why, r.model_id ? "no inventory" : "no inventory: the model is put together, without an id");
    else if (rc != LS_OK && !part.count)
        ls_push(&why, ls_arena_str(arena, problem.text));
    if (!import.part && r.inventory && out->world != smallest && smallest) {
        /* The facts do not depend on the number of ranks. */
        struct ls_import other;
        if (ls_recipe_import(&r, &(struct ls_import_options){ smallest, r.inventory->path, o->proposed }, arena, &other, NULL) != LS_EBACKEND)
            import.part = other.part;
    }
    enum ls_code asked = LS_OK;
    if (import.part) {
        asked = ask_scenario(import.part, rc == LS_OK && !o->no_verdicts, o, memo, arena, out, &problem);
        if (asked != LS_OK && asked != LS_EBACKEND)
            ls_push(&why, ls_arena_str(arena, problem.text));
        if (asked == LS_OK && !out->frozens)
            out->policy = "n/a";
    }
    if (strcmp(out->parallelizer, "dense") != 0 && strncmp(out->parallelizer, "ep", 2) != 0 && strcmp(out->parallelizer, "dense+pp") != 0)
        out->policy = "n/a"; /* the key belongs to FSDP2's configuration alone */
    out->why = keep(arena, &why, &out->whys);
    out->part = keep(arena, &part, &out->parts);
    out->seconds = now_seconds() - start;
    if (asked == LS_EBACKEND && err) {
        *err = problem;
        err->input = (struct ls_loc){ out->path, 0, 0 }; /* the scenario's text is gone */
    }
    return asked == LS_EBACKEND ? asked : LS_OK;
}
