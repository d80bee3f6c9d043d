/* The parts of the command line that no golden file reaches: excerpts with carets, cleaned text, option values. */
#include "cli/cli.h"
#include "cli/files.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[] = "/tmp/lockstep-test-XXXXXX";

static void write_file(const char *text, size_t length)
{
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    cr_assert_eq(write(fd, text, length), (ssize_t)length);
    close(fd);
}

/* What ls_report_text prints for an error at this place, without the file's name. */
static void report_is(size_t line, size_t column, const char *want)
{
    struct ls_cli cli = { 0 };
    struct ls_error err = { 0 };
    ls_fail(&err, LS_EINPUT, ((struct ls_loc){ path, line, column }), "'x' is wrong");
    char *text = NULL;
    size_t length = 0;
    FILE *f = open_memstream(&text, &length);
    cr_assert(f);
    ls_report_text(&cli, f, &err);
    fclose(f);
    cr_assert_eq(strncmp(text, path, strlen(path)), 0);
    cr_assert_str_eq(text + strlen(path), want);
    free(text);
}

static void remove_file(void)
{
    unlink(path);
}

TestSuite(report, .fini = remove_file);

Test(report, line_and_caret)
{
    static const char text[] = "a: 1\nb:\t[x, y]\r\nc\xc3\xa9\xe2\x82\xac: z\n\n\x1b[31m: e\xff\n";
    write_file(text, sizeof text - 1);
    report_is(1, 4, ":1:4: error: 'x' is wrong\n  a: 1\n     ^\n");
    report_is(1, 5, ":1:5: error: 'x' is wrong\n  a: 1\n      ^\n");
    report_is(1, 99, ":1:99: error: 'x' is wrong\n  a: 1\n      ^\n");
    report_is(2, 4, ":2:4: error: 'x' is wrong\n  b:\t[x, y]\n    \t^\n");
    report_is(3, 6, ":3:6: error: 'x' is wrong\n  c\xc3\xa9\xe2\x82\xac: z\n       ^\n");
    report_is(4, 1, ":4:1: error: 'x' is wrong\n");
    report_is(5, 6, ":5:6: error: 'x' is wrong\n  ?[31m: e?\n       ^\n");
    report_is(6, 1, ":6:1: error: 'x' is wrong\n");
    report_is(0, 0, ": error: 'x' is wrong\n");
}

Test(report, long_lines_are_cut_around_the_caret)
{
    char text[9001];
    memset(text, 'a', sizeof text);
    for (size_t i = 0; i + 3 <= sizeof text; i += 3)
        memcpy(text + i, "\xe2\x82\xac", 3);
    write_file(text, sizeof text);
    for (size_t column = 1; column < 3000; column += 7) {
        struct ls_cli cli = { 0 };
        struct ls_error err = { 0 };
        ls_fail(&err, LS_EINPUT, ((struct ls_loc){ path, 1, column }), "x");
        char *out = NULL;
        size_t length = 0;
        FILE *f = open_memstream(&out, &length);
        cr_assert(f);
        ls_report_text(&cli, f, &err);
        fclose(f);
        cr_assert_lt(length, 500, "column %zu", column);
        cr_assert(!strchr(out, '?'), "column %zu cuts a character: %s", column, out);
        char *line = strchr(out, '\n');
        if (line && line[1]) { /* the caret stands under the first byte of a character that is shown */
            char *caret_line = strchr(line + 1, '\n') + 1, *caret = strchr(caret_line, '^');
            cr_assert(caret, "column %zu", column);
            size_t shown = 0;
            for (char *s = line + 1; *s != '\n'; s++)
                shown += ((unsigned char)*s & 0xc0) != 0x80;
            cr_assert_lt((size_t)(caret - caret_line), shown, "column %zu", column);
        }
        cr_assert(column > 1300 || strchr(out, '^'), "column %zu: %s", column, out);
        free(out);
    }
}

Test(report, a_file_that_is_gone_or_no_file)
{
    strcpy(path, "/tmp/lockstep-none");
    report_is(3, 4, ":3:4: error: 'x' is wrong\n");
    strcpy(path, "/dev/zero");
    report_is(3, 4, ":3:4: error: 'x' is wrong\n");
    strcpy(path, "/tmp/lockstep-none");
}

Test(clean, control_characters_and_bad_bytes)
{
    static const char text[] = "a\tb\x1b]0;x\x07\x7f\xc2\x9b\xc2\xa0\xff\xe2\x82\xed\xa0\x80z";
    char *out = NULL;
    size_t length = 0;
    FILE *f = open_memstream(&out, &length);
    cr_assert(f);
    ls_print_clean(f, text, sizeof text - 1);
    fclose(f);
    cr_assert_str_eq(out, "a\tb?]0;x???\xc2\xa0??????z");
    free(out);
}

static int nothing(const struct ls_cli *cli, int argc, char **argv)
{
    (void)cli, (void)argc, (void)argv;
    return LS_OK;
}

static const struct ls_option options[] = { { "seed", "N", "" }, { "force", NULL, "" }, { 0 } };
static const struct ls_command command = {
    .name = "x", .run = nothing, .operands = "", .summary = "x", .options = options
};

/* Parses words as given after the subcommand's name. */
static enum ls_code parse(struct ls_cli *cli, int *argc, char **argv, struct ls_error *err)
{
    *cli = (struct ls_cli){ .command = &command };
    *argc = 0;
    while (argv[*argc])
        ++*argc;
    return ls_cli_parse(cli, argc, argv, err);
}

#define WORDS(...) ((char *[]){ __VA_ARGS__, NULL })

Test(options, values_flags_and_operands)
{
    struct ls_cli cli;
    struct ls_error err;
    int argc;
    uint64_t seed = 7;
    char a[] = "a", b[] = "b", s1[] = "--seed", s2[] = "--seed=12", n[] = "5", force[] = "--force", json[] = "--json",
         dash[] = "-", end[] = "--";
    char **words = WORDS(a, s1, n, json, b);
    cr_assert_eq(parse(&cli, &argc, words, &err), LS_OK);
    cr_assert(argc == 2 && words[0] == a && words[1] == b && cli.json && !ls_cli_flag(&cli, "force"));
    cr_assert_eq(ls_cli_uint(&cli, "seed", 0, 9, &seed, &err), LS_OK);
    cr_assert_eq(seed, 5);
    cr_assert_eq(ls_cli_uint(&cli, "seed", 6, 9, &seed, &err), LS_EUSAGE);
    cr_assert_str_eq(err.text, "'--seed' is 5, which is not between 6 and 9");

    words = WORDS(s2, force, dash, end, json);
    cr_assert_eq(parse(&cli, &argc, words, &err), LS_OK);
    cr_assert(argc == 2 && words[0] == dash && words[1] == json && !cli.json && ls_cli_flag(&cli, "force"));
    cr_assert_eq(ls_cli_uint(&cli, "seed", 0, 20, &seed, &err), LS_OK);
    cr_assert_eq(seed, 12);

    words = WORDS(a);
    seed = 7;
    cr_assert_eq(parse(&cli, &argc, words, &err), LS_OK);
    cr_assert_eq(ls_cli_uint(&cli, "seed", 8, 9, &seed, &err), LS_OK);
    cr_assert_eq(seed, 7);
    cr_assert(!ls_cli_value(&cli, "seed"));
}

Test(options, bad_values)
{
    static const char *const bad[] = { "", "-1", "+1", "1e3", "0x1", " 1", "1 ", "99999999999999999999" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ls_cli cli;
        struct ls_error err;
        int argc;
        uint64_t seed = 7;
        char option[] = "--seed", value[32];
        snprintf(value, sizeof value, "%s", bad[i]);
        cr_assert_eq(parse(&cli, &argc, WORDS(option, value), &err), LS_OK);
        cr_assert_eq(ls_cli_uint(&cli, "seed", 0, UINT64_MAX, &seed, &err), LS_EUSAGE, "accepted '%s'", bad[i]);
        cr_assert_eq(seed, 7);
    }
}

Test(options, suggestions)
{
    struct ls_cli cli;
    struct ls_error err;
    int argc;
    char sed[] = "--sed", forse[] = "--forse=3", far[] = "--zzzzzzzz";
    cr_assert_eq(parse(&cli, &argc, WORDS(sed), &err), LS_EUSAGE);
    cr_assert_str_eq(err.hint, "did you mean '--seed'?");
    cr_assert_eq(parse(&cli, &argc, WORDS(forse), &err), LS_EUSAGE);
    cr_assert_str_eq(err.hint, "did you mean '--force'?");
    cr_assert_eq(parse(&cli, &argc, WORDS(far), &err), LS_EUSAGE);
    cr_assert_str_eq(err.hint, "");
}

/* ---- files that a command writes ---- */

static char folder[] = "/tmp/lockstep-test-XXXXXX";
static char file[64], pipe_name[64], link_name[64];

static void make_folder(void)
{
    cr_assert(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/file", folder);
    snprintf(pipe_name, sizeof pipe_name, "%s/pipe", folder);
    snprintf(link_name, sizeof link_name, "%s/link", folder);
}

static void remove_folder(void)
{
    unlink(file);
    unlink(pipe_name);
    unlink(link_name);
    cr_assert_eq(rmdir(folder), 0, "something was left in %s", folder);
}

static void file_holds(const char *name, const char *want)
{
    char have[64] = "";
    FILE *f = fopen(name, "r");
    cr_assert(f, "%s", name);
    have[fread(have, 1, sizeof have - 1, f)] = '\0';
    fclose(f);
    cr_assert_str_eq(have, want);
}

TestSuite(write, .init = make_folder, .fini = remove_folder);

Test(write, a_file_is_replaced_and_keeps_its_mode)
{
    struct ls_error err = { 0 };
    struct stat st;
    umask(027);
    cr_assert_eq(ls_write_file(file, "one", 3, &err), LS_OK);
    cr_assert_eq(stat(file, &st), 0);
    cr_assert_eq(st.st_mode & 0777, 0640, "a new file obeys the umask");
    cr_assert_eq(chmod(file, 0604), 0);
    cr_assert_eq(symlink("file", link_name), 0);
    cr_assert_eq(ls_write_file(link_name, "two", 3, &err), LS_OK);
    file_holds(file, "two");
    cr_assert_eq(lstat(link_name, &st), 0);
    cr_assert(S_ISLNK(st.st_mode));
    cr_assert_eq(stat(file, &st), 0);
    cr_assert_eq(st.st_mode & 0777, 0604);
}

Test(write, pipes_and_devices_stay_what_they_are)
{
    struct ls_error err = { 0 };
    struct stat st;
    char have[4] = "";
    cr_assert_eq(mkfifo(pipe_name, 0600), 0);
    int reader = open(pipe_name, O_RDONLY | O_NONBLOCK);
    cr_assert(reader >= 0);
    cr_assert_eq(ls_write_check(pipe_name, &err), LS_OK);
    cr_assert_eq(ls_write_file(pipe_name, "one", 3, &err), LS_OK);
    cr_assert_eq(read(reader, have, 3), 3);
    cr_assert_str_eq(have, "one");
    close(reader);
    cr_assert_eq(lstat(pipe_name, &st), 0);
    cr_assert(S_ISFIFO(st.st_mode), "the pipe was replaced by a file");
    cr_assert_eq(symlink("/dev/full", link_name), 0);
    if (stat(link_name, &st) == 0) {
        cr_assert_eq(ls_write_file(link_name, "one", 3, &err), LS_EBACKEND);
        cr_assert_eq(stat("/dev/full", &st), 0);
        cr_assert(S_ISCHR(st.st_mode));
    }
}

Test(write, the_file_of_standard_output_gets_both)
{
    struct ls_error err = { 0 };
    fflush(stdout);
    int before = dup(STDOUT_FILENO);
    cr_assert(freopen(file, "w", stdout));
    printf("before ");
    cr_assert_eq(ls_write_file(file, "file", 4, &err), LS_OK);
    printf(" after");
    fflush(stdout);
    dup2(before, STDOUT_FILENO);
    close(before);
    file_holds(file, "before file after");
}

Test(write, what_cannot_be_written_is_known_before)
{
    struct ls_error err = { 0 };
    cr_assert_eq(ls_write_check(file, &err), LS_OK);
    cr_assert_neq(access(file, F_OK), 0, "a check leaves nothing");
    cr_assert_eq(ls_write_check(folder, &err), LS_EBACKEND);
    cr_assert(strstr(err.text, "Is a directory"), "%s", err.text);
    cr_assert_eq(ls_write_check("/tmp/lockstep-no-such-folder/file", &err), LS_EBACKEND);
    cr_assert(strstr(err.text, "No such file"), "%s", err.text);
}
