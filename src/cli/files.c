#include "cli/files.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool is_scenario(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && dot != name && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0);
}

enum { DEPTH_MAX = 32 };

static enum ls_code add_folder(ls_paths *out, struct ls_arena *arena, const char *path, bool all, unsigned depth,
                               struct ls_error *err)
{
    struct ls_loc at = { path, 0, 0 };
    DIR *dir = depth < DEPTH_MAX ? opendir(path) : NULL;
    if (!dir)
        return ls_fail(err, LS_EBACKEND, at, "cannot read the folder '%s': %s", path,
                       depth < DEPTH_MAX ? strerror(errno) : "too deep");
    ls_paths names = { 0 };
    for (struct dirent *e; (e = readdir(dir));)
        if (e->d_name[0] != '.')
            ls_push(&names, ls_arena_str(arena, e->d_name));
    closedir(dir);
    if (names.count)
        qsort(names.at, names.count, sizeof *names.at, by_name);
    enum ls_code rc = LS_OK;
    size_t length = strlen(path);
    const char *slash = length && path[length - 1] == '/' ? "" : "/";
    for (size_t i = 0; i < names.count && rc == LS_OK; i++) {
        const char *full = ls_arena_printf(arena, "%s%s%s", path, slash, names.at[i]);
        struct stat st;
        if (stat(full, &st) != 0)
            continue; /* gone, or a dangling link */
        if (S_ISDIR(st.st_mode) && (all || (strcmp(names.at[i], "models") != 0 && strcmp(names.at[i], "platforms") != 0)))
            rc = add_folder(out, arena, full, all, depth + 1, err);
        else if (S_ISREG(st.st_mode) && is_scenario(names.at[i]))
            ls_push(out, full);
    }
    ls_vec_release(&names);
    return rc;
}

static enum ls_code add_path(ls_paths *out, struct ls_arena *arena, const char *path, bool all, bool *folder, struct ls_error *err)
{
    struct stat st;
    struct ls_loc at = { path, 0, 0 };
    if (stat(path, &st) != 0)
        return ls_fail(err, LS_EINPUT, at, "cannot read '%s': %s", path, strerror(errno));
    *folder = S_ISDIR(st.st_mode);
    if (!*folder) {
        ls_push(out, path);
        return LS_OK;
    }
    size_t before = out->count;
    enum ls_code rc = add_folder(out, arena, path, all, 0, err);
    if (rc == LS_OK && out->count == before)
        rc = ls_fail(err, LS_EINPUT, at, "no %s (*.yaml) is below the folder '%s'", all ? "recipe" : "scenario", path);
    return rc;
}

enum ls_code ls_paths_add(ls_paths *out, struct ls_arena *arena, const char *path, bool *folder, struct ls_error *err)
{
    return add_path(out, arena, path, false, folder, err);
}

enum ls_code ls_paths_add_all(ls_paths *out, struct ls_arena *arena, const char *path, bool *folder, struct ls_error *err)
{
    return add_path(out, arena, path, true, folder, err);
}

const char *ls_models_folder(struct ls_arena *arena)
{
    static const char here[] = "scenarios/models";
    const char *installed = getenv("LOCKSTEP_SCENARIOS"); /* set by the lockstep script */
    struct stat st;
    if ((stat(here, &st) == 0 && S_ISDIR(st.st_mode)) || !installed || !installed[0])
        return here;
    return ls_arena_printf(arena, "%s/models", installed);
}

enum ls_code ls_write_file(const char *path, const char *text, size_t length, struct ls_error *err)
{
    struct ls_loc at = { path, 0, 0 };
    char *real = realpath(path, NULL); /* NULL for a new file: then the name itself is the place */
    const char *target = real ? real : path;
    struct ls_str name = { 0 };
    sigset_t ends, before;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    sigprocmask(SIG_BLOCK, &ends, &before); /* or the temporary file would stay */
    ls_str_printf(&name, "%s.XXXXXX", target);
    int fd = mkstemp(name.text);
    enum ls_code rc = LS_OK;
    if (fd < 0) {
        rc = ls_fail(err, LS_EBACKEND, at, "cannot write '%s': %s", path, strerror(errno));
        ls_str_release(&name);
        free(real);
        sigprocmask(SIG_SETMASK, &before, NULL);
        return rc;
    }
    for (size_t done = 0; done < length && rc == LS_OK;) {
        ssize_t n = write(fd, text + done, length - done);
        if (n < 0 && errno != EINTR)
            rc = ls_fail(err, LS_EBACKEND, at, "cannot write '%s': %s", path, strerror(errno));
        else if (n > 0)
            done += (size_t)n;
    }
    struct stat st;
    mode_t mode = 0644;
    if (stat(target, &st) == 0)
        mode = st.st_mode & 0777;
    if (fchmod(fd, mode) != 0 && rc == LS_OK)
        rc = ls_fail(err, LS_EBACKEND, at, "cannot write '%s': %s", path, strerror(errno));
    if (close(fd) != 0 && rc == LS_OK)
        rc = ls_fail(err, LS_EBACKEND, at, "cannot write '%s': %s", path, strerror(errno));
    if (rc == LS_OK && rename(name.text, target) != 0)
        rc = ls_fail(err, LS_EBACKEND, at, "cannot write '%s': %s", path, strerror(errno));
    if (rc != LS_OK)
        unlink(name.text);
    ls_str_release(&name);
    free(real);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return rc;
}
