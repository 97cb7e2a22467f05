//!include quant_source
//!include quant_store
// Q4_K: w = d s * q - dmin m, block of 256 {d f16, dmin f16, 12 scale bytes, 128 bytes}; f32 pairs only.
// Bytes 32 (j / 2) .. + 32 hold sub-blocks j (low nibbles, even) and j + 1 (high).
const BLOCK: u32 = 256u;
const BYTES: u32 = 144u;
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

// (scale, bias) of sub-block j = k / 32: 6-bit s and m, the upper four of each split over the 12 scale bytes
fn store_pair(group: u32, block: u32, k: u32) {
    let j = k / 32u;
    var s = byte_at(block + 4u + j % 4u);
    var m = byte_at(block + 8u + j % 4u);
    if (j < 4u) {
        s &= 63u;
        m &= 63u;
    } else {
        let low = byte_at(block + 8u + j);
        s = (low & 15u) | ((s >> 6u) << 4u);
        m = (low >> 4u) | ((m >> 6u) << 4u);
    }
    sb[2u * group] = bitcast<u32>(bitcast<f32>(half_to_float(half_at(block))) * f32(s));
    sb[2u * group + 1u] = bitcast<u32>(bitcast<f32>(half_to_float(half_at(block + 2u))) * -f32(m));
}

// codes of weights e .. e + 3 of a block
fn codes(block: u32, e: u32) -> u32 {
    return (word_at(block + 16u + e / 64u * 32u + e % 32u) >> (e / 32u % 2u * 4u)) & 0x0f0f0f0fu;
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wg: vec3u, @builtin(num_workgroups) grid: vec3u, @builtin(local_invocation_index) local: u32) {
    convert((wg.y * grid.x + wg.x) * WG + local);
}
