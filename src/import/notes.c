/* The lists of an import, and the recipe keys that have no effect on what FSDP issues. */
#include "import/internal.h"
#include "scenario/keys.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct { const char *path, *why; } no_effect[] = {
    { "recipe", "the kind of loop; one step is the same" },
    { "seed", "random numbers" },
    { "rng", "random numbers" },
    { "optimizer", "works on the local shards" },
    { "lr_scheduler", "a number per step" },
    { "ema", "works on the local shards" },
    { "checkpoint", "saving happens between steps" },
    { "wandb", "logging" },
    { "ci", "how it is tested" },
    { "benchmark", "how it is measured" },
    { "prewarm", "before the first step" },
    { "dist_env", "the process groups' backend and timeouts" },
    { "dataset", "what a batch may hold is said by batch.samples" },
    { "dataloader", "what a batch may hold is said by batch.samples" },
    { "packed_sequence", "what a batch may hold is said by batch.samples" },
    { "validation_dataset", "validation is not in the schedule; add eval to batch.schedule" },
    { "validation_dataloader", "validation is not in the schedule; add eval to batch.schedule" },
    { "processor", "before the model" },
    { "tokenizer", "before the model" },
    { "loss_fn", "local to a rank" },
    { "step_scheduler", "how long, not what a step issues" },
    { "model._target_", "the class that loads it" },
    { "model.config._target_", "the class that loads it" },
    { "model.torch_dtype", "storage; FSDP gathers and reduces in mp_policy's types" },
    { "model.attn_implementation", "kernels inside a module" },
    { "model.use_liger_kernel", "kernels inside a module" },
    { "model.use_sdpa_patching", "kernels inside a module" },
    { "model.trust_remote_code", "how the class is found" },
    { "model.backend", "kernels inside a module, and expert parallelism" },
    { "model.text_config.use_cache", "used when text is generated" },
    { "model.text_config.output_hidden_states", "more outputs, the same calls" },
    { "peft._target_", "one kind of adapter" },
    { "peft.alpha", "scales what adapters add" },
    { "peft.dropout", "inside an adapter" },
    { "peft.use_triton", "kernels inside an adapter" },
    { "peft.use_memory_efficient_lora", "kernels inside an adapter" },
    { "peft.moe_rank_scaling", "false" },
    { "peft.use_dora", "false" },
    { "peft.expert_weight_format", "unquantized" },
    { "peft.match_all_linear", "false: the other keys decide" },
    { "distributed.multimodal.vision.frame_sharding", "how frames are cut; ranks of a context-parallel group decide it alike" },
    { "distributed.pipeline", "acts on pipeline parallelism only" },
};

const char *ls_import_kind_title(enum ls_import_kind k)
{
    switch (k) {
    case LS_IMPORT_TAKEN: return "taken over";
    case LS_IMPORT_NO_EFFECT: return "without effect";
    case LS_IMPORT_UNKNOWN: return "not understood";
    case LS_IMPORT_UNSUPPORTED: return "not modelled yet";
    }
    assert(0 && "unknown kind");
    return "";
}

const char *import_clean(struct ls_arena *arena, const char *text)
{
    char *copy = ls_arena_strn(arena, text, strnlen(text, 200));
    for (char *c = copy; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
    return copy;
}

const char *import_value(const struct importer *i, const struct ls_yaml_node *n)
{
    if (n->kind != LS_YAML_SCALAR)
        return n->kind == LS_YAML_LIST ? "a list" : "a mapping";
    return ls_yaml_is_null(n) ? "null" : import_clean(i->arena, n->text);
}

void import_note(struct importer *i, enum ls_import_kind kind, const char *key, const struct ls_yaml_node *value, const char *format, ...)
{
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    ls_push(&i->note, ((struct ls_import_note){ .kind = kind, .key = import_clean(i->arena, key), .what = ls_arena_str(i->arena, text),
                                                .at = value ? value->at : i->recipe->root->at }));
    if (value)
        ls_push(&i->seen, value);
}

void import_unsupported(struct importer *i, const char *key, const struct ls_yaml_node *value, const char *part)
{
    import_note(i, LS_IMPORT_UNSUPPORTED, key, value, "%s%s%s", value ? import_value(i, value) : "", value ? ": " : "", part);
    struct ls_import_note *n = &i->note.at[i->note.count - 1];
    n->part = part;
    n->value = value && value->kind == LS_YAML_SCALAR ? import_value(i, value) : NULL;
}

const struct ls_yaml_node *ls_recipe_get(const struct ls_recipe *r, const char *path)
{
    const struct ls_yaml_node *n = r->root;
    while (n && n->kind == LS_YAML_MAP) {
        char key[80];
        const char *dot = strchr(path, '.');
        size_t length = dot ? (size_t)(dot - path) : strlen(path);
        assert(length < sizeof key);
        memcpy(key, path, length);
        key[length] = 0;
        n = ls_yaml_get(n, key);
        if (!dot)
            return n;
        path = dot + 1;
    }
    return NULL;
}

static bool was_seen(const struct importer *i, const struct ls_yaml_node *n)
{
    for (size_t k = 0; k < i->seen.count; k++)
        if (i->seen.at[k] == n)
            return true;
    return false;
}

/* Something below was taken over, or is listed with a longer path: the keys are told apart. */
static bool splits(const struct importer *i, const struct ls_yaml_node *n, const char *path)
{
    size_t length = strlen(path);
    if (n->kind != LS_YAML_MAP || !n->count)
        return false;
    for (size_t k = 0; k < sizeof no_effect / sizeof *no_effect; k++)
        if (strncmp(no_effect[k].path, path, length) == 0 && no_effect[k].path[length] == '.')
            return true;
    for (size_t k = 0; k < n->count; k++)
        if (was_seen(i, n->pair[k].value) || splits(i, n->pair[k].value, path))
            return true;
    return strcmp(path, "distributed") == 0 || strcmp(path, "freeze_config") == 0;
}

/* AutoModel's distributed and freeze_config keys have their table in scenario/keys.c. */
static const struct ls_key_row *find_row(const char *path)
{
    char section[160];
    const char *dot = strrchr(path, '.');
    if (!dot)
        return NULL;
    snprintf(section, sizeof section, "%.*s", (int)(dot - path), path);
    const struct ls_key_row *row = ls_key_find(section, dot + 1);
    return row && !row->ours ? row : NULL;
}

static void walk(struct importer *i, const struct ls_yaml_node *n, const char *path, const char *why)
{
    for (size_t k = 0; k < sizeof no_effect / sizeof *no_effect; k++)
        if (strcmp(no_effect[k].path, path) == 0)
            why = no_effect[k].why;
    const struct ls_key_row *row = find_row(path);
    if (row && row->automodel == LS_KEY_NO_EFFECT)
        why = row->why;
    if (splits(i, n, path)) {
        for (size_t k = 0; k < n->count; k++)
            if (!was_seen(i, n->pair[k].value))
                walk(i, n->pair[k].value, ls_arena_printf(i->arena, "%s.%.200s", path, n->pair[k].key->text), why);
    } else if (why) {
        import_note(i, LS_IMPORT_NO_EFFECT, path, n, "%s", why);
    } else if (row && row->automodel == LS_KEY_REFUSED) {
        import_note(i, LS_IMPORT_UNKNOWN, path, n, "refused: %s", row->why);
    } else {
        import_note(i, LS_IMPORT_UNKNOWN, path, n, "%s", import_value(i, n));
    }
}

void import_walk(struct importer *i)
{
    const struct ls_yaml_node *root = i->recipe->root;
    for (size_t k = 0; k < root->count; k++)
        if (!was_seen(i, root->pair[k].value))
            walk(i, root->pair[k].value, root->pair[k].key->text, NULL);
}
