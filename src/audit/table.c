/* Rows as Markdown, CSV and JSON. */
#include "audit/audit.h"

#include <inttypes.h>
#include <string.h>

enum { REASONS_MAX = 32 };
struct reason { const char *what; size_t rows; };
struct summary {
    size_t rows, not_read, judged, no_inventory, not_modelled, other;
    size_t uniform[LS_VERDICT_COUNT], mixed[LS_VERDICT_COUNT];
    struct reason part[REASONS_MAX]; size_t parts;
};

static bool without_inventory(const struct ls_audit_row *r) { return !r->inventory; }

/* A row may lack an inventory and have a part that is not modelled; it is counted under both. */
static struct summary sum_up(const struct ls_audit_row *row, size_t rows)
{
    struct summary s = { .rows = rows };
    for (size_t i = 0; i < rows; i++) {
        const struct ls_audit_row *r = &row[i];
        if (r->err.code != LS_OK) {
            s.not_read++;
            continue;
        }
        if (r->uniform.given && r->mixed.given) {
            s.judged++;
            s.uniform[r->uniform.verdict]++;
            s.mixed[r->mixed.verdict]++;
            continue;
        }
        s.no_inventory += without_inventory(r);
        s.not_modelled += r->parts > 0;
        s.other += r->inventory && !r->parts && r->whys;
        for (size_t k = 0; k < r->parts; k++) {
            size_t at = 0;
            while (at < s.parts && strcmp(s.part[at].what, r->part[k]) != 0)
                at++;
            if (at == s.parts && s.parts < REASONS_MAX)
                s.part[s.parts++] = (struct reason){ r->part[k], 0 };
            if (at < s.parts)
                s.part[at].rows++;
        }
    }
    for (size_t i = 1; i < s.parts; i++) /* most frequent first */
        for (size_t k = i; k > 0 && s.part[k - 1].rows < s.part[k].rows; k--) {
            struct reason t = s.part[k];
            s.part[k] = s.part[k - 1], s.part[k - 1] = t;
        }
    return s;
}

static void add_list(struct ls_str *out, const char *const *text, size_t count, const char *between)
{
    for (size_t i = 0; i < count; i++)
        ls_str_printf(out, "%s%s", i ? between : "", text[i]);
}

static void add_verdict(struct ls_str *out, const struct ls_audit_verdict *v)
{
    if (!v->given)
        return;
    ls_str_add(out, ls_verdict_name(v->verdict));
    if (v->seen_as && strcmp(v->seen_as, ls_verdict_name(v->verdict)) != 0)
        ls_str_printf(out, " (%s)", v->seen_as);
    if (v->verdict == LS_SAFE && v->known != LS_KNOWN_PROVED)
        ls_str_printf(out, " (%s)", v->known == LS_KNOWN_EXPLORED ? "explored" : "executed");
}

static void add_note(struct ls_str *out, const struct ls_audit_row *r)
{
    if (r->err.code != LS_OK) {
        ls_str_printf(out, "not read: %s", r->err.text);
        return;
    }
    add_list(out, r->why, r->whys, "; ");
    if (r->outsides) {
        ls_str_printf(out, "%snames that AutoModel does not look for: ", out->length ? "; " : "");
        add_list(out, r->outside, r->outsides, ", ");
    }
    if (r->together && r->uniform.given)
        ls_str_printf(out, "%s%s", out->length ? "; " : "", r->together);
    if (r->data.says)
        ls_str_printf(out, "%sdata: %s", out->length ? "; " : "", r->data.says);
    if (r->size)
        ls_str_printf(out, "%s%s", out->length ? "; " : "", r->size);
}

enum column { PATH, MODEL, RANKS, MESH, PARALLELIZER, FROZEN, TRAINABLE, POLICY, UNIFORM, MIXED, ASSUMED, CAUSE, REPAIR, NOTE, COLUMNS };
static const char *const title[COLUMNS] = { "recipe", "model", "ranks", "dp/cp/tp/pp/ep", "parallelizer", "frozen", "trainable", "policy",
                                            "batches uniform", "batches may differ", "data as assumed", "cause", "repair",
                                            "note" };

static bool fails(const struct ls_audit_verdict *v) { return v->given && v->verdict != LS_SAFE && v->verdict != LS_UNDECIDED; }

/* What goes wrong; of uniform batches first, where that is something else. */
static void add_cause(struct ls_str *out, const struct ls_audit_row *r)
{
    const char *uniform = r->uniform.cause, *mixed = r->mixed.cause;
    if (uniform && (!mixed || strcmp(uniform, mixed) != 0))
        ls_str_printf(out, "uniform: %s%s", uniform, mixed ? "; else: " : "");
    if (mixed)
        ls_str_add(out, mixed);
}

static void add_repair(struct ls_str *out, const struct ls_audit_row *r)
{
    if (r->repair)
        ls_str_printf(out, "%s%s%s%s", r->repair, r->repair_note ? " (" : "", r->repair_note ? r->repair_note : "", r->repair_note ? ")" : "");
    else if (r->repaired)
        ls_str_add(out, "none is proved");
}

static void add_cell(struct ls_str *out, const struct ls_audit_row *r, enum column c)
{
    const bool read = r->err.code == LS_OK;
    switch (c) {
    case PATH: ls_str_add(out, r->path); break;
    case MODEL: ls_str_add(out, r->model_id ? r->model_id : ""); break;
    case RANKS:
        if (read && r->world)
            ls_str_printf(out, "%" PRIu64, r->world);
        break;
    case MESH:
        if (read && r->dp_replicate > 1)
            ls_str_printf(out, "%" PRIu64 "x", r->dp_replicate);
        if (read)
            ls_str_printf(out, "%" PRIu64 "/%" PRIu64 "/%" PRIu64 "/%" PRIu64 "/%" PRIu64, r->dp / (r->dp_replicate ? r->dp_replicate : 1),
                          r->cp, r->tp, r->pp, r->ep);
        break;
    case PARALLELIZER: ls_str_add(out, r->parallelizer ? r->parallelizer : ""); break;
    case FROZEN:
        r->facts ? add_list(out, r->frozen, r->frozens, ", ") : ls_str_add(out, read ? "?" : "");
        break;
    case TRAINABLE:
        r->facts ? add_list(out, r->trainable, r->trainables, ", ") : ls_str_add(out, read ? "?" : "");
        break;
    case POLICY: ls_str_add(out, r->policy ? r->policy : ""); break;
    case UNIFORM: add_verdict(out, &r->uniform); break;
    case MIXED: add_verdict(out, &r->mixed); break;
    case ASSUMED: add_verdict(out, &r->assumed); break;
    case CAUSE: add_cause(out, r); break;
    case REPAIR: add_repair(out, r); break;
    case NOTE: add_note(out, r); break;
    case COLUMNS: break;
    }
}

/* Text from files inside a table of one line per row: no line ends, no control characters, no bar that would end the cell. */
static void add_markdown(struct ls_str *out, const char *text)
{
    for (const char *c = text; *c; c++) {
        if (*c == '|' || *c == '\\' || *c == '<' || *c == '`' || *c == '*' || *c == '[' || *c == ']')
            ls_str_printf(out, "\\%c", *c);
        else if ((unsigned char)*c < ' ' || *c == 0x7f)
            ls_str_add(out, "?");
        else
            ls_str_addn(out, c, 1);
    }
}

static void add_counts(struct ls_str *out, const char *what, const size_t *count)
{
    ls_str_printf(out, "- %s:", what);
    const char *between = " ";
    for (size_t v = 0; v < LS_VERDICT_COUNT; v++)
        if (count[v]) {
            ls_str_printf(out, "%s%zu %s", between, count[v], ls_verdict_name((enum ls_verdict)v));
            between = ", ";
        }
    ls_str_add(out, "\n");
}

static void add_summary(struct ls_str *out, const struct summary *s)
{
    ls_str_printf(out, "%zu recipe%s: %zu judged, %zu without an inventory, %zu with a part that is not modelled, %zu that do not fit, %zu not read\n\n",
                  s->rows, s->rows == 1 ? "" : "s", s->judged, s->no_inventory, s->not_modelled, s->other, s->not_read);
    if (s->judged) {
        add_counts(out, "batches uniform", s->uniform);
        add_counts(out, "batches may differ", s->mixed);
    }
    for (size_t i = 0; i < s->parts; i++) {
        ls_str_add(out, "- not modelled: ");
        add_markdown(out, s->part[i].what);
        ls_str_printf(out, ": %zu\n", s->part[i].rows);
    }
}

/* Length of the folder that all rows lie in, with its slash. */
static size_t common_folder(const struct ls_audit_row *row, size_t rows)
{
    size_t length = rows > 1 ? strlen(row[0].path) : 0;
    for (size_t i = 1; i < rows; i++) {
        size_t k = 0;
        while (k < length && row[i].path[k] == row[0].path[k])
            k++;
        length = k;
    }
    while (length && row[0].path[length - 1] != '/')
        length--;
    return length;
}

/* A line of the list: what fails, why, and what to change. */
static void add_failure(struct ls_str *out, const struct ls_audit_row *r, const char *path)
{
    struct ls_str text = { 0 };
    ls_str_add(out, "- ");
    add_markdown(out, path);
    const struct { const char *what; const struct ls_audit_verdict *v; } verdict[] = { { "uniform batches", &r->uniform },
                                                                                       { "batches that differ", &r->mixed } };
    for (size_t i = 0; i < 2; i++) {
        if (!fails(verdict[i].v) || (i && r->uniform.cause && r->mixed.cause && strcmp(r->uniform.cause, r->mixed.cause) == 0))
            continue;
        ls_str_printf(&text, "; %s: ", verdict[i].what);
        add_verdict(&text, verdict[i].v);
        if (verdict[i].v->cause)
            ls_str_printf(&text, ", %s", verdict[i].v->cause);
    }
    if (r->assumed.given)
        ls_str_printf(&text, "; data as assumed: %s", ls_verdict_name(r->assumed.verdict));
    ls_str_add(&text, "; repair: ");
    add_repair(&text, r);
    add_markdown(out, ls_str_text(&text));
    ls_str_add(out, "\n");
    ls_str_release(&text);
}

void ls_audit_markdown(const struct ls_audit_row *row, size_t rows, struct ls_str *out)
{
    const struct summary s = sum_up(row, rows);
    const size_t folder = common_folder(row, rows);
    struct ls_str cell = { 0 };
    size_t failures = 0;
    add_summary(out, &s);
    for (size_t i = 0; i < rows; i++)
        if (fails(&row[i].uniform) || fails(&row[i].mixed)) {
            if (!failures++)
                ls_str_add(out, "\nRecipes that can fail:\n\n");
            add_failure(out, &row[i], row[i].path + folder);
        }
    if (failures)
        ls_str_add(out, "\nA repair is the first that is proved. frozen_sharding and defer_fsdp_grad_sync are keys of the recipe, execution is for the"
                   " sampler to guarantee, run_dummy_forward and unused_params need code.\n");
    if (folder) {
        ls_str_add(out, "\nAll recipes, below ");
        ls_str_addn(&cell, row[0].path, folder);
        add_markdown(out, ls_str_text(&cell));
        ls_str_add(out, ":\n");
    }
    ls_str_add(out, "\n");
    for (size_t c = 0; c < COLUMNS; c++)
        if (c != CAUSE)
            ls_str_printf(out, "%s%s", c ? " | " : "| ", title[c]);
    ls_str_add(out, " |\n");
    for (size_t c = 0; c < COLUMNS; c++)
        if (c != CAUSE)
            ls_str_add(out, "|---");
    ls_str_add(out, "|\n");
    for (size_t i = 0; i < rows; i++) {
        for (size_t c = 0; c < COLUMNS; c++) {
            if (c == CAUSE) /* the list above has it */
                continue;
            ls_str_clear(&cell);
            if (c == PATH)
                ls_str_add(&cell, row[i].path + folder);
            else
                add_cell(&cell, &row[i], (enum column)c);
            ls_str_add(out, c ? " | " : "| ");
            add_markdown(out, ls_str_text(&cell));
        }
        ls_str_add(out, " |\n");
    }
    ls_str_release(&cell);
}

/* RFC 4180, but lines end with a line feed alone. */
static void add_csv(struct ls_str *out, const char *text)
{
    /* A spreadsheet would run a cell that starts like this as a formula. */
    bool formula = *text && strchr("=+-@\t\r", *text);
    if (!formula && !strpbrk(text, ",\"\n\r")) {
        ls_str_add(out, text);
        return;
    }
    ls_str_add(out, formula ? "\"'" : "\"");
    for (const char *c = text; *c; c++)
        ls_str_addn(out, *c == '"' ? "\"\"" : c, *c == '"' ? 2 : 1);
    ls_str_add(out, "\"");
}

void ls_audit_csv(const struct ls_audit_row *row, size_t rows, struct ls_str *out)
{
    struct ls_str cell = { 0 };
    for (size_t c = 0; c < COLUMNS; c++)
        ls_str_printf(out, "%s%s", c ? "," : "", title[c]);
    ls_str_add(out, "\n");
    for (size_t i = 0; i < rows; i++) {
        for (size_t c = 0; c < COLUMNS; c++) {
            ls_str_clear(&cell);
            add_cell(&cell, &row[i], (enum column)c);
            ls_str_add(out, c ? "," : "");
            add_csv(out, ls_str_text(&cell));
        }
        ls_str_add(out, "\n");
    }
    ls_str_release(&cell);
}

static void json_list(struct ls_json *j, const char *key, bool known, const char *const *text, size_t count)
{
    ls_json_key(j, key);
    if (!known) {
        ls_json_null(j);
        return;
    }
    ls_json_array(j);
    for (size_t i = 0; i < count; i++)
        ls_json_text(j, text[i]);
    ls_json_end_array(j);
}

static void json_verdict(struct ls_json *j, const char *key, const struct ls_audit_verdict *v)
{
    ls_json_key(j, key);
    if (!v->given) {
        ls_json_null(j);
        return;
    }
    ls_json_object(j);
    ls_json_add_text(j, "verdict", ls_verdict_name(v->verdict));
    ls_json_add_text(j, "known", v->verdict != LS_SAFE ? NULL : v->known == LS_KNOWN_PROVED ? "proved" : v->known == LS_KNOWN_EXPLORED ? "explored"
                          : "executed");
    ls_json_add_text(j, "seen_as", v->seen_as);
    ls_json_add_text(j, "cause", v->cause);
    ls_json_end_object(j);
}

static void json_row(struct ls_json *j, const struct ls_audit_row *r)
{
    ls_json_object(j);
    ls_json_add_text(j, "recipe", r->path);
    if (r->err.code != LS_OK) {
        ls_json_key(j, "error");
        ls_json_object(j);
        ls_json_add_text(j, "text", r->err.text);
        ls_json_key(j, "line");
        r->err.input.line ? ls_json_uint(j, r->err.input.line) : ls_json_null(j);
        ls_json_end_object(j);
        ls_json_end_object(j);
        return;
    }
    ls_json_add_text(j, "model_id", r->model_id);
    ls_json_add_text(j, "inventory", r->inventory);
    ls_json_key(j, "mesh");
    ls_json_object(j);
    const struct { const char *key; uint64_t value; } size[] = { { "world_size", r->world }, { "dp", r->dp }, { "dp_replicate", r->dp_replicate },
                                                                 { "cp", r->cp }, { "tp", r->tp }, { "pp", r->pp }, { "ep", r->ep } };
    for (size_t k = 0; k < sizeof size / sizeof *size; k++) {
        ls_json_add_uint(j, size[k].key, size[k].value);
    }
    ls_json_end_object(j);
    ls_json_add_text(j, "world_size_because", r->size);
    ls_json_add_text(j, "judged_as_one", r->uniform.given ? r->together : NULL);
    ls_json_add_text(j, "parallelizer", r->parallelizer);
    json_list(j, "frozen", r->facts, r->frozen, r->frozens);
    json_list(j, "trainable", r->facts, r->trainable, r->trainables);
    json_list(j, "outside_names", r->facts, r->outside, r->outsides);
    ls_json_add_text(j, "policy", r->policy);
    json_verdict(j, "batches_uniform", &r->uniform);
    json_verdict(j, "batches_may_differ", &r->mixed);
    json_verdict(j, "data_as_assumed", &r->assumed);
    ls_json_add_text(j, "repair", r->repair);
    ls_json_add_text(j, "repair_note", r->repair_note);
    json_list(j, "no_verdict_because", true, r->why, r->whys);
    ls_json_key(j, "data");
    ls_json_object(j);
    ls_json_add_text(j, "builder", r->data.builder);
    ls_json_add_text(j, "media", ls_media_name(r->data.media));
    ls_json_key(j, "fake_images");
    ls_json_bool(j, r->data.fake_images);
    ls_json_key(j, "uniform");
    ls_json_bool(j, r->data.uniform);
    ls_json_add_text(j, "says", r->data.says);
    ls_json_end_object(j);
    ls_json_key(j, "seconds");
    ls_json_real(j, r->seconds);
    ls_json_end_object(j);
}

static void json_counts(struct ls_json *j, const char *key, const size_t *count)
{
    ls_json_key(j, key);
    ls_json_object(j);
    for (size_t v = 0; v < LS_VERDICT_COUNT; v++)
        if (count[v]) {
            ls_json_key(j, ls_verdict_name((enum ls_verdict)v));
            ls_json_uint(j, count[v]);
        }
    ls_json_end_object(j);
}

void ls_audit_json(const struct ls_audit_row *row, size_t rows, struct ls_json *out)
{
    ls_json_key(out, "recipes");
    ls_json_array(out);
    for (size_t i = 0; i < rows; i++)
        json_row(out, &row[i]);
    ls_json_end_array(out);
    const struct summary s = sum_up(row, rows);
    ls_json_key(out, "summary");
    ls_json_object(out);
    const struct { const char *key; size_t value; } count[] = { { "rows", s.rows }, { "judged", s.judged }, { "no_inventory", s.no_inventory },
                                                                { "not_modelled", s.not_modelled }, { "do_not_fit", s.other },
                                                                { "not_read", s.not_read } };
    for (size_t k = 0; k < sizeof count / sizeof *count; k++) {
        ls_json_key(out, count[k].key);
        ls_json_uint(out, count[k].value);
    }
    json_counts(out, "batches_uniform", s.uniform);
    json_counts(out, "batches_may_differ", s.mixed);
    ls_json_key(out, "not_modelled_parts");
    ls_json_object(out);
    for (size_t i = 0; i < s.parts; i++) {
        ls_json_key(out, s.part[i].what);
        ls_json_uint(out, s.part[i].rows);
    }
    ls_json_end_object(out);
    ls_json_end_object(out);
}
