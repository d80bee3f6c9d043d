#include "cli/interrupt.h"

#include <stdbool.h>
#include <stddef.h>

volatile sig_atomic_t ls_interrupted;
static struct sigaction before[2];
static bool held;
static const int caught[] = { SIGINT, SIGTERM };

static void on_signal(int signal_number) { ls_interrupted = signal_number; }

void ls_interrupts_hold(void)
{
    struct sigaction act = { .sa_handler = on_signal };
    for (size_t i = 0; i < 2 && !held; i++)
        sigaction(caught[i], &act, &before[i]);
    held = true;
}

void ls_interrupts_release(void)
{
    for (size_t i = 0; i < 2 && held; i++)
        sigaction(caught[i], &before[i], NULL);
    held = false;
}

void ls_interrupts_end(void)
{
    ls_interrupts_release();
    if (ls_interrupted)
        raise(ls_interrupted);
}
