#include "check/unroll.h"


/* Breadth first over driver nodes; *path gets the nodes played, in order. False: no stop can be reached. */
static bool shortest_run(const struct ls_driver *d, struct ls_arena *arena, uint32_t **path, size_t *length)
{
    uint32_t *from = LS_NEW(arena, uint32_t, d->nodes), *queue = LS_NEW(arena, uint32_t, d->nodes);
    bool *seen = LS_NEW(arena, bool, d->nodes);
    size_t head = 0, tail = 0;
    uint32_t last = LS_NO_ID;
    queue[tail++] = 0;
    seen[0] = true;
    from[0] = LS_NO_ID;
    while (head < tail && last == LS_NO_ID) {
        uint32_t at = queue[head++];
        if (!d->node[at].nexts) {
            last = at;
            break;
        }
        for (size_t i = 0; i < d->node[at].nexts && last == LS_NO_ID; i++) {
            uint32_t next = d->node[at].next[i];
            if (d->node[next].may_stop)
                last = at;
            if (!seen[next]) {
                seen[next] = true;
                from[next] = at;
                queue[tail++] = next;
            }
        }
    }
    if (last == LS_NO_ID)
        return false;
    *length = 0;
    for (uint32_t at = last; at != LS_NO_ID; at = from[at])
        ++*length;
    *path = LS_NEW(arena, uint32_t, *length);
    size_t i = *length;
    for (uint32_t at = last; at != LS_NO_ID; at = from[at])
        (*path)[--i] = at;
    return true;
}

struct place { uint32_t step, state; };

enum ls_code ls_family_of_system(const struct ls_system *s, const size_t size[LS_FREE_DIMS], struct ls_arena *arena,
                                 struct ls_family *out, struct ls_error *err)
{
    const struct ls_contract *c = &s->contract;
    bool table = c->extra == LS_CONTRACT_TABLE;
    bool one_class = true; /* at level 0 everything is open */
    for (size_t l = 0; c->levels && l < s->replica->letters; l++)
        one_class &= c->class_of[0] && c->class_of[0][l] == c->class_of[0][0];
    if (!table && (c->extra != LS_CONTRACT_FREE || c->levels != 2 || !one_class))
        return ls_fail(err, LS_EINPUT, c->at, "'execution: %s' is no free choice of every replica: such a family cannot be unrolled", c->name);
    if (s->replica->roles != 1)
        return ls_fail(err, LS_EINPUT, c->at, "replicas of several ranks cannot be unrolled");
    uint32_t *path;
    size_t rounds;
    if (!shortest_run(&s->driver, arena, &path, &rounds))
        return ls_fail(err, LS_EINPUT, c->at, "the schedule never reaches a point where the job may stop");
    size_t ranks = size[0] * size[1];
    struct ls_family_rank *rank = LS_NEW(arena, struct ls_family_rank, ranks);
    enum ls_code rc = LS_OK;
    for (size_t x = 0; x < (table ? ranks : 1) && rc == LS_OK; x++) {
        LS_VEC(struct place) places = { 0 };
        LS_VEC(struct ls_choices) nodes = { 0 };
        ls_push(&places, (struct place){ 0, s->replica->start });
        for (size_t n = 0; n < places.count && rc == LS_OK; n++) {
            struct place at = places.at[n];
            struct ls_choices choices = { 0 };
            if (at.step < rounds) {
                const struct ls_driver_node *node = &s->driver.node[path[at.step]];
                struct ls_choice *choice = LS_NEW(arena, struct ls_choice, s->replica->letters);
                for (uint32_t letter = 0; letter < s->replica->letters && rc == LS_OK; letter++) {
                    if (table ? letter != c->table[at.step * c->columns + x] : node->allowed && !(node->allowed[letter / 64] >> letter % 64 & 1))
                        continue;
                    struct ls_step step;
                    rc = s->replica->step(s->replica, at.state, node->round, letter, &step, err);
                    if (rc != LS_OK)
                        break;
                    uint32_t next = 0;
                    while (next < places.count && (places.at[next].step != at.step + 1 || places.at[next].state != step.next))
                        next++;
                    if (next == places.count)
                        ls_push(&places, (struct place){ at.step + 1, step.next });
                    choice[choices.count++] = (struct ls_choice){ .segment = step.role[0], .next = next, .letter = letter };
                }
                choices.choice = choice;
            }
            ls_push(&nodes, choices);
        }
        if (rc == LS_OK)
            rank[x] = (struct ls_family_rank){ ls_arena_copy(arena, nodes.at, nodes.count * sizeof *nodes.at), nodes.count };
        ls_vec_release(&places);
        ls_vec_release(&nodes);
    }
    for (size_t x = 1; x < ranks && !table; x++)
        rank[x] = rank[0];
    struct ls_groups *comm = LS_NEW(arena, struct ls_groups, s->replica->tables->comm.count);
    for (uint32_t i = 0; i < s->replica->tables->comm.count; i++)
        ls_system_groups(s, i, size, arena, &comm[i]);
    *out = (struct ls_family){ .tables = s->replica->tables, .ranks = ranks, .rank = rank, .comm = comm };
    return rc;
}
