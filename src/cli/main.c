#include "cli/cli.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static int run(struct ls_cli *cli, int argc, char **argv)
{
    struct ls_error err = { 0 };
    if (ls_cli_parse(cli, &argc, argv, &err) != LS_OK)
        return ls_report(cli, &err);
    if (cli->version) {
        cli->command = &ls_command_version;
        if (!cli->json) {
            printf("lockstep %s\n", LS_VERSION);
            return LS_OK;
        }
        return cli->command->run(cli, 0, argv);
    }
    if (cli->help) {
        ls_help_print(cli, stdout);
        return LS_OK;
    }
    if (!cli->command) {
        ls_help_print(cli, stderr);
        return LS_EUSAGE;
    }
    return cli->command->run(cli, argc, argv);
}

int main(int argc, char **argv)
{
    struct ls_cli cli = { 0 };
    int rc = run(&cli, argc - 1, argv + 1);
    errno = 0;
    if (fflush(stdout) != 0 || ferror(stdout) || close(STDOUT_FILENO) != 0) {
        fprintf(stderr, "lockstep: error: cannot write to standard output%s%s\n", errno ? ": " : "",
                errno ? strerror(errno) : "");
        rc = LS_EBACKEND;
    }
    return rc;
}
