#include "cli/cli.h"

#include <string.h>

static int run(const struct ls_cli *cli, int argc, char **argv)
{
    if (ls_cli_flag(cli, "man")) {
        if (argc)
            return ls_usage(cli, "'--man' takes no COMMAND");
        ls_man_print(stdout);
        return LS_OK;
    }
    if (argc > 1)
        return ls_usage(cli, "help takes one COMMAND, not %d", argc);
    struct ls_cli about = *cli;
    about.command = NULL;
    struct ls_error err = { 0 };
    if (argc && ls_cli_parse(&about, &argc, argv, &err) != LS_OK)
        return ls_report(cli, &err);
    ls_help_print(&about, stdout);
    return LS_OK;
}

static const struct ls_option options[] = { { "man", NULL, "print the man page, as troff source" }, { 0 } };
static const struct ls_example examples[] = {
    { "help version", "help of one command" },
    { "help --man > lockstep.1", "the man page" },
    { 0 },
};
const struct ls_command ls_command_help = {
    .name = "help",
    .run = run,
    .operands = "[COMMAND]",
    .summary = "show the help of lockstep or of a command",
    .options = options,
    .examples = examples,
};
