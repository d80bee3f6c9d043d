#include "cli/interrupt.h"

#include <stddef.h>

volatile sig_atomic_t ls_interrupted;

static void on_signal(int signal_number) { ls_interrupted = signal_number; }

void ls_interrupt_open(struct ls_interrupt *x)
{
    struct sigaction act = { .sa_handler = on_signal };
    sigaction(SIGINT, &act, &x->old_int);
    sigaction(SIGTERM, &act, &x->old_term);
}

void ls_interrupt_close(const struct ls_interrupt *x)
{
    sigaction(SIGINT, &x->old_int, NULL);
    sigaction(SIGTERM, &x->old_term, NULL);
}
