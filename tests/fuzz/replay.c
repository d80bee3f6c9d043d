/* Runs one fuzz target over files and folders of inputs, with a time limit for each; for compilers without libFuzzer. */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { INPUT_SECONDS_MAX = 20 };

static size_t replayed;

static void replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(2);
    }
    long size = ftell(f);
    rewind(f);
    /* Exactly as many bytes as there are: a read beyond them is caught. */
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    if (!data || size < 0 || fread(data, 1, (size_t)size, f) != (size_t)size) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(2);
    }
    fclose(f);
    fprintf(stderr, "%s\n", path);
    alarm(INPUT_SECONDS_MAX);
    LLVMFuzzerTestOneInput(data, (size_t)size);
    alarm(0);
    free(data);
    replayed++;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void replay(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        fprintf(stderr, "%s: no such file\n", path);
        exit(2);
    }
    if (!S_ISDIR(st.st_mode)) {
        replay_file(path);
        return;
    }
    struct dirent **entry;
    int count = scandir(path, &entry, NULL, by_name);
    for (int i = 0; i < count; i++) {
        char inside[4096];
        snprintf(inside, sizeof inside, "%s/%s", path, entry[i]->d_name);
        if (entry[i]->d_name[0] != '.')
            replay(inside);
        free(entry[i]);
    }
    free(entry);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        replay(argv[i]);
    printf("%zu inputs\n", replayed);
    return replayed ? 0 : 2;
}
