//! How much fits into a region.
//!
//! Always true: values are counted that the store has acknowledged, until it says for some seconds that it has no memory: a
//! refusal makes it look for chunks that became empty, and these wait for an epoch. Any other error ends the count as a
//! failure. What was put in for that is taken out again.

use std::time::{Duration, Instant};

use sidestep_client::{Client, Error};

use super::trouble::Trouble;

/// So large that a chunk has few of them, and what is left of chunks of other sizes is of no use.
const VALUE_BYTES: usize = 60 * 1024;

/// The server looks for empty chunks once a second, if memory is refused; this is some of those looks, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(8);

/// How many large values fit.
///
/// # Errors
/// [`Trouble`] if a put fails for another reason than that.
pub(super) fn capacity(client: &Client) -> Result<u64, Trouble> {
    let mut session = client.session().map_err(Trouble::NoLastLook)?;
    let value = vec![7; VALUE_BYTES];
    let name = |number: u64| format!("capacity {number}");
    let mut count = 0;
    let mut refused_since: Option<Instant> = None;
    loop {
        match session.put(name(count).as_bytes(), &value) {
            Ok(()) => {
                count += 1;
                refused_since = None;
            }
            Err(Error::OutOfMemory(_))
                if refused_since.get_or_insert_with(Instant::now).elapsed() < PATIENCE =>
            {
                std::thread::yield_now();
            }
            Err(Error::OutOfMemory(_)) => break,
            Err(error) => return Err(Trouble::NoLastLook(error)),
        }
    }
    for number in 0..count {
        session.delete(name(number).as_bytes()).map_err(Trouble::NoLastLook)?;
    }
    Ok(count)
}

/// Takes these keys out.
///
/// # Errors
/// [`Trouble`] if one can't be.
pub(super) fn empty<K: AsRef<[u8]>>(
    client: &Client,
    keys: impl IntoIterator<Item = K>,
) -> Result<(), Trouble> {
    let mut session = client.session().map_err(Trouble::NoLastLook)?;
    for key in keys {
        session.delete(key.as_ref()).map_err(Trouble::NoLastLook)?;
    }
    Ok(())
}
