//!include step
//!include sampling
// logits[t, id] = ABSENT where masked; else p(logits[t, id] + bias[id]), p(v) = v > 0 ? v / penalty : v * penalty
// for ids among the last `window` of history[slot, 0 .. position] (once an id) and p(v) = v for the others.
// In place. A workgroup owns RANGE ids of one row and marks those that it has seen in bits, so that an id has one writer.
override WG: u32 = 256u;
const ROWS: u32 = 1u;
const RANGE: u32 = 4096u;
const WORDS: u32 = 128u;      // RANGE / 32
const MAX_BIAS: u32 = 64u;

struct Params {
    T: u32,
    V: u32,
    context: u32,
}
@group(0) @binding(0) var<storage, read> history: array<u32>;        // [B, context]
@group(0) @binding(1) var<storage, read> sampling: array<Sampling>;  // [B]
@group(0) @binding(2) var<storage, read> mask: array<u32>;           // [B, ceil(V / 32)]; bit set: allowed
@group(0) @binding(3) var<storage, read> bias: array<u32>;           // [B, MAX_BIAS, 2]; id, f32 bits
@group(0) @binding(4) var<storage, read_write> logits: array<f32>;   // [T, V]
@group(0) @binding(5) var<uniform> step: array<StepRow, ROWS>;
@group(0) @binding(6) var<uniform> params: Params;

var<workgroup> seen: array<atomic<u32>, WORDS>;
var<workgroup> biased: array<atomic<u32>, WORDS>;

// The lowest `count` bits (all where count >= 32).
fn low_bits(count: u32) -> u32 {
    return select((1u << (count & 31u)) - 1u, 0xffffffffu, count >= 32u);
}

fn penalised(logit: f32, slot: u32) -> f32 {
    return logit * select(sampling[slot].penalty, sampling[slot].inverse_penalty, logit > 0.0);
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    let row = step[wg.y];
    let slot = row.slot;
    let has_mask = (sampling[slot].flags & HAS_MASK) != 0u;
    let has_penalty = sampling[slot].penalty != 1.0;
    let pairs = min(sampling[slot].n_bias, MAX_BIAS);
    if (is_idle(row.flags) || (!has_mask && !has_penalty && pairs == 0u)) {
        return;
    }
    let first = wg.x * RANGE;
    for (var word = local; word < WORDS; word += WG) {
        atomicStore(&seen[word], 0u);
        atomicStore(&biased[word], 0u);
    }
    workgroupBarrier();
    if (has_penalty) {
        let known = min(row.position + 1u, params.context);
        let oldest = select(0u, known - min(known, sampling[slot].window), sampling[slot].window > 0u);
        for (var i = oldest + local; i < known; i += WG) {
            let at = history[slot * params.context + i] - first;
            if (at < RANGE) {
                atomicOr(&seen[at / 32u], 1u << (at % 32u));
            }
        }
    }
    for (var j = local; j < pairs; j += WG) {
        let at = bias[(slot * MAX_BIAS + j) * 2u] - first;
        if (at < RANGE) {
            atomicOr(&biased[at / 32u], 1u << (at % 32u));
        }
    }
    workgroupBarrier();
    let base = wg.y * params.V;
    let mask_base = slot * ((params.V + 31u) / 32u);
    for (var j = local; j < pairs; j += WG) {
        let id = bias[(slot * MAX_BIAS + j) * 2u];
        let at = id - first;
        if (at < RANGE && id < params.V && (!has_mask || ((mask[mask_base + id / 32u] >> (id % 32u)) & 1u) == 1u)) {
            let logit = logits[base + id] + bitcast<f32>(bias[(slot * MAX_BIAS + j) * 2u + 1u]);
            let is_seen = ((atomicLoad(&seen[at / 32u]) >> (at % 32u)) & 1u) == 1u;
            logits[base + id] = select(logit, penalised(logit, slot), is_seen);
        }
    }
    for (var word = local; word < WORDS; word += WG) {
        let id = first + word * 32u;
        if (id >= params.V) {
            break;
        }
        let there = low_bits(params.V - id);
        var open = there;
        if (has_mask) {
            open &= mask[mask_base + id / 32u];
        }
        let shut = there & ~open;
        var work = shut | (atomicLoad(&seen[word]) & ~atomicLoad(&biased[word]) & open);
        while (work != 0u) {
            let bit = countTrailingZeros(work);
            work &= work - 1u;
            let at = base + id + bit;
            logits[at] = select(penalised(logits[at], slot), ABSENT, ((shut >> bit) & 1u) == 1u);
        }
    }
}
