/* Sizes of the mesh, and which of them a scenario can stand for.
 *
 * The ranks of a context- or tensor-parallel group read the same batch: AutoModel's data loader is given the rank of the data-parallel
 * axis alone. So they issue the same calls in the same order, and what they issue among themselves (attention of a cut sequence, sums
 * of a cut matrix, frames cut over them) matches whatever the data are. What may differ is left to FSDP's collectives:
 *
 *   tensor   FSDP cuts over the other axes, so ranks with one place in their groups form a job of their own, and these jobs do the same.
 *            One of them is the scenario. Sizes are those of whole parameters.
 *   context  FSDP cuts over data- and context-parallel ranks together: dp_size of the scenario is dp x cp. It says less than the recipe,
 *            which keeps batches equal within a group: safe is safe. What two ranks with different batches can do to each other they can
 *            do in two groups, so nothing more is refuted either, as long as there are two: with one, `execution` is rank_uniform.
 *
 *   source   AutoModel 0.6.0 and 0.7.0: recipes/vlm/finetune.py (dp_rank of the data loader), recipes/base_recipe.py (_get_dp_rank),
 *            components/distributed/mesh.py (dp_shard_cp), parallelizer.py and parallelizer_utils.py (unused parameters under cp) */
#include "import/internal.h"

#include <inttypes.h>
#include <string.h>

enum { RANKS_MAX = 1 << 20 };

/* Classes that embed a whole batch and encode its media on every context-parallel rank before the sequence is cut: the tower is called
 * as often as without context parallelism, with frame_sharding too (each rank gets at least one frame, if need be an empty one). In which
 * order they call the rest does not matter here: without expert parallelism only items of lists and the root are units (AutoModel 0.6).
 *   source  AutoModel 0.7.0, components/models: qwen3_5/model.py, qwen3_vl/model.py, muse_glimmer/model.py, gemma4_moe/model.py;
 *           components/distributed/cp_vision_frame_shard.py */
static bool encodes_whole_batch(const char *architecture)
{
    static const char *const classes[] = { "Qwen3_5ForConditionalGeneration", "Qwen3VLForConditionalGeneration",
                                           "MuseGlimmerForConditionalGeneration", "Gemma4ForConditionalGeneration" };
    for (size_t k = 0; architecture && k < sizeof classes / sizeof *classes; k++)
        if (strcmp(architecture, classes[k]) == 0)
            return true;
    return false;
}

/* AutoModel reads a size that is no positive integer as not given. */
uint64_t import_size(const struct ls_yaml_node *n, uint64_t otherwise)
{
    if (!n || n->kind != LS_YAML_SCALAR || !n->text[0] || strlen(n->text) > 9 || n->text[strspn(n->text, "0123456789")])
        return otherwise;
    uint64_t value = 0;
    for (const char *c = n->text; *c; c++)
        value = value * 10 + (uint64_t)(*c - '0');
    return value ? value : otherwise;
}

/* Classes that call their parts in the same order with context parallelism: embed_tokens, the tower if there are media, the text model.
 *   source  AutoModel 0.6.0 and 0.7.0, components/models/gemma4_moe/model.py, the routed path of forward */
static bool same_order(const char *architecture)
{
    return architecture && strcmp(architecture, "Gemma4ForConditionalGeneration") == 0;
}

/* Beside expert parallelism embed_tokens and the text model are units of their own, so the order of their calls matters. And an expert
 * group must span ranks with batches of their own, or `any` would let it hold batches that it never holds. */
static void read_context(struct importer *i, const struct ls_yaml_node *n, const struct ls_inventories *known)
{
    struct ls_recipe *r = i->recipe;
    const char *architecture = r->inventory ? r->inventory->architecture : NULL;
    if (!r->inventory)
        return;
    if (r->ep == 1) {
        if (!encodes_whole_batch(architecture))
            import_unsupported(i, "distributed.cp_size", n, ls_arena_printf(i->arena, "context parallelism of %s",
                               architecture ? architecture : "a class without a name"));
        return;
    }
    const struct ls_inventory *cut = same_order(architecture) ? r->inventory : import_find_inventory(known, r->model_id, true);
    if (r->ep % r->cp || r->ep == r->cp)
        import_unsupported(i, "distributed.cp_size", n, "expert groups inside a context-parallel group");
    else if (!cut || (known->any_model && !cut->context_parallel && !same_order(architecture)))
        import_unsupported(i, "distributed.cp_size", n, ls_arena_printf(i->arena, "context parallelism beside expert parallelism: the order of "
                           "calls of %s", architecture ? architecture : "a class without a name"));
    else if (cut != r->inventory) {
        for (size_t k = 0; k < i->note.count; k++)
            if (i->note.at[k].kind == LS_IMPORT_TAKEN && strncmp(i->note.at[k].key, "model.", 6) == 0)
                i->note.at[k].what = ls_arena_printf(i->arena, "%s: %s", import_clean(i->arena, r->model_id), cut->path);
        r->inventory = cut;
    }
}

void import_read_mesh(struct importer *i, const struct ls_inventories *known)
{
    struct ls_recipe *r = i->recipe;
    const struct { const char *path; uint64_t *to; } sizes[] = { { "distributed.cp_size", &r->cp }, { "distributed.tp_size", &r->tp },
                                                                 { "distributed.pp_size", &r->pp }, { "distributed.ep_size", &r->ep } };
    const struct ls_yaml_node *node[4];
    for (size_t k = 0; k < 4; k++) {
        node[k] = ls_recipe_get(r, sizes[k].path);
        *sizes[k].to = import_size(node[k], 1);
        if (node[k] && *sizes[k].to == 1)
            import_note(i, LS_IMPORT_TAKEN, sizes[k].path, node[k], "1");
    }
    r->dp = import_size(ls_recipe_get(r, "distributed.dp_size"), 0);
    r->dp_replicate = import_size(ls_recipe_get(r, "distributed.dp_replicate_size"), 1);
    for (size_t k = 0; k < 4 && r->ddp; k++)
        if (*sizes[k].to > 1)
            import_unsupported(i, sizes[k].path, node[k], "DDP beside another parallelism, which AutoModel refuses");
    if (r->ddp)
        return;
    if (r->pp > 1)
        import_unsupported(i, "distributed.pp_size", node[2], "pipeline parallelism");
    if (r->cp > 1)
        read_context(i, node[0], known);
    if (r->tp > 1 && r->ep > 1)
        import_unsupported(i, "distributed.tp_size", node[1], "tensor parallelism beside expert parallelism");
    if (r->ep > 1)
        import_note(i, LS_IMPORT_TAKEN, "distributed.ep_size", node[3], "%" PRIu64, r->ep);
}

enum ls_code import_fit_mesh(struct importer *i)
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
    i->ranks = i->dp * r->cp;
    if (i->dp * inner != world)
        return ls_fail(i->err, LS_EINPUT, at, "'dp_size' %" PRIu64 " with cp x tp x pp = %" PRIu64 " is not the world size %" PRIu64, i->dp,
                       inner, world);
    import_note(i, LS_IMPORT_TAKEN, "distributed.dp_size", dp, "%" PRIu64 "%s", i->dp, r->dp ? "" : ", from the world size");
    if (i->dp % r->dp_replicate || (r->dp_replicate > 1 && r->dp_replicate >= i->dp))
        return ls_fail(i->err, LS_EINPUT, replicate->at, "'dp_replicate_size' %" PRIu64 " does not divide 'dp_size' %" PRIu64
                       ", or is not smaller", r->dp_replicate, i->dp);
    if (replicate)
        import_note(i, LS_IMPORT_TAKEN, "distributed.dp_replicate_size", replicate, "%" PRIu64, r->dp_replicate);
    if (r->cp > 1)
        import_note(i, LS_IMPORT_TAKEN, "distributed.cp_size", ls_recipe_get(r, "distributed.cp_size"), "%" PRIu64 ": dp_size is %" PRIu64 " x %"
                    PRIu64 ", for FSDP cuts over both; ranks of a context-parallel group hold one batch", r->cp, i->dp, r->cp);
    if (r->tp > 1)
        import_note(i, LS_IMPORT_TAKEN, "distributed.tp_size", ls_recipe_get(r, "distributed.tp_size"), "%" PRIu64
                    ": left out; ranks of a tensor-parallel group hold one batch and do the same", r->tp);
    return LS_OK;
}

/* The norm of gradients is summed for each mesh and placement that has gradients on the rank: cut matrices have others than the rest,
 * and a module that trains and runs only with its medium may be all that a placement has. */
enum ls_code import_check_tensor_parallel(struct importer *i)
{
    const char *trains = NULL;
    struct ls_arena scratch;
    struct ls_names *names = ls_names_open();
    struct ls_scenario s;
    struct ls_specs known = { 0 };
    ls_arena_init(&scratch, 0);
    enum ls_code rc = import_read_back(i, &scratch, names, &s);
    if (rc == LS_OK)
        rc = ls_multimodal_resolve(&s.model, LS_RULES_PROPOSED, NULL, 0, &known, i->err);
    for (size_t k = 0; k < known.count && rc == LS_OK && !trains; k++) {
        const struct ls_module *first = &s.model.module[known.spec[k].module], *last = first + first->subtree - 1;
        for (uint32_t p = first->first_param; p < last->first_param + last->params && known.spec[k].conditionally_executed; p++)
            if (s.final[s.model.param[p].canonical])
                trains = ls_name_text(s.model.names, first->name);
    }
    if (trains)
        import_unsupported(i, "distributed.tp_size", ls_recipe_get(i->recipe, "distributed.tp_size"),
                           ls_arena_printf(i->arena, "gradient norms of tensor parallelism where '%s' trains", trains));
    ls_names_close(names);
    ls_arena_release(&scratch);
    return rc;
}
