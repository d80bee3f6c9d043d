/* `rules: automodel` against unit lists of the real parallelizers (record_automodel.py), line by line.
 *
 *     oracle_automodel [--json] [NAME...]   only recordings whose name holds NAME */
#include "plan/plan.h"

#include "base/vec.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LISTED = 40 };

struct bench {
    struct ls_arena arena;
    struct ls_names *names;
    struct ls_model m;
    struct ls_specs specs;
    struct ls_plan plan;
    struct ls_refusal refusal;
    struct ls_str text;
};

static int by_index(const void *x, const void *y)
{
    const uint32_t *a = x, *b = y;
    return (*a > *b) - (*a < *b);
}

static const char *first_name(const struct bench *b, uint32_t canonical)
{
    for (uint32_t i = 0; i < b->m.params; i++)
        if (b->m.param[i].canonical == canonical)
            return ls_name_text(b->names, b->m.param[i].name); /* the first of a tied parameter's names in tree order */
    return "";
}

static void add_list(struct bench *b, const uint32_t *param, size_t count, const char *base)
{
    struct ls_str *s = &b->text;
    const size_t n = strlen(base);
    if (count > LISTED) {
        uint64_t h = 0xcbf29ce484222325u;
        for (size_t i = 0; i < count; i++) {
            const char *name = first_name(b, param[i]);
            for (const char *c = name; ; c++) {
                h = (h ^ (unsigned char)(*c ? *c : '\n')) * 0x100000001b3u;
                if (!*c)
                    break;
            }
        }
        ls_str_printf(s, "%zu:%016" PRIx64, count, h);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const char *name = first_name(b, param[i]);
        ls_str_printf(s, "%s%s", i ? "," : "", n && strncmp(name, base, n) == 0 && name[n] == '.' ? name + n : name);
    }
    if (!count)
        ls_str_add(s, "-");
}

static void add_targets(struct bench *b, const char *what, const uint32_t *unit, size_t count)
{
    ls_str_printf(&b->text, " %s=", what);
    for (size_t i = 0; i < count; i++)
        ls_str_printf(&b->text, "%s%u", i ? "," : "", unit[i]);
    if (!count)
        ls_str_add(&b->text, "-");
}

static void add_units(struct bench *b)
{
    static const char *const reshard[] = { "none", "true", "false", "small" };
    struct ls_str *s = &b->text;
    for (size_t i = 0; i < b->plan.units; i++) {
        struct ls_unit *u = &b->plan.unit[i];
        const char *name = ls_name_text(b->names, u->name), *base = u->module[0] ? name : "";
        ls_str_printf(s, "unit %s%s reshard=%s dtypes=%s/%s/%s cast=%s", name, u->mesh == LS_UNIT_EXPERTS ? " over=ep_shard" : "",
                      reshard[u->reshard], ls_dtype_name(u->param_dtype), ls_dtype_name(u->reduce_dtype), ls_dtype_name(u->output_dtype),
                      u->cast_inputs ? "true" : "false");
        add_targets(b, "forward", u->forward_prefetch, u->forward_prefetches);
        add_targets(b, "backward", u->backward_prefetch, u->backward_prefetches);
        qsort(u->ignored, u->ignoreds, sizeof *u->ignored, by_index); /* a set there */
        ls_str_add(s, " ignored=");
        add_list(b, u->ignored, u->ignoreds, base);
        ls_str_add(s, " params=");
        add_list(b, u->param, u->params, base);
        ls_str_add(s, "\n");
    }
}

/* What the parallelizer sees frozen, by first names. */
static void add_frozen(struct bench *b, const bool *grad)
{
    uint32_t *frozen = LS_NEW(&b->arena, uint32_t, b->m.params);
    bool *met = LS_NEW(&b->arena, bool, b->m.params);
    size_t count = 0;
    for (uint32_t i = 0; i < b->m.params; i++) {
        const uint32_t canonical = b->m.param[i].canonical;
        const enum ls_dtype d = b->m.param[i].dtype;
        if (!met[canonical] && !grad[i] && d != LS_DTYPE_I64 && d != LS_DTYPE_I32 && d != LS_DTYPE_U8 && d != LS_DTYPE_BOOL)
            frozen[count++] = canonical;
        met[canonical] = true;
    }
    ls_str_add(&b->text, "frozen ");
    add_list(b, frozen, count, "");
    ls_str_add(&b->text, "\n");
}

/* The value after `key` in a line, up to a space or the end; copied into `out`. */
static bool field(const char *line, const char *key, char *out, size_t room)
{
    const char *at = strstr(line, key);
    if (!at)
        return false;
    at += strlen(key);
    size_t n = strcspn(at, " \n");
    if (n >= room)
        return false;
    memcpy(out, at, n);
    out[n] = 0;
    return true;
}

static bool flag(const char *line, const char *key, bool otherwise)
{
    char value[16];
    return field(line, key, value, sizeof value) ? strcmp(value, "true") == 0 : otherwise;
}

static enum ls_code freeze(struct bench *b, const struct ls_freeze *f, bool **at_sharding, bool **final, struct ls_error *err)
{
    return ls_multimodal_freeze(&b->m, &b->specs, LS_RULES_AUTOMODEL, f, at_sharding, final, err);
}

/* Fills `b->text` with what our rules make of the recording's header; the header is the recording's own. */
static enum ls_code replay(struct bench *b, const char *recording, struct ls_error *err)
{
    struct ls_policy policy = { .rules = LS_RULES_AUTOMODEL, .param_dtype = LS_DTYPE_BF16, .reduce_dtype = LS_DTYPE_F32,
                                .output_dtype = LS_DTYPE_BF16, .cast_inputs = true, .moe = { .wrap_outer_model = true } };
    struct ls_mesh mesh = { .replicate = 1, .shard = 2, .cp = 1, .tp = 1, .pp = 1, .ep = 1, .ep_shard = 1 };
    const struct ls_runtime runtime = { .version = 212 };
    char value[300], file[1200], one[600];
    bool *at_sharding = NULL, *final = NULL;
    unsigned long long rank = 0;
    enum ls_code rc = LS_OK;
    for (const char *line = recording; rc == LS_OK && *line && strncmp(line, "frozen ", 7) != 0;) {
        const size_t length = strcspn(line, "\n");
        ls_str_addn(&b->text, line, length + (line[length] != 0));
        snprintf(one, sizeof one, "%.*s", (int)length, line);
        line += length + (line[length] != 0);
        if (field(one, "nemo-automodel ", value, sizeof value)) {
            policy.automodel = strcmp(value, "0.7") >= 0 ? 7 : 6;
        } else if (strncmp(one, "inventory ", 10) == 0) {
            const struct ls_freeze none = { 0 };
            snprintf(file, sizeof file, "%s/%s", LS_SOURCE_DIR, one + 10);
            rc = ls_model_load(file, &b->arena, b->names, &b->m, err);
            if (rc == LS_OK)
                rc = ls_multimodal_resolve(&b->m, policy.rules, NULL, 0, &b->specs, err);
            if (rc == LS_OK)
                rc = freeze(b, &none, &at_sharding, &final, err);
        } else if (sscanf(one, "peft %299s %llu", value, &rank) == 2) {
            const char *const target = value;
            const struct ls_peft peft = { &target, 1, rank, LS_DTYPE_NONE, LS_NOWHERE, false };
            const struct ls_freeze base = { .peft_base = true };
            rc = ls_model_add_lora(&b->m, &peft, err);
            if (rc == LS_OK)
                rc = ls_multimodal_resolve(&b->m, policy.rules, NULL, 0, &b->specs, err);
            if (rc == LS_OK)
                rc = freeze(b, &base, &at_sharding, &final, err);
        } else if (strncmp(one, "freeze_config ", 14) == 0 && strcmp(one + 14, "none") != 0) {
            const struct ls_freeze f = { .present = true, .peft_base = rank > 0, .vision_tower = flag(one, "freeze_vision_tower=", true),
                                         .audio_tower = flag(one, "freeze_audio_tower=", false),
                                         .language_model = flag(one, "freeze_language_model=", false) };
            rc = freeze(b, &f, &at_sharding, &final, err);
        } else if (strncmp(one, "freeze ", 7) == 0) {
            uint32_t module = ls_model_module(&b->m, one + 7);
            if (module == LS_NO_ID)
                return ls_fail_module(&b->m, one + 7, "freeze", LS_NOWHERE, err);
            const struct ls_module *first = &b->m.module[module], *last = first + first->subtree - 1;
            for (uint32_t i = first->first_param; i < last->first_param + last->params; i++)
                at_sharding[i] = final[i] = false;
        } else if (sscanf(one, "experts dp=%zu ep=%zu", &mesh.shard, &mesh.ep) == 2) {
            mesh.ep_shard = mesh.shard / mesh.ep;
            policy.moe.wrap_outer_model = flag(one, "wrap=", true);
            policy.moe.lm_head_f32 = strstr(one, "lm_head=float32") != NULL;
        } else if (strncmp(one, "policy ", 7) == 0) {
            if (field(one, "frozen=", value, sizeof value))
                policy.frozen = strcmp(value, "root") == 0        ? LS_FROZEN_ROOT
                                : strcmp(value, "per_layer") == 0 ? LS_FROZEN_PER_LAYER
                                                                  : LS_FROZEN_REPLICATE;
            if (field(one, "reshard=", value, sizeof value))
                policy.reshard = strcmp(value, "none") == 0 ? LS_RESHARD_DEFAULT : strcmp(value, "true") == 0 ? LS_RESHARD_TRUE : LS_RESHARD_FALSE;
            if (field(one, "prefetch=", value, sizeof value))
                policy.prefetch = sscanf(value, "%u/%u", &policy.prefetch_forward, &policy.prefetch_backward) == 2;
        }
    }
    if (rc == LS_OK && !at_sharding)
        rc = ls_fail(err, LS_EINPUT, LS_NOWHERE, "the recording names no inventory");
    if (rc == LS_OK)
        add_frozen(b, at_sharding);
    if (rc == LS_OK)
        rc = ls_plan_from_policy(&b->m, &b->specs, at_sharding, final, &mesh, &runtime, &policy, &b->plan, &b->refusal, err);
    if (rc == LS_OK && b->refusal.rule)
        ls_str_printf(&b->text, "refused %s\n", b->refusal.rule);
    else if (rc == LS_OK)
        add_units(b);
    return rc;
}

static bool read_file(const char *path, struct ls_str *out)
{
    char block[4096];
    FILE *f = fopen(path, "rb");
    if (!f)
        return false;
    for (size_t got; (got = fread(block, 1, sizeof block, f)) > 0;)
        ls_str_addn(out, block, got);
    bool ok = !ferror(f);
    fclose(f);
    return ok;
}

static bool is_equal(const char *name, const char *want, const char *have)
{
    for (size_t line = 1; *want || *have; line++) {
        const size_t nw = strcspn(want, "\n"), nh = strcspn(have, "\n");
        if (nw != nh || strncmp(want, have, nw) != 0) {
            fprintf(stderr, "%s:%zu\n  recorded %.*s\n  ours     %.*s\n", name, line, (int)nw, want, (int)nh, have);
            return false;
        }
        want += nw + (want[nw] != 0), have += nh + (have[nh] != 0);
    }
    return true;
}

static bool compare(const char *folder, const char *name)
{
    char path[1000];
    struct bench b = { .names = ls_names_open() };
    struct ls_str recording = { 0 };
    struct ls_error err = { 0 };
    ls_arena_init(&b.arena, 0);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    bool equal = false;
    if (!read_file(path, &recording))
        fprintf(stderr, "%s: cannot be read\n", name);
    else if (replay(&b, ls_str_text(&recording), &err) != LS_OK)
        fprintf(stderr, "%s: %s\n", name, err.text);
    else
        equal = is_equal(name, ls_str_text(&recording), ls_str_text(&b.text));
    ls_str_release(&recording);
    ls_str_release(&b.text);
    ls_names_close(b.names);
    ls_arena_release(&b.arena);
    return equal;
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

int main(int argc, char **argv)
{
    const char *folder = LS_SOURCE_DIR "/tests/oracle/automodel";
    const bool json = argc > 1 && strcmp(argv[1], "--json") == 0;
    const int first = 1 + json;
    size_t equal = 0;
    DIR *dir = opendir(folder);
    if (!dir) {
        fprintf(stderr, "%s: no such folder\n", folder);
        return 2;
    }
    LS_VEC(char *) files = { 0 };
    for (struct dirent *e; (e = readdir(dir));) {
        const char *dot = strrchr(e->d_name, '.');
        bool wanted = first == argc;
        for (int i = first; i < argc; i++)
            wanted |= strstr(e->d_name, argv[i]) != NULL;
        if (wanted && dot && strcmp(dot, ".rec") == 0)
            ls_push(&files, strdup(e->d_name));
    }
    closedir(dir);
    if (files.count)
        qsort(files.at, files.count, sizeof *files.at, by_text);
    for (size_t i = 0; i < files.count; i++) {
        equal += compare(folder, files.at[i]);
        free(files.at[i]);
    }
    const size_t compared = files.count;
    ls_vec_release(&files);
    if (json)
        printf("{\"version\":1,\"oracle\":\"automodel\",\"compared\":%zu,\"equal\":%zu}\n", compared, equal);
    else
        printf("oracle automodel: %zu recordings compared, %zu equal\n", compared, equal);
    return compared && compared == equal ? 0 : 1;
}
