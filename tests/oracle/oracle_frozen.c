/* What freeze_config freezes under `rules: automodel`, against recordings of AutoModel's own freezing (record_frozen.py); and, for each
 * recorded config, that the migrated one freezes the same parameters under `rules: proposed`, and that the proposed rules refuse the
 * keys that 0.7.0 raises for.
 *
 *     oracle_frozen [NAME...]   only recordings whose name holds NAME */
#include "base/vec.h"
#include "multimodal/migrate.h"
#include "scenario/scenario.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Configs for which AutoModel then freezes keys and values of layers that share them, too, by the layer's number in the name: of Gemma4
 * E2B, whose text layers have none, that hits layer 15 of a vision tower that trains. */
static size_t kv_sharing;

struct recorded { const char *config, *refused, *frozen; struct ls_str subtrees; size_t line; };

static const char *scenario_text(struct ls_arena *arena, const char *inventory, const char *rules, const char *config)
{
    return ls_arena_printf(arena, "lockstep: 1\nname: frozen\nmodel: {inventory: \"%s/%s\"}\nfreeze_config: %s\n"
                           "distributed: {dp_size: 2, rules: %s}\nbatch: {microbatches: 1, samples: [{text: 8}], execution: any}\n",
                           LS_SOURCE_DIR, inventory, config, rules);
}

/* "a=true b=false" as a flow mapping, without the keys in `leave_out`. */
static const char *flow_of(struct ls_arena *arena, const char *config, const char *leave_out)
{
    struct ls_str s = { 0 };
    char copy[400], *next = copy;
    snprintf(copy, sizeof copy, "%s", strcmp(config, "empty") == 0 ? "" : config);
    ls_str_add(&s, "{");
    for (char *pair; (pair = strsep(&next, " "));) {
        char *value = strchr(pair, '=');
        if (!value)
            continue;
        *value++ = 0;
        if (!leave_out || !strstr(leave_out, pair))
            ls_str_printf(&s, "%s%s: %s", s.length > 1 ? ", " : "", pair, value);
    }
    ls_str_add(&s, "}");
    const char *out = ls_arena_str(arena, ls_str_text(&s));
    ls_str_release(&s);
    return out;
}

static void digest(const struct ls_scenario *s, const bool *grad, struct ls_str *out)
{
    uint64_t h = 0xcbf29ce484222325u;
    size_t count = 0;
    bool *met = calloc(s->model.params + 1, sizeof *met);
    for (uint32_t p = 0; met && p < s->model.params; p++) {
        const struct ls_param *q = &s->model.param[p];
        bool whole = q->dtype == LS_DTYPE_I64 || q->dtype == LS_DTYPE_I32 || q->dtype == LS_DTYPE_U8 || q->dtype == LS_DTYPE_BOOL;
        if (!met[q->canonical] && !grad[p] && !whole) {
            for (const char *c = ls_name_text(s->names, q->name);; c++) {
                h = (h ^ (unsigned char)(*c ? *c : '\n')) * 0x100000001b3u;
                if (!*c)
                    break;
            }
            count++;
        }
        met[q->canonical] = true;
    }
    free(met);
    ls_str_printf(out, "%zu:%016" PRIx64, count, h);
}

static bool check_config(const char *file, const char *inventory, const struct recorded *r)
{
    struct ls_arena arena;
    struct ls_names *names = ls_names_open();
    struct ls_error err = { 0 };
    struct ls_scenario s, t;
    struct ls_migration migration;
    struct ls_specs specs;
    struct ls_str ours = { 0 }, trees = { 0 }, again = { 0 };
    struct ls_subtree *tree;
    bool ok = false;
    ls_arena_init(&arena, 0);
    const char *text = scenario_text(&arena, inventory, "automodel", flow_of(&arena, r->config, NULL));
    if (ls_scenario_read(text, strlen(text), "frozen.yaml", &arena, names, &s, &err) != LS_OK) {
        printf("%s:%zu: %s\n", file, r->line, err.text);
        goto out;
    }
    digest(&s, s.at_sharding, &ours);
    bool *frozen = LS_NEW(&arena, bool, s.model.params + 1);
    for (uint32_t p = 0; p < s.model.params; p++)
        frozen[p] = !s.at_sharding[p];
    size_t count = ls_param_subtrees(&s.model, frozen, &arena, &tree);
    for (size_t i = 0; i < count; i++)
        ls_str_printf(&trees, "%s %zu\n", tree[i].glob, tree[i].params);
    ok = strcmp(ls_str_text(&ours), r->frozen) == 0 && strcmp(ls_str_text(&trees), ls_str_text(&r->subtrees)) == 0;
    if (!ok)
        printf("%s:%zu: %s: recorded %s\n%sours %s\n%s", file, r->line, r->config, r->frozen, ls_str_text(&r->subtrees), ls_str_text(&ours),
               ls_str_text(&trees));
    /* Keys that 0.7.0 raises for. */
    text = scenario_text(&arena, inventory, "proposed", flow_of(&arena, r->config, NULL));
    bool refused = ls_scenario_read(text, strlen(text), "frozen.yaml", &arena, names, &t, &err) == LS_EINPUT && strstr(err.text, "is refused");
    bool wanted = strstr(r->config, "freeze_embeddings") != NULL;
    if (refused != wanted || (r->refused && !(refused && strstr(err.text, r->refused)))) {
        printf("%s:%zu: %s: the proposed rules %s it\n", file, r->line, r->config, refused ? "refuse" : "take");
        ok = false;
    }
    /* The migrated config. */
    if (ls_multimodal_resolve(&s.model, LS_RULES_PROPOSED, NULL, 0, &specs, &err) != LS_OK ||
        ls_multimodal_migrate(&s.model, &specs, &s.freeze, &migration, &err) != LS_OK || !migration.exact) {
        printf("%s:%zu: %s: not migrated: %s\n", file, r->line, r->config, err.text);
        ok = false;
        goto out;
    }
    text = scenario_text(&arena, inventory, "proposed", migration.exact);
    if (ls_scenario_read(text, strlen(text), "frozen.yaml", &arena, names, &t, &err) != LS_OK) {
        printf("%s:%zu: migrated to %s: %s\n", file, r->line, migration.exact, err.text);
        ok = false;
        goto out;
    }
    digest(&t, t.at_sharding, &again);
    if (strcmp(ls_str_text(&again), r->frozen) != 0) {
        printf("%s:%zu: migrated to %s: recorded %s, ours %s\n", file, r->line, migration.exact, r->frozen, ls_str_text(&again));
        ok = false;
    }
out:
    ls_str_release(&ours);
    ls_str_release(&trees);
    ls_str_release(&again);
    ls_names_close(names);
    ls_arena_release(&arena);
    return ok;
}

static bool check_recording(const char *path, size_t *configs)
{
    FILE *f = fopen(path, "r");
    char line[1024], inventory[1024] = "";
    static char config[1024], refused[1024], frozen[1024];
    struct recorded r = { 0 };
    bool ok = f != NULL;
    for (size_t at = 1; f; at++) {
        bool more = fgets(line, sizeof line, f) != NULL;
        line[more ? strcspn(line, "\n") : 0] = 0;
        if ((!more || strncmp(line, "config ", 7) == 0) && r.config) {
            ok = check_config(path, inventory, &r) && ok;
            ++*configs;
            ls_str_clear(&r.subtrees);
            r.refused = NULL;
        }
        if (!more)
            break;
        if (strncmp(line, "inventory ", 10) == 0)
            snprintf(inventory, sizeof inventory, "%s", line + 10);
        else if (strncmp(line, "config ", 7) == 0)
            snprintf(config, sizeof config, "%s", line + 7), r.config = config, r.line = at;
        else if (strncmp(line, "refused ", 8) == 0)
            snprintf(refused, sizeof refused, "%s", line + 8), r.refused = refused;
        else if (strncmp(line, "frozen ", 7) == 0)
            snprintf(frozen, sizeof frozen, "%s", line + 7), r.frozen = frozen;
        else if (strncmp(line, "subtree ", 8) == 0)
            ls_str_printf(&r.subtrees, "%s\n", line + 8);
        else if (strncmp(line, "kv_subtree ", 11) == 0)
            ls_str_printf(&r.subtrees, "%s\n", line + 11);
        else if (strncmp(line, "kv_sharing ", 11) == 0) { /* what is frozen then replaces what was */
            const char *after = strchr(line + 11, ' ');
            kv_sharing++;
            snprintf(frozen, sizeof frozen, "%s", after ? after + 1 : "");
            ls_str_clear(&r.subtrees);
        }
    }
    if (f)
        fclose(f);
    ls_str_release(&r.subtrees);
    return ok && *configs;
}

int main(int argc, char **argv)
{
    struct dirent **entry;
    size_t compared = 0, equal = 0, configs = 0;
    int n = scandir(LS_SOURCE_DIR "/tests/oracle/frozen", &entry, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        bool wanted = strstr(entry[i]->d_name, ".rec") != NULL, named = argc < 2;
        for (int k = 1; k < argc; k++)
            named = named || strstr(entry[i]->d_name, argv[k]);
        if (wanted && named) {
            struct ls_str path = { 0 };
            ls_str_printf(&path, "%s/tests/oracle/frozen/%s", LS_SOURCE_DIR, entry[i]->d_name);
            compared++;
            equal += check_recording(ls_str_text(&path), &configs);
            ls_str_release(&path);
        }
        free(entry[i]);
    }
    if (n >= 0)
        free(entry);
    printf("oracle frozen: %zu recordings compared, %zu equal\n", compared, equal);
    printf("%zu freeze_configs, in %zu of them AutoModel freezes keys and values by layer number in addition; each migrated one freezes "
           "the same\n", configs, kv_sharing);
    return compared && compared == equal ? 0 : 1;
}
