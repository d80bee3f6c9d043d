#include "import/internal.h"

#include <inttypes.h>
#include <string.h>

/* AutoModel reads a size that is no positive integer as not given. */
static uint64_t read_size(const struct ls_yaml_node *n, uint64_t otherwise)
{
    if (!n || n->kind != LS_YAML_SCALAR || !n->text[0] || strlen(n->text) > 9 || n->text[strspn(n->text, "0123456789")])
        return otherwise;
    uint64_t value = 0;
    for (const char *c = n->text; *c; c++)
        value = value * 10 + (uint64_t)(*c - '0');
    return value ? value : otherwise;
}

static void add_quoted(struct ls_str *s, const char *text)
{
    ls_str_add(s, "\"");
    for (const char *c = text; *c; c++)
        if (*c == '"' || *c == '\\')
            ls_str_printf(s, "\\%c", *c);
        else if ((unsigned char)*c < ' ' || *c == 0x7f)
            ls_str_printf(s, "\\x%02x", (unsigned)(unsigned char)*c);
        else
            ls_str_addn(s, c, 1);
    ls_str_add(s, "\"");
}

/* Takes a scalar over as it stands: "key: value". */
static void take_scalar(struct importer *i, const char *path, const char *indent)
{
    const struct ls_yaml_node *n = ls_recipe_get(i->recipe, path);
    if (!n)
        return;
    if (n->kind != LS_YAML_SCALAR) {
        import_unsupported(i, path, n, "a single value was expected");
        return;
    }
    const char *leaf = strrchr(path, '.') ? strrchr(path, '.') + 1 : path, *value = import_value(i, n);
    ls_str_printf(&i->text, "%s%s: ", indent, leaf);
    if (value[strspn(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")])
        add_quoted(&i->text, value);
    else
        ls_str_add(&i->text, value);
    ls_str_add(&i->text, "\n");
    import_note(i, LS_IMPORT_TAKEN, path, n, "%s", value);
}

static void read_mesh(struct importer *i)
{
    struct ls_recipe *r = i->recipe;
    const struct { const char *path, *what; uint64_t *to; } later[] = {
        { "distributed.cp_size", "context parallelism", &r->cp }, { "distributed.tp_size", "tensor parallelism", &r->tp },
        { "distributed.pp_size", "pipeline parallelism", &r->pp }, { "distributed.ep_size", "expert parallelism", &r->ep } };
    for (size_t k = 0; k < sizeof later / sizeof *later; k++) {
        const struct ls_yaml_node *n = ls_recipe_get(r, later[k].path);
        *later[k].to = read_size(n, 1);
        if (n && *later[k].to > 1 && later[k].to == &r->ep && r->cp * r->tp * r->pp == 1) /* alone it is modelled */
            import_note(i, LS_IMPORT_TAKEN, later[k].path, n, "%" PRIu64, r->ep);
        else if (n && *later[k].to > 1)
            import_unsupported(i, later[k].path, n, later[k].what);
        else if (n)
            import_note(i, LS_IMPORT_TAKEN, later[k].path, n, "1");
    }
    r->dp = read_size(ls_recipe_get(r, "distributed.dp_size"), 0);
    r->dp_replicate = read_size(ls_recipe_get(r, "distributed.dp_replicate_size"), 1);
}

enum { RANKS_MAX = 1 << 20 };

static enum ls_code fit_mesh(struct importer *i)
{
    const struct ls_recipe *r = i->recipe;
    const uint64_t inner = r->cp * r->tp * r->pp, world = i->world;
    const struct ls_yaml_node *dp = ls_recipe_get(r, "distributed.dp_size"), *replicate = ls_recipe_get(r, "distributed.dp_replicate_size");
    struct ls_loc at = dp ? dp->at : r->root->at;
    const uint64_t size[] = { r->dp, r->cp, r->tp, r->pp, r->ep };
    for (size_t k = 0; k < sizeof size / sizeof *size; k++)
        if (size[k] > RANKS_MAX) /* products of what is left fit in 64 bits */
            return ls_fail(i->err, LS_EINPUT, at, "a mesh size is %" PRIu64 ", which is more than %d", size[k], RANKS_MAX);
    if (!world || world % inner)
        return ls_fail(i->err, LS_EINPUT, at, "the world size %" PRIu64 " is not a multiple of cp x tp x pp = %" PRIu64, world, inner);
    i->dp = r->dp ? r->dp : world / inner;
    if (i->dp * inner != world)
        return ls_fail(i->err, LS_EINPUT, at, "'dp_size' %" PRIu64 " with cp x tp x pp = %" PRIu64 " is not the world size %" PRIu64, i->dp,
                       inner, world);
    import_note(i, LS_IMPORT_TAKEN, "distributed.dp_size", dp, "%" PRIu64 "%s", i->dp, r->dp ? "" : ", from the world size");
    if (i->dp % r->dp_replicate || (r->dp_replicate > 1 && r->dp_replicate >= i->dp))
        return ls_fail(i->err, LS_EINPUT, replicate->at, "'dp_replicate_size' %" PRIu64 " does not divide 'dp_size' %" PRIu64
                       ", or is not smaller", r->dp_replicate, i->dp);
    if (replicate)
        import_note(i, LS_IMPORT_TAKEN, "distributed.dp_replicate_size", replicate, "%" PRIu64, r->dp_replicate);
    return LS_OK;
}

static void read_strategy(struct importer *i)
{
    const struct ls_yaml_node *strategy = ls_recipe_get(i->recipe, "distributed.strategy"), *target = ls_recipe_get(i->recipe, "distributed._target_");
    if (strategy && !ls_yaml_is_text(strategy, "fsdp2"))
        import_unsupported(i, "distributed.strategy", strategy, "a strategy other than fsdp2");
    else if (strategy)
        import_note(i, LS_IMPORT_TAKEN, "distributed.strategy", strategy, "fsdp2");
    if (!target)
        return;
    const char *leaf = target->kind == LS_YAML_SCALAR && strrchr(target->text, '.') ? strrchr(target->text, '.') + 1 : "";
    if (strcmp(leaf, "FSDP2Manager") == 0 || strcmp(leaf, "FSDP2Config") == 0)
        import_note(i, LS_IMPORT_TAKEN, "distributed._target_", target, "strategy: fsdp2");
    else
        import_unsupported(i, "distributed._target_", target, "a manager other than FSDP2Manager");
}

/* What cannot be a scenario whatever its values are. */
static void read_unsupported(struct importer *i)
{
    static const struct { const char *path, *why; } parts[] = {
        { "teacher_model", "a second, frozen model beside the trained one" },
        { "teacher_distributed", "a second mesh" },
        { "teacher_freeze_config", "a second, frozen model beside the trained one" },
        { "kd_loss_fn", "a second, frozen model beside the trained one" },
        { "kd_ratio", "a second, frozen model beside the trained one" },
        { "offload_teacher_model", "a second, frozen model beside the trained one" },
        { "separate_meshes", "a second mesh" },
        { "model.drafter_path", "a drafter trained beside the model" },
        { "distributed.offload_policy", "offloading to the host" },
    };
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
        const struct ls_yaml_node *n = ls_recipe_get(i->recipe, parts[k].path);
        if (n && !ls_yaml_is_null(n))
            import_unsupported(i, parts[k].path, n, parts[k].why);
    }
}

static void read_model(struct importer *i, const struct ls_inventories *known)
{
    struct ls_recipe *r = i->recipe;
    const char *path = "model.pretrained_model_name_or_path";
    const struct ls_yaml_node *id = ls_recipe_get(r, path);
    if (!id) {
        path = "model.config.pretrained_model_name_or_path";
        id = ls_recipe_get(r, path);
    }
    if (!id || id->kind != LS_YAML_SCALAR) {
        import_unsupported(i, "model", ls_recipe_get(r, "model"), "a model that is put together, without pretrained_model_name_or_path");
        return;
    }
    r->model_id = id->text;
    r->inventory = import_find_inventory(known, id->text);
    if (!r->inventory)
        import_unsupported(i, path, id, "no inventory has it among its model_ids; record one with tests/oracle/record_inventory.py");
    else
        import_note(i, LS_IMPORT_TAKEN, path, id, "%s: %s", import_value(i, id), r->inventory->path);
}

/* AutoModel reads PER-LAYER as per_layer. */
static void read_policy(struct importer *i)
{
    const struct ls_yaml_node *frozen = ls_recipe_get(i->recipe, "distributed.multimodal.frozen_sharding");
    if (!frozen || frozen->kind != LS_YAML_SCALAR)
        return;
    char *value = ls_arena_str(i->arena, import_value(i, frozen));
    for (char *c = value; *c; c++)
        *c = *c == '-' ? '_' : *c >= 'A' && *c <= 'Z' ? (char)(*c - 'A' + 'a') : *c;
    i->recipe->frozen_sharding = value;
}

static enum ls_code write_peft(struct importer *i)
{
    const struct ls_yaml_node *peft = ls_recipe_get(i->recipe, "peft"), *dim;
    const char **target;
    size_t targets;
    if (!peft || ls_yaml_is_null(peft) || !i->recipe->inventory)
        return LS_OK;
    enum ls_code rc = ls_yaml_map(peft, "peft", i->err);
    if (rc == LS_OK)
        rc = import_peft_targets(i, peft, &target, &targets);
    if (rc != LS_OK)
        return rc;
    ls_str_add(&i->text, "  peft:\n    kind: lora\n    targets:\n");
    for (size_t k = 0; k < targets; k++) {
        ls_str_add(&i->text, "      - ");
        add_quoted(&i->text, target[k]);
        ls_str_add(&i->text, "\n");
    }
    uint64_t rank = 8;
    if ((dim = ls_yaml_get(peft, "dim")))
        rc = ls_yaml_uint(dim, "dim", 1, 1 << 16, &rank, i->err);
    if (rc != LS_OK)
        return rc;
    ls_str_printf(&i->text, "    rank: %" PRIu64 "\n", rank);
    import_note(i, LS_IMPORT_TAKEN, "peft.dim", dim, "rank %" PRIu64, rank);
    static const char *const other[][2] = { { "peft.use_dora", "adapters with magnitudes" },
                                            { "peft.expert_weight_format", "experts stored in another format than their adapters" } };
    for (size_t k = 0; k < sizeof other / sizeof *other; k++) {
        const struct ls_yaml_node *n = ls_recipe_get(i->recipe, other[k][0]);
        if (n && !ls_yaml_is_null(n) && !ls_yaml_is_text(n, "false") && !ls_yaml_is_text(n, "unquantized"))
            import_unsupported(i, other[k][0], n, other[k][1]);
    }
    const struct ls_yaml_node *scaled = ls_yaml_get(peft, "moe_rank_scaling");
    if (scaled && ls_yaml_is_text(scaled, "true")) {
        ls_str_add(&i->text, "    moe_rank_scaling: true\n");
        import_note(i, LS_IMPORT_TAKEN, "peft.moe_rank_scaling", scaled, "true");
    }
    static const char *const keys[] = { "peft.target_modules", "peft.exclude_modules" };
    for (size_t k = 0; k < 2; k++)
        if (ls_recipe_get(i->recipe, keys[k]))
            import_note(i, LS_IMPORT_TAKEN, keys[k], ls_recipe_get(i->recipe, keys[k]), "%zu targets", targets);
    const struct ls_yaml_node *every = ls_yaml_get(peft, "match_all_linear");
    if (every && ls_yaml_is_text(every, "true"))
        import_note(i, LS_IMPORT_TAKEN, "peft.match_all_linear", every, "%zu targets", targets);
    return LS_OK;
}

static void write_freeze(struct importer *i)
{
    static const char *const keys[] = { "freeze_config.freeze_vision_tower", "freeze_config.freeze_audio_tower",
                                        "freeze_config.freeze_language_model", "freeze_config.freeze_video_embedder" };
    const struct ls_yaml_node *n = ls_recipe_get(i->recipe, "freeze_config");
    if (!n || ls_yaml_is_null(n))
        return;
    ls_str_add(&i->text, "freeze_config:\n");
    size_t before = i->text.length;
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        take_scalar(i, keys[k], "  ");
    if (i->text.length == before) /* the section alone freezes the vision tower */
        ls_str_add(&i->text, "  freeze_vision_tower: true\n");
}

/* The policy of `distributed.multimodal`, as it stands. */
static void write_multimodal(struct importer *i)
{
    const struct ls_yaml_node *enabled = ls_recipe_get(i->recipe, "distributed.multimodal.vision.frame_sharding.enabled");
    if (enabled && ls_yaml_is_text(enabled, "true"))
        import_unsupported(i, "distributed.multimodal.vision.frame_sharding.enabled", enabled, "frames cut over context-parallel ranks");
    if (!ls_recipe_get(i->recipe, "distributed.multimodal.frozen_sharding"))
        return;
    const char *path = "distributed.multimodal.frozen_sharding";
    const struct ls_yaml_node *frozen = ls_recipe_get(i->recipe, path);
    if (frozen->kind != LS_YAML_SCALAR) {
        import_unsupported(i, path, frozen, "a single value was expected");
        return;
    }
    const char *value = i->recipe->frozen_sharding;
    ls_str_add(&i->text, "  multimodal:\n    frozen_sharding: ");
    add_quoted(&i->text, value);
    ls_str_add(&i->text, "\n");
    import_note(i, LS_IMPORT_TAKEN, path, frozen, "%s", value);
}

static void write_checkpointing(struct importer *i)
{
    const char *path = "distributed.activation_checkpointing", *scope_path = "distributed.activation_checkpointing_scope";
    const struct ls_yaml_node *n = ls_recipe_get(i->recipe, path), *scope = ls_recipe_get(i->recipe, scope_path);
    if (scope && !ls_yaml_is_null(scope) && !ls_yaml_is_text(scope, "all"))
        import_unsupported(i, scope_path, scope, "a scope other than all");
    if (!n)
        return;
    if (ls_yaml_is_text(n, "selective")) {
        /* Which ops a layer keeps is below FSDP's hooks: it re-enters the same modules as full checkpointing. */
        ls_str_add(&i->text, "  activation_checkpointing: true\n");
        import_note(i, LS_IMPORT_TAKEN, path, n, "selective, as true: FSDP issues the same, memory differs");
        return;
    }
    take_scalar(i, path, "  ");
}

/* A section with those of the keys that the recipe gives, or with `otherwise`. */
static void write_keys(struct importer *i, const char *section, const char *const *key, size_t keys, const char *otherwise)
{
    ls_str_printf(&i->text, "  %s:\n", section);
    size_t before = i->text.length;
    for (size_t k = 0; k < keys; k++)
        take_scalar(i, key[k], "    ");
    if (i->text.length == before)
        ls_str_printf(&i->text, "    %s\n", otherwise);
}

static void write_mp_policy(struct importer *i)
{
    static const char *const keys[] = { "distributed.mp_policy.param_dtype", "distributed.mp_policy.reduce_dtype",
                                        "distributed.mp_policy.output_dtype", "distributed.mp_policy.cast_forward_inputs" };
    const struct ls_yaml_node *n = ls_recipe_get(i->recipe, "distributed.mp_policy");
    if (n && n->kind == LS_YAML_MAP)
        write_keys(i, "mp_policy", keys, sizeof keys / sizeof *keys, "cast_forward_inputs: true");
}

/* Where experts are spread over ranks; the defaults of AutoModel's classes are those of the scenario. */
static void write_experts(struct importer *i)
{
    static const char *const keys[] = { "distributed.moe.wrap_outer_model", "distributed.moe.reshard_after_forward",
                                        "distributed.moe.ignore_router_for_ac", "distributed.moe.lm_head_precision" };
    const struct ls_recipe *r = i->recipe;
    if (r->ep == 1 || r->cp * r->tp * r->pp != 1 || i->dp % r->ep)
        return;
    ls_str_printf(&i->text, "  ep_size: %" PRIu64 "\n", r->ep);
    const struct ls_yaml_node *moe = ls_recipe_get(r, "distributed.moe");
    if (!moe || moe->kind != LS_YAML_MAP)
        return;
    write_keys(i, "moe", keys, sizeof keys / sizeof *keys, "wrap_outer_model: true");
}

/* The part of model.backend that decides what a layer of experts issues. */
static void write_backend(struct importer *i)
{
    static const char *const keys[] = { "model.backend.dispatcher", "model.backend.experts", "model.backend.enable_fsdp_optimizations",
                                        "model.backend.fake_balanced_gate", "model.backend.benchmark_static_routing" };
    const struct ls_recipe *r = i->recipe;
    const struct ls_yaml_node *backend = ls_recipe_get(r, "model.backend");
    const struct ls_yaml_node *fake = ls_recipe_get(r, "model.backend.fake_balanced_gate");
    const bool gates = fake && ls_yaml_is_text(fake, "true"); /* also without expert parallelism */
    if ((r->ep == 1 && !gates) || r->cp * r->tp * r->pp != 1 || i->dp % r->ep || !r->inventory || !backend || backend->kind != LS_YAML_MAP)
        return;
    write_keys(i, "backend", keys, sizeof keys / sizeof *keys, "dispatcher: torch");
}

static void write_distributed(struct importer *i)
{
    static const char *const plain[] = { "distributed.reshard_after_forward", "distributed.enable_fsdp2_prefetch",
                                         "distributed.fsdp2_forward_prefetch_depth", "distributed.fsdp2_backward_prefetch_depth" };
    ls_str_printf(&i->text, "distributed:\n  strategy: fsdp2\n  rules: automodel\n  dp_size: %" PRIu64 "\n", i->dp);
    if (i->recipe->dp_replicate > 1)
        ls_str_printf(&i->text, "  dp_replicate_size: %" PRIu64 "\n", i->recipe->dp_replicate);
    for (size_t k = 0; k < sizeof plain / sizeof *plain; k++)
        take_scalar(i, plain[k], "  ");
    write_experts(i);
    write_checkpointing(i);
    write_mp_policy(i);
    if (ls_recipe_get(i->recipe, "distributed.defer_fsdp_grad_sync"))
        take_scalar(i, "distributed.defer_fsdp_grad_sync", "  ");
    else
        ls_str_add(&i->text, "  defer_fsdp_grad_sync: true # AutoModel's default\n");
    write_multimodal(i);
}

static enum ls_code read_batch(struct importer *i)
{
    const struct ls_yaml_node *global = ls_recipe_get(i->recipe, "step_scheduler.global_batch_size"),
                              *local = ls_recipe_get(i->recipe, "step_scheduler.local_batch_size");
    uint64_t g = 1, b = 1;
    if (!global || !local)
        return ls_fail(i->err, LS_EINPUT, i->recipe->root->at, "'step_scheduler' lacks '%s'", global ? "local_batch_size" : "global_batch_size");
    enum ls_code rc = ls_yaml_uint(global, "global_batch_size", 1, 1 << 30, &g, i->err);
    if (rc == LS_OK)
        rc = ls_yaml_uint(local, "local_batch_size", 1, 1 << 20, &b, i->err);
    if (rc != LS_OK)
        return rc;
    if (g % (b * i->dp))
        return ls_fail(i->err, LS_EINPUT, global->at, "'global_batch_size' %" PRIu64 " is not a multiple of 'local_batch_size' %" PRIu64
                       " x %" PRIu64 " data-parallel ranks", g, b, i->dp);
    i->microbatches = g / (b * i->dp);
    import_note(i, LS_IMPORT_TAKEN, "step_scheduler.global_batch_size", global, "%" PRIu64 " / (%" PRIu64 " x %" PRIu64 ") = %" PRIu64
                " microbatches", g, b, i->dp, i->microbatches);
    import_note(i, LS_IMPORT_TAKEN, "step_scheduler.local_batch_size", local, "%" PRIu64, b);
    return LS_OK;
}

static void write_batch(struct importer *i)
{
    static const struct { const char *condition, *key; } keys[] = { { "image", "images" }, { "video", "videos" }, { "audio", "audios" } };
    ls_str_printf(&i->text, "batch:\n  microbatches: %" PRIu64 "\n  samples: # the weakest assumption: any of these on any rank\n"
                  "    - {text: 512}\n", i->microbatches);
    const struct ls_inventory *inventory = i->recipe->inventory;
    for (size_t c = 0; inventory && c < inventory->conditions; c++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            if (strcmp(inventory->condition[c], keys[k].condition) == 0)
                ls_str_printf(&i->text, "    - {text: 512, %s: 1}\n", keys[k].key);
    ls_str_add(&i->text, "  execution: any\n  steps: any\n");
}

/* The VLM recipes reduce token counts before and the loss after the microbatches, and clip to 1.0 unless told otherwise. */
static void write_step(struct importer *i)
{
    const struct ls_yaml_node *n = ls_recipe_get(i->recipe, "clip_grad_norm.max_norm");
    bool off = n && (ls_yaml_is_null(n) || ls_yaml_is_text(n, "0") || ls_yaml_is_text(n, "0.0"));
    ls_str_printf(&i->text, "step:\n  clip_grad_norm: %s\n  metrics: [label_tokens, tokens, loss]\n", off ? "false" : "true");
    if (n)
        import_note(i, LS_IMPORT_TAKEN, "clip_grad_norm.max_norm", n, off ? "off" : "on");
}

static void write_head(struct importer *i)
{
    const char *path = i->recipe->path;
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path, *dot = strrchr(base, '.');
    const char *name = ls_arena_strn(i->arena, base, dot && dot != base ? (size_t)(dot - base) : strlen(base));
    ls_str_add(&i->text, "lockstep: 1\nname: ");
    add_quoted(&i->text, name);
    ls_str_add(&i->text, "\nquestion: Do all ranks issue the same collectives, whatever media each of them holds?\nmodel:\n  inventory: ");
    const char *inventory = i->recipe->inventory ? i->recipe->inventory->path : "", *slash = strrchr(inventory, '/');
    add_quoted(&i->text, i->inventory ? i->inventory : slash ? ls_arena_printf(i->arena, "models/%s", slash + 1) : inventory);
    ls_str_add(&i->text, "\n");
}

static void write_lists(struct importer *i)
{
    ls_str_printf(&i->text, "\n# Imported for %" PRIu64 " ranks.\n", i->world);
    for (int kind = LS_IMPORT_TAKEN; kind <= LS_IMPORT_UNKNOWN; kind++) {
        ls_str_printf(&i->text, "# %s:\n", ls_import_kind_title((enum ls_import_kind)kind));
        for (size_t k = 0; k < i->note.count; k++)
            if (i->note.at[k].kind == (enum ls_import_kind)kind)
                ls_str_printf(&i->text, "#   %s: %s\n", i->note.at[k].key, i->note.at[k].what);
    }
}

/* By place in the recipe; what has none (a default) comes first. */
static void sort_notes(struct importer *i)
{
    for (size_t k = 1; k < i->note.count; k++) {
        struct ls_import_note n = i->note.at[k];
        size_t at = k;
        for (; at > 0 && i->note.at[at - 1].at.line > n.at.line; at--)
            i->note.at[at] = i->note.at[at - 1];
        i->note.at[at] = n;
    }
}

static void keep(struct importer *i, struct ls_recipe *r)
{
    r->notes = i->note.count;
    r->note = i->note.count ? ls_arena_copy(i->arena, i->note.at, i->note.count * sizeof *i->note.at) : NULL;
    r->seens = i->seen.count;
    r->seen = i->seen.count ? ls_arena_copy(i->arena, i->seen.at, i->seen.count * sizeof *i->seen.at) : NULL;
}

static void release(struct importer *i)
{
    ls_vec_release(&i->note);
    ls_vec_release(&i->seen);
    ls_str_release(&i->text);
}

enum ls_code ls_recipe_load(const char *path, const struct ls_inventories *known, struct ls_arena *arena, struct ls_recipe *out,
                            struct ls_error *err)
{
    *out = (struct ls_recipe){ .path = ls_arena_str(arena, path), .dp_replicate = 1, .cp = 1, .tp = 1, .pp = 1, .ep = 1 };
    struct importer i = { .arena = arena, .err = err, .recipe = out };
    enum ls_code rc = ls_yaml_load_file(path, arena, &out->root, err);
    if (rc == LS_OK)
        rc = ls_yaml_map(out->root, "recipe", err);
    if (rc == LS_OK && (!ls_recipe_get(out, "model") || !ls_recipe_get(out, "distributed")))
        rc = ls_fail(err, LS_EINPUT, out->root->at, "this is no AutoModel recipe: '%s' is missing",
                     ls_recipe_get(out, "model") ? "distributed" : "model");
    if (rc != LS_OK)
        return rc;
    read_strategy(&i);
    read_unsupported(&i);
    read_model(&i, known);
    read_mesh(&i);
    read_policy(&i);
    out->global_batch = read_size(ls_recipe_get(out, "step_scheduler.global_batch_size"), 0);
    out->local_batch = read_size(ls_recipe_get(out, "step_scheduler.local_batch_size"), 0);
    keep(&i, out);
    release(&i);
    return LS_OK;
}

static enum ls_code import(struct importer *i, struct ls_import *out)
{
    enum ls_code rc = fit_mesh(i), batch = rc;
    if (rc == LS_OK) {
        batch = read_batch(i);
        if (batch != LS_OK)
            i->microbatches = 1; /* of the part that is for facts */
        write_head(i);
        write_backend(i);
        rc = write_peft(i);
    }
    if (rc == LS_OK) {
        write_freeze(i);
        write_distributed(i);
        write_batch(i);
        write_step(i);
        import_walk(i);
        if (i->recipe->inventory)
            out->part = ls_arena_str(i->arena, ls_str_text(&i->text));
    }
    rc = rc == LS_OK ? batch : rc;
    const struct ls_recipe *r = i->recipe;
    if (rc == LS_OK && r->cp * r->tp * r->pp == 1 && i->dp % r->ep)
        rc = ls_fail(i->err, LS_EINPUT, ls_recipe_get(r, "distributed.ep_size")->at, "the world size %" PRIu64 " is not a multiple of 'ep_size' %"
                     PRIu64, i->world, r->ep);
    sort_notes(i);
    /* What is not modelled matters more than a world size that does not fit. */
    for (size_t k = 0; k < i->note.count; k++)
        if (i->note.at[k].kind == LS_IMPORT_UNSUPPORTED)
            return ls_fail(i->err, LS_EINPUT, i->note.at[k].at, "'%s' is not modelled yet: %s", i->note.at[k].key, i->note.at[k].what);
    if (rc != LS_OK)
        return rc;
    write_lists(i);
    out->text = ls_arena_str(i->arena, ls_str_text(&i->text));
    return LS_OK;
}

enum ls_code ls_recipe_import(const struct ls_recipe *r, uint64_t world_size, const char *inventory, struct ls_arena *arena,
                              struct ls_import *out, struct ls_error *err)
{
    struct ls_recipe copy = *r;
    *out = (struct ls_import){ 0 };
    struct importer i = { .arena = arena, .err = err, .recipe = &copy, .world = world_size, .inventory = inventory };
    for (size_t k = 0; k < r->notes; k++)
        ls_push(&i.note, r->note[k]);
    for (size_t k = 0; k < r->seens; k++)
        ls_push(&i.seen, r->seen[k]);
    enum ls_code rc = import(&i, out);
    out->notes = i.note.count;
    out->note = i.note.count ? ls_arena_copy(arena, i.note.at, i.note.count * sizeof *i.note.at) : NULL;
    release(&i);
    return rc;
}
