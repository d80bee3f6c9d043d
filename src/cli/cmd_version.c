#include "cli/cli.h"

#include <jansson.h>
#include <stdio.h>
#include <xxhash.h>
#include <yaml.h>

#ifndef LS_SANITIZERS
#define LS_SANITIZERS "none"
#endif

#ifdef __clang__
#define COMPILER __VERSION__
#else
#define COMPILER "GCC " __VERSION__
#endif

static int run(const struct ls_cli *cli, int argc, char **argv)
{
    (void)argv;
    if (argc)
        return ls_usage(cli, "version takes no argument");
    char xxhash[32];
    unsigned x = XXH_versionNumber();
    snprintf(xxhash, sizeof xxhash, "%u.%u.%u", x / 10000, x / 100 % 100, x % 100);
    const char *const row[][2] = { { "lockstep", LS_VERSION },
                                   { "compiler", COMPILER },
                                   { "build", LS_BUILD },
                                   { "sanitizers", LS_SANITIZERS },
                                   { "libyaml", yaml_get_version_string() },
                                   { "jansson", jansson_version_str() },
                                   { "xxhash", xxhash } };
    struct ls_str text = { 0 };
    struct ls_json j;
    if (cli->json)
        ls_cli_json_open(cli, &j, &text);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        if (cli->json) {
            ls_json_add_text(&j, row[i][0], row[i][1]);
        } else {
            printf("%-10s  %s\n", row[i][0], row[i][1]);
        }
    }
    if (cli->json)
        ls_cli_json_close(&j);
    return LS_OK;
}

static const struct ls_example examples[] = { { "version --json", "the same as JSON" }, { 0 } };
const struct ls_command ls_command_version = {
    .name = "version",
    .run = run,
    .operands = "",
    .summary = "print the versions of lockstep and of its libraries",
    .text = "`lockstep --version` prints the first line only.",
    .examples = examples,
};
