//!include step
//!include sampling
//!include partial_{REDUCE=tree}
//!include advance
// chosen[t] = lowest id of the greatest logit of row t, logprob = -log(sum exp(logit - max)); then the row advances.
// One workgroup a row.
override WG: u32 = 64u;
const LANES: u32 = 64u;   // threads that share a row: the whole workgroup

struct Params {
    T: u32,
    blocks: u32,
}
@group(0) @binding(0) var<storage, read> partials: array<Partial>;    // [T, blocks]
@group(0) @binding(1) var<storage, read> sampling: array<Sampling>;   // [B]
@group(0) @binding(2) var<storage, read_write> out: array<OutRow>;    // [T]
@group(0) @binding(3) var<storage, read_write> step: array<StepRow>;  // [T]
@group(0) @binding(4) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    var part = empty_part();
    for (var block = local; block < params.blocks; block += LANES) {
        part = merge(part, partials[wg.x * params.blocks + block]);
    }
    let whole = reduce_part(part, local);
    if (local == 0u) {
        advance(wg.x, whole.id, -log(whole.total), whole.bad > 0u || whole.id == NO_TOKEN);
    }
}
