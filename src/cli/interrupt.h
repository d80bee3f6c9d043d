/* src/cli/interrupt.h -- SIGINT and SIGTERM while a command runs: it notices, ends every thread and process that it started, and then dies of
 * the signal, so that a shell sees it. */
#ifndef LS_CLI_INTERRUPT_H
#define LS_CLI_INTERRUPT_H

#include <signal.h>

extern volatile sig_atomic_t ls_interrupted; /* the signal that came; 0: none */

struct ls_interrupt { struct sigaction old_int, old_term; };
void ls_interrupt_open(struct ls_interrupt *x);
void ls_interrupt_close(const struct ls_interrupt *x); /* handlers as before; a signal that came is still in ls_interrupted: raise() it */

#endif
