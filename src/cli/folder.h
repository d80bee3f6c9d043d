/* src/cli/folder.h -- a folder of results that is there whole or not at all. */
#ifndef LS_CLI_FOLDER_H
#define LS_CLI_FOLDER_H

#include "base/arena.h"

#include <stdbool.h>

struct ls_file { const char *name, *text; size_t length; };

/* May `path` become a folder of results? It must not exist, or be an empty folder, or hold nothing but an earlier comparison
 * (run.json and what is rendered from it), and then only with `overwrite`.
 *   errors  LS_EINPUT: it may not; LS_EBACKEND: it cannot be read */
LS_MUST_USE enum ls_code ls_folder_check(const char *path, bool overwrite, struct ls_error *err);
/* Checks again, writes the files into a folder beside `path`, and puts that in its place.
 *   errors  as above; LS_EBACKEND: it cannot be written. Nothing of it is left then, and what was there is still there */
LS_MUST_USE enum ls_code ls_folder_write(const char *path, const struct ls_file *file, size_t files, bool overwrite, struct ls_error *err);

#endif
