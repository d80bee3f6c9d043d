/* src/yaml/yaml.h -- a YAML document with positions, read strictly.
 *
 * Nodes are plain trees owned by the document's arena. Anchors and aliases are expanded with a bound on the total, merge keys
 * are refused, duplicate keys are an error. Limits: 64 MiB of text, 64 levels, 4 M nodes; beyond them LS_EINPUT. */
#ifndef LS_YAML_YAML_H
#define LS_YAML_YAML_H

#include "base/arena.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum ls_yaml_kind { LS_YAML_SCALAR, LS_YAML_LIST, LS_YAML_MAP };
struct ls_yaml_node;
struct ls_yaml_pair { const struct ls_yaml_node *key, *value; };
struct ls_yaml_node {
    enum ls_yaml_kind kind;
    bool quoted;              /* scalars: was quoted, so it is text whatever it looks like */
    struct ls_loc at;
    const char *text;         /* scalars */
    size_t count;
    const struct ls_yaml_node *const *item;  /* lists */
    const struct ls_yaml_pair *pair;         /* maps, in file order */
};

/* Reads one document. `path` names it in errors and is copied into the arena.
 *   errors  LS_EINPUT: unreadable file, bad YAML, limits, empty or more than one document */
LS_MUST_USE enum ls_code ls_yaml_load_file(const char *path, struct ls_arena *arena, const struct ls_yaml_node **out,
                                           struct ls_error *err);
LS_MUST_USE enum ls_code ls_yaml_load_text(const char *text, size_t length, const char *path, struct ls_arena *arena,
                                           const struct ls_yaml_node **out, struct ls_error *err);

/* Maps: NULL when the key is absent. */
const struct ls_yaml_node *ls_yaml_get(const struct ls_yaml_node *map, const char *key);
/* Every key of `map` must be in the NULL-terminated list `known`; else LS_EINPUT at the key, with the nearest name as a hint.
 * `what` names the map in the error: "unknown key 'modles' in 'units'". */
LS_MUST_USE enum ls_code ls_yaml_check_keys(const struct ls_yaml_node *map, const char *what, const char *const *known,
                                            struct ls_error *err);
/* Typed reads of a node. `name` is the key, for the error text. All: LS_EINPUT with the node's position. */
LS_MUST_USE enum ls_code ls_yaml_text(const struct ls_yaml_node *n, const char *name, const char **out, struct ls_error *err);
LS_MUST_USE enum ls_code ls_yaml_bool(const struct ls_yaml_node *n, const char *name, bool *out, struct ls_error *err);
LS_MUST_USE enum ls_code ls_yaml_uint(const struct ls_yaml_node *n, const char *name, uint64_t min, uint64_t max, uint64_t *out,
                                      struct ls_error *err);
LS_MUST_USE enum ls_code ls_yaml_real(const struct ls_yaml_node *n, const char *name, double *out, struct ls_error *err);
LS_MUST_USE enum ls_code ls_yaml_map(const struct ls_yaml_node *n, const char *name, struct ls_error *err);
LS_MUST_USE enum ls_code ls_yaml_list(const struct ls_yaml_node *n, const char *name, struct ls_error *err);
/* One of the NULL-terminated names; *out is its index. The error lists them, and hints the nearest. */
LS_MUST_USE enum ls_code ls_yaml_choice(const struct ls_yaml_node *n, const char *name, const char *const *names, size_t *out,
                                        struct ls_error *err);
bool ls_yaml_is_null(const struct ls_yaml_node *n);    /* unquoted null, ~ or empty */
bool ls_yaml_is_text(const struct ls_yaml_node *n, const char *text); /* scalar with this text */
/* The nearest of the NULL-terminated names within a third of its length, or NULL. */
const char *ls_nearest(const char *text, const char *const *names);

#endif
