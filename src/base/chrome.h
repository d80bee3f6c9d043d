/* src/base/chrome.h -- writes Chrome traces (the JSON array of the Trace Event Format), for ui.perfetto.dev and chrome://tracing.
 *
 * An event stands open until ls_chrome_end, so that ",\"args\":{...}" may be added to it. Times are picoseconds, written in the format's
 * unit, microseconds, without loss. */
#ifndef LS_BASE_CHROME_H
#define LS_BASE_CHROME_H

#include "base/str.h"

#include <stdint.h>

void ls_chrome_open(struct ls_str *out);
void ls_chrome_close(struct ls_str *out);
/* "process_name", "process_labels" or "thread_name": only names that the format knows, since others are errors to some readers. `key` is
 * "name", or "labels" for labels. */
void ls_chrome_name(struct ls_str *out, const char *what, size_t pid, size_t tid, const char *key, const char *name);
/* A complete event, of a duration. */
void ls_chrome_span(struct ls_str *out, const char *name, const char *category, size_t pid, size_t tid, uint64_t begin_ps, uint64_t end_ps);
/* A counter; its values are its args. */
void ls_chrome_counter(struct ls_str *out, const char *name, size_t pid, uint64_t at_ps);
void ls_chrome_end(struct ls_str *out);

void ls_chrome_us(struct ls_str *out, uint64_t ps);
void ls_chrome_text(struct ls_str *out, const char *text); /* in quotes */

#endif
