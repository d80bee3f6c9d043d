/* src/cli/cli.h -- what main and the subcommands share.
 *
 * A subcommand is one file cmd_NAME.c that defines `const struct ls_command ls_command_NAME`, and one row of LS_COMMANDS.
 * Help, the man page, option parsing and suggestions come from that struct:
 *
 *     static int run(const struct ls_cli *cli, int argc, char **argv)   // operands only, in order
 *     {
 *         struct ls_error err = { 0 };
 *         uint64_t seed = 1;
 *         if (argc != 1)
 *             return ls_usage(cli, "check takes one FILE");
 *         if (ls_cli_uint(cli, "seed", 0, UINT64_MAX, &seed, &err) != LS_OK || work(argv[0], seed, &err) != LS_OK)
 *             return ls_report(cli, &err);
 *         ...
 *     }
 *     static const struct ls_option options[] = { { "seed", "N", "first seed (default 1)" }, { 0 } };
 *     static const struct ls_example examples[] = { { "check scenarios/ring.yaml", "one scenario" }, { 0 } };
 *     const struct ls_command ls_command_check = { .name = "check", .run = run, .operands = "FILE",
 *         .summary = "check a scenario", .options = options, .examples = examples };
 *
 * Results go to stdout, everything else to stderr. With --json stdout holds exactly one object, which starts with "version"
 * and "command" (ls_cli_json_open writes them); an error is such an object too. */
#ifndef LS_CLI_CLI_H
#define LS_CLI_CLI_H

#include "base/error.h"
#include "base/json.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

enum { LS_JSON_VERSION = 1 }; /* grows when a field changes its meaning or goes; new fields do not count */

#define LS_COMMANDS(X) /* in the order of the help */ \
    X(check)                                          \
    X(explain)                                        \
    X(simulate)                                       \
    X(replay)                                         \
    X(compare)                                        \
    X(report)                                         \
    X(import)                                         \
    X(audit)                                          \
    X(help)                                           \
    X(version)

struct ls_option { const char *name, *value, *help; }; /* --name; value names its argument, NULL for a flag */
struct ls_example { const char *args, *what; };        /* without the leading "lockstep" */

struct ls_cli;
struct ls_command {
    const char *name;
    int (*run)(const struct ls_cli *cli, int argc, char **argv); /* returns the exit status, an enum ls_code */
    const char *operands;            /* as in the usage line, "" for none */
    const char *summary;             /* one line, lower case, no full stop */
    const char *text;                /* more paragraphs for the help, or NULL */
    const struct ls_option *options; /* up to one without a name; NULL: none */
    const struct ls_example *examples;
};
#define LS_COMMAND_DECLARE(name) extern const struct ls_command ls_command_##name;
LS_COMMANDS(LS_COMMAND_DECLARE)
#undef LS_COMMAND_DECLARE
extern const struct ls_command *const ls_commands[]; /* ends with NULL */
extern const struct ls_option ls_global_options[];

struct ls_given { const struct ls_option *option; const char *value; };
struct ls_cli {
    const struct ls_command *command; /* NULL until it is known */
    bool json, colour_out, colour_err, progress, help, version;
    struct ls_given given[32];
    size_t given_count;
};

/* Options of the running subcommand. The name must be in its table. NULL, false: not given. */
const char *ls_cli_value(const struct ls_cli *cli, const char *option);
bool ls_cli_flag(const struct ls_cli *cli, const char *option);
/* *out keeps its value when the option is not given. LS_EUSAGE: not a decimal integer in [min, max]. */
LS_MUST_USE enum ls_code ls_cli_uint(const struct ls_cli *cli, const char *option, uint64_t min, uint64_t max, uint64_t *out,
                                     struct ls_error *err);
/* The index in `names` (NULL ends them) of what the option says; *out stays as it is without the option. */
LS_MUST_USE enum ls_code ls_cli_choice(const struct ls_cli *cli, const char *option, const char *const *names, unsigned *out,
                                       struct ls_error *err);
/* A list of names, separated by commas: out[i] is the index of the i-th, *n how many; 0 when the option is not given. `out` has room
 * for `count`. LS_EUSAGE: another name, or one twice. */
LS_MUST_USE enum ls_code ls_cli_list(const struct ls_cli *cli, const char *option, const char *const *names, size_t count, unsigned *out,
                                     size_t *n, struct ls_error *err);
/* Reads the command line: fills *cli, moves the operands to the front of argv. Also used before the command is known. */
LS_MUST_USE enum ls_code ls_cli_parse(struct ls_cli *cli, int *argc, char **argv, struct ls_error *err);

/* Prints the error and returns its code: `file:line:column: error: ...`, that line, a caret, the hint; JSON with --json. */
int ls_report(const struct ls_cli *cli, const struct ls_error *err);
/* Same for a bad command line; returns LS_EUSAGE. */
int ls_usage(const struct ls_cli *cli, const char *format, ...) LS_PRINTF(2, 3);
/* The text form alone, to any stream; for commands that go on after an error. */
void ls_report_text(const struct ls_cli *cli, FILE *out, const struct ls_error *err);
/* The value of a key "error", for objects that hold more than an error. */
void ls_report_json(struct ls_json *j, const struct ls_error *err);

/* One JSON object on stdout: open writes "version" and "command", close ends the object, prints it and frees. */
void ls_cli_json_open(const struct ls_cli *cli, struct ls_json *j, struct ls_str *text);
void ls_cli_json_close(struct ls_json *j);

/* Terminal styles: the empty string where colour is off. */
enum ls_style { LS_PLAIN, LS_BOLD, LS_RED, LS_GREEN, LS_YELLOW, LS_CYAN, LS_DIM };
const char *ls_style(bool on, enum ls_style style);
/* Text from files as it may go to a terminal: control characters and bad UTF-8 become '?'. */
void ls_print_clean(FILE *out, const char *text, size_t length);

void ls_help_print(const struct ls_cli *cli, FILE *out); /* of cli->command, or the whole program */
void ls_man_print(FILE *out);                            /* lockstep.1 */

/* One line on stderr that is overwritten, ten times a second at most, only if stderr is a terminal. */
struct ls_progress { bool on, shown; struct timespec last; };
void ls_progress_open(const struct ls_cli *cli, struct ls_progress *p);
void ls_progress_show(struct ls_progress *p, const char *format, ...) LS_PRINTF(2, 3);
void ls_progress_close(struct ls_progress *p); /* wipes the line; call before other output */

#endif
