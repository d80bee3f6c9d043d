/* src/audit/audit.h -- training recipes judged one by one: a row each.
 *
 *   audit   mesh, conditional modules, policy, verdicts, repair
 *   data    what a recipe says about samples without media
 *   table   the rows as Markdown, CSV, JSON
 *
 * A recipe that cannot be read, has no inventory or a part that is not modelled has a row too, which says so. Facts about the model
 * come from the inventory, whether or not there is a verdict. */
#ifndef LS_AUDIT_AUDIT_H
#define LS_AUDIT_AUDIT_H

#include "advise/advise.h"
#include "base/json.h"
#include "import/recipe.h"

enum ls_media { LS_MEDIA_UNKNOWN, LS_MEDIA_NONE, LS_MEDIA_IMAGE, LS_MEDIA_AUDIO, LS_MEDIA_MIXED };
const char *ls_media_name(enum ls_media m); /* of every sample: "unknown", "none", "image", "audio", "mixed" */

/* What the data set is taken to hold. A builder is taken at its name, and `says` calls that an assumption. */
struct ls_audit_data {
    const char *builder;   /* last component of dataset._target_, or NULL */
    enum ls_media media;
    bool fake_images;      /* AutoModel's tokenizing wrapper gives a sample without media a blank image */
    bool uniform;          /* if so, the samples of a microbatch run the same modules on every rank */
    const char *says;
};
struct ls_audit_data ls_audit_data(const struct ls_recipe *r, struct ls_arena *arena);

struct ls_audit_verdict {
    bool given;
    enum ls_verdict verdict;
    enum ls_known known;
    const char *seen_as, *cause;             /* NULL, or as ls_assessment_cause says */
};
struct ls_audit_row {
    const char *path, *model_id, *inventory; /* NULL: not known */
    struct ls_error err;                     /* code other than LS_OK: no recipe; the rest is empty */
    uint64_t world, dp, dp_replicate, cp, tp, pp, ep;
    const char *size;                        /* why this world size, when it was chosen here */
    const char *together;                    /* ranks that the verdicts take for one; NULL: none */
    const char *parallelizer;                /* "dense", "dense+pp", "ep", "ep+pp"; another strategy's name */
    bool facts;                              /* the next three are known */
    const char *const *frozen, *const *trainable; size_t frozens, trainables; /* modules with one of AutoModel's 17 names */
    const char *const *outside; size_t outsides; /* conditional without such a name: "model.connector (frozen)" */
    const char *policy;                      /* frozen_sharding in effect; "n/a": no module that it is about */
    struct ls_audit_verdict uniform, mixed;  /* batches alike on all ranks of a microbatch; any batch on any rank */
    struct ls_audit_verdict assumed;         /* every batch as data.media says; not given where that says nothing */
    const char *repair, *repair_note;        /* the first that is proved; NULL: none, or none needed */
    bool repaired;                           /* repairs were looked for */
    const char *const *why; size_t whys;     /* why there is no verdict */
    const char *const *part; size_t parts;   /* of those, the parts that are not modelled: "expert parallelism" */
    struct ls_audit_data data;
    double seconds;
};
struct ls_audit_options {
    uint64_t world_size;   /* 0: the smallest that satisfies the recipe's mesh and batch with dp >= 2 */
    double seconds_max;    /* of each verdict; 0: none */
    bool no_verdicts;
    bool proposed;         /* under the proposed rules, with freeze_config in their keys */
};
struct ls_audit_memo;      /* verdicts of plans seen before: recipes that differ in data or optimizer alone are judged once */
struct ls_audit_memo *ls_audit_memo_open(void);
void ls_audit_memo_close(struct ls_audit_memo *memo); /* accepts NULL */
/* Everything in *out is owned by `arena`, but the inventory's path by that of `known`. `memo` may be NULL.
 *   errors  LS_EBACKEND alone: what is wrong with a recipe is in its row */
LS_MUST_USE enum ls_code ls_audit_recipe(const char *path, const struct ls_inventories *known, const struct ls_audit_options *o,
                                         struct ls_audit_memo *memo, struct ls_arena *arena, struct ls_audit_row *out,
                                         struct ls_error *err);
/* The smallest number of ranks, and (in *why) what it follows from; 0 if there is none up to 2^20. */
uint64_t ls_audit_world_size(const struct ls_recipe *r, struct ls_arena *arena, const char **why);

void ls_audit_markdown(const struct ls_audit_row *row, size_t rows, struct ls_str *out);
void ls_audit_csv(const struct ls_audit_row *row, size_t rows, struct ls_str *out);
void ls_audit_json(const struct ls_audit_row *row, size_t rows, struct ls_json *out); /* keys "recipes" and "summary" of an open object */

#endif
