/* The resolver.
 *   source  AutoModel nemo_automodel/shared/multimodal_fsdp.py for the 17 names; module paths of transformers 4.50 to 5.12 */
#include "multimodal/multimodal.h"

#include "base/vec.h"

#include <assert.h>
#include <string.h>

#define NAMES(X) /* leaf name, modality, role */                                                                          \
    X("visual", "vision", "tower") X("vision_tower", "vision", "tower") X("vision_model", "vision", "tower")              \
    X("vit_model", "vision", "tower") X("image_encoder", "vision", "tower") X("vision_encoder", "vision", "tower")        \
    X("audio_tower", "audio", "tower") X("audio_encoder", "audio", "tower") X("audio_model", "audio", "tower")            \
    X("embed_vision", "vision", "embedder") X("embed_audio", "audio", "embedder")                                         \
    X("mm_projector", "vision", "projector") X("multi_modal_projector", "vision", "projector")                            \
    X("multimodal_projector", "vision", "projector") X("vision_projector", "vision", "projector")                         \
    X("vit_large_projector", "vision", "projector") X("audio_projector", "audio", "projector")
#define NAME_ROW(leaf, modality, role) { leaf, modality, role },
static const struct { const char *leaf, *modality, *role; } names[] = { NAMES(NAME_ROW) };
enum { NAME_COUNT = sizeof names / sizeof *names };
static_assert(NAME_COUNT == 17, "nine towers and eight projectors");

/* Classes that cannot declare for themselves. Paths changed between releases of transformers; rows without a module are
 * skipped. */
static const struct { const char *architecture, *path, *modality, *role; } table[] = {
#define LLAVA(class)                                                                                                      \
    { class, "model.vision_tower", "vision", "tower" }, { class, "vision_tower", "vision", "tower" },                     \
    { class, "model.multi_modal_projector", "vision", "projector" }, { class, "multi_modal_projector", "vision", "projector" }
    LLAVA("Gemma3ForConditionalGeneration"), LLAVA("LlavaForConditionalGeneration"), LLAVA("LlavaNextForConditionalGeneration"),
    LLAVA("LlavaNextVideoForConditionalGeneration"), LLAVA("LlavaOnevisionForConditionalGeneration"),
    LLAVA("Mistral3ForConditionalGeneration"), LLAVA("InternVLForConditionalGeneration"),
    LLAVA("Cohere2VisionForConditionalGeneration"), LLAVA("PaliGemmaForConditionalGeneration"),
    LLAVA("KimiVLForConditionalGeneration"), LLAVA("VipLlavaForConditionalGeneration"), LLAVA("AyaVisionForConditionalGeneration"),
#undef LLAVA
#define QWEN(class, base)                                                                                                 \
    { class, base "visual", "vision", "tower" }, { class, base "visual.merger", "vision", "projector" },                  \
    { class, base "visual.deepstack_merger_list", "vision", "projector" }, { class, base "visual.merger_list", "vision", "projector" }
    QWEN("Qwen2VLForConditionalGeneration", "model."), QWEN("Qwen2VLForConditionalGeneration", ""),
    QWEN("Qwen2_5_VLForConditionalGeneration", "model."), QWEN("Qwen2_5_VLForConditionalGeneration", ""),
    QWEN("Qwen3VLForConditionalGeneration", "model."), QWEN("Qwen3VLMoeForConditionalGeneration", "model."),
    QWEN("Qwen3_5ForConditionalGeneration", "model."), QWEN("Qwen3_5MoeForConditionalGeneration", "model."),
    QWEN("Qwen2_5OmniForConditionalGeneration", "thinker."), QWEN("Qwen2_5OmniThinkerForConditionalGeneration", ""),
    QWEN("Qwen3OmniMoeForConditionalGeneration", "thinker."), QWEN("Qwen3OmniMoeThinkerForConditionalGeneration", ""),
#undef QWEN
    { "Qwen2_5OmniForConditionalGeneration", "thinker.audio_tower", "audio", "tower" },
    { "Qwen2_5OmniForConditionalGeneration", "thinker.audio_tower.proj", "audio", "projector" },
    { "Qwen2_5OmniThinkerForConditionalGeneration", "audio_tower", "audio", "tower" },
    { "Qwen2_5OmniThinkerForConditionalGeneration", "audio_tower.proj", "audio", "projector" },
    { "Qwen3OmniMoeForConditionalGeneration", "thinker.audio_tower", "audio", "tower" },
    { "Qwen3OmniMoeThinkerForConditionalGeneration", "audio_tower", "audio", "tower" },
#define GEMMA(class)                                                                                                      \
    { class, "model.vision_tower", "vision", "tower" }, { class, "model.embed_vision", "vision", "embedder" },            \
    { class, "model.audio_tower", "audio", "tower" }, { class, "model.embed_audio", "audio", "embedder" }
    GEMMA("Gemma3nForConditionalGeneration"), GEMMA("Gemma4ForConditionalGeneration"),
#undef GEMMA
    { "SmolVLMForConditionalGeneration", "model.vision_model", "vision", "tower" },
    { "SmolVLMForConditionalGeneration", "model.connector", "vision", "projector" },
    { "Idefics3ForConditionalGeneration", "model.vision_model", "vision", "tower" },
    { "Idefics3ForConditionalGeneration", "model.connector", "vision", "projector" },
    { "Llama4ForConditionalGeneration", "vision_model", "vision", "tower" },
    { "Llama4ForConditionalGeneration", "multi_modal_projector", "vision", "projector" },
    { "InternVLChatModel", "vision_model", "vision", "tower" },
    { "InternVLChatModel", "mlp1", "vision", "projector" },
    { "LlamaNemotronVLModel", "vision_model", "vision", "tower" },
    { "LlamaNemotronVLModel", "mlp1", "vision", "projector" },
};

static size_t find_name(const char *leaf)
{
    size_t i = 0;
    while (i < NAME_COUNT && strcmp(names[i].leaf, leaf) != 0)
        i++;
    return i;
}

bool ls_multimodal_name(const char *leaf) { return find_name(leaf) < NAME_COUNT; }

uint32_t ls_module_unwrapped(const struct ls_model *m, const char *path)
{
    static const char *const wrappers[] = { "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module" };
    uint32_t module = ls_model_module(m, path);
    if (module != LS_NO_ID)
        return module;
    struct ls_str out = { 0 };
    for (const char *p = path; *p;) {
        size_t length = strcspn(p, ".");
        bool wrapper = p == path && length == 6 && strncmp(p, "module", 6) == 0; /* of DDP, around the root */
        for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers; i++)
            wrapper = wrapper || (strlen(wrappers[i]) == length && strncmp(p, wrappers[i], length) == 0);
        if (!wrapper) {
            ls_str_add(&out, out.length ? "." : "");
            ls_str_addn(&out, p, length);
        }
        p += length + (p[length] == '.');
    }
    module = out.length ? ls_model_module(m, ls_str_text(&out)) : LS_NO_ID;
    ls_str_release(&out);
    return module;
}

struct resolver {
    const struct ls_model *m;
    LS_VEC(struct ls_spec) spec; /* in tree order */
};

static struct ls_spec *find_spec(struct resolver *r, uint32_t module)
{
    size_t low = 0, high = r->spec.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (r->spec.at[middle].module < module)
            low = middle + 1;
        else
            high = middle;
    }
    return low < r->spec.count && r->spec.at[low].module == module ? &r->spec.at[low] : NULL;
}

static void insert(struct resolver *r, struct ls_spec spec)
{
    ls_push(&r->spec, spec);
    for (size_t i = r->spec.count - 1; i > 0 && r->spec.at[i - 1].module > spec.module; i--) {
        r->spec.at[i] = r->spec.at[i - 1];
        r->spec.at[i - 1] = spec;
    }
}

static void add(struct resolver *r, uint32_t module, const char *modality, const char *role, enum ls_source source)
{
    insert(r, (struct ls_spec){ .module = module, .modality = ls_name_id(r->m->names, modality), .role = ls_name_id(r->m->names, role),
                                .conditionally_executed = true, .source = source, .at = r->m->module[module].at });
}

/* Modules with one of the 17 names; `maximal`: none inside another one. The root has no name. */
static void resolve_by_name(struct resolver *r, bool maximal)
{
    for (uint32_t i = 1; i < r->m->modules; i++) {
        size_t n = find_name(ls_name_text(r->m->names, r->m->module[i].leaf));
        if (n == NAME_COUNT)
            continue;
        add(r, i, names[n].modality, names[n].role, LS_SOURCE_NAME);
        if (maximal)
            i += r->m->module[i].subtree - 1;
    }
}

static void resolve_by_table(struct resolver *r)
{
    const char *architecture = ls_name_text(r->m->names, r->m->architecture);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strcmp(table[i].architecture, architecture) != 0)
            continue;
        uint32_t module = ls_model_module(r->m, table[i].path);
        if (module != LS_NO_ID && !find_spec(r, module))
            add(r, module, table[i].modality, table[i].role, LS_SOURCE_TABLE);
    }
}

static enum ls_code apply_override(struct resolver *r, const struct ls_override *o, struct ls_error *err)
{
    uint32_t module = ls_module_unwrapped(r->m, o->path);
    if (module == LS_NO_ID)
        return ls_fail_module(r->m, o->path, "multimodal path", o->at, err);
    struct ls_spec *spec = find_spec(r, module);
    if (spec && spec->source == LS_SOURCE_OVERRIDE)
        return ls_fail(err, LS_EINPUT, o->at, "'%.200s' is named twice", o->path);
    if (!spec) {
        add(r, module, "vision", "", LS_SOURCE_OVERRIDE);
        spec = find_spec(r, module);
    }
    spec->source = LS_SOURCE_OVERRIDE;
    spec->at = o->at;
    if (o->modality)
        spec->modality = ls_name_id(r->m->names, o->modality);
    if (o->role)
        spec->role = ls_name_id(r->m->names, o->role);
    if (o->conditionally_executed >= 0)
        spec->conditionally_executed = o->conditionally_executed != 0;
    return LS_OK;
}

/* Drops specs that say what the spec around them says already. */
static void drop_repeated(struct resolver *r)
{
    LS_VEC(size_t) around = { 0 }; /* kept specs, each inside the one before it */
    size_t kept = 0;
    for (size_t i = 0; i < r->spec.count; i++) {
        const struct ls_spec s = r->spec.at[i];
        while (around.count && !ls_module_contains(r->m, r->spec.at[around.at[around.count - 1]].module, s.module))
            around.count--;
        const struct ls_spec *outer = around.count ? &r->spec.at[around.at[around.count - 1]] : NULL;
        if (outer && s.source != LS_SOURCE_OVERRIDE && outer->modality == s.modality && outer->role == s.role &&
            outer->conditionally_executed == s.conditionally_executed)
            continue;
        ls_push(&around, kept);
        r->spec.at[kept++] = s;
    }
    ls_vec_release(&around);
    r->spec.count = kept;
}

static const char *name_warning(const struct resolver *r)
{
    const struct ls_model *m = r->m;
    struct ls_str text = { 0 };
    const char *class_name = ls_name_text(m->names, m->architecture);
    ls_str_printf(&text, "'%s' declares no multimodal modules and is not in the table of architectures; by their names these are taken:",
                  class_name[0] ? class_name : "the model");
    for (size_t i = 0; i < r->spec.count && i < 8; i++)
        ls_str_printf(&text, "%s %s (%s %s)", i ? "," : "", ls_name_text(m->names, m->module[r->spec.at[i].module].name),
                      ls_name_text(m->names, r->spec.at[i].modality), ls_name_text(m->names, r->spec.at[i].role));
    if (r->spec.count > 8)
        ls_str_printf(&text, ", and %zu more", r->spec.count - 8);
    const char *out = ls_arena_str(m->arena, ls_str_text(&text));
    ls_str_release(&text);
    return out;
}

enum ls_code ls_multimodal_resolve(const struct ls_model *m, enum ls_rules rules, const struct ls_override *override, size_t overrides,
                                   struct ls_specs *out, struct ls_error *err)
{
    struct resolver r = { .m = m };
    struct ls_specs specs = { 0 };
    enum ls_code rc = LS_OK;
    if (rules == LS_RULES_AUTOMODEL && overrides) {
        rc = ls_fail(err, LS_EINPUT, override[0].at, "AutoModel's rules go by the names of modules alone; they take no overrides");
        ls_hint(err, "'rules: proposed' has them");
        return rc;
    }
    if (rules == LS_RULES_AUTOMODEL) {
        resolve_by_name(&r, true);
    } else {
        for (size_t i = 0; i < m->declared_count; i++) {
            const struct ls_declared *d = &m->declared[i];
            insert(&r, (struct ls_spec){ .module = d->module, .modality = d->modality, .role = d->role, .at = d->at,
                                         .conditionally_executed = d->conditionally_executed, .source = LS_SOURCE_DECLARED });
        }
        if (!r.spec.count)
            resolve_by_table(&r);
        if (!r.spec.count) {
            resolve_by_name(&r, false);
            drop_repeated(&r);
            if (r.spec.count) {
                specs.warning = LS_NEW(m->arena, const char *, 1);
                specs.warning[specs.warnings++] = name_warning(&r);
            }
        }
        for (size_t i = 0; rc == LS_OK && i < overrides; i++)
            rc = apply_override(&r, &override[i], err);
        drop_repeated(&r);
    }
    for (size_t i = 0; i < r.spec.count; i++)
        r.spec.at[i].path = m->module[r.spec.at[i].module].name;
    if (rc == LS_OK) {
        specs.spec = ls_arena_copy(m->arena, r.spec.at, r.spec.count * sizeof *r.spec.at);
        specs.count = r.spec.count;
        *out = specs;
    }
    ls_vec_release(&r.spec);
    return rc;
}

enum ls_code ls_specs_bind(struct ls_specs *specs, const struct ls_model *m, struct ls_error *err)
{
    for (size_t i = 0; i < specs->count; i++)
        if (ls_model_module(m, ls_name_text(m->names, specs->spec[i].path)) == LS_NO_ID)
            return ls_fail_module(m, ls_name_text(m->names, specs->spec[i].path), "multimodal path", specs->spec[i].at, err);
    for (size_t i = 0; i < specs->count; i++) {
        struct ls_spec spec = specs->spec[i];
        size_t at = i;
        spec.module = ls_model_module(m, ls_name_text(m->names, spec.path));
        for (; at > 0 && specs->spec[at - 1].module > spec.module; at--)
            specs->spec[at] = specs->spec[at - 1];
        specs->spec[at] = spec;
    }
    return LS_OK;
}

uint32_t *ls_specs_of_params(const struct ls_model *m, const struct ls_specs *specs, struct ls_arena *arena)
{
    uint32_t *of = LS_NEW(arena, uint32_t, m->params);
    memset(of, 0xff, m->params * sizeof *of);
    for (uint32_t s = 0; s < specs->count; s++) { /* tree order: inner ones come later and overwrite */
        const struct ls_module *first = &m->module[specs->spec[s].module], *last = first + first->subtree - 1;
        for (uint32_t i = first->first_param; i < last->first_param + last->params; i++)
            of[i] = s;
    }
    return of;
}

bool ls_module_fully_frozen(const struct ls_model *m, uint32_t module, const bool *requires_grad)
{
    const struct ls_module *first = &m->module[module], *last = first + first->subtree - 1;
    const uint32_t end = last->first_param + last->params;
    for (uint32_t i = first->first_param; i < end; i++)
        if (requires_grad[i])
            return false;
    return end > first->first_param;
}
