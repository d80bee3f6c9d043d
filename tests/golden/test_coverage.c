/* The table of reports in scenarios/README.md: every scenario that it lists exists, and every scenario that stands for a report is listed
 * under its case. */
#include "base/str.h"
#include "base/vec.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char *row_of(const char *text, const char *id)
{
    char start[16];
    snprintf(start, sizeof start, "\n| B%.2s |", id);
    const char *at = strstr(text, start);
    return at ? strndup(at + 1, strcspn(at + 1, "\n")) : NULL;
}

/* `folder/`: `name`, `name`; `folder/`: ... */
static size_t check_row(const char *row, const char *root)
{
    char folder[128] = "", name[128];
    size_t count = 0;
    for (const char *at = strchr(row, '`'); at; at = strchr(at, '`')) {
        size_t n = strcspn(at + 1, "`");
        cr_assert(n && n < sizeof name && at[1 + n] == '`', "%s", row);
        snprintf(name, sizeof name, "%.*s", (int)n, at + 1);
        at += n + 2;
        if (name[n - 1] == '/') {
            snprintf(folder, sizeof folder, "%s", name);
            continue;
        }
        char path[1024];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s%s.yaml", root, folder, name);
        cr_expect(stat(path, &st) == 0, "%s does not exist", path);
        count++;
    }
    return count;
}

Test(coverage, the_table_of_reports_is_complete)
{
    static const char root[] = LS_SOURCE_DIR "/scenarios";
    struct ls_str text = { 0 };
    FILE *f = fopen(LS_SOURCE_DIR "/scenarios/README.md", "r");
    char line[8192];
    size_t cases = 0, listed = 0, found = 0;
    cr_assert(f);
    while (fgets(line, sizeof line, f)) {
        ls_str_add(&text, line);
        if (strncmp(line, "| B", 3) == 0 && line[3] >= '0' && line[3] <= '9') {
            const char *scenarios = line;
            for (int i = 0; i < 3; i++)
                scenarios = strchr(scenarios + 1, '|');
            size_t n = check_row(strstr(scenarios, "none") == scenarios + 2 ? "" : scenarios, root);
            cases++;
            listed += n;
        }
    }
    fclose(f);
    struct dirent **folder = NULL;
    int folders = scandir(root, &folder, NULL, alphasort);
    for (int i = 0; i < folders; i++) {
        char path[1024];
        struct dirent **file = NULL;
        snprintf(path, sizeof path, "%s/%s", root, folder[i]->d_name);
        int files = folder[i]->d_name[0] == '.' ? 0 : scandir(path, &file, NULL, alphasort);
        for (int k = 0; k < files; k++) {
            const char *name = file[k]->d_name;
            if (name[0] == 'b' && name[1] >= '0' && name[1] <= '9' && name[2] >= '0' && name[2] <= '9' && name[3] == '-') {
                char quoted[256], *row = row_of(ls_str_text(&text), name + 1);
                snprintf(quoted, sizeof quoted, "`%.*s`", (int)strcspn(name, "."), name);
                cr_expect(row && strstr(row, quoted), "%s/%s is not in the table", folder[i]->d_name, name);
                free(row);
                found++;
            }
            free(file[k]);
        }
        free(file);
        free(folder[i]);
    }
    free(folder);
    cr_expect(cases >= 41 && listed >= 130, "%zu cases, %zu scenarios", cases, listed);
    cr_expect_eq(listed, found, "%zu listed, %zu there", listed, found);
    ls_str_release(&text);
}
