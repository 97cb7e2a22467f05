//!include step
//!include sampling
//!include partial_{REDUCE=tree}
//!include rng
//!include weight
//!include advance
// chosen[t] = the maximum where scale = 0; else one draw over weight_of(depth), cut by top_k, then top_p of the rest (both by
// depth, ties kept), then min_p, ids in rising order, random = philox(seed, draw). logprob of softmax(logits). Then the row
// advances. One workgroup a row. A cut is found by histograms of depth in three levels of 7 bits.
override WG: u32 = 256u;   // a multiple of 16
const LANES: u32 = 256u;   // threads that share the merging of partials: WG, or 1 (each merges all: less to compile)
const BINS: u32 = 128u;

struct Params {
    T: u32,
    V: u32,
    blocks: u32,
}
@group(0) @binding(0) var<storage, read> partials: array<Partial>;    // [T, blocks]
@group(0) @binding(1) var<storage, read> logits: array<f32>;          // [T, V], adjusted
@group(0) @binding(2) var<storage, read> sampling: array<Sampling>;   // [B]
@group(0) @binding(3) var<storage, read_write> out: array<OutRow>;    // [T]
@group(0) @binding(4) var<storage, read_write> step: array<StepRow>;  // [T]
@group(0) @binding(5) var<uniform> params: Params;

// What all threads must know of the row.
struct Job {
    can_draw: u32,
    slot: u32,
    draw: u32,
    top: f32,
}
struct Found {
    bin: u32,
    is_end: u32,   // no id of the bin lies past the cut
    left: vec2u,
}
var<workgroup> job: Job;
var<workgroup> found: Found;
var<workgroup> owner: u32;
var<workgroup> counts: array<atomic<u32>, BINS>;
var<workgroup> lows: array<atomic<u32>, BINS>;    // sums of bits 0..10, 11..21, 22..31 of the weights: none overflows
var<workgroup> middles: array<atomic<u32>, BINS>;
var<workgroup> highs: array<atomic<u32>, BINS>;
var<workgroup> sums: array<vec2u, WG>;
var<workgroup> groups: array<vec2u, 16>;

fn bin_sum(bin: u32, by_mass: bool) -> vec2u {
    if (!by_mass) {
        return vec2u(atomicLoad(&counts[bin]), 0u);
    }
    let middle = atomicLoad(&middles[bin]);
    let high = atomicLoad(&highs[bin]);
    return add64(add64(vec2u(atomicLoad(&lows[bin]), 0u), vec2u(middle << 11u, middle >> 21u)), vec2u(high << 22u, high >> 10u));
}

fn sum_of_groups() -> vec2u {
    var total = vec2u(0u);
    for (var g = 0u; g < 16u; g++) {
        total = add64(total, groups[g]);
    }
    return total;
}

// The bin in which the running sum reaches `want`.
fn find_bin(want: vec2u, by_mass: bool) -> Found {
    var left = want;
    var g = 0u;
    while (g < 15u && less64(groups[g], left)) {
        left = sub64(left, groups[g]);
        g++;
    }
    var bin = g * (BINS / 16u);
    let last = bin + BINS / 16u - 1u;
    while (bin < last && less64(bin_sum(bin, by_mass), left)) {
        left = sub64(left, bin_sum(bin, by_mass));
        bin++;
    }
    let is_end = atomicLoad(&counts[bin]) == 1u || all(bin_sum(bin, by_mass) == left);
    return Found(bin, select(0u, 1u, is_end), left);
}

// The least bound such that the ids of depth < bound number `amount`, or (by_mass) hold amount / 2^32 of the mass; among ids
// of depth < limit. Uniform.
fn cut(base: u32, vocab: u32, top: f32, scale: f32, limit: u32, by_mass: bool, amount: u32, local: u32) -> u32 {
    var prefix = 0u;
    var want = vec2u(amount, 0u);
    for (var level = 0u; level < 3u; level++) {
        let shift = 14u - 7u * level;
        for (var bin = local; bin < BINS; bin += WG) {
            atomicStore(&counts[bin], 0u);
            atomicStore(&lows[bin], 0u);
            atomicStore(&middles[bin], 0u);
            atomicStore(&highs[bin], 0u);
        }
        workgroupBarrier();
        for (var id = local; id < vocab; id += WG) {
            let depth = depth_of(logits[base + id], top, scale);
            if (depth < limit && (depth >> (shift + 7u)) == prefix) {
                let bin = (depth >> shift) & (BINS - 1u);
                atomicAdd(&counts[bin], 1u);
                if (by_mass) {
                    let weight = weight_of(depth);
                    atomicAdd(&lows[bin], weight & 0x7ffu);
                    atomicAdd(&middles[bin], (weight >> 11u) & 0x7ffu);
                    atomicAdd(&highs[bin], weight >> 22u);
                }
            }
        }
        workgroupBarrier();
        if (local < 16u) {
            var sum = vec2u(0u);
            for (var bin = local * (BINS / 16u); bin < (local + 1u) * (BINS / 16u); bin++) {
                sum = add64(sum, bin_sum(bin, by_mass));
            }
            groups[local] = sum;
        }
        workgroupBarrier();
        if (local == 0u) {
            let total = sum_of_groups();
            if (level == 0u && by_mass) {
                want = share64(total, amount);
                want.x = select(want.x, 1u, all(want == vec2u(0u)));
            }
            if (less64(total, want)) {
                found = Found(BINS - 1u, 1u, want);   // fewer ids than top_k: all stay
            } else {
                found = find_bin(want, by_mass);
            }
        }
        let f = workgroupUniformLoad(&found);
        prefix = (prefix << 7u) | f.bin;
        want = f.left;
        if (f.is_end == 1u) {
            return min(limit, (prefix + 1u) << shift);
        }
    }
    return prefix + 1u;
}

// Weight of a logit after all cuts.
fn kept(logit: f32, top: f32, scale: f32, limit: u32, least: u32) -> u32 {
    let depth = depth_of(logit, top, scale);
    let weight = weight_of(depth);
    return select(0u, weight, depth < limit && weight >= least);
}

// The id at which the running sum of kept weights passes random / 2^32 of their total. Thread 0 has it.
fn draw_id(base: u32, vocab: u32, top: f32, scale: f32, limit: u32, least: u32, random: u32, local: u32) -> u32 {
    var first = 0u;
    var end = vocab;
    var left = vec2u(0u);
    for (var level = 0u; level < 2u; level++) {
        let each = (end - first + WG - 1u) / WG;
        var sum = vec2u(0u);
        for (var id = first + local * each; id < min(end, first + (local + 1u) * each); id++) {
            sum = add64(sum, vec2u(kept(logits[base + id], top, scale, limit, least), 0u));
        }
        sums[local] = sum;
        workgroupBarrier();
        if (local < 16u) {
            var group = vec2u(0u);
            for (var i = local * (WG / 16u); i < (local + 1u) * (WG / 16u); i++) {
                group = add64(group, sums[i]);
            }
            groups[local] = group;
        }
        workgroupBarrier();
        if (local == 0u) {
            if (level == 0u) {
                left = share64(sum_of_groups(), random);
            }
            var g = 0u;
            while (g < 15u && !less64(left, groups[g])) {
                left = sub64(left, groups[g]);
                g++;
            }
            var thread = g * (WG / 16u);
            let last = thread + WG / 16u - 1u;
            while (thread < last && !less64(left, sums[thread])) {
                left = sub64(left, sums[thread]);
                thread++;
            }
            owner = thread;
        }
        first += workgroupUniformLoad(&owner) * each;
        end = min(end, first + each);
    }
    var id = first;
    if (local == 0u) {
        while (id + 1u < end) {
            let weight = vec2u(kept(logits[base + id], top, scale, limit, least), 0u);
            if (less64(left, weight)) {
                break;
            }
            left = sub64(left, weight);
            id++;
        }
    }
    return id;
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    var part = empty_part();
    for (var block = local % LANES; block < params.blocks; block += LANES) {
        part = merge(part, partials[wg.x * params.blocks + block]);
    }
    let whole = reduce_part(part, local);
    let is_bad = whole.bad > 0u || whole.id == NO_TOKEN;
    if (local == 0u) {
        let row = step[wg.x];
        job = Job(select(1u, 0u, is_bad || is_idle(row.flags)), row.slot, row.draw, whole.maximum);
    }
    let j = workgroupUniformLoad(&job);
    let base = wg.x * params.V;
    var chosen = whole.id;
    if (j.can_draw == 1u) {
        let vocab = choices(sampling[j.slot].vocab, params.V);
        let scale = sampling[j.slot].scale;
        let top_k = sampling[j.slot].top_k;
        let top_p = sampling[j.slot].top_p;
        if (scale > 0.0) {
            var limit = BOTTOM;
            for (var by_mass = 0u; by_mass < 2u; by_mass++) {   // one call: half the code to compile
                let amount = select(top_k, u32(min(top_p, 0.99999994) * 4294967296.0), by_mass == 1u);
                if (select(top_k > 0u && top_k < vocab, top_p < 1.0, by_mass == 1u)) {
                    limit = cut(base, vocab, j.top, scale, limit, by_mass == 1u, amount, local);
                }
            }
            let least = u32(sampling[j.slot].min_p * 2147483648.0);
            let random = philox(vec2u(sampling[j.slot].seed_lo, sampling[j.slot].seed_hi), vec4u(j.draw, 0u, 0u, 0u)).x;
            chosen = draw_id(base, vocab, j.top, scale, limit, least, random, local);
        }
    }
    if (local == 0u) {
        var logprob = 0.0;
        if (!is_bad) {
            logprob = logits[base + chosen] - whole.maximum - log(whole.total);
        }
        advance(wg.x, chosen, logprob, is_bad);
    }
}
