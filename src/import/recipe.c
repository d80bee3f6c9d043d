#include "import/internal.h"

#include <inttypes.h>
#include <string.h>

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

static void read_strategy(struct importer *i)
{
    const struct ls_yaml_node *strategy = ls_recipe_get(i->recipe, "distributed.strategy"), *target = ls_recipe_get(i->recipe, "distributed._target_");
    const char *path = strategy ? "distributed.strategy" : "distributed._target_", *name = "fsdp2";
    if (strategy) {
        name = strategy->kind == LS_YAML_SCALAR ? strategy->text : "";
    } else if (target) {
        const char *leaf = target->kind == LS_YAML_SCALAR && strrchr(target->text, '.') ? strrchr(target->text, '.') + 1 : "";
        name = strcmp(leaf, "FSDP2Manager") == 0 || strcmp(leaf, "FSDP2Config") == 0 ? "fsdp2" :
               strcmp(leaf, "DDPManager") == 0 || strcmp(leaf, "DDPConfig") == 0 ? "ddp" : "";
    }
    i->recipe->ddp = strcmp(name, "ddp") == 0;
    if (strcmp(name, "fsdp2") != 0 && !i->recipe->ddp)
        import_unsupported(i, path, strategy ? strategy : target, "a strategy other than fsdp2 and ddp");
    else if (strategy || target)
        import_note(i, LS_IMPORT_TAKEN, path, strategy ? strategy : target, "%s%s", strategy ? "" : "strategy: ", name);
    if (strategy && target)
        import_note(i, LS_IMPORT_NO_EFFECT, "distributed._target_", target, "the strategy is given");
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
    r->inventory = import_find_inventory(known, id->text, false);
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
    if (i->proposed) {
        ls_str_printf(&i->text, "freeze_config: %s\n", i->proposed->written);
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            const struct ls_yaml_node *key = ls_recipe_get(i->recipe, keys[k]);
            if (key)
                import_note(i, LS_IMPORT_TAKEN, keys[k], key, "%s, in the proposed keys", import_value(i, key));
        }
        return;
    }
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
        import_note(i, LS_IMPORT_TAKEN, "distributed.multimodal.vision.frame_sharding.enabled", enabled, "%s", i->recipe->cp == 1 ?
                    "true: nothing is cut over one rank" : "true: each context-parallel rank calls the tower with its share of the frames, once");
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
    if (r->ep == 1 || r->tp * r->pp != 1 || i->ranks % r->ep)
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
    if ((r->ep == 1 && !gates) || r->tp * r->pp != 1 || i->ranks % r->ep || !r->inventory || !backend || backend->kind != LS_YAML_MAP)
        return;
    write_keys(i, "backend", keys, sizeof keys / sizeof *keys, "dispatcher: torch");
}

/* AutoModel's defaults differ from PyTorch's; it never synchronises but in the last microbatch. */
static void write_ddp(struct importer *i)
{
    static const char *const keys[] = { "distributed.bucket_cap_mb", "distributed.find_unused_parameters", "distributed.static_graph",
                                        "distributed.gradient_as_bucket_view" };
    static const char *const elsewhere[] = { "distributed.activation_checkpointing", "distributed.activation_checkpointing_scope",
                                             "distributed.autocast_dtype" };
    ls_str_add(&i->text, "  ddp:\n");
    if (!ls_recipe_get(i->recipe, "distributed.broadcast_buffers"))
        ls_str_add(&i->text, "    broadcast_buffers: false # AutoModel's default\n");
    take_scalar(i, "distributed.broadcast_buffers", "    ");
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        if (!ls_recipe_get(i->recipe, keys[k]) || !ls_yaml_is_null(ls_recipe_get(i->recipe, keys[k])))
            take_scalar(i, keys[k], "    ");
    for (size_t k = 0; k < sizeof elsewhere / sizeof *elsewhere; k++)
        if (ls_recipe_get(i->recipe, elsewhere[k]))
            import_note(i, LS_IMPORT_NO_EFFECT, elsewhere[k], ls_recipe_get(i->recipe, elsewhere[k]), "DDP reduces the same gradients");
}

static void write_fsdp2(struct importer *i)
{
    static const char *const plain[] = { "distributed.reshard_after_forward", "distributed.enable_fsdp2_prefetch",
                                         "distributed.fsdp2_forward_prefetch_depth", "distributed.fsdp2_backward_prefetch_depth" };
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

static void write_distributed(struct importer *i)
{
    ls_str_printf(&i->text, "distributed:\n  strategy: %s\n  rules: %s\n  dp_size: %" PRIu64, i->recipe->ddp ? "ddp" : "fsdp2",
                  i->proposed ? "proposed" : "automodel", i->ranks);
    if (i->recipe->cp > 1)
        ls_str_printf(&i->text, " # %" PRIu64 " data- x %" PRIu64 " context-parallel ranks", i->dp, i->recipe->cp);
    ls_str_add(&i->text, "\n");
    i->recipe->ddp ? write_ddp(i) : write_fsdp2(i);
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
    bool one_batch = i->dp == 1 && i->ranks > 1;
    if (i->recipe->ddp)
        ls_str_add(&i->text, "  accumulation: {gradient_sync: last} # no_sync() in the other microbatches\n");
    ls_str_printf(&i->text, "  execution: %s\n  steps: any\n", one_batch ? "rank_uniform # one data-parallel rank: all hold one batch" : "any");
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

/* The scenario up to here; `inventory` is what it calls its inventory. */
const char *import_text(const struct importer *i, const char *inventory)
{
    struct ls_str s = { 0 };
    const char *path = i->recipe->path;
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path, *dot = strrchr(base, '.');
    const char *name = ls_arena_strn(i->arena, base, dot && dot != base ? (size_t)(dot - base) : strlen(base));
    ls_str_add(&s, "lockstep: 1\nname: ");
    add_quoted(&s, name);
    ls_str_add(&s, "\nquestion: Do all ranks issue the same collectives, whatever media each of them holds?\nmodel:\n  inventory: ");
    add_quoted(&s, inventory);
    ls_str_printf(&s, "\n%s", ls_str_text(&i->text));
    const char *out = ls_arena_str(i->arena, ls_str_text(&s));
    ls_str_release(&s);
    return out;
}

static const char *inventory_name(const struct importer *i)
{
    const char *path = i->recipe->inventory ? i->recipe->inventory->path : "", *slash = strrchr(path, '/');
    return i->inventory ? i->inventory : slash ? ls_arena_printf(i->arena, "models/%s", slash + 1) : path;
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

/* With context parallelism every unit reduces zeros for parameters without gradient, and gradients of one reduction get one type. */
static void write_runtime(struct importer *i)
{
    if (i->recipe->cp > 1)
        ls_str_add(&i->text, "runtime:\n  fsdp2: {unused_params: fallback, uniform_reduce_dtype: true} # as AutoModel installs them with cp_size above 1\n");
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
    if (rc == LS_OK && ls_recipe_get(out, "lockstep")) {
        rc = ls_fail(err, LS_EINPUT, out->root->at, "this is a scenario of Lockstep, not a recipe");
        ls_hint(err, "'lockstep check' takes it as it is");
    }
    if (rc == LS_OK && (!ls_recipe_get(out, "model") || !ls_recipe_get(out, "distributed")))
        rc = ls_fail(err, LS_EINPUT, out->root->at, "this is no AutoModel recipe: '%s' is missing",
                     ls_recipe_get(out, "model") ? "distributed" : "model");
    if (rc != LS_OK)
        return rc;
    read_strategy(&i);
    read_unsupported(&i);
    read_model(&i, known);
    import_read_mesh(&i, known);
    read_policy(&i);
    out->global_batch = import_size(ls_recipe_get(out, "step_scheduler.global_batch_size"), 0);
    out->local_batch = import_size(ls_recipe_get(out, "step_scheduler.local_batch_size"), 0);
    keep(&i, out);
    release(&i);
    return LS_OK;
}

static bool all_modelled(const struct importer *i)
{
    for (size_t k = 0; k < i->note.count; k++)
        if (i->note.at[k].kind == LS_IMPORT_UNSUPPORTED)
            return false;
    return true;
}

/* Model, distribution, batch: everything that depends on the rules. */
static enum ls_code write_plan(struct importer *i)
{
    write_backend(i);
    enum ls_code rc = write_peft(i);
    if (rc != LS_OK)
        return rc;
    write_freeze(i);
    write_distributed(i);
    write_batch(i);
    write_step(i);
    write_runtime(i);
    return LS_OK;
}

static enum ls_code import(struct importer *i, bool proposed, struct ls_import *out)
{
    enum ls_code rc = import_fit_mesh(i), batch = rc;
    if (rc == LS_OK) {
        batch = read_batch(i);
        if (batch != LS_OK)
            i->microbatches = 1; /* of the part that is for facts */
        const size_t notes = i->note.count, seens = i->seen.count;
        rc = write_plan(i);
        if (rc == LS_OK && proposed && i->recipe->inventory && all_modelled(i)) {
            struct ls_import_freeze *freeze = LS_NEW(i->arena, struct ls_import_freeze, 1);
            rc = import_propose(i, write_plan, notes, seens, freeze);
            out->freeze = freeze;
        }
    }
    if (rc == LS_OK) {
        import_walk(i);
        if (i->recipe->inventory)
            out->part = import_text(i, inventory_name(i));
        if (i->recipe->inventory && i->recipe->tp > 1)
            rc = import_check_tensor_parallel(i);
    }
    rc = rc == LS_OK ? batch : rc;
    const struct ls_recipe *r = i->recipe;
    if (rc == LS_OK && r->tp * r->pp == 1 && i->ranks % r->ep)
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
    import_write_freeze_list(i);
    out->text = import_text(i, inventory_name(i));
    return LS_OK;
}

enum ls_code ls_recipe_import(const struct ls_recipe *r, const struct ls_import_options *o, struct ls_arena *arena, struct ls_import *out, struct ls_error *err)
{
    struct ls_recipe copy = *r;
    *out = (struct ls_import){ 0 };
    struct importer i = { .arena = arena, .err = err, .recipe = &copy, .world = o->world_size, .inventory = o->inventory };
    for (size_t k = 0; k < r->notes; k++)
        ls_push(&i.note, r->note[k]);
    for (size_t k = 0; k < r->seens; k++)
        ls_push(&i.seen, r->seen[k]);
    enum ls_code rc = import(&i, o->proposed, out);
    out->notes = i.note.count;
    out->note = i.note.count ? ls_arena_copy(arena, i.note.at, i.note.count * sizeof *i.note.at) : NULL;
    release(&i);
    return rc;
}
