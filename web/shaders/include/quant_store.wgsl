// Converts one group of GROUP weights to the canonical layout. The file that includes this says BLOCK (weights) and BYTES of its
// blocks, codes(block, e): weights e .. e + 3 of the block at byte `block`, an unsigned byte each, and store_pair(group, block, e).
const BITS: u32 = 4u;    // 4: eight codes a word, low nibble first; 8: four, low byte first
const GROUP: u32 = 32u;  // weights that share a pair; may be less than the source's own
const PAIR: u32 = 0u;    // 0: f16 pair, 2: f32 pair

fn nibbles(bytes: u32) -> u32 {
    let two = (bytes | (bytes >> 4u)) & 0x00ff00ffu;
    return (two | (two >> 8u)) & 0xffffu;
}

// scale and bias are f16 bits
fn store_half_pair(group: u32, scale: u32, bias: u32) {
    if (PAIR == 0u) {
        sb[group] = scale | (bias << 16u);
    } else {
        sb[2u * group] = half_to_float(scale);
        sb[2u * group + 1u] = half_to_float(bias);
    }
}

// -bits * 2^k as f16 bits, exact; infinite past f16's range
fn minus_scaled_half(bits: u32, k: u32) -> u32 {
    let sign = (bits & 0x8000u) ^ 0x8000u;
    let exponent = (bits >> 10u) & 31u;
    let mantissa = bits & 0x3ffu;
    if (exponent == 31u) {
        return sign | (bits & 0x7fffu);
    }
    if (exponent != 0u) {
        return sign | select(((exponent + k) << 10u) | mantissa, 0x7c00u, exponent + k > 30u);
    }
    let units = mantissa << k;
    if (units < 0x400u) {
        return sign | units;
    }
    let up = firstLeadingBit(units) - 10u;
    return sign | ((up << 10u) + (units >> up));
}

// (scale, bias) = (d, -2^k d); with an f32 pair nothing overflows
fn store_centred_pair(group: u32, d: u32, k: u32) {
    if (PAIR == 0u) {
        sb[group] = d | (minus_scaled_half(d, k) << 16u);
    } else {
        sb[2u * group] = half_to_float(d);
        sb[2u * group + 1u] = bitcast<u32>(bitcast<f32>(half_to_float(d)) * -f32(1u << k));
    }
}

fn convert(unit: u32) {
    let groups = params.columns / GROUP;
    if (unit >= params.rows * groups) {
        return;
    }
    let row = unit / groups;
    let k = unit % groups * GROUP;
    let block = params.src + (row * (params.columns / BLOCK) + k / BLOCK) * BYTES;
    let group = target_row(row) * groups + k / GROUP;
    store_pair(group, block, k % BLOCK);
    for (var i = 0u; i < GROUP; i += 8u) {
        let low = codes(block, k % BLOCK + i);
        let high = codes(block, k % BLOCK + i + 4u);
        let at = (group * GROUP + i) / 4u;
        if (BITS == 4u) {
            q[at / 2u] = nibbles(low) | (nibbles(high) << 16u);
        } else {
            q[at] = low;
            q[at + 1u] = high;
        }
    }
}
