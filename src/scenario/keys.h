/* src/scenario/keys.h -- AutoModel's own keys: what becomes of each in a scenario.
 *
 * One table, used by the loader (an unknown key is an error), by `import` and by the printed lists. */
#ifndef LS_SCENARIO_KEYS_H
#define LS_SCENARIO_KEYS_H

#include <stdbool.h>
#include <stddef.h>

enum ls_key_effect { LS_KEY_HONOURED, LS_KEY_NO_EFFECT, LS_KEY_REFUSED };

/* section: the dotted path of the mapping, "MODALITY" standing for any modality's name. */
struct ls_key_row {
    const char *section, *key;
    enum ls_key_effect proposed, automodel; /* under either rule set */
    bool ours;                              /* no key of AutoModel: never listed */
    const char *why;                        /* refused: the reason, and after a semicolon what to write instead */
};
const struct ls_key_row *ls_key_rows(size_t *count);
const struct ls_key_row *ls_key_find(const char *section, const char *key); /* NULL: unknown */
/* The keys of a section, NULL-terminated; *names is the caller's, of `room` pointers. Returns how many there are. */
size_t ls_key_names(const char *section, const char **names, size_t room);

#endif
