//! Files of chunks that tests/python makes for tests here.

/// Splits fields, each a length and its bytes.
pub fn fields(bytes: &[u8]) -> Vec<&[u8]> {
    let (mut rest, mut fields) = (bytes, Vec::new());
    while let Some((len, tail)) = rest.split_first_chunk::<4>() {
        let (field, tail) = tail.split_at(u32::from_le_bytes(*len) as usize);
        fields.push(field);
        rest = tail;
    }
    fields
}
