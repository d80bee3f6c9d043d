/* The failing run as a scenario of its own: the same file with sizes, table, microbatches and steps fixed to the witness. */
#include "advise/advise.h"

#include "yaml/write.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint32_t sample_of_letter(const struct ls_scenario *s, const struct ls_assessment *a, uint32_t letter)
{
    uint32_t i = 0;
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
        const struct ls_yaml_node **cells = LS_NEW(arena, const struct ls_yaml_node *, replicas);
        size_t micro = 0, rows_count = 0, rounds = 0;
        for (size_t i = 0; i < w->assignment.rounds; i++) {
            uint32_t round = a->compiled.system.driver.node[w->assignment.node[i]].round;
            enum ls_round_kind kind = a->compiled.rounds.round[round].kind;
            if (kind == LS_ROUND_IDLE)
                continue;
            static const char *const name[] = { "micro", "step", "eval", "" };
            kinds[rounds++] = ls_yaml_new_scalar(arena, name[kind], false);
            micro += kind == LS_ROUND_MICRO;
            if (kind == LS_ROUND_STEP)
                continue;
            for (size_t x = 0; x < replicas; x++)
                cells[x] = ls_yaml_new_uint(arena, sample_of_letter(s, a, w->assignment.letter[i * replicas + x]));
            rows[rows_count++] = ls_yaml_new_list(arena, cells, replicas);
        }
        doc = ls_yaml_with(arena, doc, "batch.execution", NULL);
        doc = ls_yaml_with(arena, doc, "batch.execution.table", ls_yaml_new_list(arena, rows, rows_count));
        doc = ls_yaml_with(arena, doc, "batch.schedule", ls_yaml_new_list(arena, kinds, rounds));
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
