/* Certificates of proved plans are accepted by lockstep-verify, and certificates with one change are judged like a second
 * checker judges them (support/certificate_valid.h). Where a change leaves a certificate valid, its system is also run by brute force. */
#include "check/certificate.h"

#include "base/hash.h"
#include "cases.h"
#include "certificate_change.h"
#include "certificate_runs.h"
#include "certificate_valid.h"
#include "check/proof.h"
#include "cli/files.h"
#include "golden.h"
#include "random_scenario.h"
#include "random_system.h"
#include "scenario/scenario.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static const char verifier[] = LS_BINARY_DIR "/lockstep-verify";

/* The verifier's exit status. */
static int verify_text(const char *text, size_t length)
{
    char path[] = "/tmp/lockstep-certificate-XXXXXX", *args[] = { (char *)verifier, path, NULL };
    int fd = mkstemp(path), status = -1;
    cr_assert(fd >= 0);
    for (size_t done = 0; done < length;) {
        ssize_t n = write(fd, text + done, length - done);
        cr_assert(n > 0);
        done += (size_t)n;
    }
    close(fd);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    pid_t pid;
    cr_assert_eq(posix_spawn(&pid, verifier, &actions, NULL, args, environ), 0);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    posix_spawn_file_actions_destroy(&actions);
    unlink(path);
    cr_assert(WIFEXITED(status), "the verifier was killed");
    return WEXITSTATUS(status);
}

static int verify(const struct ls_certificate *c)
{
    struct ls_str text = { 0 };
    ls_certificate_print(c, &text);
    int status = verify_text(ls_str_text(&text), text.length);
    ls_str_release(&text);
    return status;
}

struct sum { size_t tried[CHANGE_COUNT], rejected[CHANGE_COUNT], malformed, runs; };

static void change_and_compare(const struct ls_certificate *c, enum change what, uint64_t seed, const char *name, struct sum *sum)
{
    struct ls_arena arena;
    struct ls_certificate changed = *c;
    uint64_t random = seed;
    ls_arena_init(&arena, 0);
    if (certificate_change(&changed, what, &random, &arena)) {
        bool fine = certificate_valid(&changed);
        int status = verify(&changed);
        sum->tried[what]++;
        sum->rejected[what] += status != 0;
        sum->malformed += status == 3;
        cr_assert(status == 0 || status == 1 || status == 3, "%s, %s, seed %llu: status %d", name, certificate_change_text(what), (unsigned long long)seed, status);
        cr_assert_eq(fine, status == 0, "%s, %s changed, seed %llu: the verifier says %d, the second checker %s", name, certificate_change_text(what),
                     (unsigned long long)seed, status, fine ? "valid" : "not valid");
        cr_assert(status != 0 || !certificate_fails(&changed, seed, &sum->runs), "%s, %s changed, seed %llu: accepted, but a run fails", name,
                  certificate_change_text(what), (unsigned long long)seed);
    }
    ls_arena_release(&arena);
}

static bool random_certificate(uint64_t seed, struct ls_random_system *r, struct ls_certificate *c, struct ls_proof *proof)
{
    struct ls_error err = { 0 };
    ls_random_system_open(r, seed);
    cr_assert_eq(ls_prove(&r->system, 0, &r->arena, proof, &err), LS_OK, "%s", err.text);
    char name[40];
    snprintf(name, sizeof name, "random %llu", (unsigned long long)seed);
    enum ls_code rc = ls_certificate_make(&r->system, name, 0, &r->arena, c, &err);
    cr_assert(rc == LS_OK || rc == LS_EUNDECIDED, "seed %llu: %s", (unsigned long long)seed, err.text);
    return rc == LS_OK;
}

Test(certificate, random_systems_that_are_proved)
{
    size_t proved = 0, certified = 0, late = 0, runs = 0;
    for (uint64_t seed = 1; certified < 220; seed++) {
        struct ls_random_system r;
        struct ls_certificate c;
        struct ls_proof proof;
        bool have = random_certificate(seed, &r, &c, &proof);
        proved += proof.end == LS_PROOF_SAFE;
        if (have) {
            certified++;
            cr_assert_eq(proof.end, LS_PROOF_SAFE, "seed %llu: a certificate of a plan that is not proved", (unsigned long long)seed);
            cr_assert(certificate_valid(&c), "seed %llu", (unsigned long long)seed);
            cr_assert_eq(verify(&c), 0, "seed %llu", (unsigned long long)seed);
            cr_assert(!certificate_fails(&c, seed, &runs), "seed %llu", (unsigned long long)seed);
        } else if (proof.end == LS_PROOF_SAFE) {
            late++; /* ops in residues: even a window of one round is not aligned */
        }
        ls_random_system_close(&r);
    }
    printf("certificates: %zu random systems proved, %zu certified and accepted, %zu with late operations; %zu runs by brute force\n", proved,
           certified, late, runs);
    cr_assert(late * 2 < proved);
}

static void print_sum(const char *what, const struct sum *sum)
{
    size_t tried = 0, rejected = 0;
    for (int k = 0; k < CHANGE_COUNT; k++) {
        printf("  %-30s %4zu changed, %4zu rejected\n", certificate_change_text((enum change)k), sum->tried[k], sum->rejected[k]);
        tried += sum->tried[k];
        rejected += sum->rejected[k];
    }
    printf("%s: %zu changed certificates, %zu rejected (%zu of them malformed), %zu still valid; %zu runs of those by brute force\n", what, tried,
           rejected, sum->malformed, tried - rejected, sum->runs);
}

Test(certificate, changes_are_judged_like_a_second_checker_does)
{
    struct sum sum = { 0 };
    size_t systems = 0, rejected = 0;
    for (uint64_t seed = 1; systems < 75; seed++) {
        struct ls_random_system r;
        struct ls_certificate c;
        struct ls_proof proof;
        if (random_certificate(seed, &r, &c, &proof)) {
            systems++;
            for (int k = 0; k < CHANGE_COUNT; k++)
                change_and_compare(&c, (enum change)k, seed * 1000 + (uint64_t)k, c.name, &sum);
        }
        ls_random_system_close(&r);
    }
    print_sum("random systems", &sum);
    for (int k = 0; k < CHANGE_COUNT; k++) {
        rejected += sum.rejected[k];
        cr_assert(sum.rejected[k] > 0 || k == CHANGE_OP_KIND || k == CHANGE_OP_FUSED || k == CHANGE_ALLOW_ADD, "%s: never rejected", certificate_change_text((enum change)k));
    }
    /* Numbers are the least, and nothing is listed that is not needed: these leave nothing valid. */
    static const enum change never[] = { CHANGE_NUMBER_LOWER, CHANGE_STEP_DROP, CHANGE_REACH_DROP, CHANGE_ROUND_DROP, CHANGE_STEP_PROGRAM };
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        cr_assert_eq(sum.tried[never[i]], sum.rejected[never[i]], "%s", certificate_change_text(never[i]));
    cr_assert(rejected >= 1000);
}

/* What random systems lack: transfers inside a replica, fused groups, creation of a communicator, an agreed branch. */
static void open_rich(struct ls_random_system *r, int level)
{
    *r = (struct ls_random_system){ 0 };
    ls_arena_init(&r->arena, 0);
    ls_tables_init(&r->tables, &r->arena);
    struct ls_table_transducer *t = LS_NEW(&r->arena, struct ls_table_transducer, 1);
    struct ls_comm_roles *comm = LS_NEW(&r->arena, struct ls_comm_roles, 3);
    static const char *const names[] = { "pp", "dp", "later" };
    static const uint32_t all[] = { 0, 0, 0 }, each[] = { 0, 1, 2 }, spans[] = { 0, LS_DIM_SHARD, LS_DIM_SHARD };
    static const uint32_t reversed[] = { 2, 1, 0 }; /* member index of a role: 2, 1, 0 */
    enum { PP, DP, LATER, ROLES = 3, LETTERS = 2, ROUNDS = 2, OPS = 16 };
    for (uint32_t c = 0; c < 3; c++) {
        uint32_t id = ls_tables_comm(&r->tables, names[c]);
        r->tables.comm.at[id].free_dims = spans[c];
        r->tables.comm.at[id].parent = c == LATER ? DP : LS_NO_ID;
        comm[c] = (struct ls_comm_roles){ c == PP ? all : each, c == PP ? reversed : NULL };
    }
    for (size_t i = 0; i < 4; i++) {
        static const char *const payload[] = { "right", "left", "sum", "flag" };
        (void)ls_tables_payload(&r->tables, payload[i], NULL, 0, 4);
    }
    ls_table_transducer_init(t, &r->tables, 2, ROUNDS, LETTERS, ROLES, &r->arena);
    for (uint32_t state = 0; state < 2; state++)
        for (uint32_t round = 0; round < ROUNDS; round++)
            for (uint32_t z = 0; z < LETTERS; z++) {
                *ls_table_next(t, state, round, z) = 1;
                for (uint32_t y = 0; y < ROLES; y++) {
                    struct ls_op *op = LS_NEW(&r->arena, struct ls_op, OPS), o;
                    size_t n = 0;
                    if (state == 0) { /* created at the first round, on the queue of its parent */
                        o = ls_op_make(LS_OP_COMM_INIT);
                        o.comm = LATER;
                        op[n++] = o;
                    }
                    if (z == 1) { /* compute and a wait for it, on another stream */
                        op[n] = ls_op_make(LS_OP_COMPUTE);
                        op[n++].stream = 1;
                        op[n] = ls_op_make(LS_OP_RECORD);
                        op[n].stream = 1;
                        op[n++].event = 0;
                        op[n] = ls_op_make(z == 1 && y == 1 ? LS_OP_HOST_WAIT : LS_OP_WAIT);
                        op[n++].event = 0;
                    }
                    for (int way = 0; way < 2; way++) { /* a ring both ways, fused; letter 1 lists it the other way round */
                        uint32_t to = (y + 1) % ROLES, from = (y + ROLES - 1) % ROLES;
                        o = ls_op_make((way == 0) == (z == 0) ? LS_OP_SEND : LS_OP_RECV);
                        o.comm = PP;
                        o.count = 4;
                        o.dtype = LS_DTYPE_F32;
                        o.payload = 0;
                        o.fused = 5;
                        o.blocking = y == 2 && way == 0;
                        o.peer = (int32_t)reversed[o.kind == LS_OP_SEND ? to : from];
                        op[n++] = o;
                    }
                    if (round == 1) {
                        o = ls_op_make(LS_OP_DECIDE);
                        o.comm = DP;
                        o.payload = 3;
                        o.count = 1;
                        o.dtype = LS_DTYPE_BOOL;
                        o.value = 1;
                        o.then_count = 1;
                        o.else_count = 1;
                        op[n++] = o;
                    }
                    for (int side = 0; side < (round == 1 ? 2 : 1); side++) {
                        o = ls_op_make(side ? LS_OP_BARRIER : LS_OP_ALL_REDUCE);
                        o.comm = LATER;
                        o.count = 4;
                        o.dtype = LS_DTYPE_F32;
                        o.reduce = LS_REDUCE_SUM;
                        o.payload = 2;
                        o.stream = 2;
                        op[n++] = o;
                    }
                    struct ls_segment *s = LS_NEW(&r->arena, struct ls_segment, 1);
                    *s = (struct ls_segment){ op, n, ls_segment_hash(op, n) };
                    *ls_table_segment(t, state, round, z, y) = s;
                }
            }
    static uint32_t to_one[] = { 1, 0 };
    static struct ls_driver_node node[] = { { 0, "microbatch", 0, false, to_one, 2, NULL }, { 1, "step end", 0, true, to_one + 1, 1, NULL } };
    node[0].nexts = 2;
    static const uint32_t one[LETTERS] = { 0 };
    r->system = (struct ls_system){ .replica = &t->base, .driver = { node, 2 }, .comm = comm, .free_dims = LS_DIM_SHARD, .size = { 1, 0 },
                                    .level = level };
    r->system.contract = (struct ls_contract){ .levels = 2, .dims = { 0, LS_DIM_SHARD }, .class_of = { one, NULL }, .name = "any" };
}

Test(certificate, transfers_fused_groups_and_branches)
{
    struct sum sum = { 0 };
    for (int level = 1; level <= 2; level++) {
        struct ls_random_system r;
        struct ls_certificate c;
        struct ls_proof proof;
        struct ls_error err = { 0 };
        size_t kinds[LS_CERT_KIND_COUNT] = { 0 }, fused = 0, runs = 0;
        open_rich(&r, level);
        cr_assert_eq(ls_prove(&r.system, 0, &r.arena, &proof, &err), LS_OK, "%s", err.text);
        cr_assert_eq(proof.end, LS_PROOF_SAFE);
        cr_assert_eq(ls_certificate_make(&r.system, "rich", 0, &r.arena, &c, &err), LS_OK, "%s", err.text);
        for (size_t p = 0; p < c.programs; p++)
            for (size_t i = 0; i < c.program[p].ops; i++) {
                kinds[c.program[p].op[i].kind]++;
                fused += c.program[p].op[i].fused != 0;
            }
        for (size_t k = 0; k < LS_CERT_KIND_COUNT; k++)
            cr_assert(kinds[k] > 0, "no op of kind %zu", k);
        cr_assert(fused > 0);
        cr_assert(certificate_valid(&c));
        cr_assert_eq(verify(&c), 0);
        cr_assert(!certificate_fails(&c, 1, &runs) && runs > 0);
        for (uint64_t seed = 0; seed < 8; seed++)
            for (int k = 0; k < CHANGE_COUNT; k++)
                if (k <= CHANGE_NUMBER_ANY || seed < 2)
                    change_and_compare(&c, (enum change)k, seed * 100 + (uint64_t)k, "rich", &sum);
        ls_random_system_close(&r);
    }
    print_sum("transfers and fused groups", &sum);
    cr_assert(sum.rejected[CHANGE_OP_DROP] > 0 && sum.rejected[CHANGE_OP_FUSED] > 0 && sum.rejected[CHANGE_OP_BLOCKING] > 0);
}

/* Every fourth scenario of the catalogue, in the order of their names. */
Test(certificate, catalogue)
{
    struct ls_arena list;
    ls_paths paths = { 0 };
    bool folder;
    struct ls_error err = { 0 };
    struct sum sum = { 0 };
    size_t proved = 0, certified = 0, refused = 0, rejected = 0;
    ls_arena_init(&list, 0);
    cr_assert_eq(ls_paths_add(&paths, &list, LS_SOURCE_DIR "/scenarios", &folder, &err), LS_OK, "%s", err.text);
    for (size_t i = 1; i < paths.count; i += 4) {
        struct ls_arena arena;
        struct ls_names *names = ls_names_open();
        struct ls_scenario s;
        struct ls_compiled compiled;
        struct ls_variant variant = LS_AS_WRITTEN;
        ls_arena_init(&arena, 0);
        cr_assert_eq(ls_scenario_load(paths.at[i], &arena, names, &s, &err), LS_OK, "%s: %s", paths.at[i], err.text);
        cr_assert_eq(ls_scenario_compile(&s, &variant, false, &compiled, &err), LS_OK, "%s: %s", paths.at[i], err.text);
        if (!compiled.refusal.rule && compiled.system.contract.extra != LS_CONTRACT_TABLE) {
            struct ls_proof proof;
            struct ls_certificate c;
            cr_assert_eq(ls_prove(&compiled.system, 0, &arena, &proof, &err), LS_OK, "%s: %s", paths.at[i], err.text);
            enum ls_code rc = ls_certificate_make(&compiled.system, s.name, 0, &arena, &c, &err);
            proved += proof.end == LS_PROOF_SAFE;
            if (rc == LS_OK) {
                certified++;
                cr_assert_eq(proof.end, LS_PROOF_SAFE, "%s: a certificate of a plan that is not proved", paths.at[i]);
                cr_assert_eq(verify(&c), 0, "%s", paths.at[i]);
                size_t most = 0;
                for (size_t p = 0; p < c.programs; p++)
                    most = c.program[p].ops > most ? c.program[p].ops : most;
                for (int k = 0; k < CHANGE_COUNT && most < 200; k++) /* the second checker looks at all pairs of ops */
                    change_and_compare(&c, (enum change)k, i * 100 + (size_t)k, paths.at[i], &sum);
            } else {
                cr_assert_eq(rc, LS_EUNDECIDED, "%s: %s", paths.at[i], err.text);
                refused += proof.end == LS_PROOF_SAFE;
            }
        }
        ls_compiled_release(&compiled);
        ls_names_close(names);
        ls_arena_release(&arena);
    }
    print_sum("catalogue", &sum);
    for (int k = 0; k < CHANGE_COUNT; k++)
        rejected += sum.rejected[k];
    printf("certificates: %zu scenarios proved by folding, %zu certified and accepted, %zu not expressible\n", proved, certified, refused);
    cr_assert(certified >= 20 && rejected >= 100);
    ls_vec_release(&paths);
    ls_arena_release(&list);
}

/* Random scenarios: real programs, some with loops, expert groups or DDP. LS_CERTIFICATES says how many are certified (30). */
Test(certificate, random_scenarios)
{
    enum { LOOPS, EXPERTS, DDP, PARTS, OPS_MAX = 120 };
    static const char *const part[] = { "loops or metrics", "expert groups", "DDP" };
    struct sum sum = { 0 };
    size_t certified = 0, refused = 0, of[PARTS] = { 0 }, rejected[PARTS] = { 0 }, runs = 0;
    const char *wish = getenv("LS_CERTIFICATES");
    const size_t wanted = wish ? strtoul(wish, NULL, 10) : 30;
    for (uint64_t seed = 1; certified < wanted || !of[EXPERTS] || !of[DDP]; seed++) {
        struct ls_arena arena;
        struct ls_names *names = ls_names_open();
        struct ls_scenario s;
        struct ls_compiled compiled;
        struct ls_variant variant = LS_AS_WRITTEN;
        struct ls_certificate c;
        struct ls_proof proof = { 0 };
        struct ls_error err = { 0 };
        struct ls_str text = { 0 };
        random_scenario(seed, &text);
        ls_arena_init(&arena, 0);
        cr_assert_eq(ls_scenario_read(ls_str_text(&text), text.length, "random.yaml", &arena, names, &s, &err), LS_OK, "%s", err.text);
        cr_assert_eq(ls_scenario_compile(&s, &variant, true, &compiled, &err), LS_OK, "%s", err.text);
        if (!compiled.refusal.rule)
            cr_assert_eq(ls_prove(&compiled.system, 0, &arena, &proof, &err), LS_OK, "%s", err.text);
        if (!compiled.refusal.rule && proof.end == LS_PROOF_SAFE) {
            enum ls_code rc = ls_certificate_make(&compiled.system, s.name, 0, &arena, &c, &err);
            cr_assert(rc == LS_OK || rc == LS_EUNDECIDED, "%s: %s", s.name, err.text);
            const bool is[] = { s.loop.present || s.step.metrics, s.mesh.ep > 1, s.ddp.present };
            size_t most = 0;
            for (size_t p = 0; rc == LS_OK && p < c.programs; p++)
                most = c.program[p].ops > most ? c.program[p].ops : most;
            refused += rc != LS_OK;
            if (rc == LS_OK && most < OPS_MAX) { /* the second checker looks at all pairs of ops */
                struct sum before = sum;
                certified++;
                cr_assert_eq(verify(&c), 0, "%s", s.name);
                cr_assert(certificate_valid(&c), "%s", s.name);
                cr_assert(!certificate_fails(&c, seed, &runs), "%s", s.name);
                for (int k = 0; k < CHANGE_COUNT; k++)
                    change_and_compare(&c, (enum change)k, seed * 100 + (uint64_t)k, s.name, &sum);
                for (int p = 0; p < PARTS; p++) {
                    of[p] += is[p];
                    for (int k = 0; is[p] && k < CHANGE_COUNT; k++)
                        rejected[p] += sum.rejected[k] - before.rejected[k];
                }
            }
        }
        ls_compiled_release(&compiled);
        ls_str_release(&text);
        ls_names_close(names);
        ls_arena_release(&arena);
    }
    print_sum("random scenarios", &sum);
    printf("certificates: %zu random scenarios certified and accepted, %zu proved but not expressible\n", certified, refused);
    for (int p = 0; p < PARTS; p++) {
        printf("  with %s: %zu certificates, %zu changed ones rejected\n", part[p], of[p], rejected[p]);
        cr_assert(rejected[p] > 0);
    }
}

/* Cut and garbled files end with status 1 or 3, never in a crash. */
Test(certificate, garbled_files)
{
    struct ls_random_system r;
    struct ls_certificate c;
    struct ls_proof proof;
    struct ls_str text = { 0 };
    uint64_t seed = 1, random = 7;
    while (!random_certificate(seed++, &r, &c, &proof))
        ls_random_system_close(&r);
    ls_certificate_print(&c, &text);
    for (int i = 0; i < 150; i++) {
        char *copy = ls_arena_strn(&r.arena, text.text, text.length);
        size_t length = text.length;
        if (i % 3 == 0)
            length = ls_random_below(&random, text.length - 1); /* without its end */
        else
            for (int k = 0; k < i % 5; k++)
                copy[ls_random_below(&random, length)] = (char)(i % 3 == 1 ? '0' + (int)ls_random_below(&random, 10) : (int)ls_random_below(&random, 256));
        int status = verify_text(copy, length);
        cr_assert(status == 0 || status == 1 || status == 3, "case %d: status %d", i, status);
        cr_assert(i % 3 || status == 3, "a cut file: status %d", status);
    }
    ls_str_release(&text);
    ls_random_system_close(&r);
}

Test(certificate, late_operations_are_refused)
{
    struct ls_case c;
    struct ls_proof proof;
    struct ls_certificate cert;
    struct ls_error err = { 0 };
    case_open(&c, LS_DIM_SHARD, 2, 2, 2, 1);
    case_comm(&c, 'A', LS_DIM_SHARD, "0");
    case_comm(&c, 'B', LS_DIM_SHARD, "0");
    case_driver(&c, "0*:1 1:");
    for (size_t z = 0; z < 2; z++) {
        case_step(&c, 0, 0, z, (uint32_t)z, z ? "A" : "A B", NULL);
        case_step(&c, 1, 0, z, 0, "A", NULL);
        case_step(&c, 0, 1, z, 0, "", NULL);
        case_step(&c, 1, 1, z, 0, "B", NULL);
    }
    cr_assert_eq(ls_prove(&c.system, 0, &c.arena, &proof, &err), LS_OK);
    cr_assert_eq(proof.end, LS_PROOF_SAFE);
    cr_assert_eq(ls_certificate_make(&c.system, "late", 0, &c.arena, &cert, &err), LS_EUNDECIDED);
    cr_assert_not_null(strstr(err.text, "a round later"), "%s", err.text);
    case_close(&c);
}

static int run_check(const char *scenario, const char *path)
{
    struct golden_run run;
    struct ls_str args = { 0 };
    ls_str_printf(&args, "check --no-repairs --certificate %s %s", path, scenario);
    golden_run(LS_BINARY_DIR "/lockstep", LS_SOURCE_DIR, ls_str_text(&args), &run);
    int status = run.status;
    cr_assert(status == 0 || strstr(ls_str_text(&run.err), "no certificate"), "%s", ls_str_text(&run.err));
    golden_release(&run);
    ls_str_release(&args);
    return status;
}

Test(certificate, command_line)
{
    char folder[] = "/tmp/lockstep-certificate-XXXXXX", path[64];
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/plan.cert", folder);
    cr_assert_eq(run_check("scenarios/raw/agreed-branch.yaml", path), 5); /* proved, but not expressible */
    cr_assert(access(path, F_OK) != 0);
    cr_assert_eq(run_check("scenarios/raw/two-comms-dependent.yaml", path), 5); /* executed */
    cr_assert_eq(run_check("scenarios/mixed-media/per-layer.yaml", path), 1); /* not safe */
    cr_assert(access(path, F_OK) != 0);
    cr_assert_eq(run_check("scenarios/mixed-media/root.yaml", path), 0);
    struct golden_run run;
    golden_run(verifier, folder, "plan.cert", &run);
    cr_assert_eq(run.status, 0, "%s", ls_str_text(&run.out));
    golden_release(&run);
    golden_run(verifier, folder, "nothing.cert", &run);
    cr_assert_eq(run.status, 3);
    golden_release(&run);
    golden_run(verifier, folder, "", &run);
    cr_assert_eq(run.status, 2);
    golden_release(&run);
    unlink(path);
    rmdir(folder);
}
