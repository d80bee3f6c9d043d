#include "auditing.h"

#include "advise/advise.h"
#include "base/vec.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define TABLE LS_SOURCE_DIR "/tests/data/audit/verdicts.tsv"
typedef LS_VEC(const char *) text_list;

static void find_recipes(struct auditing *a, const char *folder, text_list *out)
{
    struct dirent **entry = NULL;
    const char *full = ls_arena_printf(&a->arena, "%s/%s", AUDIT_RECIPES, folder);
    int entries = scandir(full, &entry, NULL, alphasort);
    for (int i = 0; i < entries; i++) {
        const char *name = entry[i]->d_name, *path = ls_arena_printf(&a->arena, "%s%s%s", folder, *folder ? "/" : "", name);
        struct stat st;
        size_t length = strlen(name);
        if (name[0] != '.' && stat(ls_arena_printf(&a->arena, "%s/%s", AUDIT_RECIPES, path), &st) == 0) {
            if (S_ISDIR(st.st_mode))
                find_recipes(a, path, out);
            else if (length > 5 && strcmp(name + length - 5, ".yaml") == 0)
                ls_push(out, path);
        }
        free(entry[i]);
    }
    free(entry);
}

static void read_table(struct auditing *a, text_list *out)
{
    char line[4096];
    FILE *f = fopen(TABLE, "r");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        ls_push(out, ls_arena_str(&a->arena, line));
    }
    if (f)
        fclose(f);
}

bool auditing_open(struct auditing *a)
{
    struct ls_error err;
    text_list path = { 0 }, line = { 0 };
    *a = (struct auditing){ 0 };
    if (access(AUDIT_RECIPES, R_OK) != 0)
        return false;
    ls_arena_init(&a->arena, 0);
    if (ls_inventories_read(LS_SOURCE_DIR "/scenarios/models", &a->arena, &a->known, &err) != LS_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    a->memo = ls_audit_memo_open();
    find_recipes(a, "", &path);
    read_table(a, &line);
    a->path = path.at, a->paths = path.count;
    a->line = line.at, a->lines = line.count;
    return true;
}

void auditing_close(struct auditing *a)
{
    ls_audit_memo_close(a->memo);
    ls_vec_release(&a->judged);
    free(a->path);
    free(a->line);
    ls_arena_release(&a->arena);
}

/* ------------------------------------------------------------------------------------------------- the table */

static void add_verdict(struct ls_str *out, const struct ls_audit_verdict *v)
{
    const bool proved = v->verdict != LS_SAFE || v->known == LS_KNOWN_PROVED;
    ls_str_printf(out, "\t%s%s", v->given ? ls_verdict_name(v->verdict) : "-", v->given && !proved ? " (not proved)" : "");
}

static void write_line(const char *recipe, const struct ls_audit_row *r, uint64_t world, struct ls_str *out)
{
    ls_str_printf(out, "%s\t", recipe);
    world ? ls_str_printf(out, "%" PRIu64, world) : ls_str_add(out, "auto");
    ls_str_printf(out, "\t%" PRIu64, r->world);
    add_verdict(out, &r->uniform);
    add_verdict(out, &r->mixed);
    add_verdict(out, &r->assumed);
    ls_str_printf(out, "\t%s\t", r->repair ? r->repair : r->repaired ? "none" : "-");
    for (size_t i = 0; i < r->whys; i++)
        ls_str_printf(out, "%s%s", i ? "; " : "", r->why[i]);
    const char *uniform = r->uniform.cause, *mixed = r->mixed.cause;
    if (uniform && (!mixed || strcmp(uniform, mixed) != 0))
        ls_str_printf(out, "uniform: %s%s", uniform, mixed ? "; else: " : "");
    ls_str_add(out, mixed ? mixed : "");
}

/* Recipe and world size come first; a->lines: none. */
static size_t find_line(const struct auditing *a, const char *line)
{
    const char *second = strchr(line, '\t'), *third = strchr(second + 1, '\t');
    size_t i = 0;
    while (i < a->lines && strncmp(a->line[i], line, (size_t)(third - line) + 1) != 0)
        i++;
    return i;
}

static bool in_table(const struct auditing *a, const char *line, struct ls_str *why)
{
    size_t i = find_line(a, line);
    if (i < a->lines && strcmp(a->line[i], line) == 0)
        return true;
    if (i < a->lines)
        ls_str_printf(why, "the table says\n  %s\nthe audit\n  %s\n", a->line[i], line);
    else
        ls_str_printf(why, "not in the table:\n  %s\n", line);
    return false;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

bool auditing_write(struct auditing *a, const char *line)
{
    int lock = open(TABLE, O_RDWR | O_CREAT, 0644); /* several processes may share the work */
    if (lock < 0 || flock(lock, LOCK_EX) != 0)
        return false;
    text_list now = { 0 };
    read_table(a, &now);
    free(a->line);
    a->line = now.at, a->lines = now.count;
    size_t i = find_line(a, line);
    if (i == a->lines) {
        ls_push(&now, line);
        a->line = now.at, a->lines = now.count;
    }
    a->line[i] = ls_arena_str(&a->arena, line);
    qsort(a->line, a->lines, sizeof *a->line, by_text);
    FILE *f = fopen(TABLE, "w");
    for (size_t k = 0; f && k < a->lines; k++)
        fprintf(f, "%s\n", a->line[k]);
    bool ok = f && fclose(f) == 0;
    close(lock);
    return ok;
}

/* ------------------------------------------------------------------------------------------------- import and check */

struct other { struct ls_arena arena; struct ls_names *names; struct ls_error err; };

/* What `check` says of the text. */
static bool judge(struct other *o, const char *text, int execution, enum ls_verdict *out, bool *proved)
{
    static struct ls_scenario s; /* large */
    struct ls_assessment a;
    struct ls_assess_options options = { .variant = LS_AS_WRITTEN };
    options.variant.execution = execution;
    options.check.gradients = options.check.races = true;
    options.check.seconds_max = 120;
    if (ls_scenario_read(text, strlen(text), LS_SOURCE_DIR "/scenarios/imported.yaml", &o->arena, o->names, &s, &o->err) != LS_OK ||
        ls_assess(&s, &options, &o->arena, &a, &o->err) != LS_OK)
        return false;
    *out = a.verdict;
    *proved = a.verdict == LS_SAFE && a.check.known == LS_KNOWN_PROVED;
    ls_assessment_release(&a);
    return true;
}

static const char *replaced(struct other *o, const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    return at ? ls_arena_printf(&o->arena, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) : NULL;
}

/* A dummy of every modality that has conditional modules, covering all its roles. */
static const char *with_dummies(struct other *o, const char *text)
{
    static struct ls_scenario s;
    struct ls_str list = { 0 };
    const char *out = NULL;
    if (ls_scenario_read(text, strlen(text), LS_SOURCE_DIR "/scenarios/imported.yaml", &o->arena, o->names, &s, &o->err) == LS_OK) {
        const struct ls_spec *spec = s.specs.spec;
        for (size_t i = 0; i < s.specs.count; i++) {
            bool before = false;
            for (size_t k = 0; k < i; k++)
                before = before || spec[k].modality == spec[i].modality;
            if (before)
                continue;
            ls_str_printf(&list, "%s%s: {covers: [", list.length ? ", " : "\n  dummy_forward: {", ls_name_text(o->names, spec[i].modality));
            for (size_t k = i, n = 0; k < s.specs.count; k++)
                if (spec[k].modality == spec[i].modality)
                    ls_str_printf(&list, "%s%s", n++ ? ", " : "", ls_name_text(o->names, spec[k].role));
            ls_str_add(&list, "], linked: true}");
        }
        ls_str_add(&list, list.length ? "}" : "");
        out = replaced(o, text, "\nbatch:", ls_arena_printf(&o->arena, "\nbatch:%s", ls_str_text(&list)));
    }
    ls_str_release(&list);
    return out;
}

/* The change, as a person would write it into the scenario; NULL: it has no place there. */
static const char *with_repair(struct other *o, const char *text, const char *change)
{
    static const char *const policies[] = { "root", "replicate" };
    if (strstr(change, "execution: rank_uniform") && !(text = replaced(o, text, "execution: any", "execution: rank_uniform")))
        return NULL;
    if (strstr(change, "defer_fsdp_grad_sync: false") && !(text = replaced(o, text, "defer_fsdp_grad_sync: true", "defer_fsdp_grad_sync: false")))
        return NULL;
    if (strstr(change, "run_dummy_forward: true") && !(text = with_dummies(o, text)))
        return NULL;
    if (strstr(change, "unused_params: fallback"))
        text = ls_arena_printf(&o->arena, "%s\nruntime: {fsdp2: {unused_params: fallback}}\n", text);
    for (size_t i = 0; i < 2; i++)
        if (strcmp(change, ls_arena_printf(&o->arena, "frozen_sharding: %s", policies[i])) == 0) {
            const char *to = ls_arena_printf(&o->arena, "frozen_sharding: \"%s\"", policies[i]), *was = strstr(text, "frozen_sharding: \"");
            if (!was)
                return replaced(o, text, "\nbatch:", ls_arena_printf(&o->arena, "\n  multimodal: {%s}\nbatch:", to));
            const char *from = ls_arena_strn(&o->arena, was, strcspn(was, "\n"));
            return replaced(o, text, from, to);
        }
    return text;
}

static bool repair_holds(struct other *o, const struct ls_audit_row *row, const char *text, struct audit_sum *sum, struct ls_str *why)
{
    enum ls_verdict verdict = LS_UNDECIDED;
    bool proved = false;
    if (!row->repaired)
        return true;
    if (!row->repair) {
        sum->no_repair++;
        return true;
    }
    const char *repaired = with_repair(o, text, row->repair);
    if (repaired && judge(o, repaired, -1, &verdict, &proved) && proved) {
        sum->repaired++;
        return true;
    }
    ls_str_printf(why, "the repair '%s', written into the scenario: %s%s\n", row->repair, repaired ? ls_verdict_name(verdict) : "no place for it",
                  o->err.text);
    return false;
}

/* The scenario without its name and its lists. */
static const char *plan_of(struct ls_arena *arena, const char *text)
{
    const char *model = strstr(text, "\nmodel:\n"), *lists = strstr(text, "\n\n# Imported");
    return model && lists ? ls_arena_strn(arena, model, (size_t)(lists - model)) : text;
}

/* Recipes that differ in data or optimizer alone make one plan: it is checked once, the repair too. */
static struct judged_plan *find_judged(struct auditing *a, const char *plan)
{
    for (size_t i = 0; i < a->judged.count; i++)
        if (strcmp(a->judged.at[i].plan, plan) == 0)
            return &a->judged.at[i];
    ls_push(&a->judged, (struct judged_plan){ .plan = ls_arena_str(&a->arena, plan) });
    return &a->judged.at[a->judged.count - 1];
}

static bool agrees(struct auditing *a, const char *path, const struct ls_audit_row *row, struct audit_sum *sum, struct ls_str *why)
{
    struct other o = { .names = ls_names_open() };
    struct ls_recipe recipe;
    struct ls_import import;
    bool proved;
    ls_arena_init(&o.arena, 0);
    enum ls_code rc = ls_recipe_load(path, &a->known, &o.arena, &recipe, &o.err);
    if (rc == LS_OK)
        rc = ls_recipe_import(&recipe, &(struct ls_import_options){ .world_size = row->world }, &o.arena, &import, &o.err);
    bool ok = (rc == LS_OK) == (row->uniform.given && row->mixed.given);
    if (!ok)
        ls_str_printf(why, "import recipe says: %s\n", rc == LS_OK ? "a scenario" : o.err.text);
    if (ok && rc == LS_OK) {
        struct judged_plan *plan = find_judged(a, plan_of(&o.arena, import.text));
        const char *repair = row->repair ? row->repair : "";
        sum->imported++;
        if (!plan->known)
            plan->known = ok = judge(&o, import.text, LS_EXEC_RANK_UNIFORM, &plan->uniform, &proved) &&
                               judge(&o, import.text, -1, &plan->mixed, &proved);
        if (!ok)
            ls_str_printf(why, "check says: %s\n", o.err.text);
        else if (plan->uniform != row->uniform.verdict || plan->mixed != row->mixed.verdict) {
            ls_str_printf(why, "import and check say: uniform %s, may differ %s\n", ls_verdict_name(plan->uniform), ls_verdict_name(plan->mixed));
            ok = false;
        } else if (!plan->repair || strcmp(plan->repair, repair) != 0) {
            ok = repair_holds(&o, row, import.text, sum, why);
            plan->repair = ok ? ls_arena_str(&a->arena, repair) : NULL;
        }
    }
    ls_names_close(o.names);
    ls_arena_release(&o.arena);
    return ok;
}

bool auditing_row(struct auditing *a, size_t recipe, uint64_t world, bool table, struct audit_sum *sum, struct ls_str *out, struct ls_str *why)
{
    struct ls_arena arena;
    struct ls_audit_row row;
    struct ls_error err;
    ls_arena_init(&arena, 0);
    const char *path = ls_arena_printf(&arena, "%s/%s", AUDIT_RECIPES, a->path[recipe]);
    struct ls_audit_options o = { .world_size = world, .seconds_max = 120 };
    bool ok = ls_audit_recipe(path, &a->known, &o, a->memo, &arena, &row, &err) == LS_OK && row.err.code == LS_OK;
    sum->rows++;
    if (ok) {
        sum->judged += row.mixed.given;
        sum->without += !row.mixed.given;
        if (!row.mixed.given && !row.whys) {
            ls_str_add(why, "no verdict, and no reason\n");
            ok = false;
        }
        write_line(a->path[recipe], &row, world, out);
        ok = (!table || in_table(a, ls_str_text(out), why)) && ok;
        ok = agrees(a, path, &row, sum, why) && ok;
    } else {
        ls_str_add(why, "not read\n");
    }
    ls_arena_release(&arena);
    return ok;
}
