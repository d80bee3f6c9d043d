/* lockstep check: one verdict per scenario. */
#include "advise/advise.h"
#include "check/certificate.h"
#include "check/promela.h"
#include "check/unroll.h"
#include "cli/cli.h"
#include "cli/files.h"

#include <stdlib.h>
#include <string.h>

struct options {
    struct ls_assess_options assess;
    struct ls_progress *progress;
    const char *witness, *promela, *certificate;
    uint64_t rounds;
    bool many, varied;
};

struct tally { size_t files, as_expected, errors; enum ls_code worst; };

static void count(struct tally *t, enum ls_code code)
{
    /* An input error says more about the run than a verdict; a backend failure more than both. */
    static const int weight[] = { [LS_OK] = 0, [LS_EUNDECIDED] = 1, [LS_EVIOLATED] = 2, [LS_EINPUT] = 3, [LS_EUSAGE] = 3,
                                  [LS_EBACKEND] = 4 };
    if (weight[code] > weight[t->worst])
        t->worst = code;
}

static enum ls_code exit_code(const struct ls_scenario *s, const struct ls_assessment *a, bool as_expected)
{
    if (as_expected)
        return LS_OK;
    return a->verdict == LS_UNDECIDED && !s->expect.present ? LS_EUNDECIDED : LS_EVIOLATED;
}

static void json_scenario(struct ls_json *j, const struct ls_scenario *s, const struct ls_assessment *a, bool as_expected,
                          const char *why)
{
    struct ls_str line = { 0 };
    ls_json_object(j);
    ls_json_add_text(j, "name", s->name);
    ls_json_add_text(j, "file", s->path);
    ls_json_add_text(j, "verdict", ls_verdict_name(a->verdict));
    ls_json_add_text(j, "known", a->verdict != LS_SAFE ? NULL : a->check.known == LS_KNOWN_PROVED ? "proved"
                    : a->check.known == LS_KNOWN_EXPLORED ? "explored" : "executed");
    ls_json_add_text(j, "seen_as", a->seen_as);
    ls_json_add_text(j, "expected", s->expect.present ? ls_verdict_name(s->expect.verdict) : NULL);
    ls_json_add_bool(j, "as_expected", as_expected);
    ls_json_add_text(j, "difference", as_expected ? NULL : why);
    ls_json_key(j, "where");
    ls_assessment_line(s, a, &line);
    ls_json_text(j, a->verdict == LS_SAFE ? NULL : ls_str_text(&line));
    ls_json_add_uint(j, "ranks", a->check.witness ? a->check.witness->job.ranks : 0);
    ls_json_add_bool(j, "minimal", a->check.witness && a->check.witness->minimal);
    ls_json_add_uint(j, "states", a->check.states);
    ls_json_add_uint(j, "macro_states", a->check.macro_states);
    ls_json_add_uint(j, "folded_rounds", a->check.folded_rounds);
    ls_json_add_uint(j, "explored", a->check.explored);
    ls_json_add_real(j, "seconds", a->seconds);
    ls_json_key(j, "data");
    if (a->data) {
        const struct ls_risk *r = &a->data->risk;
        ls_json_object(j);
        ls_json_add_uint(j, "samples", s->manifest->samples);
        ls_json_add_uint(j, "steps_per_epoch", r->steps);
        ls_json_add_bool(j, "ordered", r->ordered);
        ls_json_add_bool(j, "exact", r->exact && a->data->proved);
        ls_json_add_real(j, "step_hangs", r->step);
        ls_json_add_real(j, "epoch_hangs", r->epoch);
        ls_json_add_real(j, "expected_first_step", r->first);
        ls_json_add_uint(j, "first_step", r->first_step);
        ls_json_end_object(j);
    } else {
        ls_json_text(j, NULL);
    }
    ls_json_key(j, "repairs");
    ls_json_array(j);
    for (size_t i = 0; i < a->repairs; i++) {
        ls_json_object(j);
        ls_json_add_text(j, "change", a->repair[i].change);
        ls_json_add_bool(j, "proved", a->repair[i].proved);
        ls_json_add_text(j, "note", a->repair[i].note);
        ls_json_end_object(j);
    }
    ls_json_end_array(j);
    ls_json_key(j, "keys");
    ls_json_array(j);
    for (size_t i = 0; i < s->notes; i++) {
        static const char *const effect[] = { "honoured", "without_effect", "refused" };
        ls_json_object(j);
        ls_json_add_text(j, "key", s->note[i].key);
        ls_json_add_text(j, "effect", effect[s->note[i].effect]);
        ls_json_add_text(j, "why", s->note[i].why);
        ls_json_end_object(j);
    }
    ls_json_end_array(j);
    ls_json_end_object(j);
    ls_str_release(&line);
}

static void json_failed(struct ls_json *j, const char *path, const struct ls_error *err)
{
    ls_json_object(j);
    ls_json_add_text(j, "file", path);
    ls_json_key(j, "error");
    ls_report_json(j, err);
    ls_json_end_object(j);
}

static void print_one(const struct ls_cli *cli, const struct options *o, const struct ls_scenario *s, const struct ls_assessment *a,
                      bool as_expected, const char *why)
{
    struct ls_str out = { 0 };
    enum ls_style style = a->verdict == LS_SAFE ? LS_GREEN : a->verdict == LS_UNDECIDED ? LS_YELLOW : LS_RED;
    if (o->many) {
        const char *mark = as_expected ? "ok  " : "FAIL";
        printf("%s%s%s  %-44s ", ls_style(cli->colour_out, as_expected ? LS_GREEN : LS_RED), mark,
               ls_style(cli->colour_out, LS_PLAIN), s->name);
        ls_assessment_line(s, a, &out);
        printf("%s", ls_str_text(&out));
        if (!as_expected)
            printf("  [%s]", why);
        printf("\n");
    } else {
        ls_assessment_print(s, a, a->check.witness && !o->witness ? "lockstep check --witness FILE saves this run as a scenario" : NULL,
                            ls_style(cli->colour_out, style), ls_style(cli->colour_out, LS_PLAIN), &out);
        printf("%s", ls_str_text(&out));
        for (size_t i = 0; i < s->notes; i++)
            if (s->note[i].effect == LS_KEY_NO_EFFECT)
                printf("  note        '%s' has no effect here: %s\n", s->note[i].key, s->note[i].why);
        if (s->expect.present)
            printf("  %s\n", as_expected ? "as expected" : why);
    }
    ls_str_release(&out);
}

/* Where the plan leaves a size open: as many replicas as asked for, or the fewest that its groups fit into. */
static void promela_sizes(const struct ls_system *sys, size_t wanted, size_t size[LS_FREE_DIMS])
{
    for (size_t d = 0; d < LS_FREE_DIMS; d++) {
        size_t step, least;
        ls_system_sizes(sys, d, &step, &least);
        size[d] = !(sys->free_dims >> d & 1) ? 1 : sys->size[d] ? sys->size[d] : wanted ? wanted : least;
    }
}

/* The plan as a Promela model: every choice and interleaving of a fixed number of ranks in one run of the schedule, for SPIN. */
static enum ls_code export_promela(const struct ls_scenario *s, struct ls_assessment *a, const struct options *o, struct ls_arena *arena,
                                   struct ls_error *err)
{
    const struct ls_system *sys = &a->compiled.system;
    if (a->verdict == LS_SETUP_ERROR)
        return ls_fail(err, LS_EINPUT, a->compiled.refusal.at, "'%s' is refused at set-up (%s): there is no program to export", s->name,
                       a->compiled.refusal.rule);
    size_t size[LS_FREE_DIMS];
    struct ls_unrolled u;
    struct ls_run_options run = { .level = (enum ls_level)sys->level };
    struct ls_str text = { 0 }, name = { 0 };
    promela_sizes(sys, o->assess.check.replicas_max, size);
    enum ls_code rc = ls_family_of_system(sys, size, o->rounds, arena, &u, err);
    if (rc == LS_OK) {
        ls_str_printf(&name, "%s (", s->name);
        for (size_t i = 0; i < u.rounds; i++)
            ls_str_printf(&name, "%s%s", i ? "; " : "", sys->driver.node[u.node[i]].name ? sys->driver.node[u.node[i]].name : "round");
        ls_str_add(&name, ")");
        rc = ls_promela_write(&u.family, &run, ls_str_text(&name), &text, err);
    }
    if (rc == LS_OK)
        rc = ls_write_file(o->promela, ls_str_text(&text), text.length, err);
    ls_str_release(&text);
    ls_str_release(&name);
    return rc;
}

/* The proof as a file for lockstep-verify; only of plans that are safe, and known to be so by proof. */
static enum ls_code write_certificate(const struct ls_scenario *s, struct ls_assessment *a, const struct options *o, struct ls_arena *arena,
                                      struct ls_error *err)
{
    struct ls_certificate c;
    struct ls_str text = { 0 };
    if (a->verdict == LS_SETUP_ERROR)
        return ls_fail(err, LS_EINPUT, a->compiled.refusal.at, "'%s' is refused at set-up (%s): there is nothing to certify", s->name,
                       a->compiled.refusal.rule);
    if (a->verdict != LS_SAFE)
        return ls_fail(err, a->verdict == LS_UNDECIDED ? LS_EUNDECIDED : LS_EVIOLATED, LS_NOWHERE,
                       "no certificate for '%s': the verdict is '%s'", s->name, ls_verdict_name(a->verdict));
    if (a->check.known != LS_KNOWN_PROVED)
        return ls_fail(err, LS_EUNDECIDED, LS_NOWHERE, "no certificate for '%s': its runs were executed, not proved", s->name);
    enum ls_code rc = ls_certificate_make(&a->compiled.system, s->name, o->assess.check.macro_states_max, arena, &c, err);
    if (rc == LS_OK) {
        ls_certificate_print(&c, &text);
        rc = ls_write_file(o->certificate, ls_str_text(&text), text.length, err);
    }
    ls_str_release(&text);
    return rc;
}

static enum ls_code check_file(const struct ls_cli *cli, struct options *o, const char *path, struct ls_json *j, struct tally *t)
{
    struct ls_arena arena;
    ls_arena_init(&arena, 0);
    struct ls_names *names = ls_names_open();
    struct ls_error err = { 0 };
    struct ls_scenario s;
    struct ls_assessment a;
    struct ls_str why = { 0 }, text = { 0 };
    bool assessed = false;
    enum ls_code rc = ls_scenario_load(path, &arena, names, &s, &err);
    if (rc == LS_OK && o->varied) /* the file says what to expect of the plan as written */
        s.expect.present = false;
    if (rc == LS_OK)
        rc = ls_assess(&s, &o->assess, &arena, &a, &err);
    if (rc == LS_OK) {
        assessed = true;
        bool as_expected = ls_as_expected(&s, &a, &why);
        t->as_expected += as_expected;
        if (o->witness) {
            rc = ls_witness_scenario(&s, &a, &arena, &text, &err);
            if (rc == LS_OK)
                rc = ls_write_file(o->witness, ls_str_text(&text), text.length, &err);
        }
        if (rc == LS_OK && o->promela)
            rc = export_promela(&s, &a, o, &arena, &err);
        if (rc == LS_OK && o->certificate)
            rc = write_certificate(&s, &a, o, &arena, &err);
        if (rc == LS_OK) {
            ls_progress_close(o->progress); /* the line goes before anything else is printed */
            if (j)
                json_scenario(j, &s, &a, as_expected, ls_str_text(&why));
            else
                print_one(cli, o, &s, &a, as_expected, ls_str_text(&why));
            rc = exit_code(&s, &a, as_expected);
            count(t, rc);
            rc = LS_OK;
        }
    }
    if (rc != LS_OK) { /* bad input: said, counted, and the others go on */
        t->errors++;
        count(t, rc);
        ls_progress_close(o->progress);
        if (j)
            json_failed(j, path, &err);
        else
            ls_report_text(cli, stderr, &err);
    }
    if (assessed)
        ls_assessment_release(&a);
    ls_str_release(&why);
    ls_str_release(&text);
    ls_names_close(names);
    ls_arena_release(&arena);
    return rc;
}

static enum ls_code read_options(const struct ls_cli *cli, struct options *o, struct ls_error *err)
{
    *o = (struct options){ .assess = { .variant = LS_AS_WRITTEN, .repairs = !ls_cli_flag(cli, "no-repairs"),
                                       .force = ls_cli_flag(cli, "force") } };
    o->assess.check.gradients = true;
    o->assess.check.races = true;
    o->witness = ls_cli_value(cli, "witness");
    o->promela = ls_cli_value(cli, "export-promela");
    o->certificate = ls_cli_value(cli, "certificate");
    o->varied = o->assess.force || ls_cli_value(cli, "policy") || ls_cli_value(cli, "contract");
    const char *policy = ls_cli_value(cli, "policy"), *contract = ls_cli_value(cli, "contract");
    static const char *const policies[] = { "root", "per_layer", "replicate", NULL };
    if (policy) {
        for (int i = 0; policies[i]; i++)
            if (strcmp(policies[i], policy) == 0)
                o->assess.variant.frozen_sharding = i;
        if (o->assess.variant.frozen_sharding < 0)
            return ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--policy' is '%s', not one of root, per_layer, replicate", policy);
    }
    if (contract) {
        if (strcmp(contract, "any") == 0)
            o->assess.variant.execution = LS_EXEC_ANY;
        else if (strcmp(contract, "rank_uniform") == 0)
            o->assess.variant.execution = LS_EXEC_RANK_UNIFORM;
        else
            return ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--contract' is '%s', not one of any, rank_uniform", contract);
    }
    uint64_t replicas = 0, seconds = 0;
    enum ls_code rc = ls_cli_uint(cli, "replicas", 1, 64, &replicas, err);
    if (rc == LS_OK)
        rc = ls_cli_uint(cli, "seconds", 1, 1000000, &seconds, err);
    if (rc == LS_OK)
        rc = ls_cli_uint(cli, "rounds", 1, 1000, &o->rounds, err);
    if (rc == LS_OK && o->rounds && !o->promela)
        rc = ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--rounds' goes with '--export-promela'");
    o->assess.check.replicas_max = (size_t)replicas;
    o->assess.check.seconds_max = (double)seconds;
    return rc;
}

static void show_stage(void *self, const char *stage, size_t done, size_t total)
{
    if (total)
        ls_progress_show(self, "%s: %zu of %zu", stage, done, total);
    else
        ls_progress_show(self, "%s: %zu", stage, done);
}

static int run(const struct ls_cli *cli, int argc, char **argv)
{
    struct ls_error err = { 0 };
    struct options o;
    if (argc < 1)
        return ls_usage(cli, "check takes one or more files or folders");
    if (read_options(cli, &o, &err) != LS_OK)
        return ls_report(cli, &err);
    struct ls_arena arena;
    ls_arena_init(&arena, 0);
    ls_paths paths = { 0 };
    bool folder = false, any_folder = false;
    enum ls_code rc = LS_OK;
    for (int i = 0; i < argc && rc == LS_OK; i++) {
        rc = ls_paths_add(&paths, &arena, argv[i], &folder, &err);
        any_folder |= folder;
    }
    o.many = paths.count > 1 || any_folder;
    if (rc == LS_OK && o.many && (o.witness || o.promela || o.certificate))
        rc = ls_fail(&err, LS_EUSAGE, LS_NOWHERE, "'--%s' goes with one scenario, but there are %zu",
                     o.witness ? "witness" : o.promela ? "export-promela" : "certificate", paths.count);
    if (o.many)
        o.assess.repairs = o.assess.repairs && cli->json;
    struct tally t = { 0 };
    struct ls_json j;
    struct ls_str text = { 0 };
    struct ls_progress progress;
    if (rc == LS_OK) {
        ls_progress_open(cli, &progress);
        o.assess.check.progress = show_stage;
        o.assess.check.progress_self = &progress;
        o.progress = &progress;
        if (cli->json) {
            ls_cli_json_open(cli, &j, &text);
            ls_json_key(&j, "scenarios");
            ls_json_array(&j);
        }
        for (size_t i = 0; i < paths.count; i++) {
            if (o.many)
                ls_progress_show(&progress, "%zu/%zu %s", i + 1, paths.count, paths.at[i]);
            check_file(cli, &o, paths.at[i], cli->json ? &j : NULL, &t);
            t.files++;
        }
        ls_progress_close(&progress);
        if (cli->json) {
            ls_json_end_array(&j);
            ls_json_add_uint(&j, "files", t.files);
            ls_json_add_uint(&j, "as_expected", t.as_expected);
            ls_json_add_uint(&j, "errors", t.errors);
            ls_cli_json_close(&j);
        } else if (o.many) {
            printf("%zu scenarios: %zu as expected, %zu not, %zu not read\n", t.files, t.as_expected,
                   t.files - t.as_expected - t.errors, t.errors);
        }
    }
    ls_vec_release(&paths);
    ls_arena_release(&arena);
    return rc == LS_OK ? (int)t.worst : ls_report(cli, &err);
}

static const struct ls_option options[] = {
    { "policy", "NAME", "as if frozen_sharding were root, per_layer or replicate" },
    { "contract", "NAME", "as if execution were any or rank_uniform" },
    { "force", NULL, "check a plan that set-up refuses, and show how it fails" },
    { "witness", "FILE", "save the failing run as a scenario" },
    { "export-promela", "FILE", "write the plan with a fixed number of ranks (--replicas per free size, default the fewest) for SPIN" },
    { "rounds", "N", "with --export-promela: the shortest run of at least N rounds (default: that issues an operation)" },
    { "certificate", "FILE", "write the proof that the plan is safe, for lockstep-verify" },
    { "no-repairs", NULL, "do not look for repairs" },
    { "replicas", "N", "explore up to N replicas where nothing can be proved (default 6)" },
    { "seconds", "N", "give up after N seconds" },
    { 0 },
};
static const struct ls_example examples[] = {
    { "check scenarios/mixed-media", "every scenario below a folder, one line each" },
    { "check scenarios/mixed-media/per-layer.yaml", "one scenario, with its smallest counterexample and repairs" },
    { "check --policy replicate plan.yaml", "the same plan under another policy" },
    { "check --certificate plan.cert plan.yaml", "the proof, which `lockstep-verify plan.cert` accepts or rejects" },
    { "check --json plan.yaml", "for programs" },
    { 0 },
};
const struct ls_command ls_command_check = {
    .name = "check", .run = run, .operands = "FILE|FOLDER...", .summary = "will every rank issue the same collectives?",
    .text = "Compiles each scenario to the operations that every rank issues, and proves that no batch the contract allows makes "
            "ranks diverge, or shows the smallest run that fails. Exit status: 0 safe, or as the scenario's `expect:` says; 1 not; "
            "3 bad input; 5 undecided.",
    .options = options, .examples = examples };
