/* src/cli/interrupt.h -- SIGINT and SIGTERM while ranks run or files are written: a flag, so that every rank can end and nothing is
 * left half-written. At any other time (compiling, checking) they end the process at once, as they do by themselves. */
#ifndef LS_CLI_INTERRUPT_H
#define LS_CLI_INTERRUPT_H

#include <signal.h>

extern volatile sig_atomic_t ls_interrupted; /* the signal that came while they were held, else 0 */
void ls_interrupts_hold(void);
void ls_interrupts_release(void);            /* also when not held */
void ls_interrupts_end(void);                /* releases; dies of a signal that came, so that a shell sees it */

#endif
