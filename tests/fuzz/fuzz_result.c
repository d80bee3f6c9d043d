/* The reader of saved comparisons on any bytes: refuses with a position, or reads something that is written, read and rendered
 * again. No crash, leak, hang or lie. */
#include "fuzz.h"

#include "report/figures.h"
#include "report/render.h"

#include <assert.h>
#include <string.h>

static void render(const struct ls_result *r, struct ls_arena *arena)
{
    struct ls_summary s;
    struct ls_figures f;
    struct ls_str out = { 0 };
    ls_summary_of(r, arena, &s);
    ls_figures_list(r, arena, &f);
    ls_render_markdown(r, &s, &f, arena, &out);
    ls_render_html(r, &s, &f, arena, &out);
    ls_render_text(r, &s, arena, &out);
    ls_figure_throughput(r, &s, "f", LS_FIGURE_NARROW, &out);
    ls_figure_memory(r, &s, "f", LS_FIGURE_WIDE, &out);
    for (size_t i = 0; i < r->cells; i++)
        if (r->cell[i].has_timeline)
            ls_figure_timeline(r, &r->cell[i], "f", LS_FIGURE_WIDE, &out);
    ls_figures_release(&f);
    ls_str_release(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ls_arena arena;
    struct ls_error err = { 0 };
    struct ls_result r, again;
    struct ls_str text = { 0 }, twice = { 0 };
    ls_arena_init(&arena, 0);
    enum ls_code rc = ls_result_read((const char *)data, size, "run.json", &arena, &r, &err);
    assert(rc == LS_OK || (rc == LS_EINPUT && err.text[0] && err.input.line && err.input.column && !r.cells));
    if (rc == LS_OK) {
        ls_result_write(&r, &text);
        rc = ls_result_read(text.text, text.length, "again.json", &arena, &again, &err);
        assert(rc == LS_OK);
        ls_result_write(&again, &twice);
        assert(strcmp(ls_str_text(&text), ls_str_text(&twice)) == 0);
        render(&r, &arena);
    }
    ls_str_release(&text);
    ls_str_release(&twice);
    ls_arena_release(&arena);
    return 0;
}
