/* What a recipe says about its samples.
 *   source  AutoModel components/datasets: vlm/datasets.py, vlm/mock.py, vlm/fake_image.py, audio/, llm/; multimodal/ for BAGEL */
#include "audit/audit.h"

#include "yaml/yaml.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

const char *ls_media_name(enum ls_media m)
{
    switch (m) {
    case LS_MEDIA_UNKNOWN: return "unknown";
    case LS_MEDIA_NONE: return "none";
    case LS_MEDIA_IMAGE: return "image";
    case LS_MEDIA_AUDIO: return "audio";
    case LS_MEDIA_MIXED: return "mixed";
    }
    assert(0 && "unknown media");
    return "";
}

static const struct { const char *builder; enum ls_media media; } builders[] = {
    { "make_medpix_dataset", LS_MEDIA_IMAGE },
    { "make_rdr_dataset", LS_MEDIA_IMAGE },
    { "make_cord_v2_dataset", LS_MEDIA_IMAGE },
    { "make_shopify_product_catalogue_dataset", LS_MEDIA_IMAGE },
    { "make_cv17_dataset", LS_MEDIA_AUDIO },
    { "make_hf_audio_asr_dataset", LS_MEDIA_AUDIO },
    { "make_multi_en_asr_dataset", LS_MEDIA_AUDIO },
    { "make_tulu3_dataset", LS_MEDIA_NONE },
    { "make_tulu3_magicoder_text_mix_dataset", LS_MEDIA_NONE },
};

static bool is_true(const struct ls_yaml_node *n) { return n && (ls_yaml_is_text(n, "true") || ls_yaml_is_text(n, "True")); }
static bool is_false(const struct ls_yaml_node *n) { return n && (ls_yaml_is_text(n, "false") || ls_yaml_is_text(n, "False")); }

static const char *group_names(const struct ls_yaml_node *groups, struct ls_arena *arena)
{
    struct ls_str names = { 0 };
    for (size_t i = 0; i < groups->count; i++)
        ls_str_printf(&names, "%s%.60s", i ? ", " : "", groups->pair[i].key->text);
    const char *out = ls_arena_str(arena, ls_str_text(&names));
    ls_str_release(&names);
    return out;
}

static void read_mock(const struct ls_yaml_node *images, struct ls_audit_data *d, struct ls_arena *arena)
{
    if (!images || images->kind != LS_YAML_SCALAR) {
        d->says = "the recipe does not say how many images a mock sample has: batches may differ";
        return;
    }
    bool none = strcmp(images->text, "0") == 0;
    d->media = none ? LS_MEDIA_NONE : LS_MEDIA_IMAGE;
    d->uniform = true;
    d->says = ls_arena_printf(arena, "num_images_per_sample %.20s: %s in every sample", images->text,
                              none ? "no media" : "images");
}

struct ls_audit_data ls_audit_data(const struct ls_recipe *r, struct ls_arena *arena)
{
    struct ls_audit_data d = { 0 };
    const struct ls_yaml_node *target = ls_recipe_get(r, "dataset._target_"), *groups = ls_recipe_get(r, "dataset.grouped_datasets"),
                              *tokens = ls_recipe_get(r, "dataset.pretokenize");
    bool text = target && target->kind == LS_YAML_SCALAR;
    const char *dot = text ? strrchr(target->text, '.') : NULL;
    if (text)
        d.builder = ls_arena_strn(arena, dot ? dot + 1 : target->text, strnlen(dot ? dot + 1 : target->text, 100));
    bool mock = d.builder && strcmp(d.builder, "build_mock_vlm_dataset") == 0;
    /* The mock builder pretokenizes unless told not to; the others when packing asks for it. */
    bool pretokenize = !is_false(tokens) && (mock || is_true(tokens) || is_true(ls_recipe_get(r, "packed_sequence.pretokenize")));
    d.fake_images = pretokenize && !is_false(ls_recipe_get(r, "dataset.inject_fake_images"));
    for (size_t i = 0; d.builder && i < sizeof builders / sizeof *builders; i++)
        if (strcmp(builders[i].builder, d.builder) == 0)
            d.media = builders[i].media;
    if (text && strstr(target->text, ".datasets.llm."))
        d.media = LS_MEDIA_NONE;
    if (mock) {
        read_mock(ls_recipe_get(r, "dataset.num_images_per_sample"), &d, arena);
    } else if (groups && groups->kind == LS_YAML_MAP && groups->count > 1) {
        d.media = LS_MEDIA_MIXED;
        d.says = ls_arena_printf(arena, "mixes %s: batches may differ", group_names(groups, arena));
    } else if (d.media == LS_MEDIA_UNKNOWN) {
        d.says = d.builder ? ls_arena_printf(arena, "not known whether a sample of %s may lack media: batches may differ", d.builder)
                           : "the recipe names no data set: batches may differ";
        if (d.fake_images)
            d.says = ls_arena_printf(arena, "%s, but a sample without media gets a blank image", d.says);
    } else {
        d.uniform = true;
        d.says = ls_arena_printf(arena, "assumed: %s in every sample, from the name %s%s", d.media == LS_MEDIA_NONE ? "no media" :
                                 d.media == LS_MEDIA_AUDIO ? "audio and no image" : "an image", d.builder,
                                 d.media == LS_MEDIA_NONE && d.fake_images ? ", and a blank image is added to each: the vision tower runs" :
                                 "");
        d.says = ls_arena_printf(arena, "%s", d.says);
    }
    return d;
}
