/* tests/support/naive_words.h -- Lemma 1 (semantics.md) read off the programs, without a run: are all words equal, and is the graph of ops with
 * merged meetings acyclic? For jobs without decide, fused groups, stops or several threads; at L1 or L2. */
#ifndef LS_TESTS_NAIVE_WORDS_H
#define LS_TESTS_NAIVE_WORDS_H

#include "machine/machine.h"

bool naive_words_equal(const struct ls_job *job);
bool naive_graph_acyclic(const struct ls_job *job, enum ls_level level);

#endif
