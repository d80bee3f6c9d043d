/* src/report/template.h -- the files of reports/templates/, which are built in, and {{slots}} filled with text. */
#ifndef LS_REPORT_TEMPLATE_H
#define LS_REPORT_TEMPLATE_H

#include "base/str.h"

extern const char ls_template_page_html[], ls_template_report_md[], ls_template_figure_gp[];

struct ls_slot { const char *name, *text; };
/* Every {{name}} of the template is one of the slots, and every slot is used. The text is taken as it is. A slot without text (NULL)
 * leaves out everything up to {{/name}}, which stands behind what goes with it; with a text, {{/name}} is nothing. */
void ls_template_fill(const char *template, const struct ls_slot *slot, size_t slots, struct ls_str *out);

#endif
