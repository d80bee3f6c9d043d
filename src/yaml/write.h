/* src/yaml/write.h -- changed copies of a document, and writing one as text. Nodes are immutable: a change shares what it keeps. */
#ifndef LS_YAML_WRITE_H
#define LS_YAML_WRITE_H

#include "base/str.h"
#include "yaml/yaml.h"

const struct ls_yaml_node *ls_yaml_new_scalar(struct ls_arena *a, const char *text, bool quoted);
const struct ls_yaml_node *ls_yaml_new_uint(struct ls_arena *a, uint64_t value);
const struct ls_yaml_node *ls_yaml_new_list(struct ls_arena *a, const struct ls_yaml_node *const *item, size_t count);
const struct ls_yaml_node *ls_yaml_new_map(struct ls_arena *a); /* empty */

/* The map with `value` at a dotted path of keys ("batch.execution"); maps on the way are made when absent, and replace what is not
 * a map. value NULL takes the key out. */
const struct ls_yaml_node *ls_yaml_with(struct ls_arena *a, const struct ls_yaml_node *map, const char *path,
                                        const struct ls_yaml_node *value);

/* Block style for maps, flow style for lists of scalars; reading the text gives an equal tree. */
void ls_yaml_write(const struct ls_yaml_node *n, struct ls_str *out);

#endif
