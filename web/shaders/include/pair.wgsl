// pair_at(i): (scale, bias) of group i of the weight whose pairs are bound as `w_sb: array<u32>`; w = q * scale + bias.
const PAIR: u32 = 0u;   // 0: f16 pair, scale in the low half; 1: bf16 pair, scale in the high half; 2: f32 pair, two words

fn pair_at(i: u32) -> vec2f {
    if (PAIR == 2u) {
        return vec2f(bitcast<f32>(w_sb[2u * i]), bitcast<f32>(w_sb[2u * i + 1u]));
    }
    let word = w_sb[i];
    if (PAIR == 1u) {
        return vec2f(bitcast<f32>(word & 0xffff0000u), bitcast<f32>(word << 16u));
    }
    return unpack2x16float(word);
}
