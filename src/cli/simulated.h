/* src/cli/simulated.h -- one simulated run, with what check says of it, shown in full, as a row of a table, or as JSON. */
#ifndef LS_CLI_SIMULATED_H
#define LS_CLI_SIMULATED_H

#include "advise/advise.h"
#include "cli/cli.h"
#include "sim/simulate.h"

enum { LS_SIM_POLICIES = 3, LS_SIM_AS_WRITTEN = LS_SIM_POLICIES };
extern const char *const ls_sim_policy[LS_SIM_POLICIES];

/* One run of one policy and draw. Its memory is an arena of its own. */
struct ls_simulated {
    struct ls_arena arena;
    unsigned policy;                 /* index into ls_sim_policy, or LS_SIM_AS_WRITTEN */
    enum ls_draw draw;
    struct ls_assessment assessment;
    bool assessed;
    struct ls_simulation sim;
    bool ran, witness; /* witness: sim is the failing run that check found, since the drawn one completes or cannot be drawn */
};

/* What check says if it does, with what time and memory add. */
enum ls_verdict ls_simulated_verdict(const struct ls_simulated *r);
const char *ls_simulated_policy(const struct ls_simulated *r);
/* On stdout. */
void ls_simulated_text(const struct ls_cli *cli, const struct ls_scenario *s, const struct ls_simulated *r);
void ls_simulated_table(const struct ls_scenario *s, const struct ls_simulated *rows, size_t count);
void ls_simulated_json(struct ls_json *j, const struct ls_simulated *r);

#endif
