/* src/batch/manifest.h -- what a data set and its sampler put into a step: media counts per sample, and how likely ranks differ.
 *
 * A manifest is JSON lines, one sample a line. A *kind* is the set of media that a sample holds; a microbatch of several samples
 * calls an encoder once if one of them needs it, so its kind is the union. Kinds have *classes*: microbatches of one class issue the
 * same operations. A step hangs iff in some microbatch two ranks of a group hold different classes.
 *
 *   shuffle false  the order of the file, dealt out as torch.utils.data.DistributedSampler does: sample i to rank i mod R
 *   shuffle true   a uniformly random order (torch's own generator is not reproduced): probabilities are exact, by drawing without
 *                  replacement, as long as the work allows */
#ifndef LS_BATCH_MANIFEST_H
#define LS_BATCH_MANIFEST_H

#include "base/arena.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { LS_MEDIA = 3, LS_KINDS = 1 << LS_MEDIA }; /* bits: images, videos, audios */
struct ls_manifest {
    const char *path;
    const char *key[1 + LS_MEDIA];   /* of text, images, videos, audios in a line */
    uint64_t batch_size, seed;
    bool shuffle, drop_last, by_kind; /* by_kind: batches of one kind each, what is left over comes last, mixed, or is dropped */
    struct ls_loc at;
    /* read by ls_manifest_scan */
    uint64_t samples, of_kind[LS_KINDS], text;
};
/* Reads the file once, in memory that does not grow with it; `see` gets the kind of every sample in order, and may be NULL.
 *   errors  LS_EINPUT with line and column: bad JSON, not an object, none of the keys, a count that is neither a non-negative integer
 *           nor a list */
LS_MUST_USE enum ls_code ls_manifest_scan(struct ls_manifest *m, struct ls_arena *arena, void (*see)(void *context, uint8_t kind), void *context,
                                          struct ls_error *err);

struct ls_risk_input {
    const struct ls_manifest *manifest;
    uint8_t class_of[LS_KINDS];      /* of a microbatch of this kind */
    uint64_t groups, members;        /* ranks of a group must agree: groups x members replicas */
    uint64_t microbatches;
    uint64_t trials, seed;           /* of the random runs, where exact counting takes too long or to compare with it; 0: none */
};
struct ls_risk {
    bool ordered;                    /* shuffle false: what follows is the one order */
    bool exact, approximate_tail;    /* probabilities; the tail: later steps taken as independent */
    uint64_t steps;                  /* of an epoch */
    double step;                     /* probability that a step hangs */
    double epoch;                    /* that some step of an epoch does */
    double first;                    /* expected number of the first step that does, from 1, over reshuffled epochs; 0: none does */
    uint64_t first_step;             /* ordered: from 1; 0: none in an epoch */
    uint64_t first_microbatch, first_sample; /* ordered: from 0 */
    uint64_t seed;
    double sampled, sampled_error;   /* random runs: share of hanging steps, its standard error */
    uint64_t trials;
};
LS_MUST_USE enum ls_code ls_manifest_risk(const struct ls_risk_input *in, struct ls_arena *arena, struct ls_risk *out, struct ls_error *err);

#endif
