#include "report/table.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void ls_table_init(struct ls_report_table *t, struct ls_arena *arena) { *t = (struct ls_report_table){ .arena = arena }; }

void ls_table_column(struct ls_report_table *t, const char *head, bool number)
{
    assert(!t->rows && t->columns < LS_TABLE_COLUMNS_MAX);
    t->column[t->columns++] = (struct ls_table_column){ ls_arena_str(t->arena, head), number };
}

void ls_table_row(struct ls_report_table *t)
{
    if (t->rows == t->room) {
        size_t room = t->room ? 2 * t->room : 16;
        struct ls_table_cell *cell = LS_NEW(t->arena, struct ls_table_cell, ls_mul_size(room, t->columns));
        for (size_t i = 0; i < t->rows * t->columns; i++)
            cell[i] = t->cell[i];
        t->cell = cell;
        t->room = room;
    }
    t->rows++;
}

void ls_table_cell(struct ls_report_table *t, const char *format, ...)
{
    char text[512];
    size_t i = 0;
    struct ls_table_cell *row = &t->cell[(t->rows - 1) * t->columns];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    while (i < t->columns && row[i].text)
        i++;
    assert(i < t->columns && "more cells than columns");
    t->last = &row[i];
    t->last->text = ls_arena_str(t->arena, text);
}

void ls_table_mark(struct ls_report_table *t) { t->last->marked = true; }

static const char *cell(const struct ls_report_table *t, size_t row, size_t column)
{
    const char *text = t->cell[row * t->columns + column].text;
    return text ? text : "";
}

static bool marked(const struct ls_report_table *t, size_t row, size_t column) { return t->cell[row * t->columns + column].marked; }

void ls_markdown_escape(struct ls_str *out, const char *text)
{
    for (const char *s = text; *s; s++)
        if (strchr("\\`*[]<>|#", *s) || (*s == '_' && s != text && s[1] == '_'))
            ls_str_printf(out, "\\%c", *s);
        else if ((unsigned char)*s < 0x20 || *s == 0x7f)
            ls_str_add(out, " ");
        else
            ls_str_addn(out, s, 1);
}

void ls_html_escape(struct ls_str *out, const char *text)
{
    for (const char *s = text; *s; s++)
        switch (*s) {
        case '&': ls_str_add(out, "&amp;"); break;
        case '<': ls_str_add(out, "&lt;"); break;
        case '>': ls_str_add(out, "&gt;"); break;
        case '"': ls_str_add(out, "&quot;"); break;
        case '\'': ls_str_add(out, "&#39;"); break;
        default:
            if (((unsigned char)*s < 0x20 && *s != '\n' && *s != '\t') || *s == 0x7f)
                ls_str_add(out, " ");
            else
                ls_str_addn(out, s, 1);
        }
}

void ls_table_markdown(const struct ls_report_table *t, struct ls_str *out)
{
    ls_str_add(out, "|");
    for (size_t c = 0; c < t->columns; c++) {
        ls_str_add(out, " ");
        ls_markdown_escape(out, t->column[c].head);
        ls_str_add(out, " |");
    }
    ls_str_add(out, "\n|");
    for (size_t c = 0; c < t->columns; c++)
        ls_str_add(out, t->column[c].number ? "---:|" : "---|");
    for (size_t r = 0; r < t->rows; r++) {
        ls_str_add(out, "\n|");
        for (size_t c = 0; c < t->columns; c++) {
            const char *bold = marked(t, r, c) ? "**" : "";
            ls_str_printf(out, " %s", bold);
            ls_markdown_escape(out, cell(t, r, c));
            ls_str_printf(out, "%s |", bold);
        }
    }
    ls_str_add(out, "\n");
}

void ls_table_html(const struct ls_report_table *t, const char *label, struct ls_str *out)
{
    ls_str_add(out, "<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"");
    ls_html_escape(out, label);
    ls_str_add(out, "\">\n<table>\n<thead><tr>");
    for (size_t c = 0; c < t->columns; c++) {
        ls_str_printf(out, "<th scope=\"col\"%s>", t->column[c].number ? " class=\"n\"" : "");
        ls_html_escape(out, t->column[c].head);
        ls_str_add(out, "</th>");
    }
    ls_str_add(out, "</tr></thead>\n<tbody>\n");
    for (size_t r = 0; r < t->rows; r++) {
        ls_str_add(out, "<tr>");
        for (size_t c = 0; c < t->columns; c++) {
            const char *class = marked(t, r, c) ? t->column[c].number ? " class=\"n bad\"" : " class=\"bad\"" : t->column[c].number ? " class=\"n\"" : "";
            ls_str_printf(out, "<td%s>", class);
            ls_html_escape(out, cell(t, r, c));
            ls_str_add(out, "</td>");
        }
        ls_str_add(out, "</tr>\n");
    }
    ls_str_add(out, "</tbody>\n</table>\n</div>\n");
}

/* Columns on a terminal, not bytes. */
static size_t width_of(const char *text)
{
    size_t n = 0;
    for (const char *s = text; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

static void padded(struct ls_str *out, const char *text, size_t width, bool right, bool last)
{
    size_t n = width_of(text), more = width > n ? width - n : 0;
    if (right)
        ls_str_printf(out, "%*s%s", (int)more, "", text);
    else
        ls_str_printf(out, "%s%*s", text, last ? 0 : (int)more, "");
    if (!last)
        ls_str_add(out, "  ");
}

void ls_table_text(const struct ls_report_table *t, const char *indent, struct ls_str *out)
{
    size_t width[LS_TABLE_COLUMNS_MAX] = { 0 };
    for (size_t c = 0; c < t->columns; c++) {
        width[c] = width_of(t->column[c].head);
        for (size_t r = 0; r < t->rows; r++)
            if (width_of(cell(t, r, c)) > width[c])
                width[c] = width_of(cell(t, r, c));
    }
    ls_str_add(out, indent);
    for (size_t c = 0; c < t->columns; c++)
        padded(out, t->column[c].head, width[c], t->column[c].number, c + 1 == t->columns);
    ls_str_add(out, "\n");
    for (size_t r = 0; r < t->rows; r++) {
        ls_str_add(out, indent);
        for (size_t c = 0; c < t->columns; c++)
            padded(out, cell(t, r, c), width[c], t->column[c].number, c + 1 == t->columns);
        while (out->length && out->text[out->length - 1] == ' ') /* empty cells at the end of a row */
            out->text[--out->length] = 0;
        ls_str_add(out, "\n");
    }
}
