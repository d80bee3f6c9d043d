#include "yaml/yaml.h"

#include "base/str.h"
#include "base/vec.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

enum { TEXT_BYTES_MAX = 64 << 20, DEPTH_MAX = 64, NODES_MAX = 4 << 20, SCAN_KEYS = 16 };

/* What an anchor stands for, with the cost of repeating it: nodes and levels, itself included. */
struct anchor {
    const struct ls_yaml_node *node;
    size_t nodes, levels;
    bool open;
};

struct reader {
    yaml_parser_t parser;
    struct ls_arena *arena;
    struct ls_error *err;
    const char *path, *text;
    size_t length;
    size_t nodes;                             /* of the expanded tree */
    size_t deepest;                           /* level of the deepest node so far, under the node being read */
    LS_VEC(const struct ls_yaml_node *) open; /* items of the lists and maps being read */
    struct ls_names *names;                   /* of anchors; ids index `anchor` */
    LS_VEC(struct anchor) anchor;
};

static struct ls_loc loc_of(const struct reader *r, yaml_mark_t mark)
{
    return (struct ls_loc){ r->path, mark.line + 1, mark.column + 1 };
}

/* Reader errors (bad UTF-8, control characters) come with a byte offset only. Some come without one: 0. */
static struct ls_loc loc_of_offset(const struct reader *r, size_t offset)
{
    struct ls_loc at = { r->path, 1, 1 };
    for (size_t i = 0; i < offset && i < r->length; i++) {
        if (r->text[i] == '\n')
            at.line++, at.column = 1;
        else if (((unsigned char)r->text[i] & 0xc0) != 0x80)
            at.column++;
    }
    return at;
}

static enum ls_code fail_parse(struct reader *r)
{
    const yaml_parser_t *p = &r->parser;
    const char *problem = p->problem ? p->problem : "cannot be read";
    if (p->error == YAML_MEMORY_ERROR)
        ls_out_of_memory(0);
    if (p->error == YAML_READER_ERROR)
        return ls_fail(r->err, LS_EINPUT, loc_of_offset(r, p->problem_offset), "not YAML: %s", problem);
    enum ls_code rc;
    if (p->context && p->context_mark.line != p->problem_mark.line)
        rc = ls_fail(r->err, LS_EINPUT, loc_of(r, p->problem_mark), "not YAML: %s %s that starts in line %zu", problem,
                     p->context, p->context_mark.line + 1);
    else
        rc = ls_fail(r->err, LS_EINPUT, loc_of(r, p->problem_mark), "not YAML: %s", problem);
    /* The mark's index counts characters; find the byte through the line instead. */
    size_t line = 0, i = 0;
    while (i < r->length && line < p->problem_mark.line)
        line += r->text[i++] == '\n';
    for (; i < r->length && (r->text[i] == ' ' || r->text[i] == '\t'); i++)
        if (r->text[i] == '\t') {
            ls_hint(r->err, "the line is indented with a tab; YAML takes spaces only");
            break;
        }
    return rc;
}

static enum ls_code next_event(struct reader *r, yaml_event_t *event)
{
    return yaml_parser_parse(&r->parser, event) ? LS_OK : fail_parse(r);
}

static enum ls_code count_nodes(struct reader *r, struct ls_loc at, size_t more, size_t level)
{
    if (level > DEPTH_MAX)
        return ls_fail(r->err, LS_EINPUT, at, "nested more than %d levels deep", DEPTH_MAX);
    if (more > NODES_MAX - r->nodes)
        return ls_fail(r->err, LS_EINPUT, at, "more than %d values, aliases counted in full", NODES_MAX);
    r->nodes += more;
    if (level > r->deepest)
        r->deepest = level;
    return LS_OK;
}

static size_t anchor_slot(struct reader *r, const yaml_char_t *name)
{
    uint32_t id = ls_name_id(r->names, (const char *)name);
    while (r->anchor.count <= id)
        ls_push(&r->anchor, (struct anchor){ 0 });
    return id;
}

static enum ls_code read_alias(struct reader *r, const yaml_event_t *event, size_t level,
                               const struct ls_yaml_node **out)
{
    struct ls_loc at = loc_of(r, event->start_mark);
    const char *name = (const char *)event->data.alias.anchor;
    size_t slot = anchor_slot(r, event->data.alias.anchor); /* may move the anchors */
    const struct anchor *a = &r->anchor.at[slot];
    if (a->open)
        return ls_fail(r->err, LS_EINPUT, at, "alias '*%s' stands inside its own anchor", name);
    if (!a->node)
        return ls_fail(r->err, LS_EINPUT, at, "alias '*%s' has no anchor before it", name);
    enum ls_code rc = count_nodes(r, at, a->nodes, level + a->levels - 1);
    if (rc == LS_OK)
        *out = a->node;
    return rc;
}

/* True if the text of `keys` (count pointers, every second one) holds one text twice; *twice is the later one. */
static bool find_duplicate(const struct ls_yaml_node *const *keys, size_t pairs, const struct ls_yaml_node **twice)
{
    if (pairs <= SCAN_KEYS) {
        for (size_t i = 1; i < pairs; i++)
            for (size_t j = 0; j < i; j++)
                if (strcmp(keys[2 * i]->text, keys[2 * j]->text) == 0) {
                    *twice = keys[2 * i];
                    return true;
                }
        return false;
    }
    struct ls_names *seen = ls_names_open(); /* holds the empty string from the start */
    bool found = false, empty = false;
    for (size_t i = 0; i < pairs && !found; i++) {
        const char *text = keys[2 * i]->text;
        size_t before = ls_names_count(seen);
        ls_name_id(seen, text);
        found = text[0] ? ls_names_count(seen) == before : empty;
        empty = empty || !text[0];
        *twice = keys[2 * i];
    }
    ls_names_close(seen);
    return found;
}

static enum ls_code read_node(struct reader *r, yaml_event_t *event, size_t level, const struct ls_yaml_node **out);

static enum ls_code check_key(struct reader *r, const struct ls_yaml_node *key)
{
    if (key->kind != LS_YAML_SCALAR)
        return ls_fail(r->err, LS_EINPUT, key->at, "a key must be a text, not a %s",
                       key->kind == LS_YAML_LIST ? "list" : "mapping");
    if (!key->quoted && !key->text[0])
        return ls_fail(r->err, LS_EINPUT, key->at, "a key is missing before ':'");
    if (!key->quoted && strcmp(key->text, "<<") == 0)
        return ls_fail(r->err, LS_EINPUT, key->at, "merge keys ('<<') are not supported");
    return LS_OK;
}

/* The items of a list, or the keys and values of a map, up to the event that ends it. */
static enum ls_code read_items(struct reader *r, yaml_event_type_t end, size_t level, struct ls_yaml_node *n)
{
    size_t from = r->open.count;
    enum ls_code rc = LS_OK;
    for (size_t i = 0;; i++) {
        yaml_event_t event;
        rc = next_event(r, &event);
        if (rc != LS_OK)
            break;
        if (event.type == end) {
            yaml_event_delete(&event);
            break;
        }
        const struct ls_yaml_node *item = NULL;
        rc = read_node(r, &event, level + 1, &item);
        if (rc == LS_OK && n->kind == LS_YAML_MAP && i % 2 == 0)
            rc = check_key(r, item);
        if (rc != LS_OK)
            break;
        ls_push(&r->open, item);
    }
    size_t count = r->open.count - from;
    const struct ls_yaml_node *const *item = count ? r->open.at + from : NULL, *twice = NULL;
    if (rc == LS_OK && n->kind == LS_YAML_LIST) {
        n->count = count;
        n->item = count ? ls_arena_copy(r->arena, item, ls_mul_size(count, sizeof *item)) : NULL;
    } else if (rc == LS_OK && find_duplicate(item, count / 2, &twice)) {
        rc = ls_fail(r->err, LS_EINPUT, twice->at, "key '%s' appears twice", twice->text);
    } else if (rc == LS_OK) {
        n->count = count / 2;
        struct ls_yaml_pair *pair = n->count ? LS_NEW(r->arena, struct ls_yaml_pair, n->count) : NULL;
        for (size_t i = 0; i < n->count; i++)
            pair[i] = (struct ls_yaml_pair){ item[2 * i], item[2 * i + 1] };
        n->pair = pair;
    }
    r->open.count = from;
    return rc;
}

static enum ls_code read_scalar(struct reader *r, const yaml_event_t *event, struct ls_yaml_node *n)
{
    const char *value = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    if (memchr(value, 0, length))
        return ls_fail(r->err, LS_EINPUT, n->at, "a text holds a NUL character");
    n->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    n->text = ls_arena_strn(r->arena, value, length);
    return LS_OK;
}

/* Takes the event over. */
static enum ls_code read_node(struct reader *r, yaml_event_t *event, size_t level, const struct ls_yaml_node **out)
{
    struct ls_loc at = loc_of(r, event->start_mark);
    const yaml_char_t *tag = NULL, *name = NULL;
    struct ls_yaml_node *n = NULL;
    size_t slot = 0, nodes_before = r->nodes, deepest_before = r->deepest;
    yaml_event_type_t type = event->type;
    enum ls_code rc = LS_OK;
    if (type == YAML_ALIAS_EVENT) {
        rc = read_alias(r, event, level, out);
        goto done;
    }
    assert(type == YAML_SCALAR_EVENT || type == YAML_SEQUENCE_START_EVENT || type == YAML_MAPPING_START_EVENT);
    if (type == YAML_SCALAR_EVENT)
        tag = event->data.scalar.tag, name = event->data.scalar.anchor;
    else if (type == YAML_SEQUENCE_START_EVENT)
        tag = event->data.sequence_start.tag, name = event->data.sequence_start.anchor;
    else
        tag = event->data.mapping_start.tag, name = event->data.mapping_start.anchor;
    if (tag) {
        rc = ls_fail(r->err, LS_EINPUT, at, "tags ('%.60s') are not supported", (const char *)tag);
        goto done;
    }
    rc = count_nodes(r, at, 1, level);
    if (rc != LS_OK)
        goto done;
    r->deepest = level;
    n = LS_NEW(r->arena, struct ls_yaml_node, 1);
    n->at = at;
    n->kind = type == YAML_SCALAR_EVENT           ? LS_YAML_SCALAR
              : type == YAML_SEQUENCE_START_EVENT ? LS_YAML_LIST
                                                  : LS_YAML_MAP;
    if (name) {
        slot = anchor_slot(r, name);
        r->anchor.at[slot] = (struct anchor){ .open = true };
    }
    if (n->kind == LS_YAML_SCALAR)
        rc = read_scalar(r, event, n);
    else
        rc = read_items(r, n->kind == LS_YAML_LIST ? YAML_SEQUENCE_END_EVENT : YAML_MAPPING_END_EVENT, level, n);
    if (rc == LS_OK && name)
        r->anchor.at[slot] = (struct anchor){ n, r->nodes - nodes_before, r->deepest - level + 1, false };
    if (r->deepest < deepest_before)
        r->deepest = deepest_before;
    *out = n;
done:
    yaml_event_delete(event);
    return rc;
}

/* Steps over the next event and tells what it was. */
static enum ls_code skip_event(struct reader *r, yaml_event_type_t *type, struct ls_loc *at)
{
    yaml_event_t event;
    enum ls_code rc = next_event(r, &event);
    if (rc != LS_OK)
        return rc;
    *type = event.type;
    *at = loc_of(r, event.start_mark);
    yaml_event_delete(&event);
    return LS_OK;
}

static enum ls_code read_stream(struct reader *r, const struct ls_yaml_node **out)
{
    yaml_event_type_t type = YAML_NO_EVENT;
    struct ls_loc at, whole = { r->path, 0, 0 };
    yaml_event_t event;
    enum ls_code rc = skip_event(r, &type, &at); /* stream start */
    if (rc == LS_OK)
        rc = skip_event(r, &type, &at); /* document start, or the end of an empty stream */
    if (rc == LS_OK && type == YAML_STREAM_END_EVENT)
        rc = ls_fail(r->err, LS_EINPUT, whole, "the file holds no YAML document");
    if (rc == LS_OK)
        rc = next_event(r, &event);
    if (rc == LS_OK)
        rc = read_node(r, &event, 1, out);
    if (rc == LS_OK && (*out)->kind == LS_YAML_SCALAR && !(*out)->quoted && !(*out)->text[0])
        rc = ls_fail(r->err, LS_EINPUT, whole, "the file holds no YAML document");
    if (rc == LS_OK)
        rc = skip_event(r, &type, &at); /* document end */
    if (rc == LS_OK)
        rc = skip_event(r, &type, &at);
    if (rc == LS_OK && type != YAML_STREAM_END_EVENT)
        rc = ls_fail(r->err, LS_EINPUT, at, "a second YAML document; one file holds one");
    return rc;
}

enum ls_code ls_yaml_load_text(const char *text, size_t length, const char *path, struct ls_arena *arena,
                               const struct ls_yaml_node **out, struct ls_error *err)
{
    path = ls_arena_str(arena, path); /* outlives a failed load: the error names it */
    struct ls_loc whole = { path, 0, 0 };
    if (length > TEXT_BYTES_MAX)
        return ls_fail(err, LS_EINPUT, whole, "the file is larger than %d MiB", TEXT_BYTES_MAX >> 20);
    struct ls_arena_mark mark = ls_arena_mark(arena);
    struct reader r = {
        .arena = arena, .err = err, .path = path, .text = text, .length = length, .names = ls_names_open()
    };
    if (!yaml_parser_initialize(&r.parser))
        ls_out_of_memory(0);
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, length);
    const struct ls_yaml_node *root = NULL;
    enum ls_code rc = read_stream(&r, &root);
    if (rc == LS_OK)
        *out = root;
    else
        ls_arena_rewind(arena, mark);
    yaml_parser_delete(&r.parser);
    ls_vec_release(&r.open);
    ls_vec_release(&r.anchor);
    ls_names_close(r.names);
    return rc;
}

enum ls_code ls_yaml_load_file(const char *path, struct ls_arena *arena, const struct ls_yaml_node **out,
                               struct ls_error *err)
{
    struct ls_str text = { 0 };
    struct ls_loc at = { ls_arena_str(arena, path), 0, 0 };
    enum ls_code rc = LS_OK;
    FILE *f = fopen(path, "rb");
    if (!f)
        return ls_fail(err, LS_EINPUT, at, "cannot open the file: %s", strerror(errno));
    char block[16384];
    size_t got;
    errno = 0;
    while (text.length <= TEXT_BYTES_MAX && (got = fread(block, 1, sizeof block, f)) > 0)
        ls_str_addn(&text, block, got);
    if (ferror(f))
        rc = ls_fail(err, LS_EINPUT, at, "cannot read the file: %s", strerror(errno));
    fclose(f);
    if (rc == LS_OK)
        rc = ls_yaml_load_text(ls_str_text(&text), text.length, path, arena, out, err);
    ls_str_release(&text);
    return rc;
}

const struct ls_yaml_node *ls_yaml_get(const struct ls_yaml_node *map, const char *key)
{
    assert(map->kind == LS_YAML_MAP);
    for (size_t i = 0; i < map->count; i++)
        if (strcmp(map->pair[i].key->text, key) == 0)
            return map->pair[i].value;
    return NULL;
}
