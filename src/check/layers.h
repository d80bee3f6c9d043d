/* src/check/layers.h -- the whole transition relation, layer by layer.
 *
 * A state holds its past, so it determines how many steps lead to it: choices, issues, runs, starts and meetings are all
 * counted by it. Every way to a state is thus equally long, a state found again is found in the same layer, and only two
 * layers have to be stored. (This is the sweep-line method with the number of steps as progress measure.) */
#ifndef LS_CHECK_LAYERS_H
#define LS_CHECK_LAYERS_H

#include "check/product.h"

/* Needs automata that keep their history. Returns the first state found in violation, in the arena, or NULL. */
uint32_t *ls_explore_layers(struct ls_product *p, const struct ls_explore_options *o, struct ls_explored *out);
double ls_explore_seconds(void); /* a monotonic clock */

#endif
