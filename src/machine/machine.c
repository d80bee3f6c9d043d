#include "machine/machine.h"

#include "machine/move.h"
#include "machine/outcome.h"

#include <assert.h>
#include <string.h>

#define PLAIN_NAME(id, name) name,
static const char *const verdict_name[] = { LS_VERDICTS(PLAIN_NAME) };
static const char *const diff_name[] = { LS_DIFFS(PLAIN_NAME) };

const char *ls_verdict_name(enum ls_verdict v)
{
    assert((unsigned)v < LS_VERDICT_COUNT);
    return verdict_name[v];
}

bool ls_verdict_find(const char *name, enum ls_verdict *out)
{
    for (size_t i = 0; i < LS_VERDICT_COUNT; i++)
        if (strcmp(verdict_name[i], name) == 0) {
            *out = (enum ls_verdict)i;
            return true;
        }
    return false;
}

const char *ls_diff_name(enum ls_diff d)
{
    assert((unsigned)d < LS_DIFF_END);
    return diff_name[d];
}

static bool counts_equal(const struct ls_tables *t, const struct ls_op *a, const struct ls_op *b)
{
    if (a->symbol != b->symbol || (a->counts == LS_NO_ID) != (b->counts == LS_NO_ID))
        return false;
    if (a->counts == LS_NO_ID)
        return a->count == b->count;
    const uint64_t *x = &t->vector.at[a->counts], *y = &t->vector.at[b->counts];
    if (a->kind == LS_OP_ALL_TO_ALL) /* each member has counts of its own */
        return x[0] == y[0];
    return a->count == b->count && x[0] == y[0] && memcmp(x, y, (size_t)(x[0] + 1) * sizeof *x) == 0;
}

static bool ratios_equal(struct ls_ratio a, struct ls_ratio b)
{
    if (a.num == 0 && a.den == 0)
        a = (struct ls_ratio){ 1, 1 };
    if (b.num == 0 && b.den == 0)
        b = (struct ls_ratio){ 1, 1 };
    return (uint64_t)a.num * b.den == (uint64_t)b.num * a.den;
}

enum ls_diff ls_op_diff(const struct ls_tables *t, const struct ls_op *a, const struct ls_op *b)
{
    bool p2p = ls_op_is_p2p(a) && ls_op_is_p2p(b);
    if ((a->kind != b->kind && !p2p) || (a->kind == LS_OP_COMM_INIT && a->comm != b->comm))
        return LS_DIFF_KIND;
    if (!counts_equal(t, a, b))
        return LS_DIFF_COUNT;
    if (a->dtype != b->dtype)
        return LS_DIFF_DTYPE;
    if (a->reduce != b->reduce || !ratios_equal(a->factor, b->factor))
        return LS_DIFF_REDUCE;
    if (!p2p && a->peer != b->peer)
        return LS_DIFF_ROOT;
    return a->payload == b->payload ? LS_DIFF_NONE : LS_DIFF_PAYLOAD;
}

const char *ls_diff_seen_as(enum ls_diff d, const struct ls_op *a, const struct ls_op *b)
{
    switch (d) {
    case LS_DIFF_KIND: /* bootstrap is checked by NCCL; two kernels wait for steps of each other that never come */
        return (a->kind == LS_OP_COMM_INIT) != (b->kind == LS_OP_COMM_INIT) ? "crash" : "hang";
    case LS_DIFF_COUNT:
    case LS_DIFF_ROOT:
        return "hang";
    case LS_DIFF_DTYPE: /* kernels move bytes: as many bytes pass unnoticed, others are like another count */
        return a->count * ls_dtype_bytes(a->dtype) == b->count * ls_dtype_bytes(b->dtype) ? "silent" : "hang";
    case LS_DIFF_NONE:
    case LS_DIFF_REDUCE:
    case LS_DIFF_PAYLOAD:
    case LS_DIFF_END:
        return "silent";
    }
    return "silent";
}

enum ls_code ls_machine_run(const struct ls_job *job, const struct ls_run_options *options, struct ls_arena *arena,
                            struct ls_outcome *out, struct ls_error *err)
{
    struct ls_arena scratch;
    struct ls_run run;
    ls_arena_init(&scratch, 0);
    enum ls_code rc = ls_run_open(&run, job, options, &scratch, err);
    if (rc == LS_OK) {
        ls_run_to_end(&run);
        ls_outcome_read(&run, arena, out);
        ls_run_close(&run);
    }
    ls_arena_release(&scratch);
    return rc;
}
