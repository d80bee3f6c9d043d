/* src/scenario/timing.h -- the section `simulate:`: what a simulated step holds beyond its program. Read by every command, used by
 * sim/ alone.
 *
 *   simulate:
 *     optimizer: adamw            # adamw | adamw_fused | adamw_master | none (sim/memory.h)
 *     recompute: none             # none (as the plan says) | selective (sim/work.h)
 *     logits_held: true           # the training loop's variable holds the logits until backward ends
 *     batches: {text_only: 0.5, text: [256, 1024], images: [1, 2], image_patches: [256, 1024], videos: [0, 0], video_patches: [..],
 *               audios: [0, 0], audio_positions: [..], sequences: 1}      # absent: drawn from batch.samples
 *     spread: 5                   # percent: fastest and slowest GPU of 8 differ by so much (sim/simulate.h); --spread overrides it
 *     jitter: 2                   # every computation takes up to this many percent more or less; --jitter overrides it
 *     watchdog: 600               # seconds; --watchdog overrides it
 *     timeouts: {log: {after: 1800, then: go_on}}  # communicators that wait on the host, and what a rank does when it has waited
 *                                                  # so many seconds: go_on (the framework catches the error) | raise (default)
 *     routing_skew: 1.0           # experts of the busiest rank of a group get so many times the mean number of tokens
 *
 * Ranges are drawn uniformly, both ends included, from nine values that divide them evenly. */
#ifndef LS_SCENARIO_TIMING_H
#define LS_SCENARIO_TIMING_H

#include "base/arena.h"
#include "yaml/yaml.h"

#include <stdbool.h>
#include <stdint.h>

#define LS_OPTIMIZERS(X) X(ADAMW, "adamw") X(ADAMW_FUSED, "adamw_fused") X(ADAMW_MASTER, "adamw_master") X(NO_OPTIMIZER, "none")
#define LS_OPTIMIZER_ENUM(id, name) LS_OPT_##id,
enum ls_optimizer { LS_OPTIMIZERS(LS_OPTIMIZER_ENUM) LS_OPT_COUNT };
#undef LS_OPTIMIZER_ENUM

#define LS_ACTIVATION_STYLES(X) X(TORCH_EAGER, "torch_eager") X(TORCH_COMPILE, "torch_compile") X(LOCKSTEP, "lockstep")
#define LS_ACTIVATION_ENUM(id, name) LS_STYLE_##id,
enum ls_activation_style { LS_ACTIVATION_STYLES(LS_ACTIVATION_ENUM) LS_STYLE_COUNT }; /* `runtime.activations`; sim/work.h says what each keeps */
#undef LS_ACTIVATION_ENUM

struct ls_range_of { uint64_t least, most; };
struct ls_distribution { bool given; double text_only; struct ls_range_of text, images, image_patches, videos, video_patches, audios,
                         audio_positions, sequences; };
struct ls_timeout { const char *comm; uint64_t after_s; bool go_on; struct ls_loc at; };
struct ls_timing {
    enum ls_optimizer optimizer;
    bool selective, logits_held;
    struct ls_distribution batches;
    unsigned spread, jitter;             /* percent */
    double routing_skew;                 /* tokens of a group's busiest rank over the mean */
    uint64_t watchdog_s;                 /* 0: not said */
    struct ls_timeout *timeout; size_t timeouts;
};
/* n may be NULL. *out is then the default, and else owned by `arena`.
 *   errors  LS_EINPUT with the position of the key that is wrong */
LS_MUST_USE enum ls_code ls_timing_read(const struct ls_yaml_node *n, struct ls_arena *arena, struct ls_timing *out, struct ls_error *err);

#endif
