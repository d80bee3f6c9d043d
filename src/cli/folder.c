#define _GNU_SOURCE /* renameat2 */
#include "cli/folder.h"

#include "base/str.h"
#include "cli/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_result(const char *name)
{
    size_t n = strlen(name);
    bool svg = n > 4 && strcmp(name + n - 4, ".svg") == 0;
    return strcmp(name, "run.json") == 0 || strcmp(name, "report.md") == 0 || strcmp(name, "report.html") == 0 ||
           strcmp(name, "throughput.svg") == 0 || strcmp(name, "memory.svg") == 0 || (svg && strncmp(name, "timeline-", 9) == 0);
}

/* What is in the way: the name of a file that is no part of an earlier comparison; or the folder's own state. */
struct contents { bool exists, run; size_t files; char foreign[256]; };

static enum ls_code look(const char *path, struct contents *c, struct ls_error *err)
{
    struct ls_loc at = { path, 0, 0 };
    struct stat st;
    *c = (struct contents){ 0 };
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? LS_OK : ls_fail(err, LS_EBACKEND, at, "cannot read '%s': %s", path, strerror(errno));
    c->exists = true;
    if (!S_ISDIR(st.st_mode))
        return ls_fail(err, LS_EINPUT, at, "'%s' is there, and is no folder", path);
    DIR *dir = opendir(path);
    if (!dir)
        return ls_fail(err, LS_EBACKEND, at, "cannot read the folder '%s': %s", path, strerror(errno));
    for (struct dirent *e; (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        c->files++;
        c->run |= strcmp(e->d_name, "run.json") == 0;
        if (!is_result(e->d_name) && (!c->foreign[0] || strcmp(e->d_name, c->foreign) < 0)) /* the first by name: not by chance */
            snprintf(c->foreign, sizeof c->foreign, "%s", e->d_name);
    }
    closedir(dir);
    return LS_OK;
}

enum ls_code ls_folder_check(const char *path, bool overwrite, struct ls_error *err)
{
    struct ls_loc at = { path, 0, 0 };
    struct contents c;
    enum ls_code rc = look(path, &c, err);
    if (rc != LS_OK || !c.files)
        return rc;
    if (c.foreign[0] || !c.run) {
        ls_fail(err, LS_EINPUT, at, "the folder '%.150s' is not empty, and holds other things than a comparison ('%.100s')", path,
                c.foreign[0] ? c.foreign : "no run.json");
        ls_hint(err, "name a folder that does not exist yet");
        return LS_EINPUT;
    }
    if (!overwrite) {
        ls_fail(err, LS_EINPUT, at, "the folder '%s' holds an earlier comparison", path);
        ls_hint(err, "'--overwrite' replaces it");
        return LS_EINPUT;
    }
    return LS_OK;
}

static void remove_files(const char *folder)
{
    DIR *dir = opendir(folder);
    struct ls_str name = { 0 };
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            ls_str_clear(&name);
            ls_str_printf(&name, "%s/%s", folder, e->d_name);
            unlink(ls_str_text(&name));
        }
    if (dir)
        closedir(dir);
    rmdir(folder);
    ls_str_release(&name);
}

/* A folder replaces an empty one in one step; two that hold files change places, where the file system can do that. */
static int put(const char *from, const char *to, bool exchange)
{
    if (!exchange)
        return rename(from, to);
#ifdef RENAME_EXCHANGE
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
#endif
    struct ls_str old = { 0 };
    ls_str_printf(&old, "%s.old", from);
    int rc = rename(to, ls_str_text(&old));
    if (rc == 0 && (rc = rename(from, to)) != 0) {
        int why = errno;
        if (rename(ls_str_text(&old), to) != 0) /* the earlier result is beside it then, which the error says */
            why = EIO;
        errno = why;
    } else if (rc == 0) {
        rc = rename(ls_str_text(&old), from);
    }
    ls_str_release(&old);
    return rc;
}

enum ls_code ls_folder_write(const char *path, const struct ls_file *file, size_t files, bool overwrite, struct ls_error *err)
{
    struct ls_loc at = { path, 0, 0 };
    struct contents c;
    enum ls_code rc = ls_folder_check(path, overwrite, err);
    if (rc == LS_OK)
        rc = look(path, &c, err);
    if (rc != LS_OK)
        return rc;
    struct ls_str name = { 0 }, temporary = { 0 };
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    ls_str_printf(&temporary, "%.*s.XXXXXX", (int)length, path);
    if (!mkdtemp(temporary.text)) {
        rc = ls_fail(err, LS_EBACKEND, at, "cannot write the folder '%s': %s", path, strerror(errno));
        ls_str_release(&temporary);
        return rc;
    }
    for (size_t i = 0; i < files && rc == LS_OK; i++) {
        ls_str_clear(&name);
        ls_str_printf(&name, "%s/%s", ls_str_text(&temporary), file[i].name);
        rc = ls_write_file(ls_str_text(&name), file[i].text, file[i].length, err);
    }
    struct ls_str to = { 0 };
    ls_str_addn(&to, path, length);
    if (rc == LS_OK && (chmod(ls_str_text(&temporary), 0755) != 0 || put(ls_str_text(&temporary), ls_str_text(&to), c.exists && c.files) != 0))
        rc = ls_fail(err, LS_EBACKEND, at, "cannot write the folder '%s': %s", path, strerror(errno));
    if (rc != LS_OK || (c.exists && c.files))
        remove_files(ls_str_text(&temporary)); /* what was written, or what was there before */
    ls_str_release(&to);
    ls_str_release(&name);
    ls_str_release(&temporary);
    return rc;
}
