/* The command line: global options, subcommands and their options, from tables. */
#include "cli/cli.h"
#include "engine/comm/mpi.h"
#include "yaml/yaml.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COMMAND_ADDRESS(name) &ls_command_##name,
const struct ls_command *const ls_commands[] = { LS_COMMANDS(COMMAND_ADDRESS) NULL };

const struct ls_option ls_global_options[] = {
    { "json", NULL, "print one JSON object instead of text" },
    { "color", "WHEN", "auto (default), always or never; auto obeys NO_COLOR" },
    { "help", NULL, "show the help of lockstep or of the command" },
    { "version", NULL, "print the version" },
    { 0 },
};

enum { NAMES_MAX = 64 };

static const struct ls_option *find(const struct ls_option *table, const char *name, size_t length)
{
    for (; table && table->name; table++)
        if (strlen(table->name) == length && memcmp(table->name, name, length) == 0)
            return table;
    return NULL;
}

static const struct ls_given *given(const struct ls_cli *cli, const char *option)
{
    assert(cli->command && find(cli->command->options, option, strlen(option)) &&
           "option is not in the command's table");
    for (size_t i = 0; i < cli->given_count; i++)
        if (strcmp(cli->given[i].option->name, option) == 0)
            return &cli->given[i];
    return NULL;
}

const char *ls_cli_value(const struct ls_cli *cli, const char *option)
{
    const struct ls_given *g = given(cli, option);
    return g ? g->value : NULL;
}

bool ls_cli_flag(const struct ls_cli *cli, const char *option)
{
    return given(cli, option) != NULL;
}

enum ls_code ls_cli_uint(const struct ls_cli *cli, const char *option, uint64_t min, uint64_t max, uint64_t *out,
                         struct ls_error *err)
{
    const char *text = ls_cli_value(cli, option);
    if (!text)
        return LS_OK;
    if (!text[0] || text[strspn(text, "0123456789")])
        return ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--%s' is '%.60s', not an integer", option, text);
    errno = 0;
    unsigned long long value = strtoull(text, NULL, 10);
    if (errno == ERANGE || value < min || value > max)
        return ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--%s' is %.60s, which is not between %" PRIu64 " and %" PRIu64,
                       option, text, min, max);
    *out = value;
    return LS_OK;
}

enum ls_code ls_cli_choice(const struct ls_cli *cli, const char *option, const char *const *names, unsigned *out, struct ls_error *err)
{
    const char *text = ls_cli_value(cli, option);
    struct ls_str all = { 0 };
    if (!text)
        return LS_OK;
    for (unsigned i = 0; names[i]; i++) {
        if (strcmp(names[i], text) == 0) {
            *out = i;
            ls_str_release(&all);
            return LS_OK;
        }
        ls_str_printf(&all, "%s%s", i ? ", " : "", names[i]);
    }
    enum ls_code rc = ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--%s' is '%.60s', not one of %s", option, text, ls_str_text(&all));
    ls_str_release(&all);
    return rc;
}

enum ls_code ls_cli_list(const struct ls_cli *cli, const char *option, const char *const *names, size_t count, unsigned *out, size_t *n,
                         struct ls_error *err)
{
    const char *text = ls_cli_value(cli, option);
    *n = 0;
    while (text && *text) {
        size_t length = strcspn(text, ","), i = 0;
        while (i < count && (strlen(names[i]) != length || memcmp(names[i], text, length) != 0))
            i++;
        if (i == count) {
            ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--%s' names '%.*s'", option, (int)length, text);
            struct ls_str all = { 0 };
            for (size_t k = 0; k < count; k++)
                ls_str_printf(&all, "%s%s", k ? ", " : "", names[k]);
            ls_hint(err, "a list, separated by commas, of %s", ls_str_text(&all));
            ls_str_release(&all);
            return LS_EUSAGE;
        }
        for (size_t k = 0; k < *n; k++)
            if (out[k] == i)
                return ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--%s' names '%s' twice", option, names[i]);
        out[(*n)++] = (unsigned)i;
        text += length + (text[length] == ',');
    }
    return LS_OK;
}

/* mpirun gives the processes that it starts terminals of its own making. */
static bool is_terminal(int fd)
{
    return !ls_mpi_is_launched() && isatty(fd);
}

static enum ls_code unknown_option(const struct ls_cli *cli, const char *name, size_t length, struct ls_error *err)
{
    const char *names[NAMES_MAX + 1];
    size_t count = 0;
    const struct ls_option *tables[] = { cli->command ? cli->command->options : NULL, ls_global_options };
    for (size_t t = 0; t < 2; t++)
        for (const struct ls_option *o = tables[t]; o && o->name && count < NAMES_MAX; o++)
            names[count++] = o->name;
    names[count] = NULL;
    enum ls_code rc = ls_fail(err, LS_EUSAGE, LS_NOWHERE, "unknown option '--%.*s'", length < 60 ? (int)length : 60,
                              name);
    char text[64];
    if (length < sizeof text) {
        memcpy(text, name, length);
        text[length] = 0;
        const char *near = ls_nearest(text, names);
        if (near)
            ls_hint(err, "did you mean '--%s'?", near);
    }
    return rc;
}

static enum ls_code unknown_command(const char *name, struct ls_error *err)
{
    const char *names[NAMES_MAX + 1];
    size_t count = 0;
    for (; ls_commands[count]; count++) {
        assert(count < NAMES_MAX);
        names[count] = ls_commands[count]->name;
    }
    names[count] = NULL;
    enum ls_code rc = ls_fail(err, LS_EUSAGE, LS_NOWHERE, "unknown command '%.60s'", name);
    const char *near = ls_nearest(name, names);
    if (near)
        ls_hint(err, "did you mean '%s'?", near);
    else
        ls_hint(err, "'lockstep --help' lists the commands");
    return rc;
}

static enum ls_code set_colour(struct ls_cli *cli, const char *when, struct ls_error *err)
{
    static const char *const names[] = { "auto", "always", "never", NULL };
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    bool allowed = !(no_color && no_color[0]) && !(term && strcmp(term, "dumb") == 0);
    if (strcmp(when, "auto") == 0) {
        cli->colour_out = allowed && is_terminal(STDOUT_FILENO);
        cli->colour_err = allowed && is_terminal(STDERR_FILENO);
    } else if (strcmp(when, "always") == 0 || strcmp(when, "never") == 0) {
        cli->colour_out = cli->colour_err = when[0] == 'a';
    } else {
        enum ls_code rc = ls_fail(err, LS_EUSAGE, LS_NOWHERE, "'--color' is '%.60s', not auto, always or never", when);
        const char *near = ls_nearest(when, names);
        if (near)
            ls_hint(err, "did you mean '%s'?", near);
        return rc;
    }
    return LS_OK;
}

/* Takes one option, with its argument if it has one. `*i` is its index, and moves over a separate argument. */
static enum ls_code take_option(struct ls_cli *cli, int argc, char **argv, int *i, struct ls_error *err)
{
    const char *name = argv[*i] + 2, *value = strchr(name, '=');
    size_t length = value ? (size_t)(value - name) : strlen(name);
    const struct ls_option *global = find(ls_global_options, name, length);
    const struct ls_option *o = global ? global : find(cli->command ? cli->command->options : NULL, name, length);
    if (!o)
        return unknown_option(cli, name, length, err);
    if (value)
        value++;
    if (value && !o->value)
        return ls_fail(err, LS_EUSAGE, LS_NOWHERE, "option '--%s' takes no argument", o->name);
    if (!value && o->value) {
        if (*i + 1 == argc)
            return ls_fail(err, LS_EUSAGE, LS_NOWHERE, "option '--%s' needs an argument, %s", o->name, o->value);
        value = argv[++*i];
    }
    if (global) {
        cli->json = cli->json || strcmp(o->name, "json") == 0;
        cli->help = cli->help || strcmp(o->name, "help") == 0;
        cli->version = cli->version || strcmp(o->name, "version") == 0;
        return o->value ? set_colour(cli, value, err) : LS_OK;
    }
    for (size_t k = 0; k < cli->given_count; k++)
        if (cli->given[k].option == o)
            return ls_fail(err, LS_EUSAGE, LS_NOWHERE, "option '--%s' is given twice", o->name);
    assert(cli->given_count < sizeof cli->given / sizeof *cli->given);
    cli->given[cli->given_count++] = (struct ls_given){ o, value };
    return LS_OK;
}

enum ls_code ls_cli_parse(struct ls_cli *cli, int *argc, char **argv, struct ls_error *err)
{
    int operands = 0;
    bool only_operands = false;
    enum ls_code rc = set_colour(cli, "auto", err);
    cli->progress = is_terminal(STDERR_FILENO);
    /* Errors before --json still have to be JSON: look ahead. */
    for (int i = 0; i < *argc && strcmp(argv[i], "--") != 0; i++)
        cli->json = cli->json || strcmp(argv[i], "--json") == 0;
    for (int i = 0; i < *argc && rc == LS_OK; i++) {
        const char *a = argv[i];
        if (!only_operands && strcmp(a, "--") == 0) {
            only_operands = true;
        } else if (!only_operands && strcmp(a, "-h") == 0) {
            cli->help = true;
        } else if (!only_operands && a[0] == '-' && a[1] == '-') {
            rc = take_option(cli, *argc, argv, &i, err);
        } else if (!only_operands && a[0] == '-' && a[1]) {
            rc = ls_fail(err, LS_EUSAGE, LS_NOWHERE, "unknown option '%.60s'", a);
            ls_hint(err, "options are long: '--help' lists them");
        } else if (!cli->command) {
            for (size_t k = 0; ls_commands[k] && !cli->command; k++)
                if (strcmp(ls_commands[k]->name, a) == 0)
                    cli->command = ls_commands[k];
            if (!cli->command)
                rc = unknown_command(a, err);
        } else {
            argv[operands++] = argv[i];
        }
    }
    *argc = operands;
    return rc;
}
