/* src/report/summary.h -- what follows from a saved comparison: middles and spreads, pairs, memory, and one sentence.
 *
 * A policy is called faster or slower only if at least LS_PAIRS_LEAST pairs all say so: by chance alone that is 1 in 32.
 * Warm-up steps are left out of every time. A pair is one round: the same batches, one policy right after the other, in both orders. */
#ifndef LS_REPORT_SUMMARY_H
#define LS_REPORT_SUMMARY_H

#include "report/result.h"
#include "base/spread.h"

enum { LS_PAIRS_LEAST = 6 };
/* Others took turns on the cores while this ran: a load of more than half a core each. */
bool ls_result_is_busy(const struct ls_result *r);
struct ls_cell_summary {
    bool measured;               /* the rest but `agrees` is empty if not */
    bool agrees;                 /* the replay saw what check says; also if nothing was replayed */
    struct ls_spread step;       /* seconds, of every measured step of every run */
    struct ls_spread rate;       /* tokens per second, text and media tokens together */
    double text_tokens, media_tokens; /* mean of a step, all ranks */
    bool paired;                 /* there is a baseline with the same batches, and this is not it */
    struct ls_paired against;    /* throughput / the baseline's, from the median step of each run */
    size_t worst; uint64_t peak; /* the rank whose peak is largest, and its bytes */
    bool sim_paired;
    double sim_against, sim_peak_more; /* simulated throughput / the baseline's; simulated bytes beyond the baseline's */
    double sim_tokens;           /* of the simulated step */
    bool repeats;                /* losses and norms of all runs are the same bits */
    bool like_baseline;          /* ... and those of the baseline with the same batches; false without one */
    bool wrong;                  /* losses or norms that ought to be the same bits are not */
    double loss_first, loss_last;
};
struct ls_summary {
    struct ls_cell_summary *cell;            /* [cells] */
    struct ls_result_names policies, batches; /* in order of appearance */
    const char *answer;                      /* a sentence */
};
void ls_summary_of(const struct ls_result *r, struct ls_arena *arena, struct ls_summary *out);

/* "1.5 MiB", "812 B"; "3.21 ms", "45.0 us". Three significant digits. */
const char *ls_bytes_text(double bytes, struct ls_arena *arena);
const char *ls_seconds_text(double seconds, struct ls_arena *arena);

#endif
