#include "sim/fold.h"

#include "base/str.h"
#include "sim/collective.h"

#include <stdlib.h>
#include <string.h>

/* Equal byte strings get equal ids. Interned text holds no zero bytes, hence two letters a byte. */
struct bytes { struct ls_names *names; struct ls_str key; };

static void add(struct bytes *b, const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char v = ((const unsigned char *)data)[i];
        char two[2] = { (char)('a' + v / 16), (char)('a' + v % 16) };
        ls_str_addn(&b->key, two, 2);
    }
}

static uint32_t take(struct bytes *b)
{
    uint32_t id = ls_name_idn(b->names, ls_str_text(&b->key), b->key.length);
    ls_str_clear(&b->key);
    return id;
}

static int by_value(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static bool has_p2p(const struct ls_job *job)
{
    const struct ls_segment *last = NULL; /* neighbours mostly share segments */
    for (size_t r = 0; r < job->ranks; r++)
        for (size_t j = 0; j < job->rank[r].count; j++) {
            const struct ls_segment *s = job->rank[r].segment[j];
            bool before = s == last || (r && j < job->rank[r - 1].count && job->rank[r - 1].segment[j] == s);
            last = s;
            for (size_t i = 0; !before && i < s->count; i++)
                if (ls_op_is_p2p(&s->op[i]))
                    return true;
        }
    return false;
}

struct folder {
    const struct ls_job *job;
    struct bytes bytes;
    uint32_t *colour, *next;        /* [ranks] */
    uint32_t **group_colour;        /* [comms][groups] */
    uint32_t *placed;               /* placement of each group, all communicators in a row */
    uint32_t *scratch;              /* [ranks] */
};

static void colour_groups(struct folder *f)
{
    const struct ls_job *job = f->job;
    for (size_t c = 0, place = 0; c < job->tables->comm.count; c++)
        for (size_t g = 0; g < job->comm[c].groups; g++, place++) {
            const struct ls_groups *x = &job->comm[c];
            size_t n = x->first[g + 1] - x->first[g];
            for (size_t i = 0; i < n; i++)
                f->scratch[i] = f->colour[x->rank[x->first[g] + i]];
            if (n > 1)
                qsort(f->scratch, n, sizeof *f->scratch, by_value);
            add(&f->bytes, &f->placed[place], sizeof *f->placed);
            for (size_t i = 0; i < n;) {
                uint32_t run[2] = { f->scratch[i], 0 };
                for (; i < n && f->scratch[i] == run[0]; i++)
                    run[1]++;
                add(&f->bytes, run, sizeof run);
            }
            f->group_colour[c][g] = take(&f->bytes);
        }
}

/* Dense ids in order of the first rank; the number of them. */
static uint32_t densify(uint32_t *colour, size_t ranks, uint32_t *map, size_t ids)
{
    uint32_t count = 0;
    memset(map, 0xff, ids * sizeof *map);
    for (size_t r = 0; r < ranks; r++) {
        if (map[colour[r]] == LS_NO_ID)
            map[colour[r]] = count++;
        colour[r] = map[colour[r]];
    }
    return count;
}

static uint32_t settle(struct folder *f)
{
    const struct ls_job *job = f->job;
    size_t comms = job->tables->comm.count;
    uint32_t before = 0, classes = 0;
    for (;;) {
        size_t ids = ls_names_count(f->bytes.names);
        uint32_t *map = malloc((ids + 1) * sizeof *map);
        if (!map)
            ls_out_of_memory(ids * sizeof *map);
        classes = densify(f->colour, job->ranks, map, ids);
        free(map);
        if (classes == before || classes == job->ranks)
            return classes;
        before = classes;
        colour_groups(f);
        for (size_t r = 0; r < job->ranks; r++) {
            add(&f->bytes, &f->colour[r], sizeof *f->colour);
            for (size_t c = 0; c < comms; c++) {
                uint32_t g = job->comm[c].groups ? job->comm[c].group[r] : LS_NO_ID, id = g == LS_NO_ID ? LS_NO_ID : f->group_colour[c][g];
                add(&f->bytes, &id, sizeof id);
            }
            f->next[r] = take(&f->bytes);
        }
        memcpy(f->colour, f->next, job->ranks * sizeof *f->colour);
    }
}

static void fold_comm(const struct folder *f, size_t c, uint32_t classes, struct ls_arena *a, struct ls_sim_fold *out)
{
    const struct ls_groups *x = &f->job->comm[c];
    struct ls_groups *y = &out->job.comm[c];
    uint32_t *to = LS_NEW(a, uint32_t, x->groups); /* folded group of each full group */
    uint32_t *rep = LS_NEW(a, uint32_t, x->groups);
    for (size_t g = 0; g < x->groups; g++) {
        size_t k = 0;
        while (k < y->groups && f->group_colour[c][rep[k]] != f->group_colour[c][g])
            k++;
        if (k == y->groups)
            rep[y->groups++] = (uint32_t)g;
        to[g] = (uint32_t)k;
    }
    out->group_first[c] = LS_NEW(a, size_t, y->groups + 1);
    out->group_list[c] = LS_NEW(a, uint32_t, x->groups);
    for (size_t g = 0; g < x->groups; g++)
        out->group_first[c][to[g] + 1]++;
    for (size_t k = 0; k < y->groups; k++)
        out->group_first[c][k + 1] += out->group_first[c][k];
    size_t *next = LS_NEW(a, size_t, y->groups);
    for (size_t g = 0; g < x->groups; g++)
        out->group_list[c][out->group_first[c][to[g]] + next[to[g]]++] = (uint32_t)g;
    y->group = LS_NEW(a, uint32_t, classes);
    y->member = LS_NEW(a, uint32_t, classes);
    y->first = LS_NEW(a, uint32_t, y->groups + 1);
    y->rank = LS_NEW(a, uint32_t, classes);
    for (uint32_t q = 0; q < classes; q++) {
        uint32_t g = x->groups ? x->group[out->first[q]] : LS_NO_ID;
        y->group[q] = g == LS_NO_ID ? LS_NO_ID : to[g];
        if (g != LS_NO_ID)
            y->first[to[g] + 1]++;
    }
    for (size_t k = 0; k < y->groups; k++)
        y->first[k + 1] += y->first[k];
    memset(next, 0, y->groups * sizeof *next);
    for (uint32_t q = 0; q < classes; q++) {
        uint32_t k = y->group[q];
        y->member[q] = k == LS_NO_ID ? LS_NO_ID : (uint32_t)next[k];
        if (k != LS_NO_ID)
            y->rank[y->first[k] + next[k]++] = q;
    }
}

bool ls_sim_fold_job(const struct ls_job *full, const struct ls_platform *p, const struct ls_cost *cost, struct ls_arena *arena,
                 struct ls_sim_fold *out)
{
    size_t comms = full->tables->comm.count, groups = 0;
    if (cost->jitter || full->ranks < 2 || has_p2p(full))
        return false;
    struct ls_arena scratch;
    ls_arena_init(&scratch, 0);
    struct folder f = { .job = full, .bytes.names = ls_names_open() };
    f.colour = LS_NEW(&scratch, uint32_t, full->ranks);
    f.next = LS_NEW(&scratch, uint32_t, full->ranks);
    f.scratch = LS_NEW(&scratch, uint32_t, full->ranks);
    f.group_colour = LS_NEW(&scratch, uint32_t *, comms);
    for (size_t c = 0; c < comms; c++) {
        f.group_colour[c] = LS_NEW(&scratch, uint32_t, full->comm[c].groups);
        groups += full->comm[c].groups;
    }
    f.placed = LS_NEW(&scratch, uint32_t, groups);
    for (size_t c = 0, place = 0; c < comms; c++)
        for (size_t g = 0; g < full->comm[c].groups; g++) {
            const struct ls_groups *x = &full->comm[c];
            struct ls_placement at = ls_placement_of(p, x->rank + x->first[g], x->first[g + 1] - x->first[g]);
            add(&f.bytes, &at, sizeof at);
            f.placed[place++] = take(&f.bytes);
        }
    for (size_t r = 0; r < full->ranks; r++) {
        add(&f.bytes, full->rank[r].segment, full->rank[r].count * sizeof *full->rank[r].segment);
        if (cost->slowness)
            add(&f.bytes, &cost->slowness[r], sizeof *cost->slowness);
        f.colour[r] = take(&f.bytes);
    }
    uint32_t classes = settle(&f);
    bool folds = classes < full->ranks;
    if (folds) {
        colour_groups(&f);
        *out = (struct ls_sim_fold){ .job = { .tables = full->tables, .ranks = classes } };
        out->first = LS_NEW(arena, uint32_t, classes);
        out->size = LS_NEW(arena, uint32_t, classes);
        out->class_of = ls_arena_copy(arena, f.colour, full->ranks * sizeof *f.colour);
        for (size_t r = full->ranks; r-- > 0;) {
            out->first[f.colour[r]] = (uint32_t)r;
            out->size[f.colour[r]]++;
        }
        out->job.rank = LS_NEW(arena, struct ls_rank_program, classes);
        for (uint32_t q = 0; q < classes; q++)
            out->job.rank[q] = full->rank[out->first[q]];
        out->job.comm = LS_NEW(arena, struct ls_groups, comms);
        out->group_first = LS_NEW(arena, size_t *, comms);
        out->group_list = LS_NEW(arena, uint32_t *, comms);
        for (size_t c = 0; c < comms; c++)
            fold_comm(&f, c, classes, arena, out);
    }
    ls_str_release(&f.bytes.key);
    ls_names_close(f.bytes.names);
    ls_arena_release(&scratch);
    return folds;
}
