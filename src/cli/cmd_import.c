#include "cli/cli.h"
#include "cli/files.h"
#include "import/recipe.h"

#include <string.h>
#include <sys/stat.h>

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* The folder of inventories: as told, beside the output, or of the project that we stand in. */
static const char *find_models(const struct ls_cli *cli, struct ls_arena *arena)
{
    const char *given = ls_cli_value(cli, "models"), *output = ls_cli_value(cli, "output");
    if (given)
        return given;
    const char *slash = output ? strrchr(output, '/') : NULL;
    const char *beside = slash ? ls_arena_printf(arena, "%.*s/models", (int)(slash - output), output) : output ? "models" : NULL;
    return beside && is_folder(beside) ? beside : ls_models_folder(arena);
}

static void print_list(struct ls_json *j, const char *key, const char *const *text, size_t count)
{
    ls_json_key(j, key);
    ls_json_array(j);
    for (size_t i = 0; i < count; i++)
        ls_json_text(j, text[i]);
    ls_json_end_array(j);
}

static void print_freeze(struct ls_json *j, const struct ls_import_freeze *f)
{
    ls_json_key(j, "freeze_config");
    if (!f) {
        ls_json_null(j);
        return;
    }
    const struct { const char *key, *text; } texts[] = { { "written", f->written }, { "exact", f->exact }, { "at_its_word", f->literal },
                                                         { "keys_without_effect", f->nothing } };
    ls_json_object(j);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        ls_json_add_text(j, texts[i].key, texts[i].text);
    print_list(j, "differs_from_today", f->differs, f->differs_count);
    print_list(j, "at_its_word_trains", f->trains, f->trains_count);
    print_list(j, "at_its_word_freezes", f->freezes, f->freezes_count);
    ls_json_end_object(j);
}

static void print_json(const struct ls_cli *cli, const char *path, uint64_t world, const struct ls_recipe *recipe, const struct ls_import *import,
                       const struct ls_error *err)
{
    static const char *const keys[] = { "taken_over", "without_effect", "not_understood", "not_modelled" };
    struct ls_str text = { 0 };
    struct ls_json j;
    ls_cli_json_open(cli, &j, &text);
    ls_json_add_text(&j, "recipe", path);
    ls_json_add_uint(&j, "world_size", world);
    ls_json_add_text(&j, "model_id", recipe->model_id);
    ls_json_add_text(&j, "inventory", recipe->inventory ? recipe->inventory->path : NULL);
    for (int kind = LS_IMPORT_TAKEN; kind <= LS_IMPORT_UNSUPPORTED; kind++) {
        ls_json_key(&j, keys[kind]);
        ls_json_array(&j);
        for (size_t i = 0; i < import->notes; i++) {
            const struct ls_import_note *n = &import->note[i];
            if (n->kind != (enum ls_import_kind)kind)
                continue;
            ls_json_object(&j);
            ls_json_add_text(&j, "key", n->key);
            ls_json_add_text(&j, "what", n->what);
            ls_json_add_uint(&j, "line", n->at.line);
            ls_json_end_object(&j);
        }
        ls_json_end_array(&j);
    }
    print_freeze(&j, import->freeze);
    ls_json_add_text(&j, "scenario", import->text);
    if (err) {
        ls_json_key(&j, "error");
        ls_report_json(&j, err);
    }
    ls_cli_json_close(&j);
}

static int import_recipe(const struct ls_cli *cli, const char *path, struct ls_arena *arena)
{
    struct ls_error err = { 0 };
    uint64_t world = 0;
    struct ls_inventories known;
    struct ls_recipe recipe = { 0 };
    struct ls_import import = { 0 };
    const char *output = ls_cli_value(cli, "output"), *inventory = ls_cli_value(cli, "inventory");
    if (!ls_cli_value(cli, "world-size"))
        return ls_usage(cli, "import needs --world-size N");
    if (ls_cli_uint(cli, "world-size", 1, 1 << 20, &world, &err) != LS_OK)
        return ls_report(cli, &err);
    static const char *const rules[] = { "automodel", "proposed", NULL };
    unsigned proposed = 0;
    enum ls_code rc = ls_cli_choice(cli, "rules", rules, &proposed, &err);
    if (rc != LS_OK)
        return ls_report(cli, &err);
    rc = inventory ? ls_inventories_only(inventory, arena, &known, &err)
                                : ls_inventories_read(find_models(cli, arena), arena, &known, &err);
    if (rc == LS_OK)
        rc = ls_recipe_load(path, &known, arena, &recipe, &err);
    if (rc == LS_OK)
        rc = ls_recipe_import(&recipe, &(struct ls_import_options){ world, inventory, proposed == 1 }, arena, &import, &err);
    if (rc == LS_OK && output)
        rc = ls_write_file(output, import.text, strlen(import.text), &err);
    if (cli->json) {
        print_json(cli, path, world, &recipe, &import, rc == LS_OK ? NULL : &err);
        return (int)rc;
    }
    for (size_t i = 0; rc != LS_OK && i < import.notes; i++)
        if (import.note[i].kind == LS_IMPORT_UNSUPPORTED)
            fprintf(stderr, "not modelled yet: %s: %s\n", import.note[i].key, import.note[i].what);
    if (rc != LS_OK)
        return ls_report(cli, &err);
    if (!output)
        fputs(import.text, stdout);
    return LS_OK;
}

static int run(const struct ls_cli *cli, int argc, char **argv)
{
    if (argc != 2 || strcmp(argv[0], "recipe") != 0)
        return ls_usage(cli, "import takes 'recipe' and one FILE");
    struct ls_arena arena;
    ls_arena_init(&arena, 0);
    int rc = import_recipe(cli, argv[1], &arena);
    ls_arena_release(&arena);
    return rc;
}

static const struct ls_option options[] = {
    { "world-size", "N", "number of ranks that the recipe is started with" },
    { "output", "FILE", "write the scenario there instead of to standard output" },
    { "rules", "RULES", "automodel (default): today's; proposed: freeze_config is said by modality and role, and set-up contracts hold" },
    { "models", "DIR", "folder of inventories, searched by model id (default scenarios/models)" },
    { "inventory", "FILE", "the inventory to use, whatever the recipe's model is called" },
    { 0 },
};
static const struct ls_example examples[] = {
    { "import recipe gemma3_vl_4b_medpix.yaml --world-size 8", "the scenario on standard output" },
    { "import recipe r.yaml --world-size 16 --output scenarios/r.yaml", "ready for check" },
    { "import recipe r.yaml --world-size 8 --rules proposed", "and what freezing by modality and role changes" },
    { 0 },
};
const struct ls_command ls_command_import = {
    .name = "import",
    .run = run,
    .operands = "recipe FILE",
    .summary = "turn a training recipe of AutoModel into a scenario",
    .text = "The scenario ends with three lists: what was taken over, what has no effect on the collectives, what was not "
            "understood. Ranks of a context- or tensor-parallel group hold one batch and do the same: FSDP cuts over data- and "
            "context-parallel ranks together, so dp_size of the scenario is their product, and tensor parallelism is left out. "
            "With --rules proposed freeze_config freezes the parameters that it freezes today, and a fourth list says what would "
            "change if each of its keys were taken at its word. A recipe with a part that is not modelled yields no scenario: the parts are named, and the exit "
            "status is 3.",
    .options = options,
    .examples = examples,
};
