#include "build.h"

#include <assert.h>
#include <stdio.h>

void build_open(struct job_builder *b, size_t ranks)
{
    assert(ranks <= BUILD_RANKS);
    *b = (struct job_builder){ .ranks = ranks };
    ls_arena_init(&b->arena, 0);
    ls_tables_init(&b->tables, &b->arena);
}

void build_close(struct job_builder *b)
{
    for (size_t r = 0; r < b->ranks; r++) {
        ls_vec_release(&b->op[r]);
        ls_vec_release(&b->cut[r]);
    }
    ls_vec_release(&b->groups);
    ls_tables_release(&b->tables);
    ls_arena_release(&b->arena);
}

uint32_t build_comm(struct job_builder *b, const char *name, size_t groups, const uint32_t *member, const size_t *length)
{
    uint32_t comm = ls_tables_comm(&b->tables, name);
    const uint32_t *list[BUILD_RANKS];
    assert(comm == b->groups.count && groups <= BUILD_RANKS);
    for (size_t g = 0; g < groups; member += length[g++])
        list[g] = member;
    struct ls_groups made;
    struct ls_error err;
    enum ls_code rc = ls_groups_from_lists(&made, &b->arena, b->ranks, list, length, groups, LS_NOWHERE, &err);
    assert(rc == LS_OK);
    (void)rc;
    ls_push(&b->groups, made);
    return comm;
}

uint32_t build_world(struct job_builder *b, const char *name)
{
    uint32_t all[BUILD_RANKS];
    for (uint32_t r = 0; r < b->ranks; r++)
        all[r] = r;
    return build_comm(b, name, 1, all, &b->ranks);
}

struct ls_op *build_op(struct job_builder *b, uint32_t rank, enum ls_op_kind kind, uint32_t comm)
{
    struct ls_op op = ls_op_make(kind);
    if (ls_op_uses_comm(&op))
        op.comm = (uint16_t)comm;
    ls_push(&b->op[rank], op);
    return &b->op[rank].at[b->op[rank].count - 1];
}

struct ls_op *build_event(struct job_builder *b, uint32_t rank, enum ls_op_kind kind, uint32_t event, uint8_t stream)
{
    struct ls_op *op = build_op(b, rank, kind, 0);
    op->event = event;
    op->stream = stream;
    return op;
}

struct ls_op *build_payload(struct job_builder *b, struct ls_op *op, const char *payload)
{
    op->payload = ls_tables_payload(&b->tables, payload, NULL, 0, 0);
    return op;
}

void build_cut(struct job_builder *b, uint32_t rank)
{
    ls_push(&b->cut[rank], b->op[rank].count);
}

struct ls_job build_job(struct job_builder *b)
{
    struct ls_job job = { .tables = &b->tables, .ranks = b->ranks, .comm = b->groups.at };
    job.rank = LS_NEW(&b->arena, struct ls_rank_program, b->ranks);
    for (size_t r = 0; r < b->ranks; r++) {
        size_t count = b->cut[r].count + 1, from = 0;
        struct ls_segment *segment = LS_NEW(&b->arena, struct ls_segment, count);
        const struct ls_segment **list = ls_arena_alloc(&b->arena, count * sizeof *list);
        for (size_t i = 0; i < count; i++) {
            size_t end = i < b->cut[r].count ? b->cut[r].at[i] : b->op[r].count;
            segment[i].count = end - from;
            segment[i].op = end > from ? ls_arena_copy(&b->arena, b->op[r].at + from, (end - from) * sizeof(struct ls_op)) : NULL;
            segment[i].hash = ls_segment_hash(segment[i].op, segment[i].count);
            list[i] = &segment[i];
            from = end;
        }
        job.rank[r] = (struct ls_rank_program){ list, count };
    }
    return job;
}

struct ls_outcome build_run(struct job_builder *b, const struct ls_run_options *o)
{
    struct ls_job job = build_job(b);
    struct ls_outcome out;
    struct ls_error err = { 0 };
    enum ls_code rc = ls_machine_run(&job, o, &b->arena, &out, &err);
    if (rc != LS_OK)
        fprintf(stderr, "%s\n", err.text);
    assert(rc == LS_OK);
    return out;
}

struct ls_outcome build_run_at(struct job_builder *b, enum ls_level level)
{
    return build_run(b, &(struct ls_run_options){ .level = level });
}

const char *build_text(struct job_builder *b)
{
    struct ls_str out = { 0 };
    for (size_t r = 0; r < b->ranks; r++) {
        ls_str_printf(&out, "rank %zu\n", r);
        ls_segment_print(&out, &b->tables, b->op[r].at, b->op[r].count);
    }
    const char *text = ls_arena_str(&b->arena, ls_str_text(&out));
    ls_str_release(&out);
    return text;
}
