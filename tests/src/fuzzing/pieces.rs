//! A stream, cut into pieces as a network may cut it.

/// Cuts `stream` into pieces as long as `lengths` say, over and over; 0 stands for all that is left.
pub(super) fn pieces<'a>(stream: &'a [u8], lengths: &[u8]) -> Vec<&'a [u8]> {
    let mut rest = stream;
    let mut pieces = Vec::new();
    for &length in lengths.iter().cycle() {
        let bytes = if length == 0 { rest.len() } else { rest.len().min(length.into()) };
        let (piece, later) = rest.split_at(bytes);
        rest = later;
        if !piece.is_empty() {
            pieces.push(piece);
        }
        if rest.is_empty() {
            break;
        }
    }
    if !rest.is_empty() {
        pieces.push(rest);
    }
    pieces
}
