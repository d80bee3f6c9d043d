/* The scenario loader on any bytes; what loads is compiled, refused or not, and played for a few rounds. No crash, leak or hang.
 *
 * Inventories are read from tests/data (toy_vlm.yaml); no other folder is near. */
#include "fuzz.h"

#include "scenario/scenario.h"

#include <assert.h>
#include <string.h>

/* Larger plans only cost time: the loader has seen them whole. */
enum { PARAMS_MAX = 200, UNITS_MAX = 100, NODES_MAX = 12, STEPS_MAX = 24 };

/* Walks the driver with every letter, from every state met, up to a bound. */
static void play(struct ls_compiled *c)
{
    struct { uint32_t node, state; } open[STEPS_MAX];
    size_t count = 1, done = 0;
    struct ls_transducer *t = c->system.replica;
    open[0].node = 0, open[0].state = t->start;
    for (size_t at = 0; at < count && done < STEPS_MAX; at++) {
        const struct ls_driver_node *n = &c->system.driver.node[open[at].node];
        for (uint32_t letter = 0; letter < t->letters && done < STEPS_MAX; letter++) {
            struct ls_error err = { 0 };
            struct ls_step step, again;
            if (n->allowed && !(n->allowed[letter / 64] >> letter % 64 & 1))
                continue;
            done++;
            enum ls_code rc = t->step(t, open[at].state, n->round, letter, &step, &err);
            assert(rc == LS_OK || (rc == LS_EUNDECIDED && err.text[0]));
            if (rc != LS_OK)
                continue;
            rc = t->step(t, open[at].state, n->round, letter, &again, &err);
            assert(rc == LS_OK && again.next == step.next && again.role[0] == step.role[0]);
            for (size_t k = 0; k < n->nexts && count < STEPS_MAX; k++)
                open[count].node = n->next[k], open[count++].state = step.next;
        }
    }
}

static void compile(const struct ls_scenario *s, const struct ls_variant *v, bool force)
{
    struct ls_compiled c;
    struct ls_error err = { 0 };
    enum ls_code rc = ls_scenario_compile(s, v, force, &c, &err);
    assert(rc == LS_OK || (rc == LS_EINPUT && err.text[0]));
    if (rc != LS_OK)
        return;
    assert(!c.refusal.rule || c.refusal.text[0]);
    if (!c.refusal.rule && s->kind != LS_PLAN_RAW && c.plan.units <= UNITS_MAX && c.system.driver.nodes <= NODES_MAX)
        play(&c);
    ls_compiled_release(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ls_arena arena;
    struct ls_error err = { 0 };
    struct ls_scenario s;
    ls_arena_init(&arena, 0);
    struct ls_names *names = ls_names_open();
    enum ls_code rc = ls_scenario_read((const char *)data, size, LS_SOURCE_DIR "/tests/data/fuzz.yaml", &arena, names, &s, &err);
    assert(rc == LS_OK || (rc == LS_EINPUT && err.text[0] && err.input.file));
    if (rc == LS_OK && s.model.params <= PARAMS_MAX) {
        struct ls_variant v = LS_AS_WRITTEN;
        compile(&s, &v, false);
        compile(&s, &v, true);
        v = (struct ls_variant){ LS_FROZEN_PER_LAYER, 1, LS_EXEC_ANY, LS_UNUSED_FALLBACK, UINT32_MAX, NULL, false, true };
        compile(&s, &v, true);
    }
    ls_names_close(names);
    ls_arena_release(&arena);
    return 0;
}
