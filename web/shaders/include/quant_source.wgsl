// Reads of the staging buffer `src: array<u32>` at any byte offset (file blocks of 18, 22, 34 or 210 bytes keep no alignment),
// and where a source row goes. Half-precision numbers are decoded by integers: a subnormal must not be flushed.

fn word_at(at: u32) -> u32 {
    let shift = (at & 3u) * 8u;
    let low = src[at >> 2u];
    if (shift == 0u) {
        return low;
    }
    return (low >> shift) | (src[(at >> 2u) + 1u] << (32u - shift));
}

fn byte_at(at: u32) -> u32 {
    return (src[at >> 2u] >> ((at & 3u) * 8u)) & 0xffu;
}

fn half_at(at: u32) -> u32 {
    return byte_at(at) | (byte_at(at + 1u) << 8u);
}

// bits of the f32 that equals an f16
fn half_to_float(bits: u32) -> u32 {
    let sign = (bits & 0x8000u) << 16u;
    let exponent = (bits >> 10u) & 31u;
    let mantissa = bits & 0x3ffu;
    if (exponent == 31u) {
        return sign | 0x7f800000u | (mantissa << 13u);
    }
    if (exponent != 0u) {
        return sign | ((exponent + 112u) << 23u) | (mantissa << 13u);
    }
    if (mantissa == 0u) {
        return sign;
    }
    let top = firstLeadingBit(mantissa);
    return sign | ((top + 103u) << 23u) | ((mantissa << (23u - top)) & 0x7fffffu);
}

// Row of the destination for row r of this dispatch. head_dim > 0: rows of a head lie as [D/2, 2] in the file, go to [2, D/2].
fn target_row(r: u32) -> u32 {
    let row = params.first + r;
    if (params.head_dim == 0u) {
        return params.dst_row + row;
    }
    let i = row % max(params.head_dim, 1u);   // never 0 here, but baked params show the compiler a 0
    return params.dst_row + row - i + (i % 2u) * (params.head_dim / 2u) + i / 2u;
}
