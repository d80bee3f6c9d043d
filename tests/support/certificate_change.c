#include "certificate_change.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

#define CHANGE_TEXT(id, text) text,
static const char *const text[] = { CHANGES(CHANGE_TEXT) };

const char *certificate_change_text(enum change what)
{
    return text[what];
}

static uint32_t other(uint64_t *random, uint32_t old, size_t below) /* a different one */
{
    return below < 2 ? old : (uint32_t)((old + 1 + ls_random_below(random, below - 1)) % below);
}

#define COPY(arena, at, count) ((at) = ls_arena_copy((arena), (at), (count) * sizeof *(at)))
static void remove_at(void *at, size_t *count, size_t i, size_t bytes)
{
    memmove((char *)at + i * bytes, (char *)at + (i + 1) * bytes, (*count - i - 1) * bytes);
    --*count;
}

static int by_pair(const void *a, const void *b)
{
    const struct ls_cert_reach *x = a, *y = b;
    return x->node != y->node ? (x->node < y->node ? -1 : 1) : (x->macro > y->macro) - (x->macro < y->macro);
}

static int by_word(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

bool certificate_change(struct ls_certificate *c, enum change what, uint64_t *random, struct ls_arena *arena)
{
    size_t p = c->programs ? ls_random_below(random, c->programs) : 0, ops = c->programs ? c->program[p].ops : 0;
    size_t i = ops ? ls_random_below(random, ops) : 0;
    size_t o = ls_random_below(random, c->orders), s = ls_random_below(random, c->steps), r = ls_random_below(random, c->rounds);
    size_t n = ls_random_below(random, c->nodes), m = c->comms ? ls_random_below(random, c->comms) : 0;
    struct ls_cert_op *op = NULL;
    if (what <= CHANGE_OP_BLOCKING) {
        if (!ops)
            return false;
        COPY(arena, c->program, c->programs);
        struct ls_cert_op *room = LS_NEW(arena, struct ls_cert_op, ops + 1);
        memcpy(room, c->program[p].op, ops * sizeof *room);
        c->program[p].op = room;
        for (size_t k = 0; k < ops; k++) { /* from i on, the first op that has such a field */
            const struct ls_cert_op *x = &room[(i + k) % ops];
            bool talks = x->kind <= LS_CERT_RECV, host = x->kind == LS_CERT_HOST_WAIT;
            if (what == CHANGE_OP_SIG || what == CHANGE_OP_FUSED ? talks : what == CHANGE_OP_COMM ? x->object != LS_NO_ID
                : what == CHANGE_OP_STREAM || what == CHANGE_OP_BLOCKING ? !host
                : what == CHANGE_OP_KIND ? x->kind == LS_CERT_WAIT || x->kind == LS_CERT_RECORD : true) {
                i = (i + k) % ops;
                break;
            }
        }
        op = &room[i];
    }
    switch (what) {
    case CHANGE_OP_DROP: /* with its numbers, so that only the op is missing */
    case CHANGE_OP_TWICE:
        if (what == CHANGE_OP_DROP) {
            remove_at(c->program[p].op, &c->program[p].ops, i, sizeof *op);
        } else {
            memmove(op + 1, op, (ops - i) * sizeof *op);
            c->program[p].ops++;
        }
        COPY(arena, c->order, c->orders);
        for (size_t k = 0; k < c->orders; k++)
            if (c->order[k].program == p) {
                uint32_t *number = LS_NEW(arena, uint32_t, ops + 1);
                size_t left = ops;
                memcpy(number, c->order[k].number, ops * sizeof *number);
                if (what == CHANGE_OP_DROP)
                    remove_at(number, &left, i, sizeof *number);
                else
                    memmove(number + i + 1, number + i, (ops - i) * sizeof *number);
                c->order[k].number = number;
            }
        return true;
    case CHANGE_OP_SWAP:
        if (i + 1 >= ops || memcmp(op, op + 1, sizeof *op) == 0)
            return false;
        op[ops - i] = op[0];
        op[0] = op[1];
        op[1] = op[ops - i];
        return true;
    case CHANGE_OP_SIG: {
        uint32_t old = op->sig;
        if (old == LS_NO_ID)
            return false;
        op->sig = other(random, old, c->sigs);
        return op->sig != old;
    }
    case CHANGE_OP_COMM: {
        uint32_t old = op->object;
        if (old == LS_NO_ID)
            return false;
        op->object = op->sig == LS_NO_ID ? old + 1 : other(random, old, c->comms);
        return op->object != old;
    }
    case CHANGE_OP_STREAM:
        if (op->kind == LS_CERT_HOST_WAIT)
            return false;
        op->stream = other(random, op->stream, 4);
        return true;
    case CHANGE_OP_KIND:
        if (op->kind != LS_CERT_WAIT && op->kind != LS_CERT_RECORD)
            return false;
        op->kind = LS_CERT_RUN;
        op->object = LS_NO_ID;
        return true;
    case CHANGE_OP_FUSED:
        if (op->kind > LS_CERT_RECV)
            return false;
        op->fused = op->fused ? 0 : 1;
        return true;
    case CHANGE_OP_BLOCKING:
        if (op->kind == LS_CERT_HOST_WAIT)
            return false;
        op->blocking = !op->blocking;
        return true;
    case CHANGE_NUMBER_LOWER:
    case CHANGE_NUMBER_ANY: {
        size_t count = c->program[c->order[o].program].ops;
        if (!count)
            return false;
        COPY(arena, c->order, c->orders);
        COPY(arena, c->order[o].number, count);
        uint32_t *x = &c->order[o].number[ls_random_below(random, count)];
        if (*x == 0)
            return false;
        *x = what == CHANGE_NUMBER_LOWER ? (uint32_t)ls_random_below(random, *x) : other(random, *x, *x + 4);
        return true;
    }
    case CHANGE_ORDER_PROGRAM: {
        COPY(arena, c->order, c->orders);
        size_t to = other(random, c->order[o].program, c->programs);
        if (to == c->order[o].program || c->program[to].ops != c->program[c->order[o].program].ops)
            return false;
        c->order[o].program = (uint32_t)to;
        return true;
    }
    case CHANGE_STEP_NEXT: {
        uint32_t most = 0;
        for (size_t k = 0; k < c->steps; k++)
            most = c->step[k].state > most ? c->step[k].state : most;
        COPY(arena, c->step, c->steps);
        c->step[s].next = other(random, c->step[s].next, most + 2);
        return true;
    }
    case CHANGE_STEP_PROGRAM: {
        COPY(arena, c->step, c->steps);
        COPY(arena, c->step[s].program, c->roles);
        uint32_t *at = &c->step[s].program[ls_random_below(random, c->roles)], old = *at;
        *at = other(random, old, c->programs);
        return *at != old;
    }
    case CHANGE_STEP_DROP:
        COPY(arena, c->step, c->steps);
        remove_at(c->step, &c->steps, s, sizeof *c->step);
        return true;
    case CHANGE_REACH_DROP:
        COPY(arena, c->reach, c->reaches);
        remove_at(c->reach, &c->reaches, ls_random_below(random, c->reaches), sizeof *c->reach);
        return true;
    case CHANGE_REACH_MACRO: {
        struct ls_cert_reach *at = &COPY(arena, c->reach, c->reaches)[ls_random_below(random, c->reaches)];
        at->macro = other(random, at->macro, c->levels > 1 ? c->sets[0] + 1 : 3);
        qsort(c->reach, c->reaches, sizeof *c->reach, by_pair);
        return true;
    }
    case CHANGE_SET_DROP:
    case CHANGE_SET_ADD: {
        size_t l = c->levels > 1 ? ls_random_below(random, c->levels - 1) : 0;
        if (c->levels < 2)
            return false;
        size_t k = ls_random_below(random, c->sets[l]);
        COPY(arena, c->set[l], c->sets[l]);
        struct ls_cert_set *x = &c->set[l][k];
        uint32_t *member = LS_NEW(arena, uint32_t, x->members + 1);
        memcpy(member, x->member, x->members * sizeof *member);
        x->member = member;
        if (what == CHANGE_SET_DROP) {
            if (x->members < 2)
                return false;
            remove_at(member, &x->members, ls_random_below(random, x->members), sizeof *member);
        } else {
            uint32_t new = (uint32_t)ls_random_below(random, l + 2 < c->levels ? c->sets[l + 1] : 6);
            for (size_t j = 0; j < x->members; j++)
                if (member[j] == new)
                    return false;
            member[x->members++] = new;
            qsort(member, x->members, sizeof *member, by_word);
        }
        return true;
    }
    case CHANGE_ROUND_DROP:
        COPY(arena, c->round, c->rounds);
        remove_at(c->round, &c->rounds, r, sizeof *c->round);
        return true;
    case CHANGE_ROUND_ORDER: {
        COPY(arena, c->round, c->rounds);
        COPY(arena, c->round[r].order, c->round[r].orders);
        uint32_t *at = &c->round[r].order[ls_random_below(random, c->round[r].orders)], old = *at;
        *at = other(random, old, c->orders);
        return *at != old;
    }
    case CHANGE_ALLOW_DROP:
        COPY(arena, c->node, c->nodes);
        COPY(arena, c->node[n].letter, c->node[n].letters);
        if (!c->node[n].letters)
            return false;
        remove_at(c->node[n].letter, &c->node[n].letters, ls_random_below(random, c->node[n].letters), sizeof(uint32_t));
        return true;
    case CHANGE_ALLOW_ADD: {
        uint32_t new = (uint32_t)ls_random_below(random, c->letters), *letter = LS_NEW(arena, uint32_t, c->letters + 1);
        for (size_t k = 0; k < c->node[n].letters; k++)
            if (c->node[n].letter[k] == new)
                return false;
        COPY(arena, c->node, c->nodes);
        memcpy(letter, c->node[n].letter, c->node[n].letters * sizeof *letter);
        letter[c->node[n].letters++] = new;
        c->node[n].letter = letter;
        return true;
    }
    case CHANGE_NEXT: {
        uint32_t new = (uint32_t)ls_random_below(random, c->nodes), *next = LS_NEW(arena, uint32_t, c->node[n].nexts + 1);
        for (size_t k = 0; k < c->node[n].nexts; k++)
            if (c->node[n].next[k] == new)
                return false;
        COPY(arena, c->node, c->nodes);
        memcpy(next, c->node[n].next, c->node[n].nexts * sizeof *next);
        next[c->node[n].nexts++] = new;
        c->node[n].next = next;
        return true;
    }
    case CHANGE_COMM_DIMS:
    case CHANGE_COMM_PART:
        if (!c->comms)
            return false;
        COPY(arena, c->comm, c->comms);
        COPY(arena, c->comm[m].part, c->roles);
        if (what == CHANGE_COMM_DIMS) {
            c->comm[m].dims = other(random, c->comm[m].dims, 4);
        } else {
            uint32_t *at = &c->comm[m].part[ls_random_below(random, c->roles)], old = *at;
            *at = old == LS_NO_ID || ls_random_below(random, 2) ? (uint32_t)ls_random_below(random, c->roles) : LS_NO_ID;
            return *at != old;
        }
        return true;
    case CHANGE_CLASS: {
        size_t l = ls_random_below(random, c->levels);
        COPY(arena, c->tier[l].class_of, c->letters);
        uint32_t *at = &c->tier[l].class_of[ls_random_below(random, c->letters)], old = *at;
        *at = other(random, old, c->letters);
        return *at != old;
    }
    case CHANGE_TIER_DIMS: {
        size_t l = ls_random_below(random, c->levels);
        c->tier[l].dims = other(random, c->tier[l].dims, 4);
        return true;
    }
    case CHANGE_DIMS:
        c->dims = other(random, c->dims, 4);
        return true;
    case CHANGE_LEVEL:
        c->level = 3 - c->level;
        return true;
    case CHANGE_START:
        c->start = other(random, c->start, 4);
        return true;
    case CHANGE_COUNT:
        break;
    }
    return false;
}
