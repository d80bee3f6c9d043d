/* src/multimodal/migrate.h -- AutoModel's freeze_config said with the proposed keys: what keeps today's frozen parameters, and what
 * would change if each key were only taken at its word.
 *
 * Today's keys freeze by substrings of module names: `freeze_vision_tower` freezes `embed_vision` and a merger inside `visual`, but no
 * `multi_modal_projector`. The proposed keys name modality and role. */
#ifndef LS_MULTIMODAL_MIGRATE_H
#define LS_MULTIMODAL_MIGRATE_H

#include "multimodal/multimodal.h"

/* A set of parameters as the largest subtrees that lie in it whole: "model.visual.**", or a parameter's own name. In tree order;
 * tied parameters count once, under the first of their names; only parameters that can train count. */
struct ls_subtree { const char *glob; size_t params; };
/*   shape  in[m->params]; *out is owned by `arena`. Returns how many there are. */
size_t ls_param_subtrees(const struct ls_model *m, const bool *in, struct ls_arena *arena, struct ls_subtree **out);

struct ls_migration {
    const char *exact;                            /* "{vision: {tower: true, projector: false}, language_model: false}"; freezes the same
                                                     parameters. NULL: no modality, role or module says it */
    const char *literal;                          /* each key at its word: {vision: {tower: true}} */
    const char *nothing;                          /* keys that are true and freeze nothing of this model, ", " between them; or "" */
    struct ls_subtree *trains; size_t trains_count;    /* frozen today, trained under `literal` */
    struct ls_subtree *freezes; size_t freezes_count;  /* the other way round */
};
/* `proposed`: the specs under the proposed rules; `today`: AutoModel's keys. Everything in *out is owned by m->arena. */
LS_MUST_USE enum ls_code ls_multimodal_migrate(const struct ls_model *m, const struct ls_specs *proposed, const struct ls_freeze *today,
                                               struct ls_migration *out, struct ls_error *err);

#endif
