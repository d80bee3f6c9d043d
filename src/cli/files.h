/* src/cli/files.h -- operands that are files or folders. */
#ifndef LS_CLI_FILES_H
#define LS_CLI_FILES_H

#include "base/arena.h"
#include "base/str.h"
#include "base/vec.h"

#include <stdbool.h>

typedef LS_VEC(const char *) ls_paths;

/* Adds a file as it is, or every *.yaml below a folder in the order of their names; folders called models and platforms hold no
 * scenarios and are left out.
 *   errors  LS_EINPUT: no such file, a folder without scenarios; LS_EBACKEND: a folder that cannot be read */
LS_MUST_USE enum ls_code ls_paths_add(ls_paths *out, struct ls_arena *arena, const char *path, bool *folder, struct ls_error *err);

/* The same, but nothing is left out: of a tree of recipes, a folder may be called models.
 *   errors  LS_EINPUT: no such file, a folder without *.yaml; LS_EBACKEND: a folder that cannot be read */
LS_MUST_USE enum ls_code ls_paths_add_all(ls_paths *out, struct ls_arena *arena, const char *path, bool *folder, struct ls_error *err);

/* The folder of inventories: scenarios/models here, or the one that ships with Lockstep. */
const char *ls_models_folder(struct ls_arena *arena);

/* Writes a file so that it is there whole or not at all: a temporary beside it, then renamed. Symbolic links are followed. Devices,
 * pipes and the file that standard output goes to are written to instead.
 *   errors  LS_EBACKEND */
LS_MUST_USE enum ls_code ls_write_file(const char *path, const char *text, size_t length, struct ls_error *err);
/* Could it be written now? For what is written only after a long run.
 *   errors  LS_EBACKEND: the folder is not there, no permission */
LS_MUST_USE enum ls_code ls_write_check(const char *path, struct ls_error *err);

#endif
