/* Compares programs compiled by src/fsdp2/ with recordings of real PyTorch, line for line, without tolerance; also with recordings
 * of AutoModel's expert-parallel path on it (experts/).
 *
 *   oracle_fsdp2 [--json] [--diff N] [NAME...]    NAME: substring of a recording's file name
 * Exit status 0 iff every recording equals what we compile. */
#include "recording.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool read_file(const char *path, struct ls_str *out)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return false;
    char block[65536];
    for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;)
        ls_str_addn(out, block, n);
    fclose(f);
    return true;
}

/* "2.12.1" -> 212 */
static unsigned version_of(const char *text)
{
    char *end;
    unsigned long major = strtoul(text, &end, 10), minor = *end == '.' ? strtoul(end + 1, NULL, 10) : 0;
    return (unsigned)(major * 100 + minor);
}

static size_t ranks_of(const struct ls_scenario *s)
{
    return s->mesh.shard * s->mesh.replicate;
}

static bool compile(const char *yaml, const char *torch, unsigned automodel, const char *name, struct ls_str *out, struct ls_error *err)
{
    struct ls_arena arena;
    ls_arena_init(&arena, 0);
    struct ls_names *names = ls_names_open();
    struct ls_scenario s;
    bool ok = ls_scenario_load(yaml, &arena, names, &s, err) == LS_OK;
    if (ok) {
        s.runtime.version = version_of(torch);
        s.policy.automodel = automodel;
        ls_str_printf(out, "lockstep-recording 1\ntorch %s\nscenario %s\n", torch, name);
        struct ls_compiled c;
        struct ls_variant as_written = LS_AS_WRITTEN;
        ok = ls_scenario_compile(&s, &as_written, true, &c, err) == LS_OK;
        if (ok && c.refusal.rule) {
            ls_str_printf(out, "refused %s\n", c.refusal.rule);
        } else if (ok) {
            const size_t ranks = automodel ? 2 : ranks_of(&s); /* record_experts.py writes two */
            for (size_t rank = 0; rank < ranks && ok; rank++) {
                ls_str_printf(out, "rank %zu\n", rank);
                ok = recording_of_rank(&c, s.mesh.shard, rank, out, err) == LS_OK;
            }
        }
        if (ok)
            ls_compiled_release(&c);
    }
    if (!ok) {
        fprintf(stderr, "%s: %s (%s:%zu:%zu)\n", name, err->text, err->input.file ? err->input.file : "", err->input.line,
                err->input.column);
    }
    ls_names_close(names);
    ls_arena_release(&arena);
    return ok;
}

static size_t next_line(const char *s)
{
    const char *end = strchr(s, '\n');
    return end ? (size_t)(end - s) : strlen(s);
}

/* Prints the first difference with the lines before it; false if there is none. */
static bool differs(const char *name, const char *want, const char *got, size_t show)
{
    const char *w = want, *g = got, *context[6] = { 0 };
    for (size_t line = 1;; line++) {
        size_t nw = next_line(w), ng = next_line(g);
        if (nw != ng || strncmp(w, g, nw) != 0) {
            if (!show)
                return true;
            printf("%s: line %zu differs\n", name, line);
            for (size_t i = 0; i < 6; i++)
                if (context[(line + i) % 6])
                    printf("    %.*s\n", (int)next_line(context[(line + i) % 6]), context[(line + i) % 6]);
            for (size_t i = 0; i < show; i++) {
                nw = next_line(w), ng = next_line(g);
                printf("  recorded: %-70.*s  compiled: %.*s\n", (int)nw, w, (int)ng, g);
                w += w[nw] ? nw + 1 : nw;
                g += g[ng] ? ng + 1 : ng;
            }
            return true;
        }
        context[line % 6] = w;
        if (!w[nw] && !g[ng])
            return false;
        if (!w[nw] || !g[ng])
            return true;
        w += nw + 1, g += ng + 1;
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* "NAME.torch-2.12.1.rec", "NAME.nemo-0.7.0.torch-2.12.1.rec" */
static bool compare_file(const char *folder, const char *file, bool json, size_t show, size_t *compared)
{
    const char *torch = strstr(file, ".torch-"), *nemo = strstr(file, ".nemo-");
    char name[256], version[32], path[1024];
    if (!torch)
        return false;
    snprintf(name, sizeof name, "%.*s", (int)((nemo ? nemo : torch) - file), file);
    snprintf(version, sizeof version, "%.*s", (int)(strlen(torch) - strlen(".torch-") - strlen(".rec")), torch + strlen(".torch-"));
    struct ls_str want = { 0 }, got = { 0 };
    struct ls_error err = { 0 };
    snprintf(path, sizeof path, "%s/%s", folder, file);
    bool read = read_file(path, &want);
    snprintf(path, sizeof path, "%s/%s.yaml", folder, name);
    ++*compared;
    bool equal = read && compile(path, version, nemo ? version_of(nemo + strlen(".nemo-")) : 0, name, &got, &err) &&
                 !differs(file, ls_str_text(&want), ls_str_text(&got), show);
    if (!equal && json)
        fprintf(stderr, "differs: %s\n", file);
    ls_str_release(&want);
    ls_str_release(&got);
    return equal;
}

static bool compare_folder(const char *folder, char *const *wanted, int count, bool json, size_t show, size_t *compared, size_t *equal)
{
    DIR *dir = opendir(folder);
    if (!dir) {
        fprintf(stderr, "%s: no such folder\n", folder);
        return false;
    }
    LS_VEC(char *) files = { 0 };
    for (struct dirent *e; (e = readdir(dir));) {
        const char *dot = strrchr(e->d_name, '.');
        const bool recording = dot && strcmp(dot, ".rec") == 0;
        bool take = recording && count == 0;
        for (int i = 0; i < count && recording; i++)
            take |= strstr(e->d_name, wanted[i]) != NULL;
        if (take)
            ls_push(&files, strdup(e->d_name));
    }
    closedir(dir);
    if (files.count)
        qsort(files.at, files.count, sizeof *files.at, by_name);
    for (size_t i = 0; i < files.count; i++) {
        *equal += compare_file(folder, files.at[i], json, show, compared);
        free(files.at[i]);
    }
    ls_vec_release(&files);
    return true;
}

int main(int argc, char **argv)
{
    bool json = false;
    size_t show = 4;
    int first = 1;
    for (; first < argc && strncmp(argv[first], "--", 2) == 0; first++) {
        if (strcmp(argv[first], "--json") == 0)
            json = true, show = 0;
        else if (strcmp(argv[first], "--diff") == 0 && first + 1 < argc)
            show = (size_t)strtoul(argv[++first], NULL, 10);
        else
            return 2;
    }
    size_t compared = 0, equal = 0;
    bool found = compare_folder(LS_SOURCE_DIR "/tests/oracle/fsdp2", argv + first, argc - first, json, show, &compared, &equal) &&
                 compare_folder(LS_SOURCE_DIR "/tests/oracle/experts", argv + first, argc - first, json, show, &compared, &equal);
    if (!found)
        return 2;
    if (json)
        printf("{\"version\":1,\"oracle\":\"fsdp2\",\"compared\":%zu,\"equal\":%zu}\n", compared, equal);
    else
        printf("oracle fsdp2: %zu recordings compared, %zu equal\n", compared, equal);
    return compared && compared == equal ? 0 : 1;
}
