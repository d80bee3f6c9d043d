/* Compares the calls that src/ddp/ compiles with recordings of PyTorch's DistributedDataParallel: kind, elements and dtype, in order, per
 * rank and round, without tolerance.
 *
 *   oracle_ddp [--diff] [NAME...]    NAME: substring of a recording's file name
 * Exit status 0 iff every recording equals what we compile. */
#include "scenario/scenario.h"

#include "base/vec.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_calls(const struct ls_tables *t, const struct ls_segment *s, bool setup, struct ls_str *out, bool *stopped)
{
    for (size_t i = 0; i < s->count; i++) {
        const struct ls_op *op = &s->op[i];
        if ((op->pass == LS_PASS_SETUP) != setup)
            continue;
        if (op->kind == LS_OP_STOP) {
            const char *text = ls_tables_name(t, op->module);
            ls_str_printf(out, "error %.*s\n", (int)strcspn(text, ":"), text);
            *stopped = true;
            return;
        }
        const char *kind = op->kind == LS_OP_ALL_REDUCE ? "ar" : op->kind == LS_OP_BROADCAST ? "bc" : op->kind == LS_OP_ALL_GATHER ? "ag" : NULL;
        if (kind)
            ls_str_printf(out, "%s n=%llu dtype=%s\n", kind, (unsigned long long)op->count, ls_dtype_name((enum ls_dtype)op->dtype));
    }
}

static enum ls_code calls_of_rank(const struct ls_compiled *c, size_t replica, struct ls_str *out, struct ls_error *err)
{
    static const char *const kinds[] = { "micro", "step", "eval" };
    const struct ls_contract *contract = &c->system.contract;
    struct ls_transducer *t = c->system.replica;
    size_t seen[3] = { 0 };
    uint32_t state = t->start;
    bool stopped = false;
    for (size_t row = 0; row < contract->rows && !stopped; row++) {
        const struct ls_driver_node *n = &c->system.driver.node[row];
        enum ls_round_kind kind = c->rounds.round[n->round].kind;
        struct ls_step s;
        enum ls_code rc = t->step(t, state, n->round, contract->table[row * contract->columns + replica], &s, err);
        if (rc != LS_OK)
            return rc;
        if (row == 0) {
            ls_str_add(out, "round setup 0\n");
            print_calls(&c->tables, s.role[0], true, out, &stopped);
        }
        ls_str_printf(out, "round %s %zu\n", kinds[kind], seen[kind]++);
        print_calls(&c->tables, s.role[0], false, out, &stopped);
        state = s.next;
    }
    return LS_OK;
}

static bool compile(const char *yaml, const char *torch, const char *name, struct ls_str *out)
{
    struct ls_arena arena;
    struct ls_names *names = ls_names_open();
    struct ls_scenario s;
    struct ls_compiled c;
    struct ls_error err = { 0 };
    struct ls_variant as_written = LS_AS_WRITTEN;
    ls_arena_init(&arena, 0);
    bool ok = ls_scenario_load(yaml, &arena, names, &s, &err) == LS_OK && ls_scenario_compile(&s, &as_written, true, &c, &err) == LS_OK;
    if (ok) {
        ls_str_printf(out, "lockstep-recording 1\ntorch %s\nscenario %s\n", torch, name);
        for (size_t rank = 0; rank < s.mesh.shard && ok; rank++) {
            ls_str_printf(out, "rank %zu\n", rank);
            ok = calls_of_rank(&c, rank, out, &err) == LS_OK;
        }
        ls_compiled_release(&c);
    }
    if (!ok)
        fprintf(stderr, "%s: %s (%s:%zu:%zu)\n", name, err.text, err.input.file ? err.input.file : "", err.input.line, err.input.column);
    ls_names_close(names);
    ls_arena_release(&arena);
    return ok;
}

static bool read_file(const char *path, struct ls_str *out)
{
    FILE *f = fopen(path, "rb");
    char block[65536];
    if (!f)
        return false;
    for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;)
        ls_str_addn(out, block, n);
    fclose(f);
    return true;
}

static void show_difference(const char *name, const char *want, const char *got)
{
    size_t at = 0, line = 1, start = 0;
    while (want[at] && want[at] == got[at])
        if (want[at++] == '\n')
            line++, start = at;
    printf("%s: line %zu: recorded '%.*s', compiled '%.*s'\n", name, line, (int)strcspn(want + start, "\n"), want + start,
           (int)strcspn(got + start, "\n"), got + start);
}

int main(int argc, char **argv)
{
    const char *folder = LS_SOURCE_DIR "/tests/oracle/ddp";
    struct dirent **entry = NULL;
    int n = scandir(folder, &entry, NULL, alphasort);
    size_t compared = 0, equal = 0, calls = 0;
    if (n < 0) {
        fprintf(stderr, "%s: no such folder\n", folder);
        return 2;
    }
    for (int i = 0; i < n; i++) {
        const char *version = strstr(entry[i]->d_name, ".torch-"), *end = strstr(entry[i]->d_name, ".rec");
        bool wanted = version && end && argc == 1;
        for (int k = 1; k < argc && version && end; k++)
            wanted |= strstr(entry[i]->d_name, argv[k]) != NULL;
        if (wanted) {
            char name[256], torch[32], path[1024];
            struct ls_str want = { 0 }, got = { 0 };
            snprintf(name, sizeof name, "%.*s", (int)(version - entry[i]->d_name), entry[i]->d_name);
            snprintf(torch, sizeof torch, "%.*s", (int)(end - version) - 7, version + 7);
            snprintf(path, sizeof path, "%s/%s", folder, entry[i]->d_name);
            bool read = read_file(path, &want);
            snprintf(path, sizeof path, "%s/%s.yaml", folder, name);
            compared++;
            bool same = read && compile(path, torch, name, &got) && strcmp(ls_str_text(&want), ls_str_text(&got)) == 0;
            equal += same;
            for (const char *at = ls_str_text(&want); (at = strstr(at, " n=")); at++)
                calls++;
            if (!same)
                show_difference(name, ls_str_text(&want), ls_str_text(&got));
            ls_str_release(&want);
            ls_str_release(&got);
        }
        free(entry[i]);
    }
    free(entry);
    printf("oracle ddp: %zu recordings compared, %zu equal, %zu calls\n", compared, equal, calls);
    return compared && compared == equal ? 0 : 1;
}
