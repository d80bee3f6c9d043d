/* A manifest: which kinds of microbatches may meet, and how often the data let others meet.
 *
 * Two kinds are of one class if two ranks that hold them for a step complete it. Then it is proved that ranks which always hold one
 * class together are safe. With both, a step hangs iff in some microbatch ranks of a group hold different classes. */
#include "advise/internal.h"

#include <string.h>

enum { TRIALS = 20000 };

/* The first step of the driver, with one sample on each of two ranks. */
static enum ls_code pair_completes(const struct ls_compiled *c, uint32_t a, uint32_t b, uint32_t dim, struct ls_arena *arena, bool *out,
                                   struct ls_error *err)
{
    const struct ls_driver *d = &c->system.driver;
    LS_VEC(uint32_t) node = { 0 }, letter = { 0 };
    uint32_t still = ls_batch_still_letter(&c->letters);
    for (uint32_t at = 0;;) {
        enum ls_round_kind kind = c->rounds.round[d->node[at].round].kind;
        bool batch = kind == LS_ROUND_MICRO || kind == LS_ROUND_EVAL;
        ls_push(&node, at);
        ls_push(&letter, batch ? a : still);
        ls_push(&letter, batch ? b : still);
        if (kind == LS_ROUND_STEP || !d->node[at].nexts || node.count > LS_MICROBATCHES_MAX)
            break;
        at = d->node[at].next[0];
    }
    struct ls_assignment run = { .size = { dim == LS_DIM_REPLICATE ? 2 : 1, dim == LS_DIM_SHARD ? 2 : 1 }, .rounds = node.count,
                                 .node = node.at, .letter = letter.at };
    struct ls_job job;
    struct ls_outcome outcome;
    struct ls_run_options o = { .level = LS_L2 };
    enum ls_code rc = ls_system_job(&c->system, &run, arena, &job, err);
    if (rc == LS_OK)
        rc = ls_machine_run(&job, &o, arena, &outcome, err);
    *out = rc == LS_OK && outcome.verdict == LS_SAFE;
    ls_vec_release(&node);
    ls_vec_release(&letter);
    return rc;
}

/* classes[sample]: the first sample that it may meet; true if all may. */
static enum ls_code classify(const struct ls_scenario *s, const struct ls_compiled *c, uint32_t dim, struct ls_arena *arena, uint32_t *classes,
                             size_t *count, struct ls_error *err)
{
    *count = 0;
    for (uint32_t i = 0; i < s->batch.samples; i++) {
        classes[i] = LS_NO_ID;
        for (uint32_t k = 0; k < i && classes[i] == LS_NO_ID; k++) {
            bool fits = classes[k] == k;
            enum ls_code rc = fits ? pair_completes(c, c->letters.of_sample[k], c->letters.of_sample[i], dim, arena, &fits, err) : LS_OK;
            if (rc != LS_OK)
                return rc;
            if (fits)
                classes[i] = k;
        }
        if (classes[i] == LS_NO_ID) {
            classes[i] = i;
            ++*count;
        }
    }
    return LS_OK;
}

enum ls_code assess_data(const struct ls_scenario *s, const struct ls_assess_options *o, struct ls_arena *arena, struct ls_assessment *a,
                         struct ls_error *err)
{
    const struct ls_compiled *c = &a->compiled;
    struct ls_data_risk *data = LS_NEW(arena, struct ls_data_risk, 1);
    uint32_t *classes = LS_NEW(arena, uint32_t, s->batch.samples + 1), *across = LS_NEW(arena, uint32_t, s->batch.samples + 1);
    uint32_t dims = c->system.free_dims;
    size_t groups = 1, apart = 1;
    enum ls_code rc = dims ? classify(s, c, dims & LS_DIM_SHARD ? LS_DIM_SHARD : LS_DIM_REPLICATE, arena, classes, &data->classes, err) : LS_OK;
    if (rc == LS_OK && dims == (LS_DIM_REPLICATE | LS_DIM_SHARD)) {
        rc = classify(s, c, LS_DIM_REPLICATE, arena, across, &apart, err);
        groups = apart == 1 ? s->mesh.replicate : 1; /* nodes need not agree with each other */
        if (apart > data->classes) {
            data->classes = apart;
            memcpy(classes, across, s->batch.samples * sizeof *classes);
        }
    }
    if (rc != LS_OK)
        return rc;
    data->replicas = s->mesh.replicate * s->mesh.shard;
    data->groups = groups;
    struct ls_assessment uniform = { 0 };
    struct ls_variant v = o->variant;
    v.sample_class = classes;
    v.class_in_node = groups > 1;
    rc = assess_once(s, o, &v, arena, &uniform, err);
    if (rc != LS_OK)
        return rc;
    data->proved = uniform.verdict == LS_SAFE && (uniform.check.known == LS_KNOWN_PROVED || !dims);
    struct ls_risk_input in = { .manifest = s->manifest, .groups = groups, .members = data->replicas / groups,
                                .microbatches = s->batch.microbatches, .trials = TRIALS, .seed = o->check.seed + 1 };
    for (size_t k = 0; k < LS_KINDS; k++)
        in.class_of[k] = 255;
    for (size_t i = 0; i < s->batch.samples; i++)
        in.class_of[s->sample_kind[i]] = (uint8_t)classes[i];
    rc = ls_manifest_risk(&in, arena, &data->risk, err);
    if (rc == LS_OK && data->proved && a->verdict != LS_SAFE && data->risk.ordered && !data->risk.first_step) {
        ls_assessment_release(a); /* in this order ranks never differ: what is proved about that is the verdict */
        rc = assess_once(s, o, &v, arena, a, err);
    }
    ls_assessment_release(&uniform);
    if (rc == LS_OK)
        a->data = data;
    return rc;
}

void print_data(const struct ls_scenario *s, const struct ls_assessment *a, int columns, struct ls_str *out)
{
    static const char *const media[] = { "images", "videos", "audios" };
    const struct ls_data_risk *d = a->data;
    if (!d)
        return;
    const struct ls_manifest *m = s->manifest;
    const struct ls_risk *r = &d->risk;
    ls_str_printf(out, "  %-*s%llu samples:", columns, "data", (unsigned long long)m->samples);
    for (unsigned k = 0, n = 0; k < LS_KINDS; k++) {
        if (!m->of_kind[k])
            continue;
        ls_str_printf(out, "%s %.4g %% ", n++ ? "," : "", 100.0 * (double)m->of_kind[k] / (double)m->samples);
        for (unsigned i = 0, any = 0; i < LS_MEDIA; i++)
            if (k >> i & 1)
                ls_str_printf(out, "%s%s", any++ ? " + " : "", media[i]);
        if (!k)
            ls_str_add(out, "text only");
    }
    ls_str_printf(out, "\n  %-*s%llu replicas x %llu microbatches x %llu samples a step, %llu steps an epoch%s\n", columns, "",
                  (unsigned long long)d->replicas, (unsigned long long)s->batch.microbatches, (unsigned long long)m->batch_size,
                  (unsigned long long)r->steps, m->by_kind ? "; batches of one kind" : "");
    if (d->groups > 1)
        ls_str_printf(out, "  %-*sranks must agree inside each of %llu nodes only\n", columns, "", (unsigned long long)d->groups);
    ls_str_printf(out, "  %-*s", columns, "risk");
    if (d->classes < 2) {
        ls_str_add(out, "no two kinds of microbatches disagree: what ranks hold decides nothing\n");
    } else if (r->ordered && !r->first_step) {
        ls_str_add(out, "in this order ranks never hold kinds that disagree in one microbatch\n");
    } else if (r->ordered) {
        ls_str_printf(out, "step %llu hangs first, in microbatch %llu", (unsigned long long)r->first_step, (unsigned long long)r->first_microbatch);
        if (!m->by_kind)
            ls_str_printf(out, ", which starts with sample %llu of the file, counted from 0", (unsigned long long)r->first_sample);
        ls_str_add(out, "\n");
    } else {
        ls_str_printf(out, "a step hangs with probability %.6g (%s; %llu random steps, seed %llu: %.4f +- %.4f)\n", r->step,
                      r->exact ? "exact, for a uniformly random order" : "estimated: too many states to count", (unsigned long long)r->trials,
                      (unsigned long long)r->seed, r->sampled, r->sampled_error);
        if (r->first > 0)
            ls_str_printf(out, "  %-*sthe first one is expected at step %.4g%s; an epoch hangs with probability %.6g\n", columns, "", r->first,
                          r->approximate_tail ? " (later steps counted as independent)" : "", r->epoch);
    }
    if (!d->proved)
        ls_str_printf(out, "  %-*snot only what ranks hold in one microbatch decides: a run may fail where they agree\n", columns, "");
}
