#include "sim/work.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { LINEAR, CONV, EMBEDDING, RMS_NORM, LAYER_NORM, ATTENTION, GATED, EXPERTS, PLAIN, ADD };
#define NONE LS_NO_ID
enum { TEXT = LS_CONDITIONS_MAX };

/* One execution of a statement. Positions count the kernels of the round. */
struct made {
    const struct ls_flow *f;
    enum kind kind;
    uint32_t forward, recompute, backward, item; /* item: of a ModuleList, by module, or NONE */
    uint32_t domain;                 /* whose tokens: a condition, or TEXT */
    double tokens, width;            /* of each output */
    double in_tokens, in_width, in_all; /* of the first input; elements of all inputs */
    double flash_width, flash_length; /* attention: own, or packed into a Linear */
    bool acts;                       /* a Linear with an activation in front of it */
    bool trains, input_graph, again; /* weight; some input carries gradient; selective: computed again */
    double flops, flash, bytes, bytes_back, extra;
};
struct interval { uint32_t first, last; double bytes; enum ls_kept kept; };
struct item { uint32_t first, last; double bytes; unsigned products; };

struct walk {
    const struct ls_plan *plan;
    const struct ls_model *m;
    const struct ls_tables *t;
    const struct ls_tokens *tokens;
    const struct ls_work_options *o;
    const struct ls_kernel **kernel; size_t kernels;
    struct made *made; size_t instances;
    struct interval *value[2];       /* [instances] outputs by run: forward, recompute; outs of one statement together */
    LS_VEC(struct interval) extra;
    struct item *item;               /* [modules] */
    uint32_t loss, loss_backward, last_backward;
};

static double config(const struct ls_model *m, const char *modality, const char *key)
{
    char name[96];
    const struct ls_yaml_node *n = NULL;
    if (m->config) {
        snprintf(name, sizeof name, "%s_%s", modality, key);
        n = ls_yaml_get(m->config, name);
        if (!n)
            n = ls_yaml_get(m->config, key);
    }
    return n && n->kind == LS_YAML_SCALAR ? strtod(n->text, NULL) : 0;
}

static bool has_class(const struct ls_model *m, uint32_t module, const char *part)
{
    return module != NONE && strstr(ls_name_text(m->names, m->module[module].class_name), part) != NULL;
}

static uint32_t condition_named(const struct ls_model *m, const char *name)
{
    for (uint32_t c = 0; c < m->conditions; c++)
        if (strcmp(ls_name_text(m->names, m->condition[c].name), name) == 0)
            return c;
    return NONE;
}

static bool halves_audio(const struct ls_model *m)
{
    for (uint32_t i = 0; i < m->modules; i++)
        if (has_class(m, i, "AvgPool1d"))
            return true;
    return false;
}

enum { PIXELS_DEFAULT = 448, PIXELS_MAX = 896, VIDEO_FRAMES = 8, AUDIO_POSITIONS = 500, DUMMY_MERGED = 4, POOLED_DEFAULT = 280 };

/* Does one call of the tower take all that a batch holds? Else there is a call for each (inventory.md, `when`). */
static bool called_once(const struct ls_flow *f, uint32_t c)
{
    if (f->kind == LS_FLOW_WHEN && (f->when >> c & 1))
        return f->once;
    for (size_t i = 0; i < f->count; i++)
        if (called_once(&f->body[i], c))
            return true;
    return false;
}

/* Patches that one call takes, of `items` pictures, videos or recordings. */
static uint64_t patches_of(const struct ls_model *m, uint32_t c, const struct ls_sample *s, uint64_t items, bool dummy)
{
    const char *name = ls_name_text(m->names, m->condition[c].name);
    bool audio = strcmp(name, "audio") == 0, video = strcmp(name, "video") == 0;
    double patch = config(m, "vision", "patch_size"), pixels = config(m, "vision", "image_size");
    double merge = config(m, "vision", "spatial_merge_size"), pool = config(m, "vision", "pooling_kernel_size");
    double unit = merge > 0 ? merge * merge : pool > 0 ? pool * pool : 1;
    if (dummy)
        return audio ? 2 * DUMMY_MERGED : (uint64_t)(DUMMY_MERGED * unit);
    uint64_t given = audio ? s->audio_positions : video ? s->video_patches : s->image_patches;
    if (given)
        return given;
    if (audio)
        return items * AUDIO_POSITIONS;
    if (pool > 0 && !video)
        return items * (uint64_t)(POOLED_DEFAULT * unit);
    if (pixels <= 0 || pixels > PIXELS_MAX)
        pixels = PIXELS_DEFAULT;
    double side = floor(pixels / (patch > 0 ? patch : 16)), temporal = config(m, "vision", "temporal_patch_size");
    return items * (uint64_t)(side * side * (video ? VIDEO_FRAMES / (temporal > 0 ? temporal : 1) : 1));
}

/* Tokens that those patches become in the text. */
static uint64_t soft_of(const struct ls_model *m, uint32_t c, uint64_t patches, uint64_t items)
{
    double merge = config(m, "vision", "spatial_merge_size"), pool = config(m, "vision", "pooling_kernel_size");
    double fixed = config(m, "vision", "mm_tokens_per_image");
    if (strcmp(ls_name_text(m->names, m->condition[c].name), "audio") == 0)
        return halves_audio(m) ? patches / 2 : patches;
    if (fixed > 0)
        return items * (uint64_t)fixed < patches ? items * (uint64_t)fixed : patches;
    double unit = merge > 0 ? merge * merge : pool > 0 ? pool * pool : 1;
    return (uint64_t)((double)patches / unit);
}

struct ls_tokens ls_tokens_of(const struct ls_model *m, const struct ls_sample *s, const struct ls_letter *letter)
{
    struct ls_tokens t = { .text = s->text, .sequences = s->sequences ? s->sequences : 1 };
    for (uint32_t c = 0; c < m->conditions; c++) {
        uint64_t count = letter->count[c], items = count > 1 && called_once(&m->flow, c) ? count : 1;
        t.patches[c] = patches_of(m, c, s, items, letter->dummy >> c & 1);
        t.soft[c] = soft_of(m, c, t.patches[c], items);
        t.text += count / items * t.soft[c];
    }
    if (!t.text)
        t.text = 1;
    return t;
}

/* The declared tower or projector around a module; towers only if `tower`. */
static const struct ls_declared *declared_around(const struct ls_model *m, uint32_t module, bool tower)
{
    const struct ls_declared *best = NULL;
    for (size_t i = 0; i < m->declared_count; i++) {
        const struct ls_declared *d = &m->declared[i];
        bool is_tower = d->role && strcmp(ls_name_text(m->names, d->role), "tower") == 0;
        if (d->modality && (!tower || is_tower) && ls_module_contains(m, d->module, module) && (!best || d->module > best->module))
            best = d;
    }
    return best;
}

static uint32_t domain_of_input(const struct walk *w, const struct ls_flow *f, uint32_t name)
{
    const char *text = name == NONE ? "" : ls_name_text(w->m->names, name);
    uint32_t c = NONE;
    if (strstr(text, "video"))
        c = condition_named(w->m, "video");
    else if (strstr(text, "pixel") || strstr(text, "image"))
        c = condition_named(w->m, "image");
    else if (strstr(text, "audio") || strstr(text, "feature"))
        c = condition_named(w->m, "audio");
    const struct ls_declared *d = declared_around(w->m, f->module, false);
    for (uint32_t i = 0; c == NONE && d && i < w->m->conditions; i++)
        if (w->m->condition[i].modality == d->modality)
            c = i;
    return c == NONE ? TEXT : c;
}

static uint32_t item_of(const struct ls_model *m, uint32_t module)
{
    uint32_t item = NONE;
    for (uint32_t at = module; at != NONE && m->module[at].parent != NONE; at = m->module[at].parent)
        if (m->module[m->module[at].parent].container == LS_MODULE_LIST)
            item = at; /* the outermost */
    return item;
}

static const struct ls_param *weight_of(const struct walk *w, const struct ls_flow *f)
{
    const struct ls_param *best = NULL;
    for (size_t i = 0; i < f->params; i++) {
        const struct ls_param *p = &w->m->param[f->param[i]];
        if (!p->adapter && p->dims >= 2 && (!best || p->elements > best->elements))
            best = p;
    }
    return best;
}

static enum kind kind_of(const struct walk *w, const struct ls_flow *f)
{
    const struct ls_param *weight = weight_of(w, f);
    const char *op = f->kind == LS_FLOW_OP ? ls_name_text(w->m->names, f->name) : "";
    if (weight && f->kind == LS_FLOW_CALL && has_class(w->m, f->module, "Embedding"))
        return EMBEDDING;
    if (weight && f->kind == LS_FLOW_CALL && ls_model_moe(w->m, f->module))
        return EXPERTS;
    if (weight)
        return weight->dims > 2 ? CONV : LINEAR;
    if (f->kind == LS_FLOW_CALL && f->params)
        return has_class(w->m, f->module, "LayerNorm") ? LAYER_NORM : has_class(w->m, f->module, "Norm") ? RMS_NORM : PLAIN;
    if (strcmp(op, "attention") == 0 || (strcmp(op, "bmm") == 0 && has_class(w->m, f->module, "Attention")))
        return ATTENTION;
    if (strcmp(op, "mul") == 0 && f->ins == 2)
        return GATED;
    return strcmp(op, "add") == 0 || strcmp(op, "masked_scatter") == 0 || strcmp(op, "index_put") == 0 ? ADD : PLAIN;
}

static const struct ls_link *links(const struct walk *w, const struct ls_kernel *k) { return w->t->link.count ? &w->t->link.at[k->link] : NULL; }

static bool is_made(const struct walk *w, const struct ls_link *l) { return l->instance < w->instances; }

/* The first input that decides the size: one of the text if there is any, else the first. */
static const struct ls_link *main_input(const struct walk *w, const struct ls_kernel *k)
{
    const struct ls_link *l = links(w, k), *first = NULL;
    for (uint32_t i = 0; i < k->links; i++) {
        if (l[i].instance == LS_ABSENT)
            continue;
        if (is_made(w, &l[i]) && w->made[l[i].instance].domain == TEXT)
            return &l[i];
        if (!first)
            first = &l[i];
    }
    return first;
}

static bool pooled(const struct walk *w, uint32_t c)
{
    const struct ls_model *m = w->m;
    return strcmp(ls_name_text(m->names, m->condition[c].name), "audio") == 0
               ? halves_audio(m) : config(m, "vision", "mm_tokens_per_image") > 0 || config(m, "vision", "pooling_kernel_size") > 0;
}

static void size_of(struct walk *w, struct made *x, const struct ls_kernel *k)
{
    const struct ls_link *in = main_input(w, k), *l = links(w, k);
    const struct made *from = in && is_made(w, in) ? &w->made[in->instance] : NULL;
    x->domain = from ? from->domain : domain_of_input(w, x->f, in ? in->out : NONE);
    x->in_tokens = from ? from->tokens : (double)(x->domain == TEXT ? w->tokens->text : w->tokens->patches[x->domain]);
    x->in_width = from ? from->width : 0;
    if (from && x->domain != TEXT && pooled(w, x->domain) && declared_around(w->m, from->f->module, true) &&
        !declared_around(w->m, x->f->module, true) && x->in_tokens > (double)w->tokens->soft[x->domain])
        x->in_tokens = (double)w->tokens->soft[x->domain]; /* the tower pools on its way out */
    double widest = 0;
    for (uint32_t i = 0; i < k->links; i++)
        if (is_made(w, &l[i])) {
            const struct made *y = &w->made[l[i].instance];
            x->input_graph |= y->backward != NONE;
            x->in_all += y->tokens * y->width;
            widest = y->width > widest ? y->width : widest;
        }
    x->tokens = x->in_tokens;
    x->width = x->in_width;
    const struct ls_param *p = weight_of(w, x->f);
    if (x->kind == LINEAR) {
        double out = (double)p->dim[0], inner = (double)p->dim[1];
        if (x->in_width > 0 && x->f->kind == LS_FLOW_OP && out == x->in_width && inner != x->in_width) /* x @ W */
            out = inner, inner = x->in_width;
        if (x->in_width > 0 && inner > x->in_width && fmod(inner, x->in_width) == 0)
            x->tokens = x->in_tokens * x->in_width / inner;
        uint32_t parent = x->f->kind == LS_FLOW_CALL ? w->m->module[x->f->module].parent : NONE;
        if (x->in_width > inner && fmod(x->in_width, inner) == 0 && has_class(w->m, parent, "Attention"))
            x->flash_width = inner; /* packed queries, keys and values: attention has no statement of its own */
        x->acts = from && from->kind == LINEAR && from->f->kind == LS_FLOW_CALL && x->f->kind == LS_FLOW_CALL && x->flash_width <= 0 &&
                  w->m->module[from->f->module].parent == parent;
        x->in_width = inner;
        x->width = out;
    } else if (x->kind == CONV || x->kind == EMBEDDING) {
        x->width = (double)p->dim[x->kind == CONV ? 0 : 1];
        if (!in && x->domain != TEXT)
            x->tokens = (double)w->tokens->patches[x->domain];
    } else if (x->kind == EXPERTS) {
        x->width = (double)p->dim[1];
    } else if (x->kind == ATTENTION) {
        x->flash_width = x->width = widest;
    }
    x->flash_length = x->domain == TEXT ? x->tokens / (double)w->tokens->sequences / 2 : x->tokens; /* causal: half */
}

/* Layers are compiled one by one; what lies outside of them runs as it is. */
static bool is_eager(const struct walk *w, const struct made *x) { return w->o->style != LS_STYLE_TORCH_COMPILE || x->item == NONE; }

static bool is_ours(const struct walk *w) { return w->o->style == LS_STYLE_LOCKSTEP; }

/* What our engine keeps beside values: floats that its backward needs (src/engine/nn/task.c). */
static double kept_by_engine(const struct walk *w, const struct made *x)
{
    double all = x->tokens * x->width, floats = 0;
    switch (x->kind) {
    case LINEAR:
        for (size_t i = 0; i < x->f->params; i++) { /* what the first LoRA factor makes */
            const struct ls_param *p = &w->m->param[x->f->param[i]];
            floats += p->adapter && p->dims == 2 && (double)p->dim[1] == x->in_width ? x->in_tokens * (double)p->dim[0] : 0;
        }
        break;
    case RMS_NORM:
    case LAYER_NORM:
        for (size_t i = 0; i < x->f->params && floats <= 0; i++)
            floats = all / (double)w->m->param[x->f->param[i]].elements * (x->kind == RMS_NORM ? 1 : 2);
        break;
    case ATTENTION: { /* a logarithm per head and row */
        const char *modality = x->domain == TEXT ? "text" : "vision";
        double head = config(w->m, modality, "head_dim"), heads = config(w->m, modality, x->domain == TEXT ? "num_attention_heads" : "num_heads");
        if (x->domain != TEXT && heads <= 0)
            heads = config(w->m, modality, "num_attention_heads");
        floats = head > 0 ? all / head : x->tokens * heads;
        break;
    }
    case CONV: case EMBEDDING: case GATED: case EXPERTS: case PLAIN: case ADD:
        break;
    }
    return 4 * floats;
}

static void price_experts(const struct walk *w, struct made *x)
{
    const struct ls_moe *moe = ls_model_moe(w->m, x->f->module);
    const double e = w->o->item_bytes, ranks = w->plan->experts.ep > 1 ? (double)w->plan->experts.ep : 1;
    const double rows = (w->o->expert_tokens > 0 ? w->o->expert_tokens : x->tokens) * (double)moe->top_k;
    for (size_t i = 0; i < x->f->params; i++) {
        const struct ls_param *p = &w->m->param[x->f->param[i]];
        if (p->dims != 3)
            continue;
        x->flops += 2 * rows * (double)p->elements / (double)moe->count;
        x->bytes += e * ((double)p->elements / ranks + rows * (double)(p->dim[1] + p->dim[2]));
        x->extra += e * rows * (double)p->dim[1];
    }
    const struct ls_param *first = weight_of(w, x->f);
    x->extra = x->trains || x->input_graph ? x->extra + e * rows * (double)first->dim[2] : 0;
    x->bytes_back = 2 * x->bytes;
}

/* Operations, bytes moved, and what is kept beyond inputs and outputs. */
static void price(struct walk *w, struct made *x)
{
    double e = w->o->item_bytes, out = x->tokens * x->width, in = x->tokens * x->in_width;
    bool eager = is_eager(w, x);
    x->bytes = e * (x->in_all + out);
    x->bytes_back = x->bytes + e * out;
    switch (x->kind) {
    case LINEAR:
    case CONV:
        for (size_t i = 0; i < x->f->params; i++) {
            const struct ls_param *p = &w->m->param[x->f->param[i]];
            if (p->dims >= 2) {
                x->flops += 2 * x->tokens * (double)p->elements;
                x->bytes += e * (double)p->elements;
            }
        }
        x->bytes_back = 2 * x->bytes;
        if (x->acts) {
            x->bytes += eager ? 2 * e * in : 0;
            x->bytes_back += eager ? 3 * e * in : e * in;
            x->extra += x->trains ? e * in : 0;
        }
        break;
    case EMBEDDING:
        x->bytes = 2 * e * out;
        x->bytes_back = 3 * e * out;
        break;
    case RMS_NORM:
        x->bytes = eager ? 36 * out : 2 * e * out;
        x->bytes_back = eager ? 60 * out : 4 * e * out;
        x->extra = eager ? 4 * out + (x->trains ? e * out : 0) : 0;
        break;
    case LAYER_NORM:
        x->bytes = 2 * e * out;
        x->bytes_back = 4 * e * out;
        break;
    case EXPERTS:
        price_experts(w, x);
        break;
    case GATED:
        x->bytes = (eager ? 5 : 3) * e * out;
        x->bytes_back = (eager ? 10 : 5) * e * out;
        x->extra = eager ? e * out : 0;
        break;
    case ADD:
        x->bytes_back = e * out;
        break;
    case ATTENTION:
    case PLAIN:
        break;
    }
    if (x->flash_width > 0) {
        double size = x->tokens * x->flash_width;
        x->flash = 4 * size * x->flash_length;
        x->flops += x->flash;
        x->bytes += 4 * e * size;
        x->bytes_back += 8 * e * size;
        x->extra += (x->kind == ATTENTION ? 3 : 4) * e * size + 4 * size / 128;
    }
    if (is_ours(w))
        x->extra = kept_by_engine(w, x);
}

static unsigned launches(const struct walk *w, const struct made *x, bool backward)
{
    bool eager = is_eager(w, x);
    switch (x->kind) {
    case LINEAR:
        return (backward ? (x->trains ? 1u : 0u) + (x->input_graph ? 1u : 0u) : 1u) + (eager && x->acts ? 1u : 0u) +
               (x->flash_width > 0 ? (eager ? 8u : 1u) : 0u);
    case RMS_NORM: return !eager ? 1 : backward ? 10 : 6;
    case ATTENTION: return !eager ? 2 : backward ? 14 : 13;
    case GATED: return !eager ? 1 : backward ? 3 : 2;
    case EXPERTS: return backward ? 16 : 12;
    case CONV: case EMBEDDING: case LAYER_NORM: case PLAIN: case ADD: break;
    }
    return 1;
}

static bool saves_input(const struct walk *w, const struct made *x)
{
    if (is_ours(w) && (x->kind == ATTENTION || x->kind == CONV || x->kind == RMS_NORM))
        return x->kind != CONV; /* patches are cut out again */
    switch (x->kind) {
    case LINEAR: return (x->trains && x->flash_width <= 0) || x->acts;
    case CONV: return x->trains;
    case RMS_NORM: return !is_eager(w, x);
    case LAYER_NORM: case GATED: return true;
    case PLAIN: return x->f->ins == 1;
    case EMBEDDING: case ATTENTION: case EXPERTS: case ADD: return false;
    }
    return false;
}

static void use(struct walk *w, const struct ls_link *l, uint32_t at, uint32_t until)
{
    if (!is_made(w, l))
        return;
    const struct made *y = &w->made[l->instance];
    struct interval *v = &w->value[y->recompute != NONE && y->recompute < at][l->instance];
    if (v->last < until)
        v->last = until;
}

static void add_extra(struct walk *w, uint32_t first, uint32_t last, double bytes, enum ls_kept kept)
{
    if (bytes > 0)
        ls_push(&w->extra, (struct interval){ first, last, bytes, kept });
}

static bool is_selective(const struct walk *w, const struct made *x)
{
    return w->o->selective && x->item != NONE && x->recompute == NONE && x->backward != NONE;
}

/* One run of a statement at `at`: what it reads, and what it keeps for its backward. */
static void keep(struct walk *w, const struct ls_kernel *k, uint32_t at)
{
    struct made *x = &w->made[k->instance];
    const struct ls_link *l = links(w, k);
    bool again = k->what == LS_KERNEL_RECOMPUTE, keeps = x->backward != NONE && (again || x->recompute == NONE);
    double e = w->o->item_bytes;
    struct interval *own = &w->value[again][k->instance];
    *own = (struct interval){ at, at, e * x->tokens * x->width * (double)(x->f->outs ? x->f->outs : 1), LS_KEPT_ACTIVATIONS };
    if (is_selective(w, x)) {
        struct item *i = &w->item[x->item];
        bool product = x->kind == LINEAR && ++i->products % 2 == 1;
        if (i->first == NONE || x->backward < i->first)
            i->first = x->backward;
        if (x->backward > i->last)
            i->last = x->backward;
        double flash = x->flash_width > 0 ? x->tokens * x->flash_width : 0;
        if (product || x->kind == ATTENTION)
            own->last = x->backward;
        else
            i->bytes += own->bytes;
        x->again = !product;
        double kept = x->kind == ATTENTION ? 4 * flash / 128 : flash > 0 ? e * flash + 4 * flash / 128 : 0;
        add_extra(w, at, x->backward, kept, LS_KEPT_ACTIVATIONS);
        i->bytes += x->extra - kept;
        for (uint32_t n = 0; n < k->links; n++)
            use(w, &l[n], at, at);
        return;
    }
    for (uint32_t n = 0; n < k->links; n++)
        use(w, &l[n], at, keeps && saves_input(w, x) ? x->backward : at);
    if (!keeps)
        return;
    add_extra(w, at, x->backward, x->extra, LS_KEPT_ACTIVATIONS);
    if (x->kind == ATTENTION)
        own->last = x->backward;
}

/* Inputs of an item stay until the item has been computed again. */
static void keep_item_inputs(struct walk *w)
{
    for (size_t at = 0; at < w->kernels; at++) {
        const struct ls_kernel *k = w->kernel[at];
        if (k->what != LS_KERNEL_FORWARD || !is_selective(w, &w->made[k->instance]))
            continue;
        uint32_t item = w->made[k->instance].item;
        for (uint32_t n = 0; n < k->links; n++) {
            const struct ls_link *l = &links(w, k)[n];
            if (is_made(w, l) && w->made[l->instance].item != item)
                use(w, l, (uint32_t)at, w->item[item].last);
        }
    }
    for (size_t i = 0; i < w->m->modules; i++)
        if (w->item[i].first != NONE)
            add_extra(w, w->item[i].first, w->item[i].last, w->item[i].bytes, LS_KEPT_ACTIVATIONS);
}

static void gradients(struct walk *w)
{
    uint32_t *first = calloc(w->instances + 1, sizeof *first);
    if (!first)
        ls_out_of_memory(w->instances * sizeof *first);
    for (size_t i = 0; i < w->instances; i++)
        first[i] = NONE;
    for (size_t at = 0; at < w->kernels; at++) {
        const struct ls_kernel *k = w->kernel[at];
        if (k->what != LS_KERNEL_FORWARD && k->what != LS_KERNEL_LOSS)
            continue;
        uint32_t back = k->what == LS_KERNEL_LOSS ? w->loss_backward : w->made[k->instance].backward;
        for (uint32_t n = 0; n < k->links && back != NONE; n++) {
            const struct ls_link *l = &links(w, k)[n];
            if (is_made(w, l) && back < first[l->instance])
                first[l->instance] = back;
        }
    }
    for (size_t i = 0; i < w->instances; i++) {
        const struct made *x = &w->made[i];
        bool logits = x->f && first[i] == w->loss_backward;
        if (x->backward != NONE && first[i] != NONE && first[i] <= x->backward)
            add_extra(w, first[i], x->backward, w->value[0][i].bytes * (is_ours(w) ? 4.0 / w->o->item_bytes : 1), logits ? LS_KEPT_LOGITS : LS_KEPT_GRADIENTS);
    }
    free(first);
}

static double model_flops(const struct made *x)
{
    double linear = x->flops - x->flash, factor = 1;
    if (x->backward != NONE)
        factor += (x->trains ? 1 : 0) + (x->input_graph ? 1 : 0);
    return linear * factor + x->flash * (x->backward != NONE ? 3 : 1);
}

static void number(struct walk *w, const struct ls_segment *s, struct ls_arena *arena, struct ls_round_work *out)
{
    out->first = LS_NEW(arena, size_t, s->count + 1);
    for (size_t i = 0; i < s->count; i++) {
        out->first[i] = w->kernels;
        w->kernels += s->op[i].kernels;
    }
    out->first[s->count] = out->kernels = w->kernels;
    out->of = LS_NEW(arena, struct ls_kernel_work, w->kernels + 1);
    w->kernel = LS_NEW(arena, const struct ls_kernel *, w->kernels + 1);
    for (size_t i = 0, n = 0; i < s->count; i++)
        for (uint32_t k = 0; k < s->op[i].kernels; k++) {
            w->kernel[n] = &w->t->kernel.at[s->op[i].kernel + k];
            if (w->kernel[n]->instance != NONE && w->kernel[n]->instance + 1 > w->instances)
                w->instances = w->kernel[n]->instance + 1;
            n++;
        }
    w->made = LS_NEW(arena, struct made, w->instances + 1);
    for (int i = 0; i < 2; i++)
        w->value[i] = LS_NEW(arena, struct interval, w->instances + 1);
    w->item = LS_NEW(arena, struct item, w->m->modules);
    for (size_t i = 0; i < w->m->modules; i++)
        w->item[i].first = NONE;
    for (size_t i = 0; i < w->instances; i++)
        w->made[i].forward = w->made[i].recompute = w->made[i].backward = w->made[i].item = NONE;
    w->loss = w->loss_backward = w->last_backward = NONE;
    for (uint32_t at = 0; at < w->kernels; at++) {
        const struct ls_kernel *k = w->kernel[at];
        switch ((enum ls_kernel_what)k->what) {
        case LS_KERNEL_FORWARD: w->made[k->instance].forward = at; break;
        case LS_KERNEL_RECOMPUTE: w->made[k->instance].recompute = at; break;
        case LS_KERNEL_BACKWARD: w->made[k->instance].backward = w->last_backward = at; break;
        case LS_KERNEL_LOSS: w->loss = at; break;
        case LS_KERNEL_LOSS_BACKWARD: w->loss_backward = at; break;
        case LS_KERNEL_ACCUMULATE: case LS_KERNEL_OPTIMIZER: case LS_KERNEL_LEFT_OUT: break;
        }
    }
}

static void work_of_loss(struct walk *w, const struct ls_kernel *k, uint32_t at, struct ls_kernel_work *of)
{
    double all = 0, rows = 0, e = w->o->item_bytes;
    for (uint32_t n = 0; n < k->links; n++) {
        const struct ls_link *l = &links(w, k)[n];
        if (!is_made(w, l))
            continue;
        struct interval *v = &w->value[0][l->instance];
        v->kept = LS_KEPT_LOGITS;
        v->last = at > v->last ? at : v->last;
        if (w->o->outputs_held && w->last_backward != NONE && w->last_backward > v->last)
            v->last = w->last_backward;
        all += w->made[l->instance].tokens * w->made[l->instance].width;
        rows += w->made[l->instance].tokens;
        if (is_ours(w) && w->loss_backward != NONE && w->loss_backward > v->last)
            v->last = w->loss_backward;
    }
    of[at].bytes = 14 * all;
    of[at].launches = 4;
    of[at].temporary = is_ours(w) ? 0 : (uint64_t)(4 * all);
    if (w->loss_backward == NONE)
        return;
    if (is_ours(w)) { /* a maximum and a sum in one float per row */
        add_extra(w, at, w->loss_backward, 4 * (rows + 1), LS_KEPT_LOGITS);
        of[w->loss_backward].bytes = 22 * all;
        of[w->loss_backward].launches = 4;
        return;
    }
    add_extra(w, at, w->loss_backward, 4 * all, LS_KEPT_LOGITS);
    of[w->loss_backward].bytes = 22 * all;
    of[w->loss_backward].launches = 4;
    of[w->loss_backward].temporary = (uint64_t)((8 - e) * all); /* the result of e bytes comes when one of the two is gone */
}

static void place(struct ls_kernel_work *of, const struct interval *v)
{
    of[v->first].alloc[v->kept] += (uint64_t)v->bytes;
    of[v->last].free[v->kept] += (uint64_t)v->bytes;
}

void ls_work_of_round(const struct ls_plan *p, const struct ls_tables *t, const struct ls_segment *s, const struct ls_tokens *tokens,
                      const struct ls_work_options *o, struct ls_arena *arena, struct ls_round_work *out)
{
    struct walk w = { .plan = p, .m = p->model, .t = t, .tokens = tokens, .o = o };
    *out = (struct ls_round_work){ 0 };
    number(&w, s, arena, out);
    for (uint32_t at = 0; at < w.kernels; at++) {
        const struct ls_kernel *k = w.kernel[at];
        if (k->what == LS_KERNEL_LOSS)
            work_of_loss(&w, k, at, out->of);
        if (k->what == LS_KERNEL_FORWARD) {
            struct made *x = &w.made[k->instance];
            x->f = w.m->statement[k->statement];
            x->kind = kind_of(&w, x->f);
            x->item = item_of(w.m, x->f->module);
            for (size_t i = 0; i < x->f->params; i++)
                x->trains |= p->requires_grad[x->f->param[i]];
            size_of(&w, x, k);
            price(&w, x);
            out->model_flops += model_flops(x);
        }
        if (k->what == LS_KERNEL_FORWARD || k->what == LS_KERNEL_RECOMPUTE) {
            const struct made *x = &w.made[k->instance];
            out->of[at] = (struct ls_kernel_work){ .flops = x->flops, .flash = x->flash, .bytes = x->bytes,
                                                    .launches = launches(&w, x, false) };
            keep(&w, k, at);
        }
        if (k->what == LS_KERNEL_BACKWARD) {
            const struct made *x = &w.made[k->instance];
            double linear = x->flops - x->flash;
            struct ls_kernel_work *k_work = &out->of[at];
            k_work->flash = 2.5 * x->flash;
            k_work->flops = linear * ((x->trains ? 1 : 0) + (x->input_graph ? 1 : 0)) + k_work->flash;
            k_work->bytes = x->bytes_back;
            k_work->launches = launches(&w, x, true) + (x->again ? launches(&w, x, false) : 0);
            if (x->again) {
                k_work->flops += linear;
                k_work->bytes += x->bytes;
            }
        }
    }
    keep_item_inputs(&w);
    gradients(&w);
    for (size_t i = 0; i < w.instances; i++)
        for (int run = 0; run < 2; run++)
            if (w.value[run][i].bytes > 0)
                place(out->of, &w.value[run][i]);
    for (size_t i = 0; i < w.extra.count; i++)
        place(out->of, &w.extra.at[i]);
    ls_vec_release(&w.extra);
}

/* Of the peak, reached by FlashAttention-2: 35 % on H100 and 50 to 73 % on A100 (FlashAttention-3, abstract; FlashAttention-2, section 4). */
static double flash_efficiency(const struct ls_platform *p)
{
    return p->arch == LS_AMPERE ? 0.60 : 0.35;
}

void ls_work_kernels_ps(const struct ls_platform *p, const struct ls_round_work *w, unsigned item_bytes, double *ps)
{
    enum ls_dtype dtype = item_bytes == 2 ? LS_DTYPE_BF16 : LS_DTYPE_F32;
    double peak = p->flops[dtype] > 0 ? p->flops[dtype] : p->flops[LS_DTYPE_F32];
    for (size_t k = 0; k < w->kernels; k++) {
        const struct ls_kernel_work *x = &w->of[k];
        double products = (x->flops - x->flash) / (peak * p->matmul_efficiency) + x->flash / (peak * flash_efficiency(p));
        double moved = x->bytes / ((double)p->hbm_Bps * p->hbm_efficiency);
        ps[k] = (products > moved ? products : moved) * 1e12;
    }
}
