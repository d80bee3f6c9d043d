/* src/scenario/scenario.h -- one file -> everything below. schema.md is the format. */
#ifndef LS_SCENARIO_SCENARIO_H
#define LS_SCENARIO_SCENARIO_H

#include "batch/batch.h"
#include "batch/manifest.h"
#include "ddp/ddp.h"
#include "fsdp2/compile.h"
#include "ir/system.h"
#include "loop/loop.h"
#include "machine/machine.h"
#include "plan/plan.h"
#include "scenario/keys.h"
#include "scenario/timing.h"

enum ls_plan_kind { LS_PLAN_POLICY, LS_PLAN_UNITS, LS_PLAN_RAW };
struct ls_key_note { const char *key; enum ls_key_effect effect; const char *why; struct ls_loc at; };

struct ls_expect { bool present; enum ls_verdict verdict; const char *seen_as, *payload, *unit, *op, *rule; uint64_t ranks, microbatches;
                   struct ls_loc at; };

/* A change to a loaded scenario, for repairs and policy comparisons: applied before compiling. */
struct ls_variant {
    int frozen_sharding;          /* enum ls_frozen, or -1: as written */
    int run_dummy_forward;        /* 1: the model's dummy runs (covering every trainable role), -1 as written */
    int execution;                /* enum ls_execution, or -1 */
    int unused_params;            /* enum ls_unused, or -1 */
    uint32_t agree;               /* bit set of enum ls_loop_feature: ranks decide them together */
    const uint32_t *sample_class; /* MANIFEST: [samples], what ranks hold together; NULL: as written */
    bool class_in_node;
    bool sync_every;              /* gradients are reduced in every microbatch */
};
#define LS_AS_WRITTEN ((struct ls_variant){ -1, -1, -1, -1, 0, NULL, false, false })

struct ls_scenario {
    struct ls_arena *arena;
    struct ls_names *names;
    const char *path;
    const struct ls_yaml_node *document;
    const char *name, *question;
    enum ls_plan_kind kind;
    struct ls_model model;
    struct ls_specs specs;
    struct ls_mesh mesh;
    struct ls_freeze freeze;
    bool *at_sharding, *final;               /* requires_grad, as ls_multimodal_freeze says */
    unsigned automodel;                      /* version of its rules: 6 for 0.6 */
    struct ls_policy policy;                 /* POLICY */
    struct ls_ddp ddp;                       /* POLICY with strategy ddp: no module is in a unit */
    struct ls_unit_input *unit; size_t units; /* UNITS */
    struct ls_entry *entry; size_t entries;
    struct ls_runtime runtime;
    enum ls_level level; unsigned kernels; enum ls_start start;
    struct ls_batch batch;
    struct ls_manifest *manifest;            /* execution MANIFEST; its kinds are the samples */
    uint8_t *sample_kind;                    /* [samples] */
    struct ls_step_policy step;
    struct ls_loop loop;                     /* `loop`, and what of `step` the framework's compilers do not do */
    bool mean;                               /* gradient expected: mean over replicas (else sum) */
    const char *platform;                    /* path of a platform file, or NULL */
    struct ls_timing timing;                 /* `simulate:` */
    enum ls_activation_style activations;
    struct ls_expect expect;
    struct ls_key_note *note; size_t notes;  /* AutoModel's own keys that occur */
};
/* Everything is owned by `arena` and `names`, also after an error, whose position points there. *out must not be moved.
 *   errors  LS_EINPUT with the position of the key that is wrong */
LS_MUST_USE enum ls_code ls_scenario_load(const char *path, struct ls_arena *arena, struct ls_names *names,
                                          struct ls_scenario *out, struct ls_error *err);
LS_MUST_USE enum ls_code ls_scenario_read(const char *text, size_t length, const char *path, struct ls_arena *arena,
                                          struct ls_names *names, struct ls_scenario *out, struct ls_error *err);

/* A file that the command line names and that lies beside the scenarios, as platforms do: as it is, in scenarios/ here, or in
 * $LOCKSTEP_SCENARIOS, both also below `folder`. NULL: nowhere. */
const char *ls_scenario_find(const char *path, const char *folder, struct ls_arena *arena);

/* The same model, batches and steps under DistributedDataParallel, on as many ranks: with buckets of the default size, and unused
 * parameters looked for where the model has conditional modules. Sizes are given. Shares all storage with *s. */
void ls_scenario_as_ddp(const struct ls_scenario *s, struct ls_scenario *out);

/* A scenario compiled: the plan, the letters and the system to check. For raw programs plan and letters are empty. Its parts
 * point into it: it must not be moved. */
struct ls_compiled {
    struct ls_arena *arena;      /* owns everything below */
    struct ls_tables tables;
    struct ls_plan plan;
    struct ls_letters letters;   /* those without events first */
    size_t batch_letters;        /* how many have no events */
    struct ls_loop loop;         /* as the variant changed it */
    struct ls_loop_rounds loop_rounds;
    struct ls_transducer *fsdp2, *ddp, *around; /* each around the one before it; NULL where there is none */
    struct ls_letters framework_letters;
    struct ls_rounds rounds;
    struct ls_batch batch;       /* as the variant changed it; dummies have their final `active` */
    struct ls_system system;
    struct ls_refusal refusal;   /* refusal.rule != NULL: refused at set-up, system is empty */
};
/* Plan, letters, system. What the framework or (unless `force`) a contract of the proposed rules refuses is a refusal, not an
 * error. Several compiled forms of one scenario may live at a time.
 *   errors  LS_EINPUT: the variant does not fit the scenario, or the scenario's contradictions show only here */
LS_MUST_USE enum ls_code ls_scenario_compile(const struct ls_scenario *s, const struct ls_variant *variant, bool force,
                                             struct ls_compiled *out, struct ls_error *err);
void ls_compiled_release(struct ls_compiled *c);

#endif
