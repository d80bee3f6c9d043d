/* A raw program as a system: one replica whose roles are the ranks; a letter is one assignment of all branches. */
#include "scenario/internal.h"
#include "scenario/raw.h"

#include <inttypes.h>

enum { LETTERS_MAX = 1 << 14 };

struct raw_program {
    struct ls_transducer t; /* first: what the checker holds */
    struct ls_raw raw;
    struct ls_arena *arena;
    bool *choice;                         /* [letters * ranks * branches] */
    const struct ls_segment *const **role; /* [letters], made when first asked for */
    const char **name;                    /* [letters] */
};

enum ls_code ls_load_raw(struct loader *l)
{
    struct ls_arena scratch;
    struct ls_tables tables;
    struct ls_raw raw;
    ls_arena_init(&scratch, 0);
    ls_tables_init(&tables, &scratch);
    enum ls_code rc = ls_raw_load(section(l, "program"), &tables, &raw, l->err);
    ls_tables_release(&tables);
    ls_arena_release(&scratch);
    return rc;
}

static enum ls_code step(struct ls_transducer *t, uint32_t state, uint32_t round, uint32_t letter, struct ls_step *out,
                         struct ls_error *err)
{
    struct raw_program *p = (struct raw_program *)t;
    (void)round, (void)err;
    if (!p->role[letter]) {
        struct ls_segment *segment = LS_NEW(p->arena, struct ls_segment, t->roles);
        const struct ls_segment **role = LS_NEW(p->arena, const struct ls_segment *, t->roles);
        for (uint32_t r = 0; r < t->roles; r++) {
            ls_raw_segment(&p->raw, r, p->choice + (letter * t->roles + r) * p->raw.branches, p->arena, &segment[r]);
            role[r] = &segment[r];
        }
        p->role[letter] = role;
    }
    *out = (struct ls_step){ p->role[letter], state };
    return LS_OK;
}

/* "x on ranks 0, 2; y": the branches that are taken. */
static const char *letter_name(const struct ls_transducer *t, uint32_t letter)
{
    struct raw_program *p = (struct raw_program *)t; /* fills its cache */
    if (p->name[letter])
        return p->name[letter];
    struct ls_str text = { 0 };
    const bool *choice = p->choice + letter * t->roles * p->raw.branches;
    for (size_t b = 0; b < p->raw.branches; b++) {
        size_t taken = 0;
        for (size_t r = 0; r < t->roles; r++)
            taken += choice[r * p->raw.branches + b];
        if (!taken)
            continue;
        ls_str_printf(&text, "%s%s", text.length ? "; " : "", p->raw.branch[b].name);
        if (p->raw.branch[b].agreed)
            continue;
        ls_str_add(&text, taken > 1 ? " on ranks" : " on rank");
        for (size_t r = 0, listed = 0; r < t->roles; r++)
            if (choice[r * p->raw.branches + b])
                ls_str_printf(&text, "%s %zu", listed++ ? "," : "", r);
    }
    p->name[letter] = ls_arena_str(p->arena, text.length ? ls_str_text(&text) : p->raw.branches ? "no branch" : "program");
    ls_str_release(&text);
    return p->name[letter];
}

static void list_choices(struct raw_program *p)
{
    size_t bits = p->raw.ranks * p->raw.branches;
    bool *now = LS_NEW(p->arena, bool, bits + 1);
    p->choice = LS_NEW(p->arena, bool, ls_mul_size(p->t.letters, bits) + 1);
    for (size_t i = 0; i < p->t.letters; i++) {
        for (size_t k = 0; k < bits; k++)
            p->choice[i * bits + k] = now[k];
        ls_raw_next(&p->raw, now);
    }
}

enum ls_code ls_compile_raw(const struct ls_scenario *s, struct ls_compiled *c, struct ls_error *err)
{
    const struct ls_yaml_node *program = ls_yaml_get(s->document, "program");
    struct raw_program *p = LS_NEW(c->arena, struct raw_program, 1);
    struct ls_system *y = &c->system;
    LS_TRY(ls_raw_load(program, &c->tables, &p->raw, err));
    uint64_t letters = ls_raw_assignments(&p->raw);
    if (letters > LETTERS_MAX)
        return ls_fail(err, LS_EUNDECIDED, program->at, "the branches can be taken in more than %d ways", LETTERS_MAX);
    p->arena = c->arena;
    p->t = (struct ls_transducer){ .tables = &c->tables, .roles = p->raw.ranks, .letters = (size_t)letters, .step = step,
                                   .letter_name = letter_name, .states_max = 1 };
    p->role = ls_arena_alloc(c->arena, (size_t)letters * sizeof *p->role);
    p->name = LS_NEW(c->arena, const char *, (size_t)letters);
    list_choices(p);
    struct ls_comm_roles *comm = LS_NEW(c->arena, struct ls_comm_roles, c->tables.comm.count + 1);
    for (size_t i = 0; i < c->tables.comm.count; i++)
        comm[i] = (struct ls_comm_roles){ .part = p->raw.comm[i].group, .order = p->raw.comm[i].member };
    struct ls_driver_node *node = LS_NEW(c->arena, struct ls_driver_node, 1);
    node->name = "program";
    *y = (struct ls_system){ .replica = &p->t, .driver = { node, 1 }, .comm = comm, .size = { 1, 1 }, .level = (int)s->level,
                             .kernels = s->kernels, .start_rule = (int)s->start };
    y->contract = (struct ls_contract){ .levels = 1, .name = "any", .at = program->at };
    return LS_OK;
}
