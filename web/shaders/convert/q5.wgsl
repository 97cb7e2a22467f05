//!include quant_source
//!include quant_store
// Q5_0: w = d * (q - 16), block {d f16, qh u32, 16 bytes}; Q5_1: w = d * q + m, block {d, m, qh, 16 bytes}. Byte j holds the low
// four bits of weights j and j + 16, bit j of qh the fifth bit of weight j.
const MIN: u32 = 0u;     // 1: the block has m (Q5_1)
const BLOCK: u32 = 32u;
const BYTES: u32 = 22u + 2u * MIN;
override WG: u32 = 64u;

struct Params {
    src: u32,       // byte offset of the first block in the staging buffer
    rows: u32,
    columns: u32,
    dst_row: u32,   // destination row of row 0 of the tensor
    first: u32,     // row of the tensor that stands at src
    head_dim: u32,  // 0: rows keep their order
}
@group(0) @binding(0) var<storage, read> src: array<u32>;
@group(0) @binding(1) var<storage, read_write> q: array<u32>;   // [dst rows, columns * BITS / 32]
@group(0) @binding(2) var<storage, read_write> sb: array<u32>;  // [dst rows, columns / GROUP], f32 pairs two words each
@group(0) @binding(3) var<uniform> params: Params;

fn store_pair(group: u32, block: u32, k: u32) {
    let d = half_at(block);
    if (MIN == 1u) {
        store_half_pair(group, d, half_at(block + 2u));
    } else {
        store_centred_pair(group, d, 4u);
    }
}

// codes of weights e .. e + 3 of a block
fn codes(block: u32, e: u32) -> u32 {
    let low = (word_at(block + 6u + 2u * MIN + e % 16u) >> (e / 16u * 4u)) & 0x0f0f0f0fu;
    let high = word_at(block + 2u + 2u * MIN) >> e;
    return low | ((high & 1u) << 4u) | ((high & 2u) << 11u) | ((high & 4u) << 18u) | ((high & 8u) << 25u);
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wg: vec3u, @builtin(num_workgroups) grid: vec3u, @builtin(local_invocation_index) local: u32) {
    convert((wg.y * grid.x + wg.x) * WG + local);
}
