//! Frames of the `tcp` fabric, both sides: whatever the bytes, an error or a frame whose every part is inside it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_common::fabric::tcp::frame::{FrameHeader, ReplyHeader, RequestFrame};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some(reply)) = ReplyHeader::parse(bytes) {
        assert_eq!(ReplyHeader::parse(&reply.encode()).expect("what we encode, we parse"), Some(reply));
    }
    let Ok(Some(header)) = FrameHeader::parse(bytes) else { return };
    if header.bytes > bytes.len() {
        return;
    }
    let Ok(frame) = RequestFrame::parse(header, bytes) else { return };
    let verbs: usize = (0..header.batch_count).map(|index| frame.batch(index).verb_count).sum();
    assert_eq!(verbs, header.verb_count);
    for index in 0..verbs {
        let _ = frame.verb(index);
    }
});
