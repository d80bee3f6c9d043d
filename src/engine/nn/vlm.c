#include "engine/nn/vlm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct build { const struct ls_model *m; struct ls_nn_vlm *v; struct ls_error *err; };

/* A class ends in the name given after '*', or is the name. */
static const struct { const char *class_name; enum ls_nn_op op; enum ls_nn_act act; double offset; } classes[] = {
    { "Linear", LS_NN_OP_LINEAR, 0, 0 },
    { "Embedding", LS_NN_OP_EMBED, 0, 1 },
    { "Gemma3TextScaledWordEmbedding", LS_NN_OP_EMBED, 0, 0 }, /* 0: by the square root of its width */
    { "LayerNorm", LS_NN_OP_LAYER_NORM, 0, 0 },
    { "Gemma3RMSNorm", LS_NN_OP_RMS_NORM, 0, 1 },
    { "*RMSNorm", LS_NN_OP_RMS_NORM, 0, 0 },
    { "Conv2d", LS_NN_OP_PATCHES, 0, 0 },
    { "Conv3d", LS_NN_OP_PATCHES, 0, 0 },
    { "AvgPool2d", LS_NN_OP_AVG_POOL, 0, 0 },
    { "Conv1d", LS_NN_OP_CONV1D, 0, 0 },
    { "AvgPool1d", LS_NN_OP_POOL1D, 0, 0 },
    { "SinusoidsPositionEmbedding", LS_NN_OP_SINUSOIDS, 0, 0 },
    { "SiLU", LS_NN_OP_ACT, LS_NN_SILU, 0 },
    { "SiLUActivation", LS_NN_OP_ACT, LS_NN_SILU, 0 },
    { "GELU", LS_NN_OP_ACT, LS_NN_GELU, 0 },
    { "GELUActivation", LS_NN_OP_ACT, LS_NN_GELU, 0 },
    { "GELUTanh", LS_NN_OP_ACT, LS_NN_GELU_TANH, 0 },
    { "PytorchGELUTanh", LS_NN_OP_ACT, LS_NN_GELU_TANH, 0 },
};
static const struct { const char *name; enum ls_nn_op op; size_t ins_min, ins_max, params; bool recordings; } ops[] = {
    { "attention", LS_NN_OP_ATTENTION, 1, 3, 0, false },     { "mul", LS_NN_OP_MUL, 2, 2, 0, false },
    { "add", LS_NN_OP_ADD, 2, 2, 0, false },                 { "mm", LS_NN_OP_MATMUL, 1, 1, 1, false },
    { "masked_scatter", LS_NN_OP_MERGE, 2, 2, 0, false },    { "masked_scatter_audio", LS_NN_OP_MERGE, 2, 2, 0, true },
    { "add_at_images", LS_NN_OP_MERGE_ADD, 2, 2, 0, false }, { "unfold", LS_NN_OP_UNFOLD, 1, 1, 0, false },
    { "gelu", LS_NN_OP_ACT, 1, 1, 0, false },
};

static bool class_is(const char *pattern, const char *name)
{
    if (pattern[0] != '*')
        return strcmp(pattern, name) == 0;
    size_t tail = strlen(pattern + 1), length = strlen(name);
    return length >= tail && strcmp(name + length - tail, pattern + 1) == 0;
}

enum { KEY_MAX = 96 };
static const struct ls_yaml_node *config(const struct build *b, const char *tower, const char *key, char full[KEY_MAX])
{
    snprintf(full, KEY_MAX, "%s%s%s", tower, *tower ? "_" : "", key);
    return b->m->config ? ls_yaml_get(b->m->config, full) : NULL;
}

static enum ls_code absent(const struct build *b, const char *tower, const char *key)
{
    return ls_fail(b->err, LS_EINPUT, b->m->config ? b->m->config->at : b->m->flow.at,
                   "'config' has no '%s%s%s', which running the model needs", tower, *tower ? "_" : "", key);
}

/* `least` 0: the key may be absent, and *out keeps its value. */
static enum ls_code read_uint(const struct build *b, const char *tower, const char *key, uint64_t least, uint64_t *out)
{
    char full[KEY_MAX];
    const struct ls_yaml_node *n = config(b, tower, key, full);
    if (!n)
        return least ? absent(b, tower, key) : LS_OK;
    return ls_yaml_uint(n, full, least, 1u << 30, out, b->err);
}

static enum ls_code read_real(const struct build *b, const char *tower, const char *key, bool needed, double *out)
{
    char full[KEY_MAX];
    const struct ls_yaml_node *n = config(b, tower, key, full);
    if (!n)
        return needed ? absent(b, tower, key) : LS_OK;
    enum ls_code rc = ls_yaml_real(n, full, out, b->err);
    if (rc == LS_OK && !(*out > 0 && isfinite(*out)))
        rc = ls_fail(b->err, LS_EINPUT, n->at, "'%s' is not above 0", full);
    return rc;
}

static enum ls_code read_bool(const struct build *b, const char *tower, const char *key, bool *out)
{
    char full[KEY_MAX];
    const struct ls_yaml_node *n = config(b, tower, key, full);
    return n ? ls_yaml_bool(n, full, out, b->err) : LS_OK;
}

static enum ls_code read_tower(const struct build *b, struct ls_nn_tower *t)
{
    static const char *const positions[] = { "none", "rotary", "multimodal_rotary", "grid", "grid_interleaved", NULL };
    LS_TRY(read_uint(b, t->name, "head_dim", 1, &t->head_dim));
    t->eps = 1e-6;
    LS_TRY(read_real(b, t->name, "norm_eps", false, &t->eps));
    double scale_dim = (double)t->head_dim;
    LS_TRY(read_real(b, t->name, "query_pre_attn_scalar", false, &scale_dim));
    t->scale = 1 / sqrt(scale_dim);
    char full[KEY_MAX];
    const struct ls_yaml_node *n = config(b, t->name, "position", full);
    if (!n)
        return absent(b, t->name, "position");
    size_t position;
    LS_TRY(ls_yaml_choice(n, full, positions, &position, b->err));
    t->position = (enum ls_nn_position)position;
    if (t->position != LS_NN_POSITION_NONE && t->head_dim % (t->position >= LS_NN_POSITION_GRID ? 4 : 2))
        return ls_fail(b->err, LS_EINPUT, n->at, "'%s_head_dim' is %zu, which positions of this kind cannot pair", t->name, (size_t)t->head_dim);
    t->factor = 1;
    t->window_theta = t->theta = 10000;
    LS_TRY(read_real(b, t->name, "rope_theta", t->position != LS_NN_POSITION_NONE, &t->theta));
    LS_TRY(read_real(b, t->name, "rope_factor", false, &t->factor));
    LS_TRY(read_real(b, t->name, "rope_local_theta", false, &t->window_theta));
    LS_TRY(read_uint(b, t->name, "sliding_window", 0, &t->window));
    LS_TRY(read_uint(b, t->name, "sliding_window_pattern", t->window ? 1 : 0, &t->window_every));
    LS_TRY(read_bool(b, t->name, "images_bidirectional", &t->see_images));
    if (t->position == LS_NN_POSITION_MROTARY) {
        static const char *const part[] = { "mrope_section_time", "mrope_section_row", "mrope_section_column" };
        for (size_t i = 0; i < 3; i++)
            LS_TRY(read_uint(b, t->name, part[i], 1, &t->section[i]));
        t->in_turn = true;
        LS_TRY(read_bool(b, t->name, "mrope_interleaved", &t->in_turn));
        if (t->section[0] + t->section[1] + t->section[2] != t->head_dim / 2)
            return ls_fail(b->err, LS_EINPUT, n->at, "the sections of '%s_mrope_section_*' are not half of the head", t->name);
    }
    return LS_OK;
}

static enum ls_code read_picture(const struct build *b)
{
    struct ls_nn_picture *p = &b->v->picture;
    p->channels = 3, p->frames = 1, p->merge = 1;
    LS_TRY(read_uint(b, "vision", "in_channels", 0, &p->channels));
    LS_TRY(read_uint(b, "vision", "patch_size", 1, &p->patch));
    LS_TRY(read_uint(b, "vision", "temporal_patch_size", 0, &p->frames));
    LS_TRY(read_uint(b, "vision", "grid_rows", 1, &p->rows));
    LS_TRY(read_uint(b, "vision", "grid_columns", 1, &p->columns));
    LS_TRY(read_uint(b, "vision", "spatial_merge_size", 0, &p->merge));
    LS_TRY(read_bool(b, "vision", "patches_in_blocks", &p->blocks));
    LS_TRY(read_bool(b, "vision", "positions_interpolated", &p->interpolate));
    LS_TRY(read_uint(b, "", "image_token_id", 1, &p->token));
    if (!p->merge || p->rows % p->merge || p->columns % p->merge || !p->frames || !p->channels)
        return ls_fail(b->err, LS_EINPUT, b->m->config->at, "'vision_spatial_merge_size' does not divide the grid of %zu x %zu patches",
                       (size_t)p->rows, (size_t)p->columns);
    return LS_OK;
}

static enum ls_code read_recording(const struct build *b)
{
    struct ls_nn_recording *r = &b->v->recording;
    LS_TRY(read_uint(b, "audio", "num_mel_bins", 1, &r->bins));
    LS_TRY(read_uint(b, "audio", "frames", 1, &r->frames));
    return read_uint(b, "", "audio_token_id", 1, &r->token);
}

/* What convolutions and pooling make of a recording's frames. */
static enum ls_code measure_recording(const struct build *b)
{
    struct ls_nn_recording *r = &b->v->recording;
    uint64_t pool = 1, strides = 1;
    for (size_t i = 1; i < b->m->statements; i++) {
        const struct ls_nn_statement *s = &b->v->statement[i];
        if (s->flow && s->op == LS_NN_OP_CONV1D)
            strides *= s->stride, r->width = b->m->param[s->param[0]].dim[0];
        if (s->flow && s->op == LS_NN_OP_POOL1D)
            pool *= s->stride;
    }
    if (r->frames % (strides * pool))
        return ls_fail(b->err, LS_EINPUT, b->m->config->at, "'audio_frames' is %zu, not a multiple of %zu: strides of the convolutions times pooling",
                       (size_t)r->frames, (size_t)(strides * pool));
    r->rows = r->frames / strides, r->tokens = r->rows / pool;
    return LS_OK;
}

static enum ls_code no_operator(const struct build *b, const struct ls_flow *f, const char *what, const char *kind)
{
    enum ls_code rc = ls_fail(b->err, LS_EINPUT, f->at, "statement %u: no operator runs %s '%.80s' of '%.120s'", f->id, kind, what,
                              ls_name_text(b->m->names, b->m->module[f->module].name));
    ls_hint(b->err, "this inventory can be checked and simulated, not run");
    return rc;
}

static enum ls_code misfit(const struct build *b, const struct ls_flow *f, const char *what)
{
    return ls_fail(b->err, LS_EINPUT, f->at, "statement %u: %s", f->id, what);
}

/* Where parameters stand: by the last part of their name; adapters by the module that holds them. */
static enum ls_code place_params(const struct build *b, const struct ls_flow *f, struct ls_nn_statement *s)
{
    for (size_t i = 0; i < LS_NN_PARAMS_MAX; i++)
        s->param[i] = LS_NO_ID;
    for (size_t i = 0; i < f->params; i++) {
        const struct ls_param *p = &b->m->param[f->param[i]];
        const char *leaf = ls_name_text(b->m->names, p->leaf), *module = ls_name_text(b->m->names, b->m->module[p->module].leaf);
        size_t place = p->adapter ? (strcmp(module, "lora_A") == 0 ? 2 : 3) : strcmp(leaf, "bias") == 0 ? 1 : 0;
        if (s->param[place] != LS_NO_ID)
            return misfit(b, f, "an operator of this kind has one weight and one bias");
        s->param[place] = f->param[i];
    }
    return LS_OK;
}

static const struct ls_param *param_at(const struct build *b, const struct ls_nn_statement *s, size_t place)
{
    return s->param[place] == LS_NO_ID ? NULL : &b->m->param[s->param[place]];
}

static enum ls_code check_params(const struct build *b, const struct ls_flow *f, struct ls_nn_statement *s)
{
    const struct ls_param *w = param_at(b, s, 0), *bias = param_at(b, s, 1), *la = param_at(b, s, 2), *lb = param_at(b, s, 3);
    bool weight = false, may_bias = false, must_bias = false;
    unsigned dims_min = 2, dims_max = 2;
    switch (s->op) {
    case LS_NN_OP_LINEAR: weight = may_bias = true; break;
    case LS_NN_OP_PATCHES: weight = may_bias = true, dims_min = 4, dims_max = 5; break;
    case LS_NN_OP_CONV1D: weight = may_bias = true, dims_min = dims_max = 3; break;
    case LS_NN_OP_MATMUL: case LS_NN_OP_EMBED: case LS_NN_OP_POSITIONS: weight = true; break;
    case LS_NN_OP_RMS_NORM: weight = true, dims_min = dims_max = 1; break;
    case LS_NN_OP_LAYER_NORM: weight = may_bias = must_bias = true, dims_min = dims_max = 1; break;
    case LS_NN_OP_ACT: case LS_NN_OP_AVG_POOL: case LS_NN_OP_UNFOLD: case LS_NN_OP_ATTENTION: case LS_NN_OP_MUL: case LS_NN_OP_ADD:
    case LS_NN_OP_MERGE: case LS_NN_OP_MERGE_ADD: case LS_NN_OP_POOL1D: case LS_NN_OP_SINUSOIDS: break;
    }
    if (weight != (w != NULL) || (bias && !may_bias) || (!bias && must_bias) || ((la || lb) && (s->op != LS_NN_OP_LINEAR || !la || !lb)))
        return misfit(b, f, "its parameters are not those of its operator");
    if (w && (w->dims < dims_min || w->dims > dims_max))
        return misfit(b, f, "its weight has a shape that its operator does not take");
    if (bias && bias->elements != w->dim[0])
        return misfit(b, f, "bias and weight differ in size");
    if (la && (la->dim[1] != w->dim[1] || lb->dim[0] != w->dim[0] || la->dim[0] != lb->dim[1]))
        return misfit(b, f, "adapter and weight differ in size");
    if (s->op == LS_NN_OP_PATCHES) {
        const struct ls_nn_picture *p = &b->v->picture;
        if (w->elements / w->dim[0] != p->channels * p->frames * p->patch * p->patch)
            return misfit(b, f, "its weight does not take the patches that 'config' describes");
    }
    if (s->op == LS_NN_OP_POSITIONS) {
        const struct ls_nn_picture *p = &b->v->picture;
        uint64_t side = (uint64_t)(sqrt((double)w->dim[0]) + 0.5);
        if (p->interpolate ? side * side != w->dim[0] : w->dim[0] != p->rows * p->columns)
            return misfit(b, f, "its table does not fit the grid that 'config' describes");
    }
    return LS_OK;
}

/* The index after the last ".layers." or so: the last part of the enclosing modules' names that is a number. */
static uint64_t layer_of(const struct build *b, uint32_t module)
{
    for (; module != LS_NO_ID; module = b->m->module[module].parent) {
        const char *leaf = ls_name_text(b->m->names, b->m->module[module].leaf);
        if (*leaf >= '0' && *leaf <= '9')
            return strtoull(leaf, NULL, 10);
    }
    return 0;
}

static enum ls_code attention_roles(const struct build *b, const struct ls_flow *f, struct ls_nn_statement *s)
{
    s->role[0] = s->role[1] = s->role[2] = LS_NO_ID;
    if (f->ins == 1) {
        s->role[0] = 0;
        return LS_OK;
    }
    for (uint32_t i = 0; i < f->ins; i++) {
        const char *in = ls_name_text(b->m->names, f->in[i]);
        size_t role = *in == 'q' ? 0 : *in == 'k' ? 1 : *in == 'v' ? 2 : 3;
        if (role == 3 || s->role[role] != LS_NO_ID)
            return misfit(b, f, "'attention' takes one fused input, or three whose names begin with q, k and v");
        s->role[role] = i;
    }
    return f->ins == 3 ? LS_OK : misfit(b, f, "'attention' takes one fused input, or three whose names begin with q, k and v");
}

static bool in_tower(const struct build *b, const char *modality, uint32_t module)
{
    for (size_t i = 0; i < b->m->declared_count; i++)
        if (strcmp(ls_name_text(b->m->names, b->m->declared[i].modality), modality) == 0 && ls_module_contains(b->m, b->m->declared[i].module, module))
            return true;
    return false;
}

static bool has_tower(const struct build *b, const char *modality)
{
    for (size_t i = 0; i < b->m->declared_count; i++)
        if (strcmp(ls_name_text(b->m->names, b->m->declared[i].modality), modality) == 0)
            return true;
    return false;
}

static enum ls_code build_statement(const struct build *b, const struct ls_flow *f)
{
    if (f->detach && f->kind == LS_FLOW_CALL && !f->leaf)
        return misfit(b, f, "'detach' on a call with a body cannot be run; put it on the operation that makes the value");
    for (size_t i = 0; f->kind != LS_FLOW_WHEN && i < f->sides; i++)
        return misfit(b, f, "'side' values cannot be run");
    if (f->kind == LS_FLOW_WHEN || (f->kind == LS_FLOW_CALL && !f->leaf))
        return LS_OK;
    struct ls_nn_statement *s = &b->v->statement[f->id];
    s->flow = f;
    bool vision = in_tower(b, "vision", f->module), audio = in_tower(b, "audio", f->module);
    s->tower = vision ? &b->v->vision : audio ? &b->v->audio : &b->v->text;
    size_t ins_min = 1, ins_max = 1;
    bool found = false;
    if (f->kind == LS_FLOW_CALL) {
        const char *name = ls_name_text(b->m->names, b->m->module[f->module].class_name);
        for (size_t i = 0; i < sizeof classes / sizeof *classes && !found; i++)
            if (class_is(classes[i].class_name, name)) {
                s->op = classes[i].op, s->act = classes[i].act, s->offset = classes[i].offset;
                found = true;
            }
        if (!found)
            return no_operator(b, f, name, "class");
    } else {
        const char *name = ls_name_text(b->m->names, f->name);
        for (size_t i = 0; i < sizeof ops / sizeof *ops && !found; i++)
            if (strcmp(ops[i].name, name) == 0) {
                s->op = ops[i].op, s->act = LS_NN_GELU, s->recordings = ops[i].recordings, ins_min = ops[i].ins_min, ins_max = ops[i].ins_max;
                found = true;
            }
        if (!found)
            return no_operator(b, f, name, "op");
    }
    if (s->op == LS_NN_OP_EMBED && f->ins == 0 && vision)
        s->op = LS_NN_OP_POSITIONS, ins_min = ins_max = 0;
    if (f->ins < ins_min || f->ins > ins_max || f->outs != 1)
        return misfit(b, f, "an operator of this kind takes other inputs, and has one output");
    LS_TRY(place_params(b, f, s));
    LS_TRY(check_params(b, f, s));
    if (s->op == LS_NN_OP_EMBED) {
        if (f->in[0] != b->v->ids)
            return misfit(b, f, "an embedding is looked up by the first input of the flow");
        if (s->offset <= 0)
            s->offset = sqrt((double)b->m->param[s->param[0]].dim[1]);
        b->v->vocab = b->m->param[s->param[0]].dim[0];
    }
    if (s->op == LS_NN_OP_PATCHES && f->in[0] != b->v->pixels)
        return misfit(b, f, "patches are taken from the second input of the flow");
    if ((s->op == LS_NN_OP_CONV1D || s->op == LS_NN_OP_POOL1D || s->op == LS_NN_OP_SINUSOIDS) && !audio)
        return misfit(b, f, "an operator of this kind runs in a tower of modality audio");
    if (s->op == LS_NN_OP_CONV1D || s->op == LS_NN_OP_POOL1D) {
        char key[KEY_MAX];
        snprintf(key, sizeof key, "%.60s_stride", ls_name_text(b->m->names, b->m->module[f->module].leaf));
        s->stride = 1;
        LS_TRY(read_uint(b, "audio", key, s->op == LS_NN_OP_POOL1D, &s->stride));
        if (!s->stride || (s->op == LS_NN_OP_CONV1D && b->m->param[s->param[0]].dim[2] % 2 == 0))
            return misfit(b, f, "a convolution has a stride and an odd number of taps");
    }
    if (s->recordings && !b->v->recordings)
        return misfit(b, f, "the flow has no third input, which holds recordings");
    if (s->op == LS_NN_OP_ATTENTION) {
        LS_TRY(attention_roles(b, f, s));
        s->windowed = s->tower->window && (layer_of(b, f->module) + 1) % s->tower->window_every != 0;
    }
    return LS_OK;
}

enum ls_code ls_nn_vlm_build(const struct ls_model *m, struct ls_arena *arena, struct ls_nn_vlm *out, struct ls_error *err)
{
    *out = (struct ls_nn_vlm){ .model = m, .statements = m->statements, .text = { .name = "text", .causal = true },
                               .vision = { .name = "vision" }, .audio = { .name = "audio" }, .lora_alpha = 32, .ids = LS_NO_ID, .pixels = LS_NO_ID,
                               .features = LS_NO_ID };
    out->statement = LS_NEW(arena, struct ls_nn_statement, m->statements);
    struct build b = { m, out, err };
    if (!m->has_flow)
        return ls_fail(err, LS_EINPUT, m->flow.at, "the inventory has no flow to run");
    bool hears = has_tower(&b, "audio");
    if (m->flow.ins < 1 || m->flow.ins > 2u + hears || m->grad_inputs || m->losses != 1)
        return ls_fail(err, LS_EINPUT, m->flow.at, "the engine computes flows that take [ids], [ids, pixels] or, with an audio tower, "
                       "[ids, pixels, features], none with gradient, and give one loss");
    out->ids = m->flow.in[0];
    out->pixels = m->flow.ins > 1 ? m->flow.in[1] : LS_NO_ID;
    out->logits = m->loss[0];
    out->features = m->flow.ins > 2 ? m->flow.in[2] : LS_NO_ID;
    out->pictures = m->flow.ins > 1;
    out->recordings = m->flow.ins > 2;
    LS_TRY(read_tower(&b, &out->text));
    if (out->pictures) {
        LS_TRY(read_tower(&b, &out->vision));
        LS_TRY(read_picture(&b));
    }
    if (out->recordings) {
        LS_TRY(read_tower(&b, &out->audio));
        if (out->audio.position != LS_NN_POSITION_NONE)
            return ls_fail(err, LS_EINPUT, m->config->at, "'audio_position' is 'none': positions of recordings are added by SinusoidsPositionEmbedding");
        LS_TRY(read_recording(&b));
    }
    LS_TRY(read_real(&b, "", "lora_alpha", false, &out->lora_alpha));
    for (size_t i = 1; i < m->statements; i++)
        LS_TRY(build_statement(&b, m->statement[i]));
    if (!out->vocab)
        return ls_fail(err, LS_EINPUT, m->flow.at, "the flow looks up no embedding");
    if (out->pictures && out->picture.token >= out->vocab)
        return ls_fail(err, LS_EINPUT, m->config->at, "'image_token_id' is no row of the embedding");
    if (out->recordings && (out->recording.token >= out->vocab || out->recording.token == out->picture.token))
        return ls_fail(err, LS_EINPUT, m->config->at, "'audio_token_id' is no row of the embedding, or that of images");
    if (out->recordings)
        return measure_recording(&b);
    return LS_OK;
}
