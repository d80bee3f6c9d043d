#include "sim/measured.h"

#include "base/vec.h"
#include "sim/wide.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    struct ls_arena *arena;
    struct ls_error *err;
    struct ls_loc at;
    enum ls_op_kind kind;
    bool kind_known, root, rows;
    uint32_t ranks;
    LS_VEC(const char *) host;
    LS_VEC(struct ls_nccl_point) point;
};

enum { TOKENS = 16 };
/* Words of a line: where each begins, and how long it is. */
struct words { const char *at[TOKENS]; size_t length[TOKENS], count; };

static struct words split(const char *line, size_t length)
{
    struct words w = { .count = 0 };
    for (size_t i = 0; i < length && w.count < TOKENS;) {
        while (i < length && isspace((unsigned char)line[i]))
            i++;
        if (i == length)
            break;
        w.at[w.count] = line + i;
        while (i < length && !isspace((unsigned char)line[i]))
            i++;
        w.length[w.count] = (size_t)(line + i - w.at[w.count]);
        w.count++;
    }
    return w;
}

static bool is(const struct words *w, size_t i, const char *text)
{
    return i < w->count && w->length[i] == strlen(text) && memcmp(w->at[i], text, w->length[i]) == 0;
}

/* all_gather_perf, alltoall_perf_mpi: the collective before "_perf". */
static bool kind_of(const char *name, size_t length, enum ls_op_kind *out)
{
    static const struct { const char *name; enum ls_op_kind kind; } test[] = {
        { "all_gather", LS_OP_ALL_GATHER },   { "reduce_scatter", LS_OP_REDUCE_SCATTER }, { "all_reduce", LS_OP_ALL_REDUCE },
        { "broadcast", LS_OP_BROADCAST },     { "reduce", LS_OP_REDUCE },                 { "alltoall", LS_OP_ALL_TO_ALL },
        { "all_to_all", LS_OP_ALL_TO_ALL },   { "gather", LS_OP_GATHER },                 { "scatter", LS_OP_SCATTER },
        { "sendrecv", LS_OP_SEND },
    };
    for (size_t i = length; i-- > 0;)
        if (name[i] == '/') {
            name += i + 1;
            length -= i + 1;
            break;
        }
    for (size_t i = 0; i < sizeof test / sizeof *test; i++) {
        size_t n = strlen(test[i].name);
        if (length >= n && memcmp(name, test[i].name, n) == 0 && (length == n || (length >= n + 5 && memcmp(name + n, "_perf", 5) == 0))) {
            *out = test[i].kind;
            return true;
        }
    }
    return false;
}

static enum ls_code end_table(struct reader *x, struct ls_nccl_tests *out)
{
    if (x->point.count == 0)
        return LS_OK;
    if (!x->kind_known)
        return ls_fail(x->err, LS_EINPUT, x->at, "the text does not say which collective was measured");
    if (x->ranks == 0)
        return ls_fail(x->err, LS_EINPUT, x->at, "the text has no '# Rank' lines");
    struct ls_nccl_curve c = { x->kind, x->ranks, (uint32_t)x->host.count,
                               ls_arena_copy(x->arena, x->point.at, x->point.count * sizeof *x->point.at), x->point.count };
    struct ls_nccl_curve *curve = LS_NEW(x->arena, struct ls_nccl_curve, out->curves + 1);
    if (out->curves)
        memcpy(curve, out->curve, out->curves * sizeof *curve);
    curve[out->curves] = c;
    out->curve = curve;
    out->curves++;
    x->point.count = 0;
    x->rows = true;
    return LS_OK;
}

static enum ls_code comment(struct reader *x, const struct words *w, struct ls_nccl_tests *out)
{
    for (size_t i = 0; i + 1 < w->count; i++)
        if (is(w, i, "starting:") && kind_of(w->at[i + 1], w->length[i + 1], &x->kind)) {
            enum ls_code rc = end_table(x, out);
            x->kind_known = true;
            return rc;
        }
    if (is(w, 1, "Using") && is(w, 2, "devices")) {
        enum ls_code rc = end_table(x, out);
        x->ranks = 0;
        x->host.count = 0;
        return rc;
    }
    if (is(w, 1, "Rank")) {
        for (size_t i = 2; i + 1 < w->count; i++)
            if (is(w, i, "on")) {
                const char *name = ls_arena_strn(x->arena, w->at[i + 1], w->length[i + 1]);
                bool seen = false;
                for (size_t j = 0; j < x->host.count && !seen; j++)
                    seen = strcmp(x->host.at[j], name) == 0;
                if (!seen)
                    ls_push(&x->host, name);
                x->ranks++;
                return LS_OK;
            }
        return ls_fail(x->err, LS_EINPUT, x->at, "this '# Rank' line does not say on which host");
    }
    if (is(w, 1, "size") && is(w, 2, "count")) {
        x->root = false;
        for (size_t i = 0; i < w->count; i++)
            x->root |= is(w, i, "root");
    }
    return LS_OK;
}

static bool number(const char *text, size_t length, double *out)
{
    char copy[64], *end;
    if (length == 0 || length >= sizeof copy)
        return false;
    memcpy(copy, text, length);
    copy[length] = '\0';
    errno = 0;
    *out = strtod(copy, &end);
    return *end == '\0' && errno == 0 && *out >= 0 && *out < 1e18;
}

static enum ls_code row(struct reader *x, const struct words *w)
{
    double bytes, us;
    size_t time = x->root ? 5 : 4;
    if (!number(w->at[0], w->length[0], &bytes))
        return LS_OK; /* what other programs print between the rows */
    if (w->count < time + 3 || !number(w->at[time], w->length[time], &us))
        return ls_fail(x->err, LS_EINPUT, x->at, "this row has no out-of-place time");
    struct ls_nccl_point p = { (uint64_t)bytes, (uint64_t)(us * 1e6 + 0.5) };
    if (x->point.count && p.bytes < x->point.at[x->point.count - 1].bytes)
        return ls_fail(x->err, LS_EINPUT, x->at, "sizes do not ascend");
    if (x->point.count && p.bytes == x->point.at[x->point.count - 1].bytes) { /* sizes below one element per rank round to one another */
        x->point.at[x->point.count - 1] = p;
        return LS_OK;
    }
    ls_push(&x->point, p);
    return LS_OK;
}

enum ls_code ls_nccl_tests_read(const char *text, const char *path, const char *kind_name, struct ls_arena *arena,
                                struct ls_nccl_tests *out, struct ls_error *err)
{
    struct reader x = { .arena = arena, .err = err, .at = { ls_arena_str(arena, path), 0, 1 }, .root = true };
    enum ls_code rc = LS_OK;
    if (kind_name && !(x.kind_known = kind_of(kind_name, strlen(kind_name), &x.kind)))
        rc = ls_fail(err, LS_EINPUT, x.at, "'%s' is no collective that nccl-tests measures", kind_name);
    while (rc == LS_OK && *text) {
        size_t length = strcspn(text, "\n");
        struct words w = split(text, length);
        x.at.line++;
        if (w.count)
            rc = w.at[0][0] == '#' ? comment(&x, &w, out) : row(&x, &w);
        text += length + (text[length] == '\n');
    }
    if (rc == LS_OK)
        rc = end_table(&x, out);
    if (rc == LS_OK && !x.rows)
        rc = ls_fail(err, LS_EINPUT, (struct ls_loc){ x.at.file, 0, 0 }, "there is no table of nccl-tests in this file");
    ls_vec_release(&x.host);
    ls_vec_release(&x.point);
    return rc;
}

enum ls_code ls_nccl_tests_load(const char *path, const char *kind_name, struct ls_arena *arena, struct ls_nccl_tests *out,
                                struct ls_error *err)
{
    enum { MAX = 16 << 20 };
    FILE *f = fopen(path, "r");
    struct ls_loc at = { ls_arena_str(arena, path), 0, 0 };
    if (!f)
        return ls_fail(err, LS_EINPUT, at, "cannot read the file: %s", strerror(errno));
    LS_VEC(char) text = { 0 };
    char block[4096];
    for (size_t n; (n = fread(block, 1, sizeof block, f)) && text.count <= MAX;) {
        ls_reserve(&text, n + 1);
        memcpy(text.at + text.count, block, n);
        text.count += n;
    }
    bool bad = ferror(f) != 0;
    fclose(f);
    ls_push(&text, '\0');
    enum ls_code rc = bad                 ? ls_fail(err, LS_EINPUT, at, "cannot read the file")
                      : text.count > MAX ? ls_fail(err, LS_EINPUT, at, "the file is longer than 16 MiB")
                                         : ls_nccl_tests_read(text.at, path, kind_name, arena, out, err);
    ls_vec_release(&text);
    return rc;
}

bool ls_nccl_tests_find(const struct ls_nccl_tests *m, enum ls_op_kind kind, struct ls_placement at, uint64_t bytes, uint64_t *ps)
{
    if (kind == LS_OP_RECV)
        kind = LS_OP_SEND;
    for (size_t i = 0; i < m->curves; i++) {
        const struct ls_nccl_curve *c = &m->curve[i];
        if (c->kind != kind || c->ranks != at.ranks || c->nodes != at.nodes)
            continue;
        size_t j = 0;
        while (j < c->points && c->point[j].bytes < bytes)
            j++;
        const struct ls_nccl_point *p = &c->point[j < c->points ? j : c->points - 1];
        if (j == 0)
            *ps = p->ps;
        else if (j == c->points)
            *ps = (uint64_t)((ls_wide)p->ps * bytes / p->bytes);
        else {
            const struct ls_nccl_point *q = p - 1;
            int64_t rise = (int64_t)p->ps - (int64_t)q->ps;
            *ps = (uint64_t)((int64_t)q->ps + (int64_t)((ls_signed_wide)rise * (int64_t)(bytes - q->bytes) / (int64_t)(p->bytes - q->bytes)));
        }
        return true;
    }
    return false;
}
