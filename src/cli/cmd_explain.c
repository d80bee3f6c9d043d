/* lockstep explain: what a scenario compiles to, as tables. */
#include "advise/advise.h"
#include "cli/cli.h"

#include <string.h>

static void add_bytes(struct ls_str *out, uint64_t bytes)
{
    double v = (double)bytes;
    if (bytes >= UINT64_C(1) << 30)
        ls_str_printf(out, "%.2f GiB", v / (1 << 30));
    else if (bytes >= 1 << 20)
        ls_str_printf(out, "%.1f MiB", v / (1 << 20));
    else if (bytes >= 1 << 10)
        ls_str_printf(out, "%.1f KiB", v / 1024);
    else
        ls_str_printf(out, "%llu B", (unsigned long long)bytes);
}

static const char *reshard_text(const struct ls_unit *u, char *room, size_t bytes)
{
    switch (u->reshard) {
    case LS_RESHARD_DEFAULT: return "default";
    case LS_RESHARD_TRUE: return "true";
    case LS_RESHARD_FALSE: return "false";
    case LS_RESHARD_SMALL: break;
    }
    snprintf(room, bytes, "%llu", (unsigned long long)u->reshard_size);
    return room;
}

struct unit_row { uint64_t elements, trainable, bytes; };

static struct unit_row unit_row(const struct ls_plan *p, const struct ls_unit *u)
{
    struct unit_row r = { 0 };
    for (size_t i = 0; i < u->params; i++) {
        const struct ls_param *q = &p->model->param[u->param[i]];
        r.elements += q->elements;
        r.trainable += p->requires_grad[u->param[i]] ? q->elements : 0;
        r.bytes += q->elements * ls_dtype_bytes(u->param_dtype == LS_DTYPE_NONE ? q->dtype : u->param_dtype);
    }
    return r;
}

static bool alike(const struct ls_plan *p, const struct ls_unit *a, const struct ls_unit *b)
{
    struct unit_row x = unit_row(p, a), y = unit_row(p, b);
    return x.elements == y.elements && x.trainable == y.trainable && a->params == b->params && a->reshard == b->reshard &&
           a->reshard_size == b->reshard_size && strcmp(a->why ? a->why : "", b->why ? b->why : "") == 0;
}

static void print_units(const struct ls_scenario *s, const struct ls_compiled *c)
{
    const struct ls_plan *p = &c->plan;
    char room[24];
    printf("units, in creation order: %zu\n", p->units);
    printf("  %-52s %6s %12s %12s %8s  %s\n", "unit", "params", "gathered", "trainable", "reshard", "because");
    for (size_t i = 0; i < p->units;) {
        size_t end = i + 1;
        while (end < p->units && alike(p, &p->unit[i], &p->unit[end]))
            end++;
        const struct ls_unit *u = &p->unit[i];
        struct unit_row r = unit_row(p, u);
        struct ls_str name = { 0 }, bytes = { 0 };
        ls_str_add(&name, ls_name_text(s->names, u->name));
        if (end - i > 1) {
            const char *last = strrchr(ls_name_text(s->names, p->unit[end - 1].name), '.');
            ls_str_printf(&name, " .. %s (%zu units)", last ? last + 1 : ls_name_text(s->names, p->unit[end - 1].name), end - i);
        }
        add_bytes(&bytes, r.bytes);
        printf("  %-52s %6zu %12s %11.1f%% %8s  %s", ls_str_text(&name), u->params, ls_str_text(&bytes),
               r.elements ? 100.0 * (double)r.trainable / (double)r.elements : 0.0, reshard_text(u, room, sizeof room),
               u->why ? u->why : "units");
        if (u->at.line)
            printf(" (line %zu)", u->at.line);
        printf("\n");
        ls_str_release(&name);
        ls_str_release(&bytes);
        i = end;
    }
    size_t unowned = 0;
    uint64_t elements = 0;
    for (size_t i = 0; i < p->model->params; i++)
        if (p->owner[i] == LS_NO_ID && p->model->param[i].canonical == i) {
            unowned++;
            elements += p->model->param[i].elements;
        }
    if (unowned)
        printf("  in no unit, a full copy on every rank: %zu parameters, %llu elements\n", unowned, (unsigned long long)elements);
    for (size_t i = 0; i < p->warnings; i++)
        printf("  warning: %s\n", p->warning[i]);
}

static void print_memory(const struct ls_scenario *s, const struct ls_compiled *c)
{
    size_t shard = s->mesh.shard == LS_SIZE_ANY ? 8 : s->mesh.shard;
    struct ls_plan_memory m = ls_plan_memory(&c->plan, shard);
    struct ls_str text = { 0 };
    printf("memory of parameters per rank, from units alone (dp_shard %zu%s)\n", shard, s->mesh.shard == LS_SIZE_ANY ? ", for example" : "");
    const struct { const char *what; uint64_t bytes; } row[] = {
        { "sharded", m.sharded }, { "resident unsharded", m.resident }, { "replicated", m.replicated },
        { "two largest neighbours gathered", m.transient }, { "held by root and not by per_layer", ls_plan_root_bytes(&c->plan) } };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        add_bytes(&text, row[i].bytes);
        printf("  %-52s %12s\n", row[i].what, ls_str_text(&text));
        ls_str_clear(&text);
    }
    ls_str_release(&text);
}

static void print_groups(const struct ls_scenario *s, const struct ls_compiled *c)
{
    printf("communicators\n");
    for (size_t i = 0; i < c->tables.comm.count; i++) {
        const struct ls_comm_info *k = &c->tables.comm.at[i];
        printf("  %-32s", ls_tables_name(&c->tables, k->name));
        if (s->kind != LS_PLAN_RAW)
            printf(" over%s%s", k->free_dims & LS_DIM_REPLICATE ? " dp_replicate" : "", k->free_dims & LS_DIM_SHARD ? " dp_shard" : "");
        if (k->small)
            printf(", groups of %u", k->small);
        printf("\n");
    }
}

static void print_letters(const struct ls_scenario *s, const struct ls_compiled *c)
{
    printf("letters: samples that issue the same operations\n");
    for (size_t i = 0; i < c->letters.count; i++) {
        printf("  %zu  %-36s samples", i, ls_name_text(s->names, c->letters.letter[i].name));
        for (size_t k = 0; k < s->batch.samples; k++)
            if (c->letters.of_sample[k] == i)
                printf(" %zu", k);
        printf("\n");
    }
}

static void print_keys(const struct ls_scenario *s)
{
    static const struct { enum ls_key_effect effect; const char *title; } list[] = {
        { LS_KEY_HONOURED, "honoured" }, { LS_KEY_NO_EFFECT, "known, without effect here" }, { LS_KEY_REFUSED, "refused" } };
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        bool any = false;
        for (size_t i = 0; i < s->notes; i++) {
            if (s->note[i].effect != list[k].effect)
                continue;
            if (!any)
                printf("AutoModel's own keys, %s\n", list[k].title);
            any = true;
            printf("  %-52s %s\n", s->note[i].key, s->note[i].why ? s->note[i].why : "");
        }
    }
}

/* One letter's collectives, or every op, of one round. */
static enum ls_code lines_of(const struct ls_compiled *c, uint32_t round, uint32_t letter, bool every, struct ls_arena *arena,
                             const char ***line, size_t *count, struct ls_error *err)
{
    struct ls_step step;
    struct ls_transducer *t = c->system.replica;
    enum ls_code rc = t->step(t, t->start, round, letter, &step, err);
    if (rc != LS_OK)
        return rc;
    const struct ls_segment *seg = step.role[0];
    *line = LS_NEW(arena, const char *, seg->count);
    *count = 0;
    struct ls_str text = { 0 };
    for (size_t i = 0; i < seg->count; i++) {
        const struct ls_op *op = &seg->op[i];
        if (!every && !ls_op_uses_comm(op) && op->kind != LS_OP_STOP)
            continue;
        ls_str_clear(&text);
        if (every) {
            ls_op_print(&text, &c->tables, op);
        } else if (op->kind == LS_OP_STOP) {
            ls_str_printf(&text, "raises %s", ls_tables_name(&c->tables, op->module));
        } else {
            ls_str_printf(&text, "%-14s %s %s", ls_op_kind_name((enum ls_op_kind)op->kind),
                          ls_tables_name(&c->tables, c->tables.comm.at[op->comm].name),
                          op->payload == LS_NO_ID ? "" : ls_tables_name(&c->tables, c->tables.payload.at[op->payload].name));
            if (op->kind == LS_OP_REDUCE_SCATTER || op->kind == LS_OP_ALL_REDUCE)
                ls_str_printf(&text, " (%llu)", (unsigned long long)op->count);
        }
        (*line)[(*count)++] = ls_arena_str(arena, ls_str_text(&text));
    }
    ls_str_release(&text);
    return LS_OK;
}

static enum ls_code print_program(const struct ls_scenario *s, const struct ls_compiled *c, uint32_t a, uint32_t b, bool every,
                                  struct ls_arena *arena, struct ls_error *err)
{
    uint32_t round = 0;
    while (round < c->rounds.count && (c->rounds.round[round].kind != LS_ROUND_MICRO || !c->rounds.round[round].gradient_sync))
        round++;
    if (round == c->rounds.count)
        return LS_OK;
    const char **left, **right;
    size_t nl, nr;
    enum ls_code rc = lines_of(c, round, a, every, arena, &left, &nl, err);
    if (rc == LS_OK)
        rc = lines_of(c, round, b, every, arena, &right, &nr, err);
    if (rc != LS_OK)
        return rc;
    int width = 0;
    for (size_t i = 0; i < nl; i++)
        width = (int)strlen(left[i]) > width ? (int)strlen(left[i]) : width;
    const char *name = ls_name_text(s->names, c->letters.letter[a].name);
    width = (int)strlen(name) > width ? (int)strlen(name) : width;
    printf("program: %s of the first synchronised microbatch, letter by letter\n", every ? "every op" : "collectives");
    printf("       %-*s   %s\n", width, name, a == b ? "" : ls_name_text(s->names, c->letters.letter[b].name));
    bool apart = false;
    for (size_t i = 0; i < nl || (a != b && i < nr); i++) {
        const char *l = i < nl ? left[i] : "", *r = i < nr ? right[i] : "";
        bool differ = a != b && strcmp(l, r) != 0;
        printf("  %4zu %-*s %s %s\n", i + 1, width, l, differ ? (apart ? "|" : "<- first difference") : " ", a == b ? "" : r);
        apart |= differ;
    }
    return LS_OK;
}

static void json_explain(const struct ls_cli *cli, const struct ls_scenario *s, const struct ls_compiled *c)
{
    struct ls_json j;
    struct ls_str text = { 0 };
    ls_cli_json_open(cli, &j, &text);
    ls_json_add_text(&j, "name", s->name);
    ls_json_add_text(&j, "refused", c->refusal.rule);
    ls_json_key(&j, "units");
    ls_json_array(&j);
    for (size_t i = 0; i < c->plan.units; i++) {
        const struct ls_unit *u = &c->plan.unit[i];
        struct unit_row r = unit_row(&c->plan, u);
        char room[24];
        ls_json_object(&j);
        ls_json_add_text(&j, "name", ls_name_text(s->names, u->name));
        ls_json_key(&j, "parameters");
        ls_json_array(&j);
        for (size_t k = 0; k < u->params; k++)
            ls_json_text(&j, ls_name_text(s->names, s->model.param ? c->plan.model->param[u->param[k]].name : 0));
        ls_json_end_array(&j);
        ls_json_add_uint(&j, "elements", r.elements);
        ls_json_add_uint(&j, "trainable", r.trainable);
        ls_json_add_uint(&j, "gathered_bytes", r.bytes);
        ls_json_add_text(&j, "reshard", reshard_text(u, room, sizeof room));
        ls_json_add_text(&j, "because", u->why);
        ls_json_end_object(&j);
    }
    ls_json_end_array(&j);
    ls_json_key(&j, "letters");
    ls_json_array(&j);
    for (size_t i = 0; i < c->letters.count; i++)
        ls_json_text(&j, ls_name_text(s->names, c->letters.letter[i].name));
    ls_json_end_array(&j);
    if (s->kind != LS_PLAN_RAW) {
        struct ls_plan_memory m = ls_plan_memory(&c->plan, s->mesh.shard == LS_SIZE_ANY ? 8 : s->mesh.shard);
        ls_json_key(&j, "memory_bytes");
        ls_json_object(&j);
        ls_json_add_uint(&j, "sharded", m.sharded);
        ls_json_add_uint(&j, "resident", m.resident);
        ls_json_add_uint(&j, "replicated", m.replicated);
        ls_json_add_uint(&j, "transient", m.transient);
        ls_json_add_uint(&j, "frozen_held_with_root", ls_plan_root_bytes(&c->plan));
        ls_json_end_object(&j);
    }
    ls_cli_json_close(&j);
}

static enum ls_code explain(const struct ls_cli *cli, const char *path, struct ls_arena *arena, struct ls_names *names,
                            struct ls_error *err)
{
    struct ls_scenario s;
    struct ls_compiled c;
    struct ls_variant variant = LS_AS_WRITTEN;
    enum ls_code rc = ls_scenario_load(path, arena, names, &s, err);
    if (rc == LS_OK)
        rc = ls_scenario_compile(&s, &variant, true, &c, err);
    if (rc != LS_OK)
        return rc;
    uint64_t a = 0, b = c.letters.count > 1 ? 1 : 0, last = c.letters.count ? c.letters.count - 1 : 0;
    rc = ls_cli_uint(cli, "left", 0, last, &a, err);
    if (rc == LS_OK)
        rc = ls_cli_uint(cli, "right", 0, last, &b, err);
    if (rc == LS_OK && cli->json) {
        json_explain(cli, &s, &c);
    } else if (rc == LS_OK) {
        printf("%s%s%s", ls_style(cli->colour_out, LS_BOLD), s.name, ls_style(cli->colour_out, LS_PLAIN));
        if (s.question)
            printf(": %s", s.question);
        printf("\n");
        if (c.refusal.rule)
            printf("refused before running, rule %s: %s\n", c.refusal.rule, c.refusal.text);
        if (s.kind != LS_PLAN_RAW && c.plan.model) {
            printf("model %s, %s: %llu parameters\n", ls_name_text(names, s.model.name), ls_name_text(names, s.model.architecture),
                   (unsigned long long)ls_model_elements(c.plan.model));
            print_keys(&s);
            print_units(&s, &c);
            print_memory(&s, &c);
        }
        print_groups(&s, &c);
        if (s.kind != LS_PLAN_RAW && c.system.replica) {
            print_letters(&s, &c);
            rc = print_program(&s, &c, (uint32_t)a, (uint32_t)b, ls_cli_flag(cli, "ops"), arena, err);
        }
    }
    ls_compiled_release(&c);
    return rc;
}

static int run(const struct ls_cli *cli, int argc, char **argv)
{
    struct ls_error err = { 0 };
    if (argc != 1)
        return ls_usage(cli, "explain takes one FILE");
    struct ls_arena arena;
    ls_arena_init(&arena, 0);
    struct ls_names *names = ls_names_open();
    int rc = (int)explain(cli, argv[0], &arena, names, &err);
    if (rc != LS_OK)
        rc = ls_report(cli, &err);
    ls_names_close(names);
    ls_arena_release(&arena);
    return rc;
}

static const struct ls_option options[] = {
    { "left", "N", "letter of the left column (default 0)" },
    { "right", "N", "letter of the right column (default 1)" },
    { "ops", NULL, "every op, not only collectives" },
    { 0 },
};
static const struct ls_example examples[] = {
    { "explain scenarios/mixed-media/per-layer.yaml", "units, groups, letters, and two letters' collectives side by side" },
    { "explain --ops --left 1 --right 1 plan.yaml", "every operation of one letter" },
    { 0 },
};
const struct ls_command ls_command_explain = {
    .name = "explain", .run = run, .operands = "FILE", .summary = "show what a scenario compiles to",
    .text = "Prints the units with what each owns and why, the memory that follows from the units alone, the communicators, the "
            "letters (classes of batches that issue the same operations), and the collectives of two letters side by side.",
    .options = options, .examples = examples };
