#include "random_scenario.h"

#include "base/hash.h"

#include <stdbool.h>

struct draw {
    uint64_t state;
    struct ls_str *out;
    bool video, audio, projector, hybrid;
    uint64_t own;   /* experts: drawn apart, so that scenarios without them stay what they were */
    bool ddp;       /* in any case */
    bool experts, idle; /* a mixture of experts in every layer, and expert groups */
    unsigned blocks, layers;
};

static bool own_chance(struct draw *d, unsigned percent)
{
    return ls_random_below(&d->own, 100) < percent;
}

static bool chance(struct draw *d, unsigned percent)
{
    return ls_random_below(&d->state, 100) < percent;
}

static unsigned below(struct draw *d, unsigned n)
{
    return (unsigned)ls_random_below(&d->state, n);
}

/* Equal sizes let ops pair that should not; unequal ones make them visible. */
static unsigned width(struct draw *d)
{
    static const unsigned w[] = { 4, 4, 4, 6, 8 };
    return w[below(d, 5)];
}

static void inventory(struct draw *d)
{
    struct ls_str *o = d->out;
    d->video = chance(d, 35);
    d->audio = chance(d, 25);
    d->projector = chance(d, 60);
    d->blocks = 1 + below(d, 3);
    d->layers = 1 + below(d, 3);
    static const char *const dispatcher[] = { "torch", "torch", "deepep", "uccl_ep" };
    const char *embed = d->experts ? "embed_tokens" : "embed", *head = d->experts ? "lm_head" : "head";
    ls_str_add(o, "model:\n");
    if (d->experts) {
        d->idle = own_chance(d, 25);
        ls_str_printf(o, "  backend: {dispatcher: %s, enable_fsdp_optimizations: %s, dummy_expert_pass: %s}\n", dispatcher[ls_random_below(&d->own, 4)],
                      own_chance(d, 30) ? "true" : "false", d->idle ? "false" : "true");
    }
    ls_str_add(o, "  inventory:\n    lockstep_inventory: 1\n    name: random\n    dtype: f32\n    modules:\n      class: Random\n");
    if (chance(d, 50))
        ls_str_add(o, "      params: {scale: [4]}\n");
    ls_str_printf(o, "      children:\n        visual:\n          class: Tower\n");
    if (chance(d, 50))
        ls_str_printf(o, "          params: {pos: [%u]}\n", width(d));
    ls_str_printf(o, "          children:\n            blocks:\n              class: ModuleList\n              children:\n"
                     "                \"0..%u\": {class: Block, params: {w: [4, %u]}}\n", d->blocks - 1, width(d));
    if (d->projector)
        ls_str_printf(o, "        multi_modal_projector: {class: Linear, params: {w: [4, %u]}}\n", width(d));
    if (d->audio)
        ls_str_printf(o, "        audio_tower:\n          class: Audio\n          children:\n            layers:\n              class: ModuleList\n"
                         "              children:\n                \"0..0\": {class: Block, params: {w: [4, %u]}}\n", width(d));
    ls_str_printf(o, "        %s: {class: Embedding, params: {w: [4, %u]}}\n", embed, width(d));
    ls_str_printf(o, "        layers:\n          class: ModuleList\n          children:\n"
                     "            \"0..%u\": {class: Layer, params: {w: [4, %u], b: [4]}%s}\n", d->layers - 1, width(d),
                  d->experts ? ", children: {mlp: {class: MoE, children: {gate: {class: Gate, params: {w: [4, 4]}, buffers: {bias: [4]}}, "
                               "experts: {class: Experts, params: {up: [4, 6, 4], down: [4, 6, 2]}}}}}" : "");
    ls_str_printf(o, "        %s: {class: Linear, params: {w: [4, %u]}}\n", head, width(d));
    if (d->experts)
        ls_str_printf(o, "    moe: [{modules: \"layers.*.mlp\", count: 4, top_k: 2, gate_bias: bias, bias_update: %s}]\n", own_chance(d, 50) ? "true" : "false");
    ls_str_add(o, "    multimodal:\n      - {path: visual, modality: vision, role: tower, conditionally_executed: true}\n");
    if (d->projector)
        ls_str_add(o, "      - {path: multi_modal_projector, modality: vision, role: projector, conditionally_executed: true}\n");
    if (d->audio)
        ls_str_add(o, "      - {path: audio_tower, modality: audio, role: tower, conditionally_executed: true}\n");
    ls_str_printf(o, "    conditions: {image: {modality: vision}%s%s}\n", d->video ? ", video: {modality: vision}" : "",
                  d->audio ? ", audio: {modality: audio}" : "");
    ls_str_add(o, "    flow:\n      inputs: [ids, pixels, sound]\n      body:\n");
    ls_str_printf(o, "        - {call: %s, in: [ids], out: [h]}\n", embed);
    static const char *const media[] = { "image", "video" };
    bool whole = chance(d, 80); /* else the merge leaves the features out of the loss */
    for (unsigned m = 0; m < 1u + d->video; m++) {
        ls_str_printf(o, "        - when: %s\n          body:\n", media[m]);
        ls_str_add(o, "            - call: visual\n              in: [pixels]\n              out: [f]\n              body:\n"
                      "                - {op: stem, in: [pixels], out: [f]}\n                - each: visual.blocks\n                  body:\n"
                      "                    - {call: $, in: [f], out: [f]}\n");
        if (d->projector)
            ls_str_add(o, "            - {call: multi_modal_projector, in: [f], out: [f]}\n");
        ls_str_printf(o, "            - {op: merge, in: [h%s], out: [h]}\n", whole ? ", f" : "");
    }
    if (d->audio)
        ls_str_add(o, "        - when: audio\n          body:\n            - call: audio_tower\n              in: [sound]\n              out: [s]\n"
                      "              body:\n                - each: audio_tower.layers\n                  body:\n"
                      "                    - {call: $, in: [sound], out: [sound]}\n                - {op: pool, in: [sound], out: [s]}\n"
                      "            - {op: merge, in: [h, s], out: [h]}\n");
    if (d->experts)
        ls_str_add(o, "        - each: layers\n          body:\n            - call: $\n              in: [h]\n              out: [h]\n              body:\n"
                      "                - {op: attend, in: [h], out: [h], params: [w, b]}\n                - call: $.mlp\n                  in: [h]\n"
                      "                  out: [y]\n                  body:\n                    - {call: $.mlp.gate, in: [h], out: [g]}\n"
                      "                    - {call: $.mlp.experts, in: [h, g], out: [y]}\n                - {op: add, in: [h, y], out: [h]}\n");
    else
        ls_str_add(o, "        - each: layers\n          body:\n            - {call: $, in: [h], out: [h]}\n");
    ls_str_printf(o, "        - {call: %s, in: [h], out: [logits]}\n", head);
    ls_str_add(o, "      outputs: [logits]\n      loss: [logits]\n");
}

static void freezing(struct draw *d)
{
    static const char *const globs[] = { "visual.**", "multi_modal_projector.**", "audio_tower.**", "embed**", "layers.0.**", "layers.**" };
    static const unsigned percent[] = { 55, 40, 50, 15, 10, 5 };
    bool any = false;
    for (unsigned i = 0; i < 6; i++) {
        if ((i == 1 && !d->projector) || (i == 2 && !d->audio) || !chance(d, percent[i]))
            continue;
        ls_str_printf(d->out, "%s\"%s\"", any ? ", " : "freeze: [", globs[i]);
        any = true;
    }
    if (any)
        ls_str_add(d->out, "]\n");
}

static const char *reshard(struct draw *d)
{
    static const char *const value[] = { "none", "true", "false", "true" };
    return value[below(d, 4)];
}

/* Expert groups of two (or one of four) beside shard groups. */
static void expert_plan(struct draw *d, unsigned version)
{
    static const char *const mesh[] = { "dp_size: any\n  ep_size: 2", "dp_size: 4\n  ep_size: 2", "dp_size: 2\n  ep_size: 2",
                                        "dp_size: 4\n  ep_size: 4", "dp_size: 4\n  dp_replicate_size: 2\n  ep_size: 2",
                                        "dp_size: 4\n  dp_replicate_size: 2\n  ep_size: 4" };
    static const char *const frozen[] = { "root", "per_layer", "replicate" };
    unsigned m = (unsigned)ls_random_below(&d->own, 6);
    d->hybrid = m >= 4;
    ls_str_printf(d->out, "distributed:\n  strategy: fsdp2\n  rules: automodel\n  %s\n  multimodal: {frozen_sharding: %s}\n"
                          "  moe: {reshard_after_forward: %s}\n  activation_checkpointing: %s\n",
                  mesh[m], frozen[ls_random_below(&d->own, 3)], own_chance(d, 40) ? "true" : "false", own_chance(d, 20) ? "true" : "false");
    ls_str_printf(d->out, "runtime:\n  automodel: \"%s\"\n  fsdp2: {version: \"%u.%u\", unused_params: off, lazy_state_guard: true}\n",
                  own_chance(d, 50) ? "0.7" : "0.6", version / 100, version % 100);
}

static void plan(struct draw *d, unsigned version)
{
    struct ls_str *o = d->out;
    if (d->experts) {
        expert_plan(d, version);
        return;
    }
    d->hybrid = chance(d, 25) && !d->ddp;
    if (!d->hybrid && (chance(d, 15) || d->ddp)) { /* buckets of a few parameters */
        ls_str_printf(o, "distributed:\n  strategy: ddp\n  dp_size: any\n  ddp: {bucket_cap_mb: %s, find_unused_parameters: %s, static_graph: %s}\n",
                      chance(d, 50) ? "0.0002" : "25", chance(d, 60) ? "true" : "false", chance(d, 15) ? "true" : "false");
        return;
    }
    ls_str_add(o, "distributed:\n  strategy: fsdp2\n  dp_size: any\n");
    if (d->hybrid)
        ls_str_add(o, "  dp_replicate_size: any\n");
    static const char *const unused[] = { "off", "off", "off", "fallback", "native" };
    const char *u = unused[below(d, version >= 213 ? 5 : 4)];
    if (chance(d, 50)) { /* a policy */
        static const char *const frozen[] = { "root", "per_layer", "replicate" };
        ls_str_printf(o, "  rules: automodel\n  multimodal: {frozen_sharding: %s}\n", frozen[below(d, 3)]);
        if (chance(d, 30))
            ls_str_printf(o, "  reshard_after_forward: %s\n", chance(d, 50) ? "true" : "false");
    } else {
        ls_str_add(o, "units:\n");
        if (chance(d, 60))
            ls_str_printf(o, "  - {modules: [\"visual.blocks.*\"], reshard: %s}\n", reshard(d));
        if (chance(d, 20))
            ls_str_printf(o, "  - {modules: [visual], reshard: %s}\n", reshard(d));
        if (d->projector && chance(d, 30))
            ls_str_printf(o, "  - {modules: [multi_modal_projector], reshard: %s}\n", reshard(d));
        if (d->audio && chance(d, 50))
            ls_str_printf(o, "  - {modules: [audio_tower], reshard: %s}\n", reshard(d));
        if (chance(d, 20))
            ls_str_printf(o, "  - {modules: [embed], reshard: %s}\n", reshard(d));
        ls_str_printf(o, "  - {modules: [\"layers.*\"], reshard: %s}\n", reshard(d));
        ls_str_printf(o, "  - {modules: [\"\"]%s}\n", chance(d, 20) ? ", ignored: [\"visual.**\"]" : "");
    }
    ls_str_printf(o, "runtime:\n  fsdp2: {version: \"%u.%u\", unused_params: %s, lazy_state_guard: true, uniform_reduce_dtype: true%s}\n",
                  version / 100, version % 100, u, version >= 213 && chance(d, 15) ? ", separate_reduce_scatter_group: true" : "");
}

static const char *agree(struct draw *d)
{
    return chance(d, 60) ? "all_reduce" : "none";
}

/* What is around forward and backward, agreed more often than not: few of the others are safe. */
static void loops(struct draw *d, unsigned microbatches)
{
    struct ls_str *o = d->out;
    bool eval = chance(d, 30), save = chance(d, 25), end_eval = chance(d, 20), end_save = chance(d, 15), text = chance(d, 50);
    if (eval || save)
        ls_str_printf(o, "  schedule: [%smicro, step%s%s]\n", microbatches == 2 ? "micro, " : "", eval ? ", eval" : "", save ? ", save" : "");
    ls_str_printf(o, "step:\n  clip_grad_norm: %s\n", chance(d, 60) ? "true" : "false");
    if (chance(d, 60))
        ls_str_printf(o, "  metrics: [loss%s%s]\n", chance(d, 20) ? ", {name: acc, when: image}" : "", chance(d, 15) ? ", {name: rare, when: any}" : "");
    if (chance(d, 40))
        ls_str_add(o, "  metric_names: agreed\n");
    if (chance(d, 30))
        ls_str_add(o, "  token_counts: [label tokens]\n");
    if (chance(d, 25))
        ls_str_printf(o, "  forward_reduce: [{name: positives, when: %s}]\n", chance(d, 60) ? "always" : chance(d, 50) ? "any" : "image");
    if (chance(d, 25))
        ls_str_printf(o, "  grad_scaler: %s\n", chance(d, 60) ? "sharded" : "local");
    if (chance(d, 25))
        ls_str_printf(o, "  non_finite: {action: %s, agree: %s}\n", chance(d, 60) ? "skip_microbatch" : "raise", agree(d));
    if (!text && !eval && !save && !end_eval && !end_save)
        return;
    ls_str_add(o, "loop:\n  data: {ends: together}\n");
    if (microbatches != 1 && chance(d, 30))
        ls_str_printf(o, "  microbatches: {counts: own, agree: %s}\n", agree(d));
    if (chance(d, 25))
        ls_str_printf(o, "  early_stop: {agree: %s}\n", agree(d));
    if (eval || end_eval)
        ls_str_printf(o, "  validation: {batches: %s, agree: %s, ranks: %s%s}\n", chance(d, 50) ? "own" : "equal", agree(d),
                      chance(d, 85) ? "all" : "main", chance(d, 50) ? ", metrics: [val]" : "");
    if (save || end_save) {
        bool own = chance(d, 40);
        ls_str_printf(o, "  save: {state: %s, ranks: %s%s}\n", chance(d, 50) ? "full" : "sharded", own ? "own" : chance(d, 80) ? "all" : "main",
                      own && chance(d, 70) ? ", agree: all_reduce" : "");
    }
    if (end_eval || end_save)
        ls_str_printf(o, "  after: [%s%s%s]\n", end_eval ? "eval" : "", end_eval && end_save ? ", " : "", end_save ? "save" : "");
}

static void batch(struct draw *d)
{
    struct ls_str *o = d->out;
    unsigned microbatches = below(d, 3);
    ls_str_printf(o, "batch:\n  microbatches: ");
    if (microbatches == 0)
        ls_str_add(o, "any\n");
    else
        ls_str_printf(o, "%u\n", microbatches);
    ls_str_add(o, "  steps: any\n  samples:\n    - {text: 8}\n    - {text: 8, images: 1}\n");
    if (d->idle)
        ls_str_add(o, "    - {text: 8, experts: idle}\n");
    if (d->video && chance(d, 60))
        ls_str_add(o, chance(d, 50) ? "    - {text: 8, images: 1, videos: 1}\n" : "    - {text: 8, videos: 1}\n");
    if (d->audio)
        ls_str_add(o, chance(d, 50) ? "    - {text: 8, audios: 1}\n" : "    - {text: 8, images: 1, audios: 1}\n");
    static const char *const contract[] = { "any", "any", "any", "rank_uniform", "{uniform: [vision]}", "node_uniform" };
    ls_str_printf(o, "  execution: %s\n", contract[below(d, d->hybrid ? 6 : 5)]);
    if (chance(d, 35))
        ls_str_printf(o, "  dummy_forward: {vision: {covers: [tower%s], linked: %s}}\n", d->projector && chance(d, 75) ? ", projector" : "",
                      chance(d, 75) ? "true" : "false");
    if (chance(d, 45)) {
        ls_str_printf(o, "  accumulation: {gradient_sync: %s", chance(d, 70) ? "last" : "true");
        if (chance(d, 20))
            ls_str_add(o, ", reshard_after_backward: last");
        if (chance(d, 20))
            ls_str_add(o, ", all_reduce: last");
        if (chance(d, 15))
            ls_str_add(o, ", is_last_backward: last");
        ls_str_add(o, "}\n");
    }
    if (microbatches == 1 && chance(d, 20))
        ls_str_add(o, "  schedule: [eval, micro, step]\n");
    else if (chance(d, 45)) {
        loops(d, microbatches);
        return;
    }
    if (chance(d, 40))
        ls_str_add(o, "step: {clip_grad_norm: true, metrics: [loss]}\n");
}

static void scenario(uint64_t seed, bool ddp, struct ls_str *out)
{
    struct draw d = { .state = seed * 0x9e3779b97f4a7c15u + 1, .out = out, .ddp = ddp };
    d.own = ls_hash_mix(seed, 0x65706570);
    d.experts = ls_random_below(&d.own, 5) == 0 && !ddp;
    static const unsigned version[] = { 212, 212, 215, 211 };
    unsigned v = version[below(&d, 4)];
    ls_str_printf(out, "lockstep: 1\nname: random-%llu\n", (unsigned long long)seed);
    inventory(&d);
    freezing(&d);
    plan(&d, v);
    batch(&d);
}

void random_scenario(uint64_t seed, struct ls_str *out)
{
    scenario(seed, false, out);
}

void random_scenario_ddp(uint64_t seed, struct ls_str *out)
{
    scenario(seed, true, out);
}
