#include "cli/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
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

static enum ls_code cannot_write(const char *path, struct ls_error *err)
{
    struct ls_loc at = { path, 0, 0 };
    return ls_fail(err, LS_EBACKEND, at, "cannot write '%s': %s", path, strerror(errno));
}

static enum ls_code write_all(int fd, const char *path, const char *text, size_t length, struct ls_error *err)
{
    for (size_t done = 0; done < length;) {
        ssize_t n = write(fd, text + done, length - done);
        if (n < 0 && errno != EINTR)
            return cannot_write(path, err);
        if (n > 0)
            done += (size_t)n;
    }
    return LS_OK;
}

/* A new file takes the place of a regular one; devices and pipes have no other place, and are written to. */
enum place { PLACE_REPLACED, PLACE_DEVICE, PLACE_STDOUT };

static enum place place_of(const char *path)
{
    struct stat st, out;
    if (stat(path, &st) != 0)
        return PLACE_REPLACED;
    if (fstat(STDOUT_FILENO, &out) == 0 && st.st_dev == out.st_dev && st.st_ino == out.st_ino)
        return PLACE_STDOUT;
    return S_ISREG(st.st_mode) || S_ISDIR(st.st_mode) ? PLACE_REPLACED : PLACE_DEVICE;
}

/* A file beside `path`, for its future content. */
static int open_temporary(const char *path, struct ls_str *name)
{
    char *real = realpath(path, NULL); /* NULL for a new file: then the name itself is the place */
    struct stat st;
    int fd = -1;
    ls_str_printf(name, "%s.XXXXXX", real ? real : path);
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        errno = EISDIR;
    else
        fd = mkstemp(name->text);
    free(real);
    return fd;
}

/* The old file's permissions, or those of any new file. */
static mode_t mode_of(const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0)
        return st.st_mode & 0777;
    mode_t mask = umask(0);
    umask(mask);
    return 0666 & ~mask;
}

static enum ls_code replace_file(const char *path, const char *text, size_t length, struct ls_error *err)
{
    struct ls_str name = { 0 };
    int fd = open_temporary(path, &name);
    if (fd < 0) {
        ls_str_release(&name);
        return cannot_write(path, err);
    }
    char *real = realpath(path, NULL);
    enum ls_code rc = write_all(fd, path, text, length, err);
    if (rc == LS_OK && fchmod(fd, mode_of(path)) != 0)
        rc = cannot_write(path, err);
    if (close(fd) != 0 && rc == LS_OK)
        rc = cannot_write(path, err);
    if (rc == LS_OK && rename(ls_str_text(&name), real ? real : path) != 0)
        rc = cannot_write(path, err);
    if (rc != LS_OK)
        unlink(ls_str_text(&name));
    free(real);
    ls_str_release(&name);
    return rc;
}

static enum ls_code write_device(const char *path, const char *text, size_t length, struct ls_error *err)
{
    int fd = open(path, O_WRONLY);
    if (fd < 0)
        return cannot_write(path, err);
    enum ls_code rc = write_all(fd, path, text, length, err);
    return close(fd) != 0 && rc == LS_OK ? cannot_write(path, err) : rc;
}

enum ls_code ls_write_file(const char *path, const char *text, size_t length, struct ls_error *err)
{
    sigset_t ends, before;
    enum ls_code rc = LS_OK;
    switch (place_of(path)) {
    case PLACE_STDOUT:
        return fflush(stdout) != 0 ? cannot_write(path, err) : write_all(STDOUT_FILENO, path, text, length, err);
    case PLACE_DEVICE:
        return write_device(path, text, length, err);
    case PLACE_REPLACED:
        sigemptyset(&ends);
        sigaddset(&ends, SIGINT);
        sigaddset(&ends, SIGTERM);
        sigprocmask(SIG_BLOCK, &ends, &before); /* or the temporary file would stay */
        rc = replace_file(path, text, length, err);
        sigprocmask(SIG_SETMASK, &before, NULL);
    }
    return rc;
}

enum ls_code ls_write_check(const char *path, struct ls_error *err)
{
    if (place_of(path) != PLACE_REPLACED)
        return access(path, W_OK) == 0 ? LS_OK : cannot_write(path, err);
    struct ls_str name = { 0 };
    int fd = open_temporary(path, &name);
    enum ls_code rc = fd < 0 ? cannot_write(path, err) : LS_OK;
    if (fd >= 0) {
        close(fd);
        unlink(ls_str_text(&name));
    }
    ls_str_release(&name);
    return rc;
}
