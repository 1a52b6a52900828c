//! Control messages of both sides: whatever the bytes, an error or a message; and what decodes encodes to something
//! that decodes to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_common::wire::{Preamble, Request, Response, decode, encode, read_frame};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = decode::<Request>(bytes) {
        let again = encode(&request).expect("a message that came in a frame fits a frame");
        assert_eq!(decode::<Request>(&again).expect("what we encode, we decode"), request);
    }
    if let Ok(response) = decode::<Response>(bytes) {
        let again = encode(&response).expect("a message that came in a frame fits a frame");
        assert_eq!(decode::<Response>(&again).expect("what we encode, we decode"), response);
    }
    let _ = read_frame::<Request>(&mut &*bytes);
    let _ = read_frame::<Response>(&mut &*bytes);
    if let Some(first) = bytes.first_chunk() {
        let _ = Preamble::parse(*first);
    }
});
