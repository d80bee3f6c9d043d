#include "yaml/write.h"

#include <criterion/criterion.h>
#include <string.h>

static void same(const struct ls_yaml_node *a, const struct ls_yaml_node *b)
{
    cr_assert_eq(a->kind, b->kind);
    if (a->kind == LS_YAML_SCALAR) {
        cr_assert_eq(ls_yaml_is_null(a), ls_yaml_is_null(b), "'%s'", a->text);
        if (!ls_yaml_is_null(a)) /* ~, null and nothing are one value */
            cr_assert_str_eq(a->text, b->text);
        return;
    }
    cr_assert_eq(a->count, b->count);
    for (size_t i = 0; i < a->count; i++)
        if (a->kind == LS_YAML_LIST) {
            same(a->item[i], b->item[i]);
        } else {
            cr_assert_str_eq(a->pair[i].key->text, b->pair[i].key->text);
            same(a->pair[i].value, b->pair[i].value);
        }
}

static const struct ls_yaml_node *read(struct ls_arena *a, const char *text)
{
    const struct ls_yaml_node *n;
    struct ls_error err = { 0 };
    cr_assert_eq(ls_yaml_load_text(text, strlen(text), "t.yaml", a, &n, &err), LS_OK, "%s in\n%s", err.text, text);
    return n;
}

Test(yaml_write, reading_back_gives_an_equal_tree)
{
    static const char *const texts[] = {
        "a: 1\nb: [x, \"y: z\", '']\nc: {d: null, e: ~, f: 'null'}\n",
        "- {call: \"$.attn\", in: [h], out: [h]}\n- \"**\"\n- '- x'\n- \"tab\\there\"\n- \"two\\nlines\"\n",
        "list:\n  - - 1\n    - 2\n  - {a: [b, {c: d}]}\n  - []\n  - {}\n",
        ("\"\": root\n'*': star\n\"0..3\": range\nlong: [aaaaaaaaaaaaaaaaaaaaaaaaaaaa, bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb, "
         "cccccccccccccccccccccccccccccccccc, {dddddddddddddd: eeeeeeeeeeeeeeeee}]\n"),
        "quote: \"he said \\\"no\\\" \\\\ twice\"\nnegative: -3\ndash: \"-\"\ncomment: \"a # b\"\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct ls_arena a;
        ls_arena_init(&a, 0);
        const struct ls_yaml_node *n = read(&a, texts[i]);
        struct ls_str out = { 0 };
        ls_yaml_write(n, &out);
        same(n, read(&a, ls_str_text(&out)));
        ls_str_release(&out);
        ls_arena_release(&a);
    }
}

Test(yaml_write, with_replaces_adds_and_takes_out)
{
    struct ls_arena a;
    ls_arena_init(&a, 0);
    const struct ls_yaml_node *n = read(&a, "batch: {execution: any, microbatches: 2}\nname: x\n");
    const struct ls_yaml_node *m = ls_yaml_with(&a, n, "batch.execution.table", ls_yaml_new_uint(&a, 7));
    m = ls_yaml_with(&a, m, "batch.microbatches", NULL);
    m = ls_yaml_with(&a, m, "expect.verdict", ls_yaml_new_scalar(&a, "hang", false));
    m = ls_yaml_with(&a, m, "absent.key", NULL);
    struct ls_str out = { 0 };
    ls_yaml_write(m, &out);
    cr_assert_str_eq(ls_str_text(&out), "batch: {execution: {table: 7}}\nname: x\nexpect: {verdict: hang}\n");
    cr_assert(ls_yaml_is_text(ls_yaml_get(ls_yaml_get(n, "batch"), "execution"), "any"), "the original is as it was");
    ls_str_release(&out);
    ls_arena_release(&a);
}
