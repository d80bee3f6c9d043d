/* The failing run as a scenario of its own: the same file with sizes, table, microbatches and steps fixed to the witness. */
#include "advise/advise.h"

#include "yaml/write.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint32_t sample_of_letter(const struct ls_scenario *s, const struct ls_assessment *a, uint32_t letter)
{
    uint32_t i = 0;
    letter = a->compiled.letters.letter[letter].base;
    while (i < s->batch.samples && a->compiled.letters.of_sample[i] != letter)
        i++;
    assert(i < s->batch.samples && "every letter comes from a sample");
    return i;
}

/* The policy that was judged, where it is not the one written: sections of modalities override it no longer. */
static const struct ls_yaml_node *with_policy(const struct ls_yaml_node *doc, int frozen_sharding, struct ls_arena *arena)
{
    static const char *const name[] = { [LS_FROZEN_ROOT] = "root", [LS_FROZEN_PER_LAYER] = "per_layer", [LS_FROZEN_REPLICATE] = "replicate" };
    const struct ls_yaml_node *distributed = ls_yaml_get(doc, "distributed"), *multimodal = distributed ? ls_yaml_get(distributed, "multimodal") : NULL;
    for (size_t i = 0; multimodal && multimodal->kind == LS_YAML_MAP && i < multimodal->count; i++)
        if (multimodal->pair[i].value->kind == LS_YAML_MAP && ls_yaml_get(multimodal->pair[i].value, "frozen_sharding"))
            doc = ls_yaml_with(arena, doc, ls_arena_printf(arena, "distributed.multimodal.%s.frozen_sharding", multimodal->pair[i].key->text), NULL);
    return ls_yaml_with(arena, doc, "distributed.multimodal.frozen_sharding", ls_yaml_new_scalar(arena, name[frozen_sharding], false));
}

/* The samples that a manifest stood for. */
static const struct ls_yaml_node *samples_of(const struct ls_scenario *s, struct ls_arena *arena)
{
    const struct ls_yaml_node **item = LS_NEW(arena, const struct ls_yaml_node *, s->batch.samples + 1);
    for (size_t i = 0; i < s->batch.samples; i++) {
        const struct ls_sample *x = &s->batch.sample[i];
        const struct { const char *key; uint64_t value; } of[] = { { "images", x->images }, { "videos", x->videos }, { "audios", x->audios } };
        item[i] = ls_yaml_with(arena, ls_yaml_new_map(arena), "text", ls_yaml_new_uint(arena, x->text));
        for (size_t k = 0; k < sizeof of / sizeof *of; k++)
            if (of[k].value)
                item[i] = ls_yaml_with(arena, item[i], of[k].key, ls_yaml_new_uint(arena, of[k].value));
    }
    return ls_yaml_new_list(arena, item, s->batch.samples);
}

/* A sample, or one with what the rank does by itself. */
static const struct ls_yaml_node *cell_of(const struct ls_scenario *s, const struct ls_assessment *a, struct ls_arena *arena, uint32_t letter)
{
    const struct ls_yaml_node *sample = ls_yaml_new_uint(arena, sample_of_letter(s, a, letter)), *names[32];
    uint32_t events = a->compiled.letters.letter[letter].events;
    size_t count = 0;
    if (!events)
        return sample;
    for (size_t i = 0; i < a->compiled.loop.events; i++)
        if (events >> i & 1)
            names[count++] = ls_yaml_new_scalar(arena, ls_name_text(s->names, a->compiled.loop.event[i].name), true);
    const struct ls_yaml_node *cell = ls_yaml_with(arena, ls_yaml_new_map(arena), "sample", sample);
    return ls_yaml_with(arena, cell, "events", ls_yaml_new_list(arena, names, count));
}

/* One value of a switch per microbatch: the run may hold several steps, and a place in a list means a place in one of them. */
static const struct ls_yaml_node *with_switches(const struct ls_assessment *a, struct ls_arena *arena, const struct ls_yaml_node *doc, size_t micro)
{
    static const char *const path[] = { "batch.accumulation.gradient_sync", "batch.accumulation.all_reduce",
                                        "batch.accumulation.reshard_after_backward", "batch.accumulation.is_last_backward" };
    const struct ls_switch *given[] = { &a->compiled.batch.gradient_sync, &a->compiled.batch.all_reduce,
                                        &a->compiled.batch.reshard_after_backward, &a->compiled.batch.is_last_backward };
    const struct ls_witness *w = a->check.witness;
    for (size_t k = 0; k < 4; k++) {
        if (given[k]->count < 2)
            continue;
        const struct ls_yaml_node **value = LS_NEW(arena, const struct ls_yaml_node *, micro + 1);
        size_t n = 0;
        for (size_t i = 0; i < w->assignment.rounds; i++) {
            const struct ls_round *r = &a->compiled.rounds.round[a->compiled.system.driver.node[w->assignment.node[i]].round];
            const bool on[] = { r->gradient_sync, r->all_reduce, r->reshard_after_backward, r->is_last_backward };
            if (r->kind == LS_ROUND_MICRO || r->kind == LS_ROUND_SKIPPED)
                value[n++] = ls_yaml_new_scalar(arena, on[k] ? "true" : "false", false);
        }
        doc = ls_yaml_with(arena, doc, path[k], ls_yaml_new_list(arena, value, n));
        doc = ls_yaml_with(arena, doc, "distributed.defer_fsdp_grad_sync", NULL);
    }
    return doc;
}

enum ls_code ls_witness_scenario(const struct ls_scenario *s, const struct ls_assessment *a, struct ls_arena *arena,
                                 struct ls_str *out, struct ls_error *err)
{
    const struct ls_witness *w = a->check.witness;
    if (!w)
        return ls_fail(err, LS_EINPUT, LS_NOWHERE, "'%s' has no witness: its verdict is %s", s->name, ls_verdict_name(a->verdict));
    const struct ls_yaml_node *doc = s->document;
    if (s->kind != LS_PLAN_RAW) {
        size_t replicas = w->assignment.size[0] * w->assignment.size[1];
        const struct ls_yaml_node **rows = LS_NEW(arena, const struct ls_yaml_node *, w->assignment.rounds);
        const struct ls_yaml_node **kinds = LS_NEW(arena, const struct ls_yaml_node *, w->assignment.rounds);
        const struct ls_yaml_node **ends = LS_NEW(arena, const struct ls_yaml_node *, w->assignment.rounds);
        bool loop = a->compiled.loop.present;
        const struct ls_yaml_node **cells = LS_NEW(arena, const struct ls_yaml_node *, replicas);
        size_t micro = 0, rows_count = 0, rounds = 0, ends_count = 0;
        for (size_t i = 0; i < w->assignment.rounds; i++) {
            uint32_t round = a->compiled.system.driver.node[w->assignment.node[i]].round;
            enum ls_round_kind kind = a->compiled.rounds.round[round].kind;
            if (kind == LS_ROUND_IDLE)
                continue;
            static const char *const name[] = { "micro", "step", "eval", "", "skipped", "eval_end", "save", "no_save" };
            const struct ls_yaml_node *word = ls_yaml_new_scalar(arena, name[kind], false);
            if (a->compiled.rounds.round[round].after)
                ends[ends_count++] = word;
            else
                kinds[rounds++] = word;
            micro += kind == LS_ROUND_MICRO || kind == LS_ROUND_SKIPPED;
            if (kind == LS_ROUND_STEP && !loop) /* with a loop every round has a row */
                continue;
            for (size_t x = 0; x < replicas; x++)
                cells[x] = cell_of(s, a, arena, w->assignment.letter[i * replicas + x]);
            rows[rows_count++] = ls_yaml_new_list(arena, cells, replicas);
        }
        doc = ls_yaml_with(arena, doc, "batch.execution", NULL);
        if (s->manifest)
            doc = ls_yaml_with(arena, doc, "batch.samples", samples_of(s, arena));
        doc = ls_yaml_with(arena, doc, "batch.execution.table", ls_yaml_new_list(arena, rows, rows_count));
        doc = ls_yaml_with(arena, doc, "batch.schedule", ls_yaml_new_list(arena, kinds, rounds));
        if (s->loop.afters)
            doc = ls_yaml_with(arena, doc, "loop.after", ends_count ? ls_yaml_new_list(arena, ends, ends_count) : NULL);
        doc = with_switches(a, arena, doc, micro);
        doc = ls_yaml_with(arena, doc, "batch.microbatches", ls_yaml_new_uint(arena, micro));
        doc = ls_yaml_with(arena, doc, "batch.steps", ls_yaml_new_uint(arena, 1));
        doc = ls_yaml_with(arena, doc, "distributed.dp_size", ls_yaml_new_uint(arena, replicas));
        if (w->assignment.size[0] > 1 || ls_yaml_get(ls_yaml_get(doc, "distributed"), "dp_replicate_size"))
            doc = ls_yaml_with(arena, doc, "distributed.dp_replicate_size", ls_yaml_new_uint(arena, w->assignment.size[0]));
        const struct ls_yaml_node *model = ls_yaml_get(doc, "model");
        const struct ls_yaml_node *inventory = model ? ls_yaml_get(model, "inventory") : NULL;
        char *real = inventory && inventory->kind == LS_YAML_SCALAR && s->model.path ? realpath(s->model.path, NULL) : NULL;
        if (real) /* the witness may be read from another folder */
            doc = ls_yaml_with(arena, doc, "model.inventory", ls_yaml_new_scalar(arena, real, true));
        free(real);
    }
    if (a->variant.frozen_sharding >= 0)
        doc = with_policy(doc, a->variant.frozen_sharding, arena);
    doc = ls_yaml_with(arena, doc, "name", ls_yaml_new_scalar(arena, ls_arena_printf(arena, "%s-witness", s->name), true));
    doc = ls_yaml_with(arena, doc, "expect", NULL);
    doc = ls_yaml_with(arena, doc, "expect.verdict", ls_yaml_new_scalar(arena, ls_verdict_name(a->verdict), false));
    if (a->seen_as)
        doc = ls_yaml_with(arena, doc, "expect.seen_as", ls_yaml_new_scalar(arena, a->seen_as, false));
    ls_yaml_write(doc, out);
    return LS_OK;
}
