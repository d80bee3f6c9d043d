/* src/report/table.h -- a table of text, as Markdown, HTML or plain columns. */
#ifndef LS_REPORT_TABLE_H
#define LS_REPORT_TABLE_H

#include "base/arena.h"
#include "base/str.h"

#include <stdbool.h>

enum { LS_TABLE_COLUMNS_MAX = 24 };
struct ls_table_column { const char *head; bool number; }; /* number: right-aligned */
struct ls_report_table {
    struct ls_arena *arena; /* owns the cells */
    struct ls_table_column column[LS_TABLE_COLUMNS_MAX]; size_t columns;
    struct ls_table_cell { const char *text; bool marked; } *cell; size_t rows, room;
    struct ls_table_cell *last;
};
void ls_table_init(struct ls_report_table *t, struct ls_arena *arena);
void ls_table_column(struct ls_report_table *t, const char *head, bool number); /* before the first row */
/* Starts a row of empty cells; then one cell after the other is set, from the left. */
void ls_table_row(struct ls_report_table *t);
void ls_table_cell(struct ls_report_table *t, const char *format, ...) LS_PRINTF(2, 3);
void ls_table_mark(struct ls_report_table *t); /* the cell set last is bad news: bold, and red where there is colour */

void ls_table_markdown(const struct ls_report_table *t, struct ls_str *out);
/* `label` names the table for readers that do not see it; the box around it scrolls where it is too wide. */
void ls_table_html(const struct ls_report_table *t, const char *label, struct ls_str *out);
void ls_table_text(const struct ls_report_table *t, const char *indent, struct ls_str *out);

/* Text as it may stand in Markdown, and in HTML also inside quotes. */
void ls_markdown_escape(struct ls_str *out, const char *text);
void ls_html_escape(struct ls_str *out, const char *text);

#endif
