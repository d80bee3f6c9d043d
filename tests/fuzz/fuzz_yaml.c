/* The YAML layer on any bytes: loads, and if it loads, every typed read of every node, and the way through text and back.
 * No crash, leak, hang or lie.
 *
 * The scenario loader gets its own target beside this one, fuzz_scenario.c, with its seeds in corpus/scenario/. */
#include "fuzz.h"

#include "yaml/write.h"
#include "yaml/yaml.h"

#include <assert.h>
#include <string.h>

static void walk(const struct ls_yaml_node *n, size_t level, size_t *left)
{
    static const char *const names[] = { "modules", "reshard", "dp_size", NULL };
    struct ls_error err = { 0 };
    uint64_t u = 0;
    double d = 0;
    bool b = false;
    const char *t = NULL;
    size_t c = 0;
    assert(level <= 64 && n->at.line > 0 && n->at.column > 0);
    if (!*left)
        return; /* aliases share nodes: the tree can be far larger than the text */
    --*left;
    enum ls_code rc = ls_yaml_uint(n, "k", 1, 1000, &u, &err);
    assert(rc == LS_OK ? u >= 1 && u <= 1000 : rc == LS_EINPUT && err.text[0]);
    rc = ls_yaml_real(n, "k", &d, &err);
    rc = ls_yaml_bool(n, "k", &b, &err);
    rc = ls_yaml_choice(n, "k", names, &c, &err);
    assert(rc != LS_OK || c < 3);
    rc = ls_yaml_text(n, "k", &t, &err);
    assert((rc == LS_OK) == (n->kind == LS_YAML_SCALAR && !ls_yaml_is_null(n)));
    rc = ls_yaml_check_keys(n, "k", names, &err);
    for (size_t i = 0; n->kind == LS_YAML_LIST && i < n->count; i++)
        walk(n->item[i], level + 1, left);
    for (size_t i = 0; n->kind == LS_YAML_MAP && i < n->count; i++) {
        assert(n->pair[i].key->kind == LS_YAML_SCALAR);
        if (n->count < 100)
            assert(ls_yaml_get(n, n->pair[i].key->text) == n->pair[i].value);
        walk(n->pair[i].value, level + 1, left);
    }
}

static bool equal(const struct ls_yaml_node *a, const struct ls_yaml_node *b)
{
    if (a->kind != b->kind || a->count != b->count)
        return false;
    bool same = true;
    switch (a->kind) {
    case LS_YAML_SCALAR:
        return ls_yaml_is_null(a) ? ls_yaml_is_null(b) : !ls_yaml_is_null(b) && strcmp(a->text, b->text) == 0;
    case LS_YAML_LIST:
        for (size_t i = 0; i < a->count && same; i++)
            same = equal(a->item[i], b->item[i]);
        return same;
    case LS_YAML_MAP:
        for (size_t i = 0; i < a->count && same; i++)
            same = strcmp(a->pair[i].key->text, b->pair[i].key->text) == 0 && equal(a->pair[i].value, b->pair[i].value);
        return same;
    }
    return false;
}

/* What is written reads back equal. An empty document has no text form. */
static void round_trip(const struct ls_yaml_node *root, struct ls_arena *arena)
{
    struct ls_str text = { 0 };
    struct ls_error err = { 0 };
    const struct ls_yaml_node *again = NULL;
    ls_yaml_write(root, &text);
    enum ls_code rc = ls_yaml_load_text(ls_str_text(&text), text.length, "written.yaml", arena, &again, &err);
    assert(rc == LS_OK && equal(root, again));
    ls_str_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ls_arena arena;
    ls_arena_init(&arena, 0);
    struct ls_error err = { 0 };
    const struct ls_yaml_node *root = NULL;
    enum ls_code rc = ls_yaml_load_text((const char *)data, size, "input.yaml", &arena, &root, &err);
    assert((rc == LS_OK) == (root != NULL));
    assert(rc == LS_OK || (rc == LS_EINPUT && err.text[0] && strcmp(err.input.file, "input.yaml") == 0));
    size_t left = 20000;
    if (rc == LS_OK)
        walk(root, 1, &left);
    if (rc == LS_OK && left)
        round_trip(root, &arena);
    ls_arena_release(&arena);
    return 0;
}
